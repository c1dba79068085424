"""Every field, decoder and operation of FFCV under wrap: the same pixels in every run, whoever makes them."""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ffcv_data
import ffcv_grid
import numpy as np
import pytest
import torch
from ffcv.loader import OrderOption
from ffcv_grid import BATCHED, PADDED, PLAIN, RANDOM, digests, make_loader, names

import resumable
from resumable import World
from resumable.testing import digest

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

pytestmark = pytest.mark.slow
SCRIPT = Path(ffcv_grid.__file__)


@cache
def loader_of(kind: str, workers: int = 1, batch_size: int = 10) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # FFCV's advice against torch modules
        pipelines = getattr(ffcv_grid, f"{kind}_pipelines")()
        return make_loader(pipelines, num_workers=workers, batch_size=batch_size)


@cache
def reference(kind: str) -> dict[str, str]:
    return run(kind)


def run(kind: str, *, workers: int = 1, batch_size: int = 10, seed: int = 3) -> dict[str, str]:
    loader = loader_of(kind, workers, batch_size)
    randomness: Any = "batch" if kind == "batched" else None
    return digests(resumable.wrap(loader, seed=seed, randomness=randomness), names(loader))


@pytest.mark.parametrize("kind", ["plain", "random", "batched"])
@pytest.mark.parametrize("workers", [1, 2])
def test_runs_are_the_same_with_any_number_of_workers(kind: str, workers: int) -> None:
    assert run(kind, workers=workers) == reference(kind)


@pytest.mark.parametrize("kind", ["plain", "random"])
def test_batch_sizes_change_no_sample(kind: str) -> None:
    assert run(kind, batch_size=7) == reference(kind)


@pytest.mark.parametrize(("kind", "fields"), [("random", RANDOM), ("batched", BATCHED)])
def test_epochs_and_seeds_change_every_field(kind: str, fields: tuple[str, ...]) -> None:
    first, other = reference(kind), run(kind, seed=4)
    for field in fields:
        mine = {key: value for key, value in first.items() if key.startswith(f"{field} 0")}
        again = {key: first[key.replace(" 0 ", " 1 ", 1)] for key in mine}
        assert sum(a == b for a, b in zip(mine.values(), again.values(), strict=True)) < 0.8 * len(mine), "epochs"
        assert sum(mine[key] == other[key] for key in mine) < 0.8 * len(mine), "seeds"


def test_what_is_not_random_is_what_ffcv_gives() -> None:
    loader = loader_of("plain")
    own: dict[str, str] = {}
    for indices, batch in zip(ordered(loader), loader, strict=True):
        for field, part in zip(names(loader), batch, strict=True):
            own |= {f"{field} {index}": digest(sample) for index, sample in zip(indices, part, strict=True)}
    for field in PLAIN:
        for index in range(70):
            assert own[f"{field} {index}"] == reference("plain")[f"{field} 0 {index}"], field


def ordered(loader: Any) -> list[Any]:
    order = loader.traversal_order.sample_order(loader.next_epoch)
    return [order[start : start + 10] for start in range(0, 70, 10)]


def test_bytes_are_padded_with_zeros() -> None:
    """Bytes are padded with zeros and not with earlier contents."""
    loader = loader_of("plain")
    text = names(loader).index("text")
    for batch in resumable.wrap(loader):
        for row in batch[text].numpy():
            length = int(np.flatnonzero(row)[-1]) + 1
            assert row[:length].tolist() == list(range(1, length + 1))
    assert set(PADDED) <= set(names(loader))


@pytest.mark.long  # it compiles for minutes
def test_two_ranks_become_one_in_the_middle_of_an_epoch() -> None:
    loader = loader_of("random", batch_size=5)
    fields, whole = names(loader), reference("random")
    ranks = [resumable.wrap(loader, seed=3, world=World(rank, 2)) for rank in (0, 1)]
    for rank, wrapped in enumerate(ranks):
        iterator = iter(wrapped)
        for step in range(3):
            indices = wrapped.sample_indices(epoch=0, step=step, rank=rank)
            check(whole, fields, indices, next(iterator))
        del iterator
    alone = resumable.wrap(loader, seed=3, world=World(0, 1))
    alone.load_state_dict(ranks[0].state_dict())
    steps = 0
    for step, batch in enumerate(alone, start=3):
        check(whole, fields, alone.sample_indices(epoch=0, step=step), batch)
        steps += 1
    assert steps == 4


def check(whole: dict[str, str], fields: list[str], indices: list[int], batch: Any) -> None:
    for field, part in zip(fields, batch, strict=True):
        assert len(part) == len(indices)
        for index, sample in zip(indices, part, strict=True):
            assert digest(sample) == whole[f"{field} 0 {index}"]


@pytest.mark.parametrize("workers", [1, 2])
def test_images_and_labels_are_mixed_in_the_same_proportions(workers: int) -> None:
    loader = loader_of("batched", workers)
    mixed, shares = names(loader).index("mixed"), names(loader).index("shares")
    for batch in resumable.wrap(loader, seed=1, randomness="batch"):
        for image, (first, second, share) in zip(batch[mixed].numpy(), batch[shares].numpy(), strict=True):
            one, two = (ffcv_data.image(int(index)).astype(float) for index in (first, second))
            expected = float(share) * one + (1 - float(share)) * two
            assert np.abs(image - expected).max() < 1.01, "truncated to integers"


def test_modules_do_not_disturb_the_trainers_generator() -> None:
    loader = loader_of("batched")
    torch.manual_seed(0)
    expected = torch.rand(7)
    torch.manual_seed(0)
    drawn = [torch.rand(()) for _ in resumable.wrap(loader, randomness="batch")]
    assert torch.stack(drawn).equal(expected)


@pytest.mark.long  # minutes, as each process compiles
def test_killed_and_resumed_in_new_processes(tmp_path: Path) -> None:
    def start(folder: Path, kill_after: int) -> int:
        folder.mkdir(exist_ok=True)
        command = [sys.executable, str(SCRIPT), str(folder), str(kill_after)]
        return subprocess.run(command, check=False, timeout=300, capture_output=True).returncode

    ffcv_grid.path()
    assert start(tmp_path / "killed", 5) == -signal.SIGKILL
    assert start(tmp_path / "killed", 6) == -signal.SIGKILL
    assert start(tmp_path / "killed", 0) == 0
    assert start(tmp_path / "whole", 0) == 0
    whole = (tmp_path / "whole" / "log.txt").read_text()
    assert (tmp_path / "killed" / "log.txt").read_text() == whole
    assert len(set(whole.splitlines())) == 14


@pytest.mark.long  # it compiles for each loader
def test_threads_end_with_their_epoch(
    own_threads: Callable[[], list[threading.Thread]],
) -> None:
    loader = resumable.wrap(loader_of("random", 2))
    for _ in range(20):
        for number, _ in enumerate(loader):
            if number == 2:
                break
        loader.seek(epoch=0)
    list(loader)
    assert not own_threads()


def test_threads_of_a_page_cache_end_with_their_epoch(
    own_threads: Callable[[], list[threading.Thread]],
) -> None:
    loader = resumable.wrap(make_loader(ffcv_grid.plain_pipelines(), os_cache=False, order=OrderOption.SEQUENTIAL))
    for _ in range(5):
        next(iter(loader))
        loader.seek(epoch=0)
    assert len(list(loader)) == 7
    assert not own_threads()
