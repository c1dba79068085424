"""Datasets and samplers without a length, or with one that raises, and samplers that yield no numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, SequentialSampler
from unsized_data import CASES, EPOCHS, LengthRaises, Rows, Sized, asked_for, plain

import resumable
from resumable import World
from resumable.errors import UnsupportedError

SCRIPT = Path(__file__).with_name("unsized_data.py")
# Workers divide the streams, indices divide SequentialSampler; the one with a state differs per epoch.
APART = {
    "a sampler with a state",
    "SequentialSampler",
    *(case for case in CASES if case.startswith("an IterableDataset")),
}


def run(case: str, workers: int) -> tuple[list[Any], list[tuple[int, dict[str, Any]]]]:
    """Return the batches of all epochs, and a state after each and after each epoch's end."""
    loader = resumable.wrap(CASES[case].make(workers), seed=3)
    batches, states = [], [(0, loader.state_dict())]
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            batches.append(plain(batch))
            states.append((len(batches), loader.state_dict()))
        states.append((len(batches), loader.state_dict()))
    return batches, states


@pytest.mark.parametrize("case", CASES)
def test_it_is_read_as_pytorch_reads_it(case: str) -> None:
    own = CASES[case].samples
    golden = [asked_for(plain(batch)) for batch in CASES[case].make(0)]
    batches = [asked_for(batch) for batch in run(case, 0)[0]]
    first = batches[: len(batches) // EPOCHS]
    if own is None:
        assert first == golden
    else:
        assert [len(batch) for batch in first] == [len(batch) for batch in golden]
        assert sum(map(len, first)) == own


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_another_process_goes_on_at_every_step(workers: int) -> None:
    """All cases in one process, as most of the time is its imports."""
    runs = {case: run(case, workers) for case in CASES}
    given = json.dumps({case: [state for _, state in states] for case, (_, states) in runs.items()})
    words = [sys.executable, str(SCRIPT), str(workers)]
    done = subprocess.run(words, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    resumed = json.loads(done.stdout)
    for case, (batches, states) in runs.items():
        assert resumed[case] == [batches[taken:] for taken, _ in states], case
        assert batches == run(case, 0)[0] or case.startswith("an IterableDataset"), case


@pytest.mark.parametrize("case", CASES)
def test_a_length_is_told_where_pytorch_tells_it(case: str) -> None:
    source = CASES[case].make(0)
    loader = resumable.wrap(source, seed=3)
    assert loader.is_sized == CASES[case].sized
    if loader.is_sized:
        assert len(loader) == len(source) == len(list(loader))
    else:
        with pytest.raises((TypeError, ValueError, NotImplementedError, ZeroDivisionError)):
            len(source)
        with pytest.raises(TypeError, match="has no length"):
            len(loader)


@pytest.mark.parametrize("case", CASES)
def test_steps_go_through_epochs(case: str) -> None:
    batches = run(case, 0)[0]
    loader = resumable.wrap(CASES[case].make(0), seed=3)
    assert list(map(plain, loader.steps(3))) == batches[:3]
    state = loader.state_dict()
    loader = resumable.wrap(CASES[case].make(0), seed=3)
    loader.load_state_dict(state)
    assert list(map(plain, islice(loader.steps(len(batches)), 100))) == batches[3:]


@pytest.mark.parametrize("case", [case for case in CASES if case not in APART and CASES[case].samples is None])
def test_ranks_divide_it(case: str) -> None:
    batches = run(case, 0)[0]
    first = batches[: len(batches) // EPOCHS]
    for rank in range(2):
        loader = resumable.wrap(CASES[case].make(0), seed=3, shard=True, world=World(rank, 2))
        whole = first[: len(first) // 2 * 2]
        assert list(map(plain, loader))[: len(whole) // 2] == whole[rank::2]


def test_what_nobody_knows_is_rejected_as_pytorch_rejects_it() -> None:
    source: DataLoader[Any] = DataLoader(Rows(), 2)
    with pytest.raises(TypeError, match=r"has no len"):
        next(iter(source))
    with pytest.raises(UnsupportedError, match=r"the dataset Rows has no length(.|\n)*sampler"):
        resumable.wrap(source)
    with pytest.raises(RuntimeError, match="not downloaded"):
        resumable.wrap(DataLoader(LengthRaises(), 2))
    with pytest.raises(RuntimeError, match="not downloaded"):
        resumable.wrap(DataLoader(LengthRaises(), 2, sampler=SequentialSampler(LengthRaises())))


@pytest.mark.parametrize("error", [ValueError, OverflowError, LookupError])
def test_error_of_a_needed_length(error: type[Exception]) -> None:
    """An error of a length is raised unchanged if the length is needed."""

    class Broken(Rows):
        def __len__(self) -> int:
            raise error("a real error")

    for source in (DataLoader(Broken(), 2), Broken()):
        with pytest.raises(error, match="^a real error$") as caught:
            resumable.wrap(source)
        assert type(caught.value) is error


def test_a_sampler_of_ours_says_how_many_there_are() -> None:
    order = resumable.samplers.Shuffle(9, seed=3)
    loader = resumable.wrap(DataLoader(Rows(), 3), seed=3, sampler=order)
    assert len(loader) == 3
    assert list(map(plain, loader)) == list(map(plain, resumable.wrap(DataLoader(Sized(), 3), seed=3, sampler=order)))
