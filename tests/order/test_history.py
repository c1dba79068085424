"""A step in the past has the samples that it had, however often the global batch or the ranks changed since."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

import resumable
from resumable import World
from resumable.errors import ConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TAILS = ["partial", "drop", "pad", "carry", "pad_ranks", "drop_ranks"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:a loop over a resumed Loader"),  # it counts no epochs
    pytest.mark.filterwarnings("ignore:(two loaders|this Loader has the same data)"),  # several of the same run
]


class Run:
    """A run that is resumed with other batch sizes and numbers of ranks, and notes what each step had.

    Args:
        length: number of samples.
        tail: tail policy.
        wrapped: makes the source.
    """

    def __init__(self, length: int, tail: Any, wrapped: Any = None) -> None:
        self.length, self.tail, self.wrapped = length, tail, wrapped
        self.had: dict[tuple[int, int], list[int]] = {}
        self.loaders = self._wrap(2, 4)

    def _wrap(self, ranks: int, batch_size: int) -> list[resumable.Loader[Any]]:
        options: dict[str, Any] = {"tail": self.tail, "seed": 3, "batch_size": batch_size, "on_change": "continue"}
        return [
            resumable.wrap(list(range(self.length)), shuffle=True, world=World(rank, ranks), **options)
            for rank in range(ranks)
        ]

    @property
    def loader(self) -> resumable.Loader[Any]:
        return self.loaders[0]

    def resize(self, ranks: int, batch_size: int) -> None:
        state = json.loads(json.dumps(self.loader.state_dict()))
        self.loaders = self._wrap(ranks, batch_size)
        for loader in self.loaders:
            loader.load_state_dict(state)

    def read(self, steps: int) -> None:
        for _ in range(steps):
            parts = [next(loader.steps(10**6)) for loader in self.loaders]
            cursor = self.loader.cursor
            self.had[cursor.epoch, cursor.step - 1] = [sample for part in parts for sample in part]

    def check(self, path: Path) -> None:
        """Compare every step that was read, and the number of steps of epochs that are over."""
        (path / "state.json").write_text(json.dumps(self.loader.state_dict()))
        for (epoch, step), expected in self.had.items():
            assert self.loader.sample_indices(epoch=epoch, step=step) == expected, (epoch, step)
            said = resumable.samples(path / "state.json", epoch=epoch, step=step)
            assert (list(said.indices), said.global_batch >= len(expected)) == (expected, True), (epoch, step)

    def check_rest(self) -> None:
        """Compare the next steps with what they turn out to have."""
        epoch, total = self.loader.cursor.epoch, self.loader.total_steps(self.loader.cursor.epoch)
        places = [(epoch, step) for step in range(self.loader.cursor.step, total)]
        places += [(epoch + 1, step) for step in range(self.loader.total_steps(epoch + 1))]
        told = {place: self.loader.sample_indices(epoch=place[0], step=place[1]) for place in places}
        self.read(len(places))
        assert {place: self.had[place] for place in places} == told


SIZES = [(2, 4), (1, 16), (3, 3), (1, 5), (2, 8), (4, 1)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tail", TAILS)
def test_every_past_step_has_the_samples_that_it_had(tail: Any, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    run = Run(rng.choice([47, 48, 53, 64]), tail)
    for _ in range(6):
        run.read(rng.randint(0, 7))
        run.check(tmp_path)
        run.resize(
            *rng.choice([size for size in SIZES if size[0] == 1 or tail != "partial"])
        )  # else a rank has no sample
    run.check(tmp_path)
    run.check_rest()
    run.check(tmp_path)
    assert run.loader.accumulation in {None, *range(20)}


@pytest.mark.parametrize("tail", TAILS)
def test_so_it_is_after_a_resize_at_an_epochs_end(tail: Any, tmp_path: Path) -> None:
    run, totals = Run(53, tail), dict[int, int]()
    for sizes in ((1, 16), (3, 3), (1, 5)):
        run.read(run.loader.total_steps(run.loader.epoch))
        ended = run.loader.cursor
        run.resize(*sizes)
        run.check(tmp_path)
        with pytest.raises(ConfigurationError):
            run.loader.sample_indices(epoch=ended.epoch, step=ended.step)
        totals[ended.epoch] = ended.step
    run.check_rest()
    assert {epoch: run.loader.total_steps(epoch) for epoch in totals} == totals


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("step", [0, 1, 2, 4])
def test_seek_goes_to_where_a_past_step_was(tail: Any, step: int, tmp_path: Path) -> None:
    """From there on, the steps have the present global batch; earlier ones stay."""
    run = Run(64, tail)
    run.read(3)
    run.resize(1, 16)
    run.read(7)
    for loader in run.loaders:
        loader.seek(epoch=0, step=step)
    assert run.loader.cursor.position == [0, 8, 16, 24, 40][step]
    past = {place: run.had[place] for place in run.had if place < (0, step)}
    run.had, before = dict(past), run.had
    run.read(3)
    flat, again = (
        [sample for place in sorted(had) if place[0] == 0 for sample in had[place]] for had in (before, run.had)
    )
    assert again[: len(flat)] == flat[: len(again)]  # an epoch that dropped its last samples may be shorter
    run.check(tmp_path)
    run.resize(2, 4)
    run.read(2)
    run.check(tmp_path)
    run.check_rest()


def test_seek_is_in_the_journal_of_the_state(tmp_path: Path) -> None:
    loader = resumable.wrap(list(range(40)), batch_size=4, seed=1)
    next(iter(loader))
    assert loader.state_dict()["journal"] == []
    for step in range(5):
        loader.seek(epoch=1, step=step)
    state = loader.state_dict()
    assert state["journal"] == [[[1, 16], {"seek": 4}]]  # only the last one: a state does not grow
    other = resumable.wrap(list(range(40)), batch_size=4, seed=1)
    other.load_state_dict(state)
    assert other.state_dict() == state
    (tmp_path / "state.json").write_text(json.dumps(state))
    (note,) = resumable.samples(tmp_path / "state.json", epoch=1, step=4).notes
    assert "went to step 4 of epoch 1 with seek()" in note


def test_an_epoch_that_was_left_early_does_not_move_the_others(tmp_path: Path) -> None:
    """With carry, the start of an epoch depends on the end of the one before it."""
    for tail in ("carry", "partial", "pad"):
        run = Run(50, tail)
        for number in range(5):
            run.read(2 + number % 4)
            for loader in run.loaders:
                loader.end_epoch()
            if number == 2:
                run.resize(1, 12)
            if number in {0, 3}:  # a process that continues at the start of an epoch
                run.resize(*((2, 4) if number == 0 else (1, 12)))
            for loader in run.loaders if number in {1, 3} else ():
                loader.seek(epoch=number + 1)
        run.check(tmp_path)
        run.check_rest()
        run.check(tmp_path)


def test_a_state_does_not_grow_with_epochs_that_are_left(tmp_path: Path) -> None:
    run, sizes = Run(50, "carry"), []
    for _ in range(40):
        run.read(3)
        for loader in run.loaders:
            loader.end_epoch()
        sizes.append(len(json.dumps(run.loader.state_dict())))
    assert sizes[-1] < 2048
    assert sizes[-1] - sizes[20] < 16
    run.had = {place: samples for place, samples in run.had.items() if place[0] == 0 or place[0] > 24}
    run.check(tmp_path)
    with pytest.raises(UnsupportedError, match="too many epochs after it were left early"):
        run.loader.sample_indices(epoch=3, step=1)
    run.loader.seek(epoch=0)  # it can always start over
    assert next(iter(run.loader)) == run.had[0, 0][:4]


@pytest.mark.parametrize("known", [True, False])
def test_seek_in_a_source_without_indices(known: bool) -> None:
    class Numbers:
        if known:
            __len__ = lambda self: 60  # noqa: E731  # the length may be unknown

        def __iter__(self) -> Iterator[int]:
            return iter(range(60))

    def wrap(batch_size: int) -> resumable.Loader[Any]:
        return resumable.wrap(Numbers, identity="n", batch_size=batch_size, on_change="continue")

    loader = wrap(4)
    had = [next(iter(loader)) for _ in range(3)]
    state = loader.state_dict()
    loader = wrap(10)
    loader.load_state_dict(state)
    had += [next(iter(loader)) for _ in range(2)]
    for step in (3, 4):
        loader.seek(epoch=0, step=step)
        assert next(iter(loader)) == had[step]
    loader.seek(epoch=0, step=1)
    assert next(iter(loader))[:4] == had[1]


def test_a_journal_that_does_not_fit(tmp_path: Path) -> None:
    """Format 2 did not record seek(), and strict=False accepts changed data: the past may be unknown."""
    loader = resumable.wrap(list(range(96)), batch_size=8, seed=1)
    state = next(loader.state_dict() for _ in loader)
    journal = [[[0, 21], {"global_batch": [16, 8]}]]
    state |= {"format": 2, "journal": journal, "cursor": {"epoch": 0, "position": 37, "step": 4}, "digest": None}
    loader.load_state_dict(state)
    assert len(loader.sample_indices(epoch=0, step=4)) == 8
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert len(loader.sample_indices(epoch=0, step=0)) == 16
    for step in (2, 3):
        with pytest.raises(UnsupportedError, match="changed at position 21, which is not the end of one of them"):
            loader.sample_indices(epoch=0, step=step)
        with pytest.raises(UnsupportedError, match="position 21"):
            resumable.samples(tmp_path / "state.json", epoch=0, step=step)
