"""What the log says when a stream opens: the place, the rank and who said so, and what is divided by accident."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import resumable
from resumable import World
from resumable.loader import startup_checks as _opening

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VARIABLES = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A process that has said nothing yet, outside of any launcher."""
    monkeypatch.setattr(_opening, "_said", set())
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    caplog.set_level(logging.INFO, "resumable")


class Stream(torch.utils.data.IterableDataset[int]):
    """Twelve numbers, without a state."""

    def __iter__(self) -> Iterator[int]:
        yield from range(12)


class Stateful(Stream):
    """The same with one."""

    read = 0

    def __iter__(self) -> Iterator[int]:
        begin, self.read = self.read, 0
        for number in range(begin, 12):
            self.read = number + 1
            yield number
        self.read = 0

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


TWELVE = TensorDataset(torch.arange(12))


class Backwards:
    """A sampler of a user's own."""

    def __iter__(self) -> Iterator[int]:
        yield from reversed(range(12))

    def __len__(self) -> int:
        return 12


def data(**options: Any) -> DataLoader[Any]:
    return DataLoader(TWELVE, batch_size=2, **options)


OWN, SOME = "from the source's own state", "2 elements replayed after the source's own state"
SOURCES: dict[str, tuple[str, str, Any, dict[str, Any]]] = {  # how it resumes after three steps, and how it is made
    "map": ("torch-map TensorDataset", "by index", lambda: data(shuffle=True), {}),
    "list": ("sequence", "by index", lambda: list(range(12)), {"batch_size": 2, "shuffle": True}),
    "custom": ("torch-map-own-order TensorDataset", "3 elements replayed", lambda: data(sampler=Backwards()), {}),
    "function": ("iterable numbers", "6 elements replayed", lambda: numbers, {"batch_size": 2}),
    "object": ("iterable Stateful", OWN, Stateful, {"batch_size": 2}),
    "object, replayed": (
        "iterable Stateful",
        "6 elements replayed",
        Stateful,
        {"batch_size": 2, "resume": "replay"},
    ),
    "rare snapshots": ("iterable Stateful", SOME, lambda: rarely(2), {"batch_size": 2, "ack": "manual"}),
    "stream": ("torch-iterable Stream", "3 elements replayed", lambda: batches(Stream()), {}),
    "stateful stream": ("torch-iterable Stateful", OWN, lambda: batches(Stateful()), {}),
    "stream, replayed": (
        "torch-iterable Stateful",
        "3 elements replayed",
        lambda: batches(Stateful()),
        {"resume": "replay"},
    ),
}


def rarely(steps: int) -> Any:
    """With so many steps between two snapshots that are taken in advance."""
    source: Any = Stateful()
    source.snapshot_every = steps
    return source


def batches(dataset: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=2)


def numbers() -> Iterator[int]:
    yield from range(12)


def trained(loader: resumable.Loader) -> Iterator[str]:
    """The batches of two epochs, in words, each of which counts."""
    for epoch in loader.epochs(2):
        for batch in epoch:
            if loader.ack_mode == "manual":
                loader.ack()
            yield str(batch)


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """What was said at a level since the last call."""
    found = [record.getMessage() for record in caplog.records if record.name == "resumable" and record.levelno == level]
    if level == logging.INFO:
        caplog.clear()
    return found


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return lines(caplog, logging.WARNING)


@pytest.mark.parametrize("source", SOURCES)
def test_one_line_says_where_a_stream_opens_and_how_it_got_there(source: str, caplog: pytest.LogCaptureFixture) -> None:
    """After each load, and never for the epochs after it; the stream is the same with and without the log."""
    name, how, given, options = SOURCES[source]

    def make() -> resumable.Loader:
        return resumable.wrap(given(), seed=7, **options)

    caplog.set_level(logging.WARNING, "resumable")
    loader, states, expected = make(), [], []
    for batch in trained(loader):
        expected.append(batch)
        states.append(loader.state_dict())
    assert not lines(caplog)

    caplog.set_level(logging.INFO, "resumable")
    assert list(trained(make())) == expected
    (line,) = lines(caplog)
    assert line.startswith(f"{name}: epoch 0, step 0")
    assert line.endswith("; from the start; rank 0 of 1 (no process group, no launcher); seed 7")
    for done, state in enumerate(states, start=1):
        loader = make()
        loader.load_state_dict(state)
        assert list(trained(loader)) == expected[done:]
        (line,) = lines(caplog) if done < len(states) else [*lines(caplog), ""][:1]
        if done == 3:
            length = " of 6 (50 %)" if loader.is_sized else ""
            assert line.startswith(f"{name}: epoch 0, step 3{length}; after a loaded state, {how}; rank 0 of 1")


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_every_move_is_said_once_and_no_epoch_of_a_loop(caplog: pytest.LogCaptureFixture) -> None:
    loader = resumable.wrap(list(range(12)), batch_size=2)
    assert not lines(caplog), "nothing was opened yet"
    for _epoch in loader.epochs(4):
        for _ in zip(range(2), loader, strict=False):  # left by break: the place moves at each end
            pass
    assert len(lines(caplog)) == 1
    loader.seek(epoch=1, step=2)
    loader.peek()
    list(loader)
    list(loader)
    (line,) = lines(caplog)
    assert "epoch 1, step 2 of 6 (33 %); after seek(), by index" in line
    loader.load_state_dict(loader.state_dict())
    list(loader)
    (line,) = lines(caplog)
    assert "epoch 3, step 0 of 6 (0 %); after a loaded state, by index" in line
    evaluation = resumable.wrap(list(range(12)), evaluation=True)
    for _ in range(3):
        list(evaluation)
    (line,) = lines(caplog)
    assert "step 0 of 12 (0 %); from the start of each loop; rank 0" in line


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_left_epoch_counts_repeats(caplog: pytest.LogCaptureFixture) -> None:
    """An epoch that was left counts the elements that are read again.

    The number is that of the elements that were drawn before those of the first batch.
    """
    drawn = []

    class Watched(Stateful):
        snapshot_every = 9

        def __iter__(self) -> Iterator[int]:
            for number in super().__iter__():
                drawn.append(number)
                yield number

    def make() -> resumable.Loader:
        return resumable.wrap(Watched(), batch_size=2, ack="manual")

    loader = make()
    running = iter(loader)
    for _ in range(3):
        next(running)
        loader.ack()
    loader.end_epoch()
    again = make()
    again.load_state_dict(loader.state_dict())
    expected = next(iter(loader))
    lines(caplog)
    drawn.clear()
    assert next(iter(again)) == expected
    assert len(drawn) == 6 + 2 + 1  # the last one for the state of the batch, which has a digest of what comes next
    (line,) = lines(caplog)
    assert "epoch 1, step 0; after a loaded state, 6 elements replayed after the source's own state; " in line


class Counts:
    """A backend of a user's own that counts how often it is asked for its identity."""

    kind = "counts"
    asked = 0

    @property
    def identity(self) -> dict[str, str]:
        self.asked += 1
        return {}

    def open(self, epoch: int) -> Iterator[int]:
        yield epoch


def test_where_nobody_listens_nothing_is_put_together(caplog: pytest.LogCaptureFixture) -> None:
    asked = {}
    for level in (logging.WARNING, logging.INFO):
        caplog.set_level(level, "resumable")
        backend = Counts()
        loader = resumable.wrap(backend)
        before = backend.asked
        assert list(loader) == [0]
        asked[level] = backend.asked - before
    assert asked == {logging.WARNING: 0, logging.INFO: 1}
    (line,) = lines(caplog)
    assert line.startswith("counts: epoch 0, step 0; from the start")


# ---------------------------------------------------------------------- which rank, and who said so


def launched(monkeypatch: pytest.MonkeyPatch, rank: int, size: int, names: tuple[str, str] = VARIABLES[:2]) -> None:
    """As by a launcher that says the rank by variables alone."""
    monkeypatch.setenv(names[0], str(rank))
    monkeypatch.setenv(names[1], str(size))


@pytest.mark.parametrize("names", [VARIABLES[:2], VARIABLES[2:4]])
def test_the_variables_that_said_it_are_named(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launched(monkeypatch, 2, 4, names)
    for _ in range(2):
        loader = resumable.wrap(list(range(16)), batch_size=2)
        assert list(loader) == [[4, 5], [12, 13]]
    (told,) = warned(caplog)
    assert told.startswith(
        f"rank 2 of 4 from environment variables alone ({', '.join(names)}): this loader reads 1/4 of each"
    )
    assert "world=World(0, 1) to read everything, or world=World.detect()" in told
    assert f"rank 2 of 4 (the environment: {', '.join(names)}); seed 0" in lines(caplog)[0]


def test_a_world_that_was_given_is_not_doubted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launched(monkeypatch, 2, 4)
    assert next(iter(resumable.wrap(list(range(16)), batch_size=2, world=World(0, 1)))) == [0, 1]
    assert next(iter(resumable.wrap(list(range(16)), batch_size=2, world=World.detect()))) == [4, 5]
    sampler: Any = DistributedSampler(TWELVE, num_replicas=3, rank=1, shuffle=False)
    list(resumable.wrap(data(sampler=sampler)))
    assert not warned(caplog)
    ranks = [line.split("; ")[2] for line in lines(caplog)]
    given = "(set by world= or the sampler)"
    assert ranks == [f"rank 0 of 1 {given}", f"rank 2 of 4 {given}", f"rank 1 of 3 {given}"]


def test_what_is_not_divided_here_is_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A single rank of a launcher, and a source that looks at the rank itself."""
    launched(monkeypatch, 0, 1)
    list(resumable.wrap(list(range(4))))
    launched(monkeypatch, 1, 4)
    assert len(list(resumable.wrap(numbers, shard=False))) == 12
    list(resumable.wrap(numbers, shard=False, evaluation=True))
    assert not warned(caplog)
    ranks = [line.split("; ")[2] for line in lines(caplog)]
    alone = "(the environment: RANK, WORLD_SIZE)"
    own = f"rank 1 of 4 {alone}, with its own stream"
    assert ranks == [f"rank 0 of 1 {alone}", own, own]


@pytest.mark.parametrize("wrapped", [False, True])
def test_sampler_found_its_rank(
    wrapped: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A sampler that found its rank in the environment says so."""
    launched(monkeypatch, 1, 2)

    def read(**given: Any) -> list[int]:
        sampler = resumable.ResumableSampler(12, shuffle=False, batch_size=2, **given)
        loader: Any = data(sampler=sampler)
        batches = resumable.wrap(loader) if wrapped else loader
        return [int(sample) for (batch,) in batches for sample in batch]

    assert read(num_replicas=2, rank=1) == [2, 3, 6, 7, 10, 11]
    assert not warned(caplog)
    assert read() == read() == [2, 3, 6, 7, 10, 11]
    (told,) = warned(caplog)
    assert told.startswith("rank 1 of 2 from environment variables alone (RANK, WORLD_SIZE): this ")
    assert ("world=World(0, 1)" if wrapped else "num_replicas=1 and rank=0") in told


# ---------------------------------------------------------------------- evaluation


def test_an_evaluation_that_is_divided_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if rank 0 alone evaluates: its loader reads a part, as any does, and both ways out are named."""
    launched(monkeypatch, 0, 4)

    def read(**options: Any) -> list[int]:
        loader = resumable.wrap(list(range(20)), batch_size=1, evaluation=True, **options)
        return [sample for batch in loader for sample in batch]

    assert read(world=World(0, 1)) == list(range(20))
    assert read(world=World.detect()) == [0, 4, 8, 12, 16]
    assert not warned(caplog)
    assert read() == read() == [0, 4, 8, 12, 16]
    (told,) = warned(caplog)
    assert told.startswith(
        "a loader with evaluation=True is divided among the ranks: rank 0 of 4 (the environment: RANK, WORLD_SIZE) "
        "reads 1/4"
    )
    assert "world=World(0, 1) if one rank evaluates everything, or world=World.detect() if all ranks evaluate" in told


def test_an_evaluation_by_a_sampler_that_divides_is_meant(caplog: pytest.LogCaptureFixture) -> None:
    sampler: Any = DistributedSampler(TWELVE, num_replicas=3, rank=1, shuffle=False)
    loader = resumable.wrap(data(sampler=sampler), evaluation=True)
    assert sum(len(batch) for (batch,) in loader) == 4
    assert not warned(caplog)


# ---------------------------------------------------------------------- whole processes


def test_script_without_logging() -> None:
    """A script without logging sees the warnings and nothing else."""
    script = "import resumable; print(list(resumable.wrap([1, 2, 3, 4], batch_size=1)))"
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[[2], [4]]\n"
    assert done.stderr.startswith("rank 1 of 2 from environment variables alone (RANK, WORLD_SIZE)")
    assert len(done.stderr.splitlines()) == 2


SCRIPT = """
import logging, os, pathlib, sys
import torch.distributed as dist
import resumable

rank, folder, initialises = os.environ["RANK"], pathlib.Path(sys.argv[1]), sys.argv[2] == "group"
logging.basicConfig(filename=folder / f"log-{rank}", level=logging.INFO, format="%(levelname)s %(message)s")
loader = resumable.wrap(list(range(8)), batch_size=1, seed=3)
if initialises:
    dist.init_process_group("gloo")
read = [sample for batch in loader for sample in batch]
if rank == "0":
    evaluation = resumable.wrap(list(range(8)), batch_size=1, evaluation=True)
    read += [sample for _ in range(2) for batch in evaluation for sample in batch]
(folder / f"read-{rank}").write_text(str(read))
if initialises:
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("group", [True, False])
def test_ranks_of_torchrun(group: bool, tmp_path: Path) -> None:
    """Wrapped before the process group is there, which is right; and in a script that never makes one."""
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    words += [str(tmp_path), "group" if group else "alone"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "read-0").read_text() == str([0, 2, 4, 6] * 3)
    assert (tmp_path / "read-1").read_text() == str([1, 3, 5, 7])
    by = "torch.distributed" if group else "the environment: RANK, WORLD_SIZE"
    alone = [] if group else ["environment variables alone"]
    for rank, warnings in enumerate([[*alone, "evaluation"], alone]):
        said = (tmp_path / f"log-{rank}").read_text(encoding="utf-8").splitlines()
        told = [line for line in said if line.startswith("WARNING")]
        assert len(told) == len(warnings), said
        assert all(expected in line for line, expected in zip(told, warnings, strict=True)), told
        place = "INFO sequence: epoch 0, step 0 of 4 (0 %); from the start"
        assert f"{place}; rank {rank} of 2 ({by}); seed 3" in said
