"""`StatefulDataLoader`: torchdata's semantics, exact states, and errors instead of lost batches."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torchdata.stateful_dataloader as torchdatas
from differences import written
from framework_loops import Noisy, through_a_file, values
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)
from torchdata.stateful_dataloader import StatefulDataLoader as Theirs

import resumable.torch
from resumable.errors import (
    ConfigurationError,
    LoopError,
    LoopWarning,
    StateFormatError,
    StateMismatchError,
    StateMismatchWarning,
    UnsupportedError,
)
from resumable.torch import StatefulDataLoader, install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
EPOCHS = 3


class Counting(IterableDataset[Any]):
    """Ten numbers, each with a random one."""

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, 10, step):
            yield number, torch.rand(()).item()


class Stateful(IterableDataset[Any]):
    """Ten numbers of a dataset that saves its own position, each with a random one."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < 10:
            self.at += 1
            yield self.at - 1, torch.rand(()).item()
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def pickled(loader: Any) -> Any:
    """Return a loader as another process gets it."""
    return pickle.loads(pickle.dumps(loader))  # noqa: S301  # made above


def seeded(number: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(number)


MAKERS: dict[str, Callable[..., StatefulDataLoader[Any]]] = {
    "in order": lambda **own: StatefulDataLoader(Noisy(), 3, **own),
    "shuffled": lambda **own: StatefulDataLoader(Noisy(), 3, shuffle=True, **own),
    "with a generator": lambda **own: StatefulDataLoader(Noisy(), 3, shuffle=True, generator=seeded(), **own),
    "last batch dropped": lambda **own: StatefulDataLoader(Noisy(), 3, shuffle=True, drop_last=True, **own),
    "samples": lambda **own: StatefulDataLoader(Noisy(), None, shuffle=True, **own),
    "PyTorch's order": lambda **own: StatefulDataLoader(Noisy(), 3, shuffle=True, order="torch", **own),
    "torchdata's order": lambda **own: StatefulDataLoader(Noisy(), 3, shuffle=True, order="torchdata", **own),
    "distributed": lambda **own: StatefulDataLoader(Noisy(), 3, sampler=DistributedSampler(Noisy(), 2, 1), **own),
    "batch sampler": lambda **own: StatefulDataLoader(
        Noisy(), batch_sampler=BatchSampler(RandomSampler(Noisy(), generator=seeded()), 3, drop_last=False), **own
    ),
    "a stream": lambda **own: StatefulDataLoader(Counting(), 3, **own),
    "a stream with a state": lambda **own: StatefulDataLoader(Stateful(), 3, **own),
}


def epoch_of(loader: StatefulDataLoader[Any]) -> list[Any]:
    return [values(batch) for batch in loader]


def made(name: str, process: int, **arguments: Any) -> StatefulDataLoader[Any]:
    """Make a loader as a process with this global seed does."""
    torch.manual_seed(process)
    return MAKERS[name](**arguments)


def states_of(name: str, **arguments: Any) -> tuple[list[list[Any]], list[tuple[int, int, dict[str, Any]]]]:
    """Return the batches of each epoch, and a state for each batch and each end of an epoch: (epoch, done, state)."""
    loader = made(name, 1, **arguments)
    epochs: list[list[Any]] = []
    states = [(0, 0, through_a_file(loader.state_dict()))]
    for epoch in range(EPOCHS):
        epochs.append([])
        for batch in loader:
            epochs[-1].append(values(batch))
            states.append((epoch, len(epochs[-1]), through_a_file(loader.state_dict())))
        states.append((epoch + 1, 0, through_a_file(loader.state_dict())))
    return epochs, states


@pytest.mark.filterwarnings("ignore:the state was taken after the last batch")
@pytest.mark.parametrize("name", MAKERS)
def test_every_state_continues_exactly(name: str) -> None:
    """After each batch and at each epoch's end: the rest of the epoch, then the same epochs."""
    epochs, states = states_of(name)
    assert len({str(epoch) for epoch in epochs}) == EPOCHS, "epochs do not differ, so the test would see nothing"
    for epoch, done, state in states:
        loader = made(name, 2)
        loader.load_state_dict(state)
        rest = [epoch_of(loader) for _ in range(EPOCHS - epoch)]
        assert rest == ([epochs[epoch][done:], *epochs[epoch + 1 :]] if epoch < EPOCHS else []), (epoch, done)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the state was taken after the last batch")
@pytest.mark.parametrize("name", ["shuffled", "distributed", "a stream with a state", "torchdata's order"])
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_continue_exactly(name: str, context: str) -> None:
    own = {"num_workers": 2, "multiprocessing_context": context, "persistent_workers": context == "fork"}
    epochs, states = states_of(name, **own)
    for epoch, done, state in [states[2], states[len(epochs[0])], states[len(epochs[0]) + 1]]:
        loader = made(name, 2, **own)
        loader.load_state_dict(state)
        rest = [epoch_of(loader) for _ in range(EPOCHS - epoch)]
        assert rest == [epochs[epoch][done:], *epochs[epoch + 1 :]], (epoch, done)
        loader.close()


def ranks(number: int, state: dict[str, Any] | None = None) -> list[StatefulDataLoader[Any]]:
    """Return the loaders of all ranks, which divide global batches of four."""
    made = []
    for rank in range(number):
        sampler: Any = DistributedSampler(Noisy(), number, rank, shuffle=True, drop_last=True)
        made.append(StatefulDataLoader(Noisy(), 4 // number, sampler=sampler))
        if state is not None:
            made[-1].load_state_dict(state)
    return made


def test_other_numbers_of_ranks_continue_the_same_global_batches() -> None:
    """Two ranks become one, and then four: every sample and its augmentation stay in their global batch."""
    (one,) = ranks(1)
    baseline = [sorted(zip(*values(batch), strict=True)) for _ in range(2) for batch in one]
    state, step = None, 0
    for number, steps in ((2, 3), (1, 4), (4, 3)):
        loaders = ranks(number, state)
        for _ in range(steps):
            if step % 5 == 0 or state is not None:
                loops = [iter(loader) for loader in loaders]
                state = None
            batch = [pair for loop in loops for pair in zip(*values(next(loop)), strict=True)]
            assert sorted(batch) == baseline[step], (number, step)
            step += 1
            if step == 5:
                assert [next(loop, None) for loop in loops] == [None] * number
        states = [through_a_file(loader.state_dict()) for loader in loaders]
        state = states[0]
        assert all(one == state for one in states)


# ------------------------------------------------------------------ what torchdata does


def test_each_loop_is_an_epoch_also_after_break() -> None:
    epochs, _ = states_of("shuffled")
    loader = made("shuffled", 1)
    assert values(next(iter(loader))) == epochs[0][0]
    assert epoch_of(loader) == epochs[1]


def test_a_loop_that_read_nothing_changes_nothing() -> None:
    epochs, _ = states_of("shuffled")
    loader = made("shuffled", 1)
    iter(loader)
    assert epoch_of(loader) == epochs[0]


def test_a_loop_thrown_away_after_a_load_ends_the_epoch() -> None:
    epochs, states = states_of("shuffled")
    loader = made("shuffled", 2)
    loader.load_state_dict(states[2][2])
    iter(loader)
    assert epoch_of(loader) == epochs[1]


def test_an_empty_state_starts_a_new_epoch() -> None:
    epochs, _ = states_of("shuffled")
    loader = made("shuffled", 1)
    next(iter(loader))
    loader.load_state_dict({})
    assert epoch_of(loader) == epochs[1]


def test_other_keys_are_ignored_and_kept() -> None:
    epochs, states = states_of("shuffled")
    state = {**states[2][2], "num_workers": 4, "_iterator_finished": False}
    loader = made("shuffled", 2)
    loader.load_state_dict(state)
    assert epoch_of(loader) == epochs[0][2:]
    assert state["num_workers"] == 4


def test_an_epoch_that_accelerate_marks_as_finished_is_over() -> None:
    epochs, states = states_of("shuffled")
    last = next(state for epoch, done, state in states if (epoch, done) == (0, len(epochs[0])))
    loader = made("shuffled", 2)
    loader.load_state_dict({**last, "_iterator_finished": True})
    assert epoch_of(loader) == epochs[1]


def test_a_state_after_the_last_batch_has_an_empty_loop_or_the_next_epoch() -> None:
    epochs, states = states_of("shuffled")
    last = next(state for epoch, done, state in states if (epoch, done) == (0, len(epochs[0])))
    loader = made("shuffled", 2)
    loader.load_state_dict(last)
    with pytest.warns(LoopWarning, match='after the last batch of epoch 0.*\n.*after_last="next"'):
        assert epoch_of(loader) == []
    assert epoch_of(loader) == epochs[1]
    following = made("shuffled", 2, after_last="next")
    following.load_state_dict(last)
    assert epoch_of(following) == epochs[1]


def test_loading_the_first_state_again_repeats_the_epoch() -> None:
    """As a framework does that asks for a state before the first batch, and loads it for each epoch."""
    loader = made("shuffled", 1)
    state = loader.state_dict()
    first = epoch_of(loader)
    loader.load_state_dict(state)
    assert epoch_of(loader) == first


def test_a_used_loader_goes_to_the_position_of_a_state() -> None:
    epochs, states = states_of("shuffled")
    loader = made("shuffled", 1)
    loop = iter(loader)
    next(loop)
    loader.load_state_dict(states[3][2])
    with pytest.raises(LoopError, match="or a state was loaded"):
        next(loop)
    assert epoch_of(loader) == epochs[0][3:]


def test_an_unused_loop_continues_only_at_its_position() -> None:
    """SkyRL makes its iterator before it loads; the last state that it loads has the iterator's position."""
    epochs, states = states_of("shuffled")
    for loaded in ([], states[2:3]):
        loader = made("shuffled", 1)
        unused = loader.state_dict()
        loop = iter(loader)
        for _, _, state in loaded:
            loader.load_state_dict(state)
        loader.load_state_dict(unused)
        assert [values(batch) for batch in loop] == epochs[0]
        assert epoch_of(loader) == epochs[1]
    loader = made("shuffled", 1)
    loop = iter(loader)
    loader.load_state_dict(states[2][2])
    with pytest.raises(LoopError, match="or a state was loaded"):
        next(loop)


def test_an_older_loop_cannot_take_batches() -> None:
    loader = made("in order", 1)
    older, newer = iter(loader), iter(loader)
    next(newer)
    with pytest.raises(LoopError, match="a newer loop over the same StatefulDataLoader"):
        next(older)
    assert len(list(newer)) == len(loader) - 1


def test_the_arguments_are_attributes() -> None:
    plain = DataLoader(Noisy(), 3, num_workers=2, timeout=5, prefetch_factor=3)
    loader = StatefulDataLoader(Noisy(), 3, num_workers=2, timeout=5, prefetch_factor=3)
    for name in ("batch_size", "num_workers", "timeout", "prefetch_factor", "drop_last", "pin_memory", "collate_fn"):
        assert getattr(loader, name) == getattr(plain, name)
    assert len(loader) == len(plain) == 7
    assert isinstance(loader, DataLoader)
    assert isinstance(loader.sampler, torch.utils.data.SequentialSampler)


def test_arguments_that_a_script_changes_are_used() -> None:
    """From the next loop on, as PyTorch does; the position stays."""
    epochs, states = states_of("shuffled")
    for done, load in ((0, False), (2, True)):
        loader = made("shuffled", 1)
        if load:
            loader.load_state_dict(states[done][2])
        collate, loader.collate_fn = loader.collate_fn, lambda samples: [index for index, _ in samples]
        assert list(loader) == [indices for indices, _ in epochs[0][done:]]
        loader.collate_fn, loader.num_workers = collate, 1
        assert epoch_of(loader) == epochs[1]
    loader.in_order = False
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="in_order=False"):
            iter(loader)


def test_a_sampler_that_a_script_exchanges_is_used() -> None:
    """As a framework does with the sampler in a batch sampler."""
    loader = made("shuffled", 1)
    batch_sampler: Any = loader.batch_sampler
    batch_sampler.sampler = SequentialSampler(Noisy())
    assert [indices for indices, _ in epoch_of(loader)][:2] == [[0, 1, 2], [3, 4, 5]]
    batch_sampler.sampler = RandomSampler(Noisy(), generator=seeded())
    for _ in range(2):
        with pytest.raises(StateMismatchError, match="sampler"):
            iter(loader)


def test_a_stream_without_length_has_none() -> None:
    with pytest.raises(TypeError):
        len(made("a stream", 1))


# ------------------------------------------------------------------ what torchdata loses


def test_two_shuffled_loaders_are_independent() -> None:
    torch.manual_seed(1)
    first, second = (StatefulDataLoader(Noisy(), 3, shuffle=True) for _ in range(2))
    assert epoch_of(first) != epoch_of(second)


def test_a_batch_that_raises_is_skipped_as_in_pytorch() -> None:
    class Bad(Noisy):
        def __getitem__(self, index: int) -> tuple[int, float]:
            if index == 4:
                raise OSError("sample 4 is broken")
            return super().__getitem__(index)

    loops = [iter(kind(Bad(), 3)) for kind in (DataLoader, StatefulDataLoader)]
    seen: list[list[Any]] = [[], []]
    for loop, batches in zip(loops, seen, strict=True):
        for _ in range(8):
            try:
                batches.append(next(loop)[0].tolist())
            except OSError:
                batches.append("raised")
            except StopIteration:
                batches.append("end")
    assert seen[0] == seen[1]
    assert seen[1][:3] == [[0, 1, 2], "raised", [6, 7, 8]]


def test_the_next_loop_raises_a_rejected_state_again() -> None:
    _, states = states_of("shuffled")
    loader = StatefulDataLoader(TensorDataset(torch.arange(7)), 3, shuffle=True)
    for _ in range(2):
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(states[2][2])
        with pytest.raises(StateMismatchError):
            iter(loader)
        with pytest.raises(StateMismatchError):
            loader.state_dict()
    loader.load_state_dict({})
    assert len(epoch_of(loader)) == 3


@pytest.mark.parametrize("state", [{"epoch": 3}, {"_snapshot": {}, "_num_yielded": 2}])
def test_a_foreign_state_is_rejected(state: dict[str, Any]) -> None:
    loader = made("shuffled", 1)
    with pytest.raises(StateFormatError, match="has no key 'resumable'|saved by torchdata's"):
        loader.load_state_dict(state)


def test_set_epoch_sets_the_epoch() -> None:
    sampler: Any = DistributedSampler(Noisy(), 1, 0)
    loader = StatefulDataLoader(Noisy(), 3, sampler=sampler)
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(epoch_of(loader))
    sampler.set_epoch(1)
    with pytest.warns(LoopWarning, match=r"set_epoch\(1\) was called, and epoch 3 is next"):
        assert epoch_of(loader) == epochs[1]


def test_set_epoch_cannot_leave_an_epoch_in_the_middle() -> None:
    sampler: Any = DistributedSampler(Noisy(), 1, 0)
    loader = StatefulDataLoader(Noisy(), 3, sampler=sampler)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    sampler.set_epoch(2)
    with pytest.raises(UnsupportedError, match=r"set_epoch\(2\).*in the middle of epoch 0"):
        iter(loader)


def test_workers_out_of_order_are_rejected() -> None:
    with pytest.raises(UnsupportedError, match="in_order=False"):
        StatefulDataLoader(Noisy(), 3, in_order=False)


@pytest.mark.parametrize("option", [{"after_last": "none"}, {"order": "random"}])
def test_a_bad_option_is_rejected(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(option))} must be one of"):
        StatefulDataLoader(Noisy(), 3, **option)


def test_an_error_says_where_options_go() -> None:
    """Messages name `wrap`, which users of this class, or of a framework, do not call."""
    loader = StatefulDataLoader(Counting(), 3, num_workers=2)
    next(iter(loader))
    other = StatefulDataLoader(Counting(), 3)
    with pytest.raises(StateMismatchError, match=r"wrap\(\.\.\., streams=N\)") as caught:
        other.load_state_dict(loader.state_dict())
    loader.close()
    assert "Pass options of wrap() to StatefulDataLoader()" in "".join(caught.value.__notes__)
    with pytest.raises(UnsupportedError, match=r"wrap\(") as refused:
        StatefulDataLoader(Counting(), 3, randomness="passed")
    assert "Pass options of wrap() to StatefulDataLoader()" in "".join(refused.value.__notes__)
    other = StatefulDataLoader(Counting(), 3)
    next(iter(other))
    other.num_workers = 2
    with pytest.raises(StateMismatchError, match=r"wrap\(") as changed:
        iter(other)
    assert "".join(changed.value.__notes__).count("Pass options of wrap()") == 1


def test_a_stream_with_logical_streams_fits_other_workers() -> None:
    """As the error recommends."""
    epochs, states = states_of("a stream", streams=2)
    loader = made("a stream", 2, streams=2, num_workers=2)
    loader.load_state_dict(states[2][2])
    assert [epoch_of(loader) for _ in range(EPOCHS)] == [epochs[0][2:], *epochs[1:]]


def test_a_different_batch_size_is_rejected_or_divides_the_rest() -> None:
    _, states = states_of("in order")
    loader = StatefulDataLoader(Noisy(), 4)
    with pytest.raises(StateMismatchError, match="batch"):
        loader.load_state_dict(states[2][2])
    with pytest.raises(StateMismatchError, match="batch"):
        iter(loader)
    loader = StatefulDataLoader(Noisy(), 4, on_change="continue")
    loader.load_state_dict(states[2][2])
    assert [indices for indices, _ in epoch_of(loader)] == [
        [*range(first, min(first + 4, 20))] for first in (6, 10, 14, 18)
    ]


def test_changed_data_continues_if_it_is_not_strict() -> None:
    """As the error recommends."""
    _, states = states_of("shuffled")
    loader = StatefulDataLoader(TensorDataset(torch.arange(20)), 3, shuffle=True)
    with pytest.raises(StateMismatchError, match="strict=False"):
        loader.load_state_dict(states[2][2])
    with pytest.warns(StateMismatchWarning):
        loader.load_state_dict(states[2][2], strict=False)
    assert len(list(loader)) == len(loader) - 2


@pytest.mark.parametrize("own", [{"seed": 3}, {"generator": 3}, {}])
def test_wrap_reads_what_it_was_made_of(own: dict[str, Any]) -> None:
    """With its options, and by index: any number of ranks, and a seed that nobody passed is in the states."""
    options: dict[str, Any] = {name: seeded() if name == "generator" else number for name, number in own.items()}
    plain = DataLoader(Noisy(), 3, shuffle=True, generator=options.get("generator"))
    torch.manual_seed(1)
    expected = resumable.wrap(plain, tail="drop", seed=options.get("seed"))
    loader = resumable.wrap(StatefulDataLoader(Noisy(), 3, shuffle=True, tail="drop", **options))
    assert [values(next(iter(loader))) for _ in range(2)] == [values(next(iter(expected))) for _ in range(2)]
    torch.manual_seed(2)
    other = resumable.wrap(
        StatefulDataLoader(Noisy(), 3, shuffle=True, tail="drop", **options),
        tail="partial",
        world=resumable.World(0, 1),
    )
    assert other.total_steps(0) == 7
    resumed = resumable.wrap(StatefulDataLoader(Noisy(), 3, shuffle=True, tail="drop", **options))
    resumed.load_state_dict(loader.state_dict())
    assert [values(batch) for batch in resumed] == [values(batch) for batch in loader]


def test_wrap_rejects_a_loader_that_has_loaded_a_state() -> None:
    """Its Loader would start over. A batch that was only read, as for a lazy model, loses nothing."""
    _, states = states_of("shuffled")
    loader = made("shuffled", 1)
    next(iter(loader))
    first = values(next(iter(resumable.wrap(loader))))
    assert first == values(next(iter(resumable.wrap(made("shuffled", 1)))))
    loader.load_state_dict(states[2][2])
    with pytest.raises(UnsupportedError, match="is at epoch 0, step 2, but the Loader that wraps it starts at epoch 0"):
        resumable.wrap(loader)
    next(iter(loader))
    with pytest.raises(UnsupportedError, match="step 3"):
        resumable.wrap(loader)
    loader.load_state_dict({})
    assert values(next(iter(resumable.wrap(loader)))) == first


def test_wrap_keeps_the_loop_of_a_subclass() -> None:
    class Doubled(StatefulDataLoader[Any]):
        def __iter__(self) -> Any:
            return iter([batch[0] * 2 for batch in super().__iter__()])

    assert next(iter(resumable.wrap(Doubled(Noisy(), 3)))).tolist() == [0, 2, 4]


@pytest.mark.parametrize("other", [{"sampler": range(3)}, {"batch_sampler": [[0], [1]]}])
def test_shuffle_with_a_sampler_is_rejected(other: dict[str, Any]) -> None:
    """As PyTorch does; the sampler must not be ignored."""
    for kind in (DataLoader, StatefulDataLoader):
        with pytest.raises(ValueError, match="mutually exclusive with"):
            kind(Noisy(), shuffle=True, **other)


# ------------------------------------------------------------------ threads and processes


def test_a_state_of_another_thread_is_of_a_whole_batch() -> None:
    """torchdata counts the batch that is being read, and loses it."""
    reading, may = threading.Event(), threading.Event()

    class Slow(Noisy):
        def __getitem__(self, index: int) -> tuple[int, float]:
            if index == 3:
                reading.set()
                assert may.wait(30)
            return super().__getitem__(index)

    loader = StatefulDataLoader(Slow(), 3)
    loop, seen, states = iter(loader), list[Any](), list[Any]()
    seen.append(next(loop))
    reader = threading.Thread(target=lambda: seen.append(next(loop)))
    reader.start()
    assert reading.wait(30)
    asker = threading.Thread(target=lambda: states.append(loader.state_dict()))
    asker.start()
    may.set()
    reader.join(30)
    asker.join(30)
    may.set()
    resumed = StatefulDataLoader(Slow(), 3)
    resumed.load_state_dict(states[0])
    assert next(values(batch) for batch in resumed)[0] == [6, 7, 8]


@pytest.mark.parametrize("through", [copy.deepcopy, pickled])
def test_a_copy_continues_in_the_middle_of_an_epoch(through: Callable[[Any], Any]) -> None:
    epochs, _ = states_of("shuffled")
    loader = made("shuffled", 1)
    loop = iter(loader)
    assert values(next(loop)) == epochs[0][0]
    torch.manual_seed(5)
    sent = through(loader)
    assert epoch_of(sent) == epochs[0][1:]
    assert epoch_of(sent) == epochs[1]
    assert [values(batch) for batch in loop] == epochs[0][1:]


def test_a_copy_of_an_unused_loader_reads_everything() -> None:
    epochs, _ = states_of("shuffled")
    assert epoch_of(pickled(made("shuffled", 1))) == epochs[0]


# ------------------------------------------------------------------ torchdata's states, order and name


def _set_epoch(loader: Any, epoch: int) -> None:
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)


def states_of_torchdata(make: Callable[..., Any], **own: Any) -> tuple[list[list[Any]], list[tuple[int, int, Any]]]:
    """Return the same as `states_of`, for a loader of torchdata's class."""
    torch.manual_seed(1)
    loader = make(Theirs, **own)
    epochs, states = list[list[Any]](), []
    for epoch in range(EPOCHS):
        _set_epoch(loader, epoch)
        epochs.append([])
        for batch in loader:
            epochs[-1].append(batch[0].tolist())
            states.append((epoch, len(epochs[-1]), loader.state_dict()))
        states.append((epoch + 1, 0, loader.state_dict()))
    return epochs, states


THEIRS: dict[str, Callable[..., Any]] = {
    "in order": lambda kind, **own: kind(Noisy(), 3, **own),
    "shuffled": lambda kind, **own: kind(Noisy(), 3, shuffle=True, **own),
    "with a generator": lambda kind, **own: kind(Noisy(), 3, shuffle=True, generator=seeded(), **own),
    "torchdata's sampler": lambda kind, **own: kind(
        Noisy(), 3, sampler=torchdatas.sampler.RandomSampler(Noisy(), generator=seeded()), **own
    ),
    "distributed": lambda kind, **own: kind(Noisy(), 3, sampler=DistributedSampler(Noisy(), 1, 0), **own),
    "torchdata's distributed": lambda kind, **own: kind(
        Noisy(), 3, sampler=torchdatas.sampler.StatefulDistributedSampler(Noisy(), 1, 0, seed=4), drop_last=True, **own
    ),
}


@pytest.mark.filterwarnings("ignore:the state was taken after the last batch")
@pytest.mark.parametrize(
    ("name", "num_workers"),
    [
        *((name, 0) for name in THEIRS),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("shuffled", "with a generator", "distributed")),
    ],
)
def test_a_state_of_torchdata_is_continued(name: str, num_workers: int) -> None:
    """The rest of the epoch, and the epochs that torchdata would read without a resume."""
    make = THEIRS[name]
    epochs, states = states_of_torchdata(make, num_workers=num_workers)
    if num_workers:
        states = [states[1], states[8]]
    for epoch, done, state in states:
        torch.manual_seed(2)
        loader = make(StatefulDataLoader, order="torchdata", num_workers=num_workers)
        loader.load_state_dict(state)
        rest = []
        for number in range(epoch, EPOCHS):
            _set_epoch(loader, number)
            rest.append([batch[0].tolist() for batch in loader])
        assert rest == ([epochs[epoch][done:], *epochs[epoch + 1 :]] if epoch < EPOCHS else []), (epoch, done)


def test_a_state_of_torchdata_waits_for_the_epoch() -> None:
    """`set_epoch` is called after `load_state_dict`, so a state that is taken between them is torchdata's."""
    make = THEIRS["distributed"]
    epochs, states = states_of_torchdata(make)
    epoch, done, state = states[10]
    loader = make(StatefulDataLoader, order="torchdata")
    loader.load_state_dict(state)
    saved = loader.state_dict()
    assert saved == state
    for resumed in (make(StatefulDataLoader, order="torchdata"), pickled(loader)):
        resumed.load_state_dict(saved)
        resumed.sampler.set_epoch(epoch)
        assert [batch[0].tolist() for batch in resumed] == epochs[epoch][done:]
    loader.load_state_dict({})
    assert [batch[0].tolist() for batch in loader] == epochs[0]


@pytest.mark.parametrize(
    ("name", "own", "error", "text"),
    [
        ("with a generator", {}, StateMismatchError, "the job had 0 worker processes, but this loader has 2"),
        ("with a generator", {"order": "feistel"}, StateFormatError, "saved by torchdata's"),
        ("with a generator", {"order": "torch"}, StateFormatError, "saved by torchdata's"),
    ],
)
def test_a_state_of_torchdata_that_would_not_be_exact_is_rejected(
    name: str, own: dict[str, Any], error: type[Exception], text: str
) -> None:
    theirs = THEIRS[name](Theirs)
    next(iter(theirs))
    ours = THEIRS[name](StatefulDataLoader, **{"order": "torchdata", "num_workers": 2, **own})
    with pytest.raises(error, match=text):
        ours.load_state_dict(theirs.state_dict())
    with pytest.raises(error, match=text):
        iter(ours)


def test_a_state_of_torchdata_with_a_different_seed_is_rejected() -> None:
    def make(kind: Any, seed: int, **own: Any) -> Any:
        return kind(Noisy(), 3, shuffle=True, generator=seeded(seed), **own)

    theirs = make(Theirs, 3)
    next(iter(theirs))
    with pytest.raises(StateMismatchError, match="the seed of the sampler's generator differs"):
        make(StatefulDataLoader, 4, order="torchdata").load_state_dict(theirs.state_dict())


def test_a_state_of_torchdata_with_a_batch_sampler_is_rejected() -> None:
    def make(kind: Any, **own: Any) -> Any:
        inner = torchdatas.sampler.RandomSampler(Noisy(), generator=seeded())
        return kind(Noisy(), batch_sampler=BatchSampler(inner, 3, False), **own)

    theirs = make(Theirs)
    next(iter(theirs))
    with pytest.raises(UnsupportedError, match="has a batch_sampler"):
        make(StatefulDataLoader, order="torchdata").load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stream", [Counting, Stateful])
@pytest.mark.parametrize("order", ["feistel", "torchdata"])
def test_a_state_of_torchdata_of_a_stream_is_rejected(stream: Any, order: Any, num_workers: int) -> None:
    theirs = Theirs(stream(), 3, num_workers=num_workers)
    batches = iter(theirs)
    next(batches)
    state = theirs.state_dict()
    assert list(batches)  # torchdata waits 10 s for workers in the middle of an epoch
    loader = StatefulDataLoader(stream(), 3, num_workers=num_workers, order=order)
    with pytest.raises(StateFormatError, match="a stream can only finish its run with torchdata"):
        loader.load_state_dict(state)
    with pytest.raises(StateFormatError, match="a stream can only"):
        iter(loader)


def test_torchdatas_order_is_torchdatas() -> None:
    for make in (THEIRS["with a generator"], THEIRS["torchdata's sampler"]):
        theirs, ours = make(Theirs), make(StatefulDataLoader, order="torchdata")
        for _ in range(EPOCHS):
            assert [batch[0].tolist() for batch in ours] == [batch[0].tolist() for batch in theirs]


@pytest.mark.parametrize("seed", [{"generator": 3}, {"seed": 3}])
def test_pytorchs_order_is_pytorchs(seed: dict[str, Any]) -> None:
    plain = DataLoader(Noisy(), 3, shuffle=True, generator=seeded())
    given = {"generator": seeded()} if "generator" in seed else seed
    loader = StatefulDataLoader(Noisy(), 3, shuffle=True, order="torch", **given)
    for _ in range(2):
        assert [batch[0].tolist() for batch in loader] == [batch[0].tolist() for batch in plain]


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo install()."""
    for name in resumable.torch._MODULES:
        monkeypatch.setattr(sys.modules[name], "StatefulDataLoader", Theirs)
    monkeypatch.setattr(resumable.torch, "_installed", resumable.torch._Defaults())
    for module in list(sys.modules.values()):
        if vars(module).get("StatefulDataLoader") is Theirs and module.__name__ not in resumable.torch._MODULES:
            monkeypatch.delattr(module, "StatefulDataLoader")


@pytest.mark.usefixtures("restored")
def test_install_replaces_torchdatas_class(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "resumable"):
        install(after_last="next")
    assert torchdatas.StatefulDataLoader is StatefulDataLoader
    assert "is resumable.torch.StatefulDataLoader from now on" in caplog.text
    assert StatefulDataLoader(Noisy()).after_last == "next"
    assert StatefulDataLoader(Noisy(), after_last="empty").after_last == "empty"
    install()
    assert StatefulDataLoader(Noisy()).after_last == "empty"


@pytest.mark.usefixtures("restored")
def test_install_after_a_framework_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = types.ModuleType("framework")
    framework.StatefulDataLoader = resumable.torch._torchdatas()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "framework", framework)
    with pytest.raises(ConfigurationError, match="imported before install.* by framework"):
        install()


@pytest.mark.slow
def test_the_command_line_checks_it(tmp_path: Path) -> None:
    """`resumable check` stops and resumes it at several points, and in a fresh process."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "from resumable.torch import StatefulDataLoader\n"
        "def make():\n"
        "    seeded = torch.Generator().manual_seed(3)\n"
        "    return StatefulDataLoader(TensorDataset(torch.arange(20)), 4, shuffle=True, generator=seeded)\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "resumable", "check", "--seconds", "5", f"{script}:make"]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout + child.stderr


@pytest.mark.slow
def test_the_table_of_differences_is_true() -> None:
    """The page says what both classes do; `differences.py` writes it."""
    page = (ROOT / "docs/frameworks/stateful-dataloader.md").read_text(encoding="utf-8")
    assert written(page) == page
