"""CheckpointStore of several ranks: parts that are committed together or not at all, and one latest step for all."""

from __future__ import annotations

import math
import os
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from forked import ranks
from torch import distributed

from resumable import failpoints
from resumable.checkpoint import CheckpointStore
from resumable.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointTimeoutError,
    ConfigurationError,
    CorruptCheckpointError,
    CorruptCheckpointWarning,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def common(step: int, version: int = 0) -> dict[str, Any]:
    return {"step": step, "version": version, "weight": torch.full((3_000,), float(step))}


def own(step: int, rank: int, version: int = 0) -> dict[str, Any]:
    return {"step": step, "rank": rank, "version": version, "state": torch.full((2_000,), float(100 * step + rank))}


def prepared(root: Path, size: int) -> None:
    """Steps 1 and 2 of so many ranks."""
    assert ranks(size, save_steps, root, [1, 2]) == [None] * size


def save_steps(rank: int, size: int, root: Path, steps: list[int], version: int = 0, **given: Any) -> None:
    store = CheckpointStore(root, shared=True, keep=2, timeout=20)
    for step in steps:
        store.save(step, common(step, version), part=own(step, rank, version), **given)
    store.close()


def found(root: Path, size: int) -> tuple[int, int]:
    """Give step and version of the newest checkpoint, whose parts all have to be of the same save."""
    store = CheckpointStore(root, shared=True)
    latest = store.latest()
    assert latest is not None
    for rank in range(size):
        part = store.load_part(latest["step"], rank=rank)
        assert (part["step"], part["rank"], part["version"]) == (latest["step"], rank, latest["version"])
        assert torch.equal(part["state"], own(latest["step"], rank)["state"])
    return latest["step"], latest["version"]


def go_on(rank: int, size: int, root: Path) -> tuple[int, float]:
    store = CheckpointStore(root, shared=True, timeout=20)
    latest = store.latest()
    assert latest is not None
    return latest["step"], float(store.load_part(latest["step"])["state"][0])


@pytest.mark.parametrize("background", [False, True])
def test_each_rank_finds_its_part_and_all_find_the_same_step(tmp_path: Path, background: bool) -> None:
    given = {"background": background}
    assert ranks(3, lambda rank, size: save_steps(rank, size, tmp_path, [1, 2, 3, 3, 4], **given)) == [None] * 3
    assert ranks(3, go_on, tmp_path) == [(4, 400.0), (4, 401.0), (4, 402.0)]
    assert CheckpointStore(tmp_path).steps() == [3, 4]
    assert len(list(tmp_path.rglob("*.pt"))) == 2 * 4


def test_a_first_start_is_one_for_all(tmp_path: Path) -> None:
    def run(rank: int, size: int) -> Any:
        store = CheckpointStore(tmp_path, shared=True, timeout=20)
        return store.latest(), store.latest_step()

    assert ranks(2, run) == [(None, None)] * 2


def test_ranks_that_look_later_get_what_rank_0_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save in between, or a listing that lags, would give them another step: silently, to the end."""
    monkeypatch.setattr("resumable.checkpoint.together._STAYS", 0.0)  # rank 0 has waited long enough

    def run(rank: int, size: int) -> Any:
        store = CheckpointStore(tmp_path, shared=True, timeout=20)
        if rank:
            time.sleep(0.5)
        else:
            store.latest()
            CheckpointStore(tmp_path).save(9, common(9))
            return 2
        latest = store.latest()
        return latest and latest["step"]

    prepared(tmp_path, 2)
    assert ranks(2, run) == [2, 2]


def test_what_all_ranks_have_is_saved_by_rank_0_and_nobody_waits(tmp_path: Path) -> None:
    def run(rank: int, size: int) -> Any:
        store = CheckpointStore(tmp_path, shared=True, timeout=20)
        store.save(5, {"from": rank})
        distributed.barrier()
        if rank == 0:  # the others do not have to call it
            store.save(6, {"from": rank})
        distributed.barrier()
        with pytest.raises(CheckpointNotFoundError, match=r"(?s)no part of rank .*saved without `part=`"):
            store.load_part(6)
        return store.latest()

    assert ranks(3, run) == [{"from": 0}] * 3


def test_a_resized_run_reads_any_part(tmp_path: Path) -> None:
    def run(rank: int, size: int) -> Any:
        store = CheckpointStore(tmp_path, shared=True, timeout=20)
        step = store.latest_step()
        assert step is not None
        parts = [store.load_part(step, rank=other)["rank"] for other in range(rank, 3, size)]
        with pytest.raises(CheckpointNotFoundError, match=r"(?s)no part of rank 3.*ranks 0 to 2"):
            store.load_part(step, rank=3)
        return parts

    prepared(tmp_path, 3)
    assert ranks(2, run) == [[0, 2], [1]]
    store = CheckpointStore(tmp_path, shared=True)  # one process, without a process group
    assert store.load_part(2)["rank"] == 0
    store.save(3, common(3), part=own(3, 0))
    assert found(tmp_path, 1) == (3, 0)


# ---------------------------------------------------------------------- what goes wrong


def failing(rank: int, size: int, root: Path, bad: int) -> Any:
    store = CheckpointStore(root, shared=True, timeout=20)
    part = {"bad": object()} if rank == bad else own(3, rank)
    began = time.monotonic()
    try:
        store.save(3, common(3), part=part)
    except CheckpointError as error:
        return str(error), time.monotonic() - began
    return "saved", 0.0


@pytest.mark.parametrize("bad", [0, 2])
def test_a_rank_that_cannot_save_its_part_fails_the_save_on_all(tmp_path: Path, bad: int) -> None:
    prepared(tmp_path, 3)
    for text, took in ranks(3, failing, tmp_path, bad):
        assert "step 3 was not saved" in text
        assert "object" in text
        assert took < 5
    assert found(tmp_path, 3) == (2, 0)
    assert ranks(3, save_steps, tmp_path, [3]) == [None] * 3
    assert found(tmp_path, 3) == (3, 0)
    assert ranks(3, save_steps, tmp_path, [4]) == [None] * 3
    assert len(list(tmp_path.rglob("*.pt"))) == 2 * 4, "what the failed save left is removed"


def test_ranks_at_different_steps_are_refused_by_name(tmp_path: Path) -> None:
    def run(rank: int, size: int) -> str:
        store = CheckpointStore(tmp_path, shared=True, timeout=20)
        with pytest.raises((ConfigurationError, CheckpointError)) as caught:
            store.save(10 + rank, common(10), part=own(10, rank))
        return str(caught.value)

    first, second = ranks(2, run)
    assert "the ranks save different steps.\n  rank 0:  10\n  rank 1:  11" in first
    assert "the ranks save different steps" in second
    assert CheckpointStore(tmp_path).steps() == []


def test_a_rank_that_never_comes_is_named_in_time(tmp_path: Path) -> None:
    def run(rank: int, size: int) -> Any:
        store = CheckpointStore(tmp_path, shared=True, timeout=1)
        if rank == 2:
            return None
        began = time.monotonic()
        with pytest.raises(CheckpointError, match="step 3 was not saved") as caught:
            store.save(3, common(3), part=own(3, rank))
        assert time.monotonic() - began < 4
        assert "waiting for rank 2" in str(caught.value)
        return type(caught.value)

    prepared(tmp_path, 3)
    assert ranks(3, run) == [CheckpointTimeoutError, CheckpointError, None]
    assert found(tmp_path, 3) == (2, 0)


def test_a_root_that_the_ranks_do_not_share_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from resumable.checkpoint import saving  # noqa: PLC0415  # for this test alone

    monkeypatch.setattr(saving, "_APPEARS", 0.3)
    monkeypatch.chdir(tmp_path)

    def run(rank: int, size: int) -> str:
        (tmp_path / str(rank)).mkdir()
        os.chdir(tmp_path / str(rank))  # as a disk of each host: the same path is another place
        store = CheckpointStore("run", shared=True, timeout=20)
        with pytest.raises(CheckpointError) as caught:
            store.save(1, common(1), part=own(1, rank))
        return str(caught.value)

    first, second = ranks(2, run)
    assert "rank 0 cannot find the part that rank 1 has written to run" in first
    assert "network filesystem or a bucket" in first
    assert "that rank 1 has written to run" in second


def test_a_corrupt_part_is_no_checkpoint(tmp_path: Path) -> None:
    prepared(tmp_path, 2)
    store = CheckpointStore(tmp_path, shared=True)
    part = next(p for p in (tmp_path / f"step-{2:012d}").glob("*.pt") if torch.load(p).get("rank") == 1)
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    with pytest.warns(CorruptCheckpointWarning, match="step 2 is corrupt"):
        assert store.latest_step() == 1
    part.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(CorruptCheckpointError, match="part of rank 1.*checksum"):
        store.load_part(2, rank=1)
    part.unlink()
    with pytest.warns(CorruptCheckpointWarning, match="step 2 is corrupt"):
        assert store.latest_step() == 1


def test_a_part_needs_a_shared_store_and_that_a_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="shared=True"):
        CheckpointStore(tmp_path).save(1, {}, part={})
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigurationError, match="(?s)WORLD_SIZE=4.*init_process_group"):
        CheckpointStore(tmp_path, shared=True).latest()
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(ConfigurationError, match="(?s)several ranks: SLURM_STEP_NUM_TASKS=2.*init_process_group"):
        CheckpointStore(tmp_path, shared=True).latest()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("last", ["save", "latest"])
def test_the_rank_that_hosts_the_store_may_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, background: bool
) -> None:
    """In a fork, where nothing that is registered for the exit runs; others look once per second, in a long save."""

    def run(rank: int, size: int) -> int | None:
        if rank:
            monkeypatch.setattr("resumable.checkpoint.together._PAUSE", 0.4)
        save_steps(rank, size, tmp_path, [1], background=background)
        if last == "latest":
            return CheckpointStore(tmp_path, shared=True).latest_step()
        return CheckpointStore(tmp_path).latest_step()

    assert ranks(3, run, host_stays=False) == [1, 1, 1]


# ---------------------------------------------------------------------- kills


def dying(rank: int, size: int, root: Path, killed: tuple[int, int], background: bool = False) -> Any:
    victim, point = killed
    count = 0

    def watch(name: str, about: tuple[Any, ...]) -> None:
        nonlocal count
        count += name.startswith("store.") and name != "store.save"
        if rank == victim and count == point:
            os.kill(os.getpid(), signal.SIGKILL)

    store = CheckpointStore(root, shared=True, keep=2, timeout=1.5 if point else 20)
    failpoints.watch(watch)
    try:
        store.save(3, common(3, 1), part=own(3, rank, 1), background=background)
        store.close()
    except CheckpointError:
        return "failed", count
    return "saved", count


GRID = [
    pytest.param(
        victim, background, marks=[] if (victim, background) in ((1, False), (0, True)) else [pytest.mark.long]
    )
    for victim in (0, 1)
    for background in (False, True)
]


@pytest.mark.parametrize(("victim", "background"), GRID)
def test_sigkill_of_a_rank_at_every_failpoint(tmp_path: Path, victim: int, background: bool) -> None:
    """SIGKILL of a rank at every failpoint leaves the old or the new checkpoint.

    In a part, between the part and the commit, in the commit, after it: never a mixture, and nothing half.
    """
    model, outcomes = tmp_path / "model", []
    prepared(model, 2)
    for point in range(1, 40):
        root = tmp_path / f"run{point}"
        shutil.copytree(model, root)
        results = ranks(2, dying, root, (victim, point), background)
        outcomes.append(found(root, 2))
        killed = results[victim] == "ended with -9"
        if not killed:
            assert results[0][0] == results[1][0] == "saved"
        assert ranks(2, save_steps, root, [9]) == [None] * 2
        assert found(root, 2) == (9, 0)
        steps = {f"step-{step:012d}" for step in CheckpointStore(root).steps()}
        assert {path.parent.name for path in root.rglob("*.pt")} == steps
        if not killed:
            break
    assert outcomes == sorted(outcomes)
    assert outcomes[0] == (2, 0)
    assert outcomes[-1] == (3, 1)
    assert len(outcomes) > (8 if victim == 0 else 3)


def test_part_of_a_crashed_save(tmp_path: Path) -> None:
    """A part of a crashed save is never mixed into a later one.

    Rank 1 wrote its part, and was killed before it told; the next start saves the same step with other content.
    """
    prepared(tmp_path, 2)
    assert ranks(2, dying, tmp_path, (1, 3))[1] == "ended with -9"
    assert len(list((tmp_path / f"step-{3:012d}").glob("*.pt"))) >= 1
    assert ranks(2, save_steps, tmp_path, [3], 7) == [None] * 2
    assert found(tmp_path, 2) == (3, 7)


def test_no_limit_is_possible(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path, shared=True)._steps.seconds == 1800
    assert CheckpointStore(tmp_path, shared=True, timeout=math.inf)._steps.seconds == math.inf
