"""Runs of two ranks, each a real process, that are killed or fail: both go on as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ddp_run
import pytest
import torch
from ddp_run import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

pytestmark = pytest.mark.slow

SOON = 8  # seconds; far below the time-out of the process group
LONG = 60
EXACT = {"dropout": False}  # ranks that were not asked do not know their generators, so that nothing may use them

PLAIN = {"dropout": False, "norm": False}  # a step depends on nothing but the mean over all of its samples


@dataclass
class Rank:
    """What a rank wrote down."""

    lines: list[list[Any]]

    def of(self, *kinds: str) -> list[list[Any]]:
        return [line for line in self.lines if line[0] in kinds]

    @property
    def events(self) -> list[list[Any]]:
        return self.of("train", "validation", "epoch end")

    @property
    def trained(self) -> list[list[Any]]:
        return self.of("train")

    @property
    def end(self) -> dict[str, Any]:
        ends = self.of("end")
        assert ends, f"the run did not come to its end: {self.lines[-1:]}"
        end: dict[str, Any] = ends[0][1]
        return end

    @property
    def warnings(self) -> list[str]:
        return [text for _, _, text in self.of("warning")]


class Running:
    """A run that was started."""

    def __init__(self, ask: Callable[..., Any], log: Path, options: dict[str, Any]) -> None:
        self._ask, self._log, self._world = ask, log, options.get("world", 2)
        ask("start", log=str(log), **options)

    def rank(self, number: int) -> Rank:
        path = Path(f"{self._log}-{number}")
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return Rank([json.loads(line) for line in lines if line.endswith("\n")])

    def ranks(self) -> list[Rank]:
        """Wait for the end."""
        ended = self._ask("wait", seconds=LONG)
        if not ended:
            self.kill()
        assert ended, "the run hangs"
        return [self.rank(number) for number in range(self._world)]

    def wait_for(self, happened: Callable[[], Any], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, "a rank waits for another one"
            ended = self._ask("wait", seconds=0.01)
            assert not ended or happened(), "the run came to an end"

    def kill(self, *ranks: int) -> None:
        for rank in ranks or range(self._world):
            self._ask("kill", rank=rank)


class Bench:
    """Runs, and those that were not interrupted only once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._whole: dict[str, list[Rank]] = {}
        self._server = subprocess.Popen(
            [sys.executable, ddp_run.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, request: str, **arguments: Any) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([request, arguments]) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(self, **options: Any) -> Running:
        self._count += 1
        log = self._folder / f"run{self._count}"
        return Running(self.ask, log, {"checkpoints": f"{log}-checkpoints", **options})

    def run(self, **options: Any) -> list[Rank]:
        return self.start(**options).ranks()

    def whole(self, **options: Any) -> list[Rank]:
        name = json.dumps(options, sort_keys=True)
        if name not in self._whole:
            self._whole[name] = self.run(**options, every=None)
        return self._whole[name]

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(LONG)
        assert self._server.stdout is not None
        self._server.stdout.close()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("ranks"))
    yield bench
    bench.close()


def check_rest(whole: list[Rank], rest: list[Rank], *, trained: int, unasked: bool | None = False) -> None:
    """Each rank did what it did in the uninterrupted run, from the checkpoint to the end of all epochs.

    Args:
        whole: the uninterrupted run.
        rest: the resumed run.
        trained: batches that are in the checkpoint's weights.
        unasked: rank 0 heard of no other rank when it saved the checkpoint; None where it may have.
    """
    for number, (before, now) in enumerate(zip(whole, rest, strict=True)):
        assert now.end == before.end, number
        assert now.events == before.events[-len(now.events) :], number
        assert len(now.trained) == len(before.trained) - trained, number
        assert unasked is None or bool(now.warnings) == (unasked and number > 0), now.warnings
        assert all(f"without the current RNG state of rank {number}." in text for text in now.warnings)


def check_shares(ranks: list[Rank], *, repeated: int = 0) -> None:
    """In each epoch, the ranks train together on every sample once."""
    for epoch in range(3):
        ids = [one for rank in ranks for _, number, _, _, batch, _ in rank.trained if number == epoch for one in batch]
        assert len(ids) == len(set(ids)) + repeated
        assert sorted(set(ids)) == list(range(len(ids) - repeated))


# ---------------------------------------------------------------------- regular saves and SIGKILL


def sampled(rows: Iterable[Any], *kept: Any) -> list[Any]:
    """Leave all but a sample of a grid to `make test-long`."""
    return [row if row in kept else pytest.param(*_cells(row), marks=pytest.mark.long) for row in rows]


def _cells(row: Any) -> tuple[Any, ...]:
    return row if isinstance(row, tuple) else (row,)


@pytest.mark.parametrize(
    "loader", sampled(ddp_run.LOADERS, "indexed", "chain", "workers", "ragged", "replayed", "function", "plain")
)
def test_a_killed_run_goes_on_exactly_on_every_rank(loader: str, bench: Bench, tmp_path: Path) -> None:
    options = {"loader": loader, "norm": loader != "ragged"}  # no normalisation takes a batch of one sample
    whole = bench.whole(**options)
    killed = bench.run(**options, checkpoints=str(tmp_path), die_at=9)
    assert not any(rank.of("end") for rank in killed)
    check_rest(whole, bench.run(**options, checkpoints=str(tmp_path), resume="last"), trained=8)
    check_rest(whole, bench.run(**options, resume=str(tmp_path / "step=6.ckpt")), trained=6)  # the end of an epoch


@pytest.mark.parametrize("reload", [pytest.param(1, marks=pytest.mark.long), 2])
def test_epoch_loaders_agree_on_ranks(reload: int, bench: Bench, tmp_path: Path) -> None:
    """Loaders that depend on the epoch are the same on every rank."""
    whole = bench.whole(reload=reload)
    for rank in whole:  # the number of the first sample: 100 by epoch, and one by step
        made = [(min(ids) + 50) // 100 for _, _, _, _, ids, _ in rank.trained]
        assert made == [epoch // reload * reload for epoch in range(3) for _ in range(6)]
    bench.run(reload=reload, checkpoints=str(tmp_path), every=1, die_at=9)
    for step in (6, 8):
        check_rest(whole, bench.run(reload=reload, resume=str(tmp_path / f"step={step}.ckpt")), trained=step)


@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.long), 4, 6])  # the first epoch has 4
def test_streams_of_their_own_end_with_the_shortest(step: int, bench: Bench, tmp_path: Path) -> None:
    """Rank 0 has two batches more: it would wait for rank 1 in its next step, for as long as the process group does."""
    options = {"loader": "uneven", **EXACT}
    whole = bench.whole(**options)
    assert [len(rank.trained) for rank in whole] == [3 * 4] * 2
    bench.run(**options, every=1, checkpoints=str(tmp_path), die_at=step + 1)
    check_rest(whole, bench.run(**options, resume=str(tmp_path / f"step={step}.ckpt")), trained=step)


def test_ranks_have_generators_of_their_own_in_a_checkpoint(bench: Bench, tmp_path: Path) -> None:
    whole = bench.whole(loader="indexed")
    assert whole[0].end["draws"] != whole[1].end["draws"]
    bench.run(checkpoints=str(tmp_path), die_at=5)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]["ResumableCallback"]
    one, other = (rank["generators"] for rank in saved["ranks"])
    assert not torch.equal(one["torch"], other["torch"])
    assert one["python"] != other["python"]


@pytest.mark.parametrize(
    ("loader", "repeated"), [("indexed", 0), ("function", 0), ("replayed", 0), ("batches", 0), ("plain", 1)]
)
def test_the_ranks_train_on_every_sample_once_per_epoch(loader: str, repeated: int, bench: Bench) -> None:
    whole = bench.whole(loader=loader)
    check_shares(whole, repeated=repeated)
    assert [len(rank.trained) for rank in whole] == [3 * SAMPLES // 4] * 2
    assert not any(rank.warnings for rank in whole)


def test_accumulated_batches_and_validations_go_on_exactly(bench: Bench, tmp_path: Path) -> None:
    options = {"validate": True, "options": {"accumulate_grad_batches": 2, "val_check_interval": 3}}
    whole = bench.whole(**options)
    kinds = [event[0] for event in whole[0].events]
    assert kinds.count("validation") == 3 * 2 * 3  # epochs, validations, batches
    killed = bench.run(**options, every=1, checkpoints=str(tmp_path), die_at=11)
    assert not any(rank.of("end") for rank in killed)
    check_rest(whole, bench.run(**options, every=1, checkpoints=str(tmp_path), resume="last"), trained=10)
    for step in 1, 2, 3, 4:  # before, after and at the two validations
        check_rest(whole, bench.run(**options, resume=str(tmp_path / f"step={step}.ckpt")), trained=2 * step)


# ---------------------------------------------------------------------- an exception on one rank


def crash(bench: Bench, folder: Path, *, step: int, fail: tuple[int, str, int], **options: Any) -> str:
    """Let one rank fail, and return the checkpoint that rank 0 saves then, before the process group's time is over."""
    running = bench.start(checkpoints=str(folder), fail=fail, save_on_exception=True, **options)
    failing, path = fail[0], folder / f"step={step}.ckpt"
    try:
        running.wait_for(lambda: running.rank(failing).of("raised"), LONG)
        running.wait_for(lambda: running.rank(failing).of("dumped"), SOON)
        if failing != 0:
            running.kill(failing)  # or rank 0 would wait for it in its next step, as long as the process group allows
        running.wait_for(path.exists, SOON)
    finally:
        running.kill()  # Lightning waits for all ranks after a save
        running.ranks()
    return str(path)


FAILURES = {  # rank, hook, its own batches; batches in the weights of rank 0
    "rank 0 before a batch": ((0, "on_train_batch_start", 9), 9),
    "rank 0 after a forward pass": ((0, "on_before_backward", 10), 9),
    "rank 0 after a step": ((0, "on_train_batch_end", 9), 9),
    "rank 1 before a batch": ((1, "on_train_batch_start", 9), 9),
    "rank 1 after a forward pass": ((1, "on_before_backward", 10), 9),
    "rank 1 after a step": ((1, "on_train_batch_end", 9), 9),
}


@pytest.mark.parametrize(
    ("loader", "failure"),
    sampled(
        product(["indexed", "chain"], FAILURES),
        ("indexed", "rank 0 after a step"),
        ("indexed", "rank 1 before a batch"),
        ("indexed", "rank 1 after a forward pass"),
        ("chain", "rank 0 before a batch"),
        ("chain", "rank 0 after a forward pass"),
        ("chain", "rank 1 after a step"),
    ),
)
def test_after_an_exception_on_one_rank_all_go_on_exactly(
    loader: str, failure: str, bench: Bench, tmp_path: Path
) -> None:
    fail, trained = FAILURES[failure]
    options = {"loader": loader, **EXACT}
    checkpoint = crash(bench, tmp_path, step=trained, fail=fail, **options)
    rest = bench.run(**options, resume=checkpoint)
    check_rest(bench.whole(**options), rest, trained=trained, unasked=None if fail[0] else True)


@pytest.mark.parametrize("loader", ["indexed", "chain"])
def test_a_rank_that_fails_leaves_its_generators_to_rank_0(loader: str, bench: Bench, tmp_path: Path) -> None:
    """With dropout, and other generators on each rank: exact, as nobody had to wait for it."""
    checkpoint = crash(bench, tmp_path, step=9, fail=(1, "on_before_backward", 10), loader=loader)
    check_rest(bench.whole(loader=loader), bench.run(loader=loader, resume=checkpoint), trained=9)


@pytest.mark.parametrize(
    ("loader", "every"),
    sampled(
        product(["dataset", "workers", "ragged", "uneven", "coarse", "replayed", "whole", "function"], [None, 2]),
        ("uneven", 2),
        ("dataset", None),
        ("workers", 2),
        ("ragged", None),
        ("coarse", 2),
        ("replayed", None),
        ("whole", 2),
        ("function", None),
    ),
)
def test_streams_catch_up_with_rank_0(loader: str, every: int | None, bench: Bench, tmp_path: Path) -> None:
    options = {"loader": loader, **(PLAIN if loader == "ragged" else EXACT)}
    checkpoint = crash(bench, tmp_path, step=11, fail=(1, "on_train_batch_start", 11), **options, every=every)
    check_rest(bench.whole(**options), bench.run(**options, resume=checkpoint), trained=11, unasked=None)


@pytest.mark.parametrize(
    ("loader", "where", "limit"),
    sampled(
        product(
            ["chain", "dataset"],
            [(0, "on_train_epoch_end"), (1, "on_train_epoch_end"), (1, "on_train_batch_end")],
            [1.0, 4],
        ),
        ("chain", (0, "on_train_epoch_end"), 4),
        ("chain", (1, "on_train_epoch_end"), 1.0),
        ("chain", (1, "on_train_batch_end"), 1.0),
        ("dataset", (0, "on_train_epoch_end"), 1.0),
        ("dataset", (1, "on_train_batch_end"), 4),
    ),
)
def test_streams_catch_up_at_the_end_of_an_epoch(
    loader: str, where: tuple[int, str], limit: float, bench: Bench, tmp_path: Path
) -> None:
    options = {"loader": loader, **EXACT, "options": {"limit_train_batches": limit}}
    trained = 6 if limit == 1.0 else int(limit)
    checkpoint = crash(bench, tmp_path, step=trained, fail=(*where, trained), **options, every=None)
    check_rest(bench.whole(**options), bench.run(**options, resume=checkpoint), trained=trained, unasked=None)


def test_generators_of_an_unasked_rank(bench: Bench, tmp_path: Path) -> None:
    """The generators of a rank that was not asked are earlier ones."""
    checkpoint = crash(bench, tmp_path, step=9, fail=(0, "on_train_batch_start", 9))
    whole, rest = bench.whole(loader="indexed"), bench.run(resume=checkpoint)
    ids = [[event[:5] for event in rank.trained] for rank in whole]
    assert [[event[:5] for event in rank.trained] for rank in rest] == [events[9:] for events in ids]
    assert rest[0].trained[0] == whole[0].trained[9]
    assert rest[1].trained[0] != whole[1].trained[9]
    assert [len(rank.warnings) for rank in rest] == [0, 1]


def test_accumulated_batches_after_an_exception(bench: Bench, tmp_path: Path) -> None:
    """Accumulated batches are trained on again after an exception."""
    options = {"loader": "chain", **EXACT, "options": {"accumulate_grad_batches": 2}}
    checkpoint = crash(bench, tmp_path, step=4, fail=(0, "on_train_batch_start", 9), **options, every=3)
    check_rest(bench.whole(**options), bench.run(**options, resume=checkpoint), trained=8, unasked=True)


def test_streams_catch_up_to_a_ragged_end(bench: Bench, tmp_path: Path) -> None:
    options = {"loader": "ragged", **PLAIN}
    checkpoint = crash(bench, tmp_path, step=6, fail=(0, "on_train_batch_end", 6), **options, every=None)
    check_rest(bench.whole(**options), bench.run(**options, resume=checkpoint), trained=6, unasked=True)


@pytest.mark.parametrize(
    ("step", "loader", "world"),
    sampled(
        [(step, loader, world) for step in (4, 6) for loader, world in (("indexed", 1), ("indexed", 2), ("chain", 2))],
        (4, "indexed", 1),
        (4, "chain", 2),
        (6, "indexed", 1),
        (6, "indexed", 2),
    ),
)
def test_an_exception_before_the_first_batch_of_a_resumed_run(
    step: int, loader: str, world: int, bench: Bench, tmp_path: Path
) -> None:
    options = {"loader": loader, "world": world, **EXACT}
    bench.run(**options, checkpoints=str(tmp_path / "first"), die_at=9)
    first = str(tmp_path / "first" / f"step={step}.ckpt")
    checkpoint = crash(bench, tmp_path / "second", step=step, fail=(0, "on_train_start", 0), **options, resume=first)
    check_rest(bench.whole(**options), bench.run(**options, resume=checkpoint), trained=step, unasked=True)


def test_terminated_ranks_go_on_exactly(bench: Bench, tmp_path: Path) -> None:
    """A run of several ranks that is terminated continues exactly."""
    options = {"loader": "chain"}
    stop = {"die_at": 8, "die_of": signal.SIGTERM, "every": None, "save_on_exception": True}
    terminated = bench.run(**options, **stop, checkpoints=str(tmp_path))
    assert [rank.of("error")[0][1] for rank in terminated] == ["SIGTERMException"] * 2
    rest = bench.run(**options, resume=str(tmp_path / "step=9.ckpt"))
    check_rest(bench.whole(**options), rest, trained=9)


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.long)])
def test_one_preempted_rank_stops_all(rank: int, bench: Bench, tmp_path: Path) -> None:
    """One rank that is preempted stops all of them before the same batch.

    The signal comes in the ninth batch; before the tenth, its rank asks the others to stop two batches later.
    """
    options = {"loader": "chain"}
    stop = {"die_at": 8, "die_of": signal.SIGTERM, "die_rank": rank, "preemption": True, "every": None}
    preempted = bench.run(**options, **stop, checkpoints=str(tmp_path))
    assert [one.of("error") for one in preempted] == [[["error", "SystemExit", "75"]]] * 2
    assert [len(one.trained) for one in preempted] == [11, 11]
    rest = bench.run(**options, resume=str(tmp_path / "last-sigterm.ckpt"))
    check_rest(bench.whole(**options), rest, trained=11)


# ---------------------------------------------------------------------- another number of ranks


def global_batches(ranks: list[Rank]) -> list[list[Any]]:
    """The places and samples of each step, over all ranks."""
    steps = zip(*(rank.trained for rank in ranks), strict=True)
    return [[*parts[0][1:4], [one for part in parts for one in part[4]]] for parts in steps]


def flat(weights: Any) -> list[float]:
    if isinstance(weights, dict):
        weights = list(weights.values())
    return [number for part in weights for number in flat(part)] if isinstance(weights, list) else [weights]


@pytest.mark.parametrize(
    ("loader", "worlds"),
    sampled(
        product(["indexed", "function", "whole"], [(2, 1), (1, 2), (2, 1, 2)]),
        ("indexed", (2, 1, 2)),
        ("function", (2, 1)),
        ("function", (1, 2)),
        ("whole", (2, 1, 2)),
    ),
    ids=str,
)
def test_other_ranks_train_on_the_same_batches(
    loader: str, worlds: tuple[int, ...], bench: Bench, tmp_path: Path
) -> None:
    """A different number of ranks trains on the same global batches."""
    options = {"loader": loader, **PLAIN}
    whole = bench.whole(**options, world=worlds[0])
    expected, trained = global_batches(whole), 0
    for world in worlds[:-1]:
        resume = "last" if trained else None
        bench.run(**options, world=world, checkpoints=str(tmp_path), die_at=5, resume=resume)
        trained += 4
    rest = bench.run(**options, world=worlds[-1], checkpoints=str(tmp_path), resume="last")
    assert global_batches(rest) == expected[trained:]
    assert flat(rest[0].end["weights"]) == pytest.approx(flat(whole[0].end["weights"]), rel=1e-4, abs=1e-6)
    assert not any(rank.warnings for rank in rest)
    check_shares(whole) if loader != "whole" else None


@pytest.mark.parametrize("worlds", [(2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("loader", ["chain", "replayed"])
def test_ranks_own_streams_on_other_ranks(loader: str, worlds: tuple[int, int], bench: Bench, tmp_path: Path) -> None:
    """Separate streams of the ranks are rejected for a different number of ranks."""
    before, now = worlds
    bench.run(loader=loader, world=before, checkpoints=str(tmp_path), die_at=5)
    for rank in bench.run(loader=loader, world=now, checkpoints=str(tmp_path), resume="last"):
        [(_, name, text)] = rank.of("error")
        assert name == "StateMismatchError"
        assert f"in the checkpoint: {before} ranks" in text
        assert not rank.trained
