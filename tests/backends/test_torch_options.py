"""Every option of the `DataLoader` means what it means there; bad input and dead workers are told clearly."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch_datasets as datasets
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Sampler, Subset, get_worker_info

import resumable
from resumable import World
from resumable.errors import ConfigurationError, PromiseWarning, StateMismatchError, UnsupportedError, WorkerError
from resumable.samplers import Shuffle
from resumable.testing import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess


def wrap(dataset: Any, options: dict[str, Any] | None = None, **loader_options: Any) -> resumable.Loader:
    return resumable.wrap(DataLoader(dataset, **loader_options), **options or {})


def run_of(loader: resumable.Loader, epochs: int = 2) -> list[str]:
    return [digest(batch) for epoch in loader.epochs(epochs) for batch in epoch]


def samples_of(loader: resumable.Loader) -> list[tuple[float, ...]]:
    return [tuple(float(part) for part in sample) for batch in loader for sample in zip(*batch, strict=True)]


# ---------------------------------------------------------------------- randomness


def test_augmentations_with_any_workers() -> None:
    """The augmentations are the same with any workers and batch size."""
    golden = samples_of(wrap(datasets.Augmented(), batch_size=1, shuffle=True))
    assert len(set(golden)) == 23
    cases: tuple[dict[str, Any], ...] = (
        {"batch_size": 4},
        {"batch_size": 23},
        {"batch_size": 4, "num_workers": 1},
        {"batch_size": 5, "num_workers": 2, "prefetch_factor": 4},
    )
    for options in cases:
        assert samples_of(wrap(datasets.Augmented(), shuffle=True, **options)) == golden


@pytest.mark.slow
def test_per_batch_they_are_the_same_with_any_workers() -> None:
    golden = run_of(wrap(datasets.Augmented(), {"randomness": "batch"}, batch_size=4))
    assert run_of(wrap(datasets.Augmented(), {"randomness": "batch"}, batch_size=4, num_workers=2)) == golden
    assert run_of(wrap(datasets.Augmented(), {"randomness": "batch"}, batch_size=4, num_workers=1)) == golden


class Mixing:
    """A `collate_fn` that draws."""

    def __call__(self, samples: list[Any]) -> tuple[list[Any], float]:
        return samples, random.random()


def test_what_collate_draws_belongs_to_the_batch() -> None:
    golden = list(wrap(datasets.Augmented(), batch_size=4, collate_fn=Mixing()))
    assert len({drawn for _, drawn in golden}) == 6
    assert list(wrap(datasets.Augmented(), batch_size=4, collate_fn=Mixing(), num_workers=2)) == golden


def test_a_dataset_that_reads_batches_is_warned_about_by_promise() -> None:
    with pytest.warns(PromiseWarning, match="Together reads whole batches with __getitems__.*\n.*randomness="):
        wrap(datasets.Together(), batch_size=4)
    for nested in (Subset(datasets.Together(), range(9)), Subset(Subset(datasets.Together(), range(9)), range(5))):
        with pytest.warns(PromiseWarning, match="Subset"):
            wrap(nested, batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrap(Subset(datasets.Augmented(), range(9)), batch_size=4)
        wrap(ConcatDataset([datasets.Augmented()]), batch_size=4)
        wrap(datasets.Together(), {"randomness": "batch"}, batch_size=4)


def test_asked_for_per_sample_such_a_dataset_is_read_one_by_one() -> None:
    per_sample = samples_of(wrap(datasets.Together(), {"randomness": "sample"}, batch_size=4, shuffle=True))
    assert per_sample == samples_of(wrap(datasets.Augmented(), batch_size=5, shuffle=True))


# ---------------------------------------------------------------------- options


class Tagged(datasets.Augmented):
    """Its worker tells what it is told."""

    opened = 0

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        return index, info.id, self.opened


def open_files(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert info.id == worker
    info.dataset.opened = 100 + worker  # type: ignore[attr-defined]  # as in torch's documentation


def test_worker_init_fn_meets_the_users_dataset() -> None:
    """`worker_init_fn` gets the user's dataset and the user's worker number."""
    loader = wrap(Tagged(), batch_size=4, num_workers=2, worker_init_fn=open_files)
    told = [[set(part.tolist()) for part in batch[1:]] for batch in loader]
    assert told == [[{0}, {100}], [{1}, {101}]] * 3


class Numbered(datasets.Stream):
    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        return ((info.id * 100 + index, self.opened) for index in range(4 + 4 * info.id))

    opened = 0


@pytest.mark.slow
def test_workers_of_a_resumed_stream_keep_their_numbers() -> None:
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "worker_init_fn": open_files}
    loader = wrap(Numbered(), **options)
    run, states = [], []
    for batch in loader:
        run.append([part.tolist() for part in batch])
        states.append(loader.state_dict())
    assert [batch[0][0] // 100 for batch in run] == [0, 1, 0, 1, 1, 1]
    for step in (1, 3, 5):
        fresh = wrap(Numbered(), **options)
        fresh.load_state_dict(states[step - 1])
        assert [[part.tolist() for part in batch] for batch in fresh] == run[step:]


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_may_be_started_in_any_way(context: str) -> None:
    options: dict[str, Any] = {"batch_size": 6, "shuffle": True}
    golden = run_of(wrap(datasets.Augmented(), **options), 1)
    loader = wrap(datasets.Augmented(), num_workers=1, multiprocessing_context=context, **options)
    assert run_of(loader, 1) == golden


@pytest.mark.slow
def test_pinning_and_time_outs_are_handed_on() -> None:
    golden = run_of(wrap(datasets.Augmented(), batch_size=4, shuffle=True))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true")
        for workers in (0, 1):
            loader = wrap(datasets.Augmented(), batch_size=4, shuffle=True, pin_memory=True, num_workers=workers)
            assert run_of(loader) == golden
    assert run_of(wrap(datasets.Augmented(), batch_size=4, shuffle=True, timeout=60, num_workers=1)) == golden


def test_starting_workers_draws_nothing() -> None:
    """Starting workers draws nothing from the trainer's generator.

    A plain `DataLoader` draws a seed at each `iter()`, so that an interrupted run would differ in its dropout.
    """
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    for workers in (0, 1):
        list(wrap(datasets.Augmented(), batch_size=4, shuffle=True, num_workers=workers))
    assert torch.equal(torch.rand(4), expected)


# ---------------------------------------------------------------------- what cannot be promised


def test_batches_in_any_order_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="in_order=False.*\n.*in_order=True"):
        wrap(datasets.Augmented(), num_workers=1, in_order=False)


def test_workers_that_are_threads_are_rejected() -> None:
    """Newer versions of PyTorch have them: a `DataLoader` says so in this attribute."""
    loader: Any = DataLoader(datasets.Augmented(), num_workers=1)
    loader.worker_method = "multiprocessing"
    resumable.wrap(loader)
    loader.worker_method = "thread"
    with pytest.raises(UnsupportedError, match="worker_method='thread'(?s:.)*worker_method=\"multiprocessing\""):
        resumable.wrap(loader)
    source: Any = range(4)
    collate: Any = lambda samples, rng: (samples, rng.random())  # noqa: E731  # two lines shorter
    passed: Any = DataLoader(source, collate_fn=collate, num_workers=1)
    passed.worker_method = "thread"
    assert len(list(resumable.wrap(passed, randomness="passed"))) == 4


def test_a_python_without_its_global_lock_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = True
    monkeypatch.setattr("sys._is_gil_enabled", lambda: locked, raising=False)
    resumable.wrap([1, 2])
    locked = False
    with pytest.raises(UnsupportedError, match="free-threaded(?s:.)*PYTHON_GIL=1"):
        resumable.wrap([1, 2])
    assert list(resumable.wrap([1, 2], randomness="off")) == [1, 2]
    assert list(resumable.wrap([1, 2], transform=lambda one, rng: one, randomness="passed")) == [1, 2]


def test_options_that_belong_to_the_data_loader_are_refused() -> None:
    for options in ({"batch_size": 3}, {"shuffle": True}, {"transform": str}, {"collate": list}):
        (name,) = options
        with pytest.raises(UnsupportedError, match=f"the option {name} does not fit a DataLoader"):
            wrap(datasets.Augmented(), options)


def test_several_ranks_must_be_told_whether_a_stream_is_shared() -> None:
    world = {"world": World(0, 2)}
    for dataset, options in ((datasets.Stream(), {}), (datasets.Augmented(), {"sampler": datasets.OwnOrder()})):
        with pytest.raises(ConfigurationError, match=r"the source does not say whether.*\n.*shard=True.*shard=False"):
            next(iter(wrap(dataset, world, **options)))
        golden = list(wrap(dataset, {}, **options))
        shared = [list(wrap(dataset, {"shard": True, "world": World(rank, 2)}, **options)) for rank in range(2)]
        together = [batch for pair in zip(*shared, strict=True) for batch in pair]
        assert [digest(batch) for batch in together] == [digest(batch) for batch in golden[: len(together)]]
        assert len(list(wrap(dataset, {"shard": False, "world": World(0, 2)}, **options))) == len(golden)


# ---------------------------------------------------------------------- bad input and dead workers


@pytest.mark.parametrize("workers", [0, 2])
def test_failing_sample_is_named(workers: int) -> None:
    """A sample that fails is named, and the state before it resumes."""
    golden = run_of(wrap(datasets.Augmented(), batch_size=4), 1)
    loader, got = wrap(datasets.Augmented(broken=9), batch_size=4, num_workers=workers), list[str]()
    with pytest.raises(OSError, match=r"torn file\n.*raised by sample 9(, in worker 0)?\.\n.*epoch 0, step 2, rank 0"):
        got.extend(digest(batch) for batch in loader)
    assert loader.cursor.step == 2
    mended = wrap(datasets.Augmented(), batch_size=4, num_workers=workers)
    mended.load_state_dict(loader.state_dict())
    assert run_of(mended, 1) == golden[2:]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_fails_leaves_the_state_before_it(workers: int) -> None:
    class Failing(datasets.StatefulStream):
        fails = True

        def __iter__(self) -> Any:
            for sample in super().__iter__():
                if sample[0] == 6 and self.fails:
                    raise OSError("torn file")
                yield sample

    golden = run_of(wrap(datasets.StatefulStream(), batch_size=2, num_workers=workers))
    loader = wrap(Failing(), {"identity": "StatefulStream"}, batch_size=2, num_workers=workers)
    steps = 0
    with pytest.raises(OSError, match="torn file"):
        for _ in loader:
            steps += 1
    mended = wrap(datasets.StatefulStream(), batch_size=2, num_workers=workers)
    mended.load_state_dict(loader.state_dict())
    assert run_of(mended) == golden[steps:]


class Deadly(datasets.Augmented):
    """Kills its worker, as the system does when memory runs out."""

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.slow
def test_a_killed_worker_is_an_error_and_no_hang() -> None:
    loader = wrap(Deadly(), {"identity": "Augmented"}, batch_size=4, num_workers=2)
    began, steps = time.monotonic(), 0
    with pytest.raises(WorkerError, match=r"DataLoader worker .*\nThe loader's state does not count this batch"):
        for _ in loader:
            steps += 1
    assert time.monotonic() - began < 30
    mended = wrap(datasets.Augmented(), batch_size=4, num_workers=2)
    mended.load_state_dict(loader.state_dict())
    assert run_of(mended, 1) == run_of(wrap(datasets.Augmented(), batch_size=4), 1)[steps:]


def test_dataset_that_cannot_be_pickled() -> None:
    """A dataset that cannot be pickled is told apart from other trouble."""
    dataset: Any = datasets.Augmented()
    dataset.transform = lambda sample: sample
    loader = wrap(dataset, num_workers=1, multiprocessing_context="spawn")
    with (
        warnings.catch_warnings(),
        pytest.raises(WorkerError, match="cannot start the workers.*\n.*multiprocessing_context"),
    ):
        warnings.filterwarnings("ignore", message="Got pickle error")
        next(iter(loader))


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises((ConfigurationError, ValueError), match="it is 0|num_samples"):
        wrap(datasets.Augmented(0), batch_size=4)


def test_a_sampler_without_a_length_is_fine() -> None:
    class Endless:
        def __iter__(self) -> Any:
            return iter(range(9))

    loader = wrap(datasets.Augmented(), batch_size=2, sampler=Endless())
    assert len(list(loader)) == 5
    assert not loader.is_sized
    with pytest.raises(TypeError, match="is unknown before its end"):
        len(loader)


def test_a_dataset_that_shrank_is_refused() -> None:
    state = wrap(datasets.Augmented(), batch_size=4).state_dict()
    with pytest.raises(resumable.errors.StateMismatchError, match=r"backend.length\) .*\n.*: 23\n.*: +22"):
        wrap(datasets.Augmented(22), batch_size=4).load_state_dict(state)


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@pytest.mark.slow
def test_no_process_is_left_behind(own_children: Callable[[], list[BaseProcess]]) -> None:
    for persistent in (False, True):
        for batches in (0, 1, 3, 6):
            loader = wrap(datasets.Augmented(), batch_size=4, num_workers=2, persistent_workers=persistent)
            began = time.monotonic()
            for _ in zip(range(batches), loader, strict=False):
                pass
            loader.load_state_dict(loader.state_dict())
            list(loader)
            del loader
            assert time.monotonic() - began < 4, "a worker was waited for until torch's time-out of 5 seconds"
            assert not own_children()


LEFT: dict[str, tuple[type, dict[str, Any]]] = {
    "map-style": (datasets.Augmented, {}),
    "map-style, sampler with a state": (datasets.Augmented, {"sampler": datasets.StatefulOrder}),
    "stream": (datasets.Stream, {}),
    "stream with a state": (datasets.StatefulStream, {}),
    "stream with a state, workers": (datasets.StatefulStream, {"num_workers": 2}),
    "stream with a state, persistent": (datasets.StatefulStream, {"num_workers": 2, "persistent_workers": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT)
def test_an_epoch_that_is_left_is_over_for_the_resumed_run_too(name: str) -> None:
    dataset, options = LEFT[name]

    def make() -> resumable.Loader:
        made = {key: value() if isinstance(value, type) else value for key, value in options.items()}
        return wrap(dataset(), batch_size=2, **made)

    def train(loader: resumable.Loader, limit: int) -> list[tuple[int, str]]:
        got: list[tuple[int, str]] = []
        for epoch in loader.epochs(3):
            for batch in epoch if loader.cursor.step < 2 else ():
                got.append((epoch.number, digest(batch)))
                if len(got) == limit:
                    return got
                if loader.cursor.step == 2:
                    break
        return got

    run = train(make(), -1)
    assert [epoch for epoch, _ in run] == [0, 0, 1, 1, 2, 2]
    for limit in range(1, 6):
        loader = make()
        got, fresh = train(loader, limit), make()
        fresh.load_state_dict(loader.state_dict())
        assert got + train(fresh, -1) == run, f"killed after {limit} batches"


@pytest.mark.slow
def test_behind_an_epoch_that_is_left_new_workers_begin_again() -> None:
    """As those of a plain `DataLoader` do; the rest of the epoch that was left is not read as the next one."""
    loader = wrap(datasets.StatefulStream(), batch_size=2, num_workers=2)
    firsts = [next(iter(epoch))[0].tolist() for epoch in loader.epochs(3)]
    assert firsts == [[1, 2]] * 3


# ---------------------------------------------------------------------- options and samplers that do not fit


class Shrinking(datasets.Stream):
    length = 11

    def __iter__(self) -> Iterator[Any]:
        return iter([(index,) for index in range(self.length)])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_ends_while_it_is_skipped_is_told(workers: int) -> None:
    loader = wrap(Shrinking(), batch_size=2, num_workers=workers)
    for _ in range(4):
        next(iter(loader))
    dataset = Shrinking()
    dataset.length = 5
    resumed = wrap(dataset, batch_size=2, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(StateMismatchError, match=r"fewer samples.*\n.*in the checkpoint: 8\n.*in this run: +5\n.*data"):
        next(iter(resumed))


@pytest.mark.slow
def test_shard_is_refused_where_the_samples_have_indices() -> None:
    for shard in (True, False):
        with pytest.raises(UnsupportedError, match=r"option shard does not fit a DataLoader.*\n.*world=World"):
            wrap(datasets.Augmented(), {"shard": shard, "world": World(0, 2)}, batch_size=4)


class Pairs(BatchSampler):
    """Kept, as a subclass may do anything."""


@pytest.mark.slow
def test_a_sampler_is_refused_beside_a_batch_sampler_of_ones_own() -> None:
    for batches in (datasets.OwnBatches(), Pairs(range(8), 2, drop_last=False)):
        with pytest.raises(UnsupportedError, match=r"option sampler does not fit .* custom batch sampler.*\n.*"):
            wrap(datasets.Augmented(), {"sampler": Shuffle(23)}, batch_sampler=batches)
    loader = wrap(datasets.Augmented(), {"sampler": Shuffle(23, seed=9)}, batch_size=4)
    assert loader.state_dict()["sampler"]["name"] == "feistel8-v1"


class Filtering(DataLoader[Any]):
    """Iterates in its own way, below `__iter__`, as loaders of graphs do."""

    def _get_iterator(self) -> Any:
        return iter([("filtered", batch) for batch in super()._get_iterator()])


@pytest.mark.slow
def test_a_subclass_with_an_iterator_of_its_own_keeps_it() -> None:
    loader = resumable.wrap(Filtering(datasets.Augmented(), batch_size=4), resume="replay")
    assert [kind for kind, _ in loader] == ["filtered"] * 6


class Locked(Sampler[int]):
    """Cannot be copied, and gives another order each time."""

    def __init__(self) -> None:
        self.lock, self.random = threading.Lock(), random.Random(0)

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.sample(range(6), 6))


class LockedAndTold(Locked):
    def set_epoch(self, epoch: int) -> None:
        self.random = random.Random(epoch)


class LockedWithState(datasets.StatefulOrder):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.slow
def test_sampler_that_cannot_be_copied() -> None:
    """A warning names the promise that a sampler without copies breaks."""
    with pytest.warns(
        PromiseWarning, match=r"the sampler Locked cannot be copied.*\n.*same process.*\n.*set_epoch"
    ) as told:
        wrap(datasets.Augmented(), sampler=Locked())
    assert [warning.filename for warning in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for harmless in (LockedAndTold(), LockedWithState(), datasets.OwnOrder()):
            wrap(datasets.Augmented(), sampler=harmless)
