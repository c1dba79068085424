"""The Trainer's train loaders: finds them in the user's collection, and replaces each with a stream.

The Trainer creates more iterators than it reads: to check the type, before it loads a checkpoint, in every epoch. It
also reads ahead if a loader has no length, and restarts short loaders (`max_size_cycle`). With a stream, none of this
matters: every iterator starts at the current training position. Only the Trainer's own iterators get batches. A user's
loop over `trainer.train_dataloader` raises `LoopError`.
"""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

from resumable._options import Options
from resumable._order.cursor import Cursor
from resumable._order.world import World
from resumable._state import without_settings
from resumable._torch_private import pytree
from resumable.errors import ConfigurationError, StateMismatchError, UnsupportedError
from resumable.integrations.lightning import private
from resumable.loader.iterators import deliver, taken_away, tell_twins_of
from resumable.loader.loader import Loader
from resumable.loader.wrap import make_loader as make_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = [
    "LoaderView",
    "TrainLoaders",
    "TrainStream",
    "divide_as_strategy",
    "loader_of",
    "make_loader",
    "replace_loaders",
]


class TrainLoaders:
    """The streams that the Trainer reads, the batches that it has fetched from them, and their lengths.

    Args:
        trainer: the Trainer.
        wrap: whether to wrap train loaders that are not Loaders, or the options for `resumable.wrap`.
        on_fetch: called before a batch is fetched.
        resume: moves new streams to the saved position, and returns whether there is one.
        is_evaluated: returns whether a Loader is also used for validation.
    """

    def __init__(
        self,
        trainer: Any,
        wrap: bool | Mapping[str, Any],
        on_fetch: Callable[[], None],
        resume: Callable[[list[TrainStream]], bool],
        is_evaluated: Callable[[Loader], bool],
    ) -> None:
        self._is_evaluated = is_evaluated
        self._trainer, self._wrap, self._on_fetch, self._resume = trainer, wrap, on_fetch, resume
        self.streams: list[TrainStream] = []
        self.fetched = FetchedBatches()
        self._lengths: list[float] = []

    def make(self, tree: Any) -> Any:
        """Replace the user's loaders with streams. Called whenever the Trainer asks for its loaders."""
        before, self.streams = self.streams, []
        for stream in before:
            stream.give_back()
        self.fetched.clear()
        tree = replace_loaders(tree, self._stream)
        tell_twins_of([stream.loader for stream in self.streams])
        if not self._resume(self.streams):
            self._keep_counting(before)
        self._lengths = self._count()
        return tree

    def _stream(self, source: Any, name: str) -> TrainLoaderView:
        trainer, number = self._trainer, len(self.streams)
        overfit = trainer.overfit_batches > 0
        loader = make_loader(source, name, self._wrap, world_size=trainer.world_size, overfit=overfit)
        divide_as_strategy(loader, trainer)
        if self._is_evaluated(loader):
            raise ConfigurationError(
                f"the Loader {loader!r} is used for both training and validation.\nEach validation would move the "
                "training position. Create a separate Loader for validation."
            )
        if self.has(loader):
            raise ConfigurationError(
                f"the same Loader was passed to the Trainer twice; the second is train loader {name}.\nThe two would "
                "share the batches of one stream. Create a separate Loader for each."
            )
        stream = TrainStream(loader, name, number, self.fetched, self._on_fetch, self._holds)
        before = stream_of(source)  # the user may pass what the Trainer held in an earlier run
        stream.stands_in_for = source if before is None else before.stands_in_for
        self.streams.append(stream)
        stream.begin_run(same_epoch=overfit)
        return TrainLoaderView(stream)

    def _holds(self, stream: TrainStream, iterator: Iterator[Any]) -> bool:
        """Return whether the Trainer itself reads an iterator of a stream."""
        reader = private.train_reader(self._trainer)
        if reader is None:
            return False
        if all(stream_of(one) is not stream for one in reader.iterables):
            return True  # a strategy has put its own loader around the stream, and this is that loader's iterator
        return any(one is iterator for one in reader.iterators)

    def has(self, loader: Loader) -> bool:
        """Return whether a Loader is one of the train loaders."""
        return any(stream.loader is loader for stream in self.streams)

    def _keep_counting(self, before: list[TrainStream]) -> None:
        """Let loaders that were made again continue with the epoch's number.

        `reload_dataloaders_every_n_epochs` makes all loaders again. The next `fit` makes those again that the callback
        wraps.
        """
        for number, new in enumerate(self.streams):
            old = before[number] if number < len(before) else None
            if old is not None:
                epoch = 0 if new.loader is old.loader else old.base
            else:
                epoch = 0 if isinstance(new.stands_in_for, Loader) else self._trainer.current_epoch
            if epoch and new.loader.acknowledged == Cursor():
                with suppress(UnsupportedError):  # a stateful source starts where it was created
                    new.go_to(epoch, 0)

    def _count(self) -> list[float]:
        return [len(stream) if stream.loader.is_sized else float("inf") for stream in self.streams]

    def begin_epoch(self) -> None:
        """Set the lengths of the epoch in the Trainer if they differ from the last epoch's."""
        lengths = self._count()
        if lengths != self._lengths:
            self._lengths = lengths
            private.set_lengths(self._trainer, lengths)

    def ack(self, batches: Iterable[Iterable[int]]) -> None:
        """Acknowledge batches of the Trainer that are in the weights."""
        for loaders in batches:
            for number in loaders:
                self.streams[number].ack()

    def end_epoch(self) -> None:
        """Move to the start of the Trainer's next epoch."""
        self.fetched.clear()
        for stream in self.streams:
            stream.end_epoch()

    def bookmarks(self) -> list[Callable[[], dict[str, Any]]]:
        """Return functions that create the states of the current training position."""
        return [stream.bookmark() for stream in self.streams]

    def consumed(self) -> list[bool]:
        """Return which loaders have restarted in this epoch."""
        return [stream.epoch > stream.base for stream in self.streams]

    def leave_states(self, loop: dict[str, Any]) -> None:
        """Keep only the states of loaders that the user has wrapped in Lightning's part of a checkpoint.

        A loader that the callback wrapped is a plain loader in a run without it, which could not load a state.

        Args:
            loop: the fit loop's `state_dict` in the checkpoint.
        """
        states = loop.pop("combined_loader", [])
        pairs = zip(
            states, self.streams, strict=False
        )  # the streams exist only once the Trainer has asked for its loaders
        if kept := [state for state, stream in pairs if isinstance(stream.stands_in_for, Loader)]:
            loop["combined_loader"] = kept

    def give_back(self) -> None:
        """Let loops over the Loaders continue where training ended."""
        for stream in self.streams:
            stream.give_back()


_DRIVER = "Lightning's Trainer"
_CALLS = (
    "With Lightning, use ResumableCallback(strict=False) for load_state_dict(state, strict=False), and pass options of "
    "wrap() as ResumableCallback(wrap={...}) if the callback wraps the loader."
)
_HINT = "In a hook, use `self.trainer.train_dataloader.for_evaluation()`."


class TrainStream:
    """A Loader as a train loader of the Trainer. In one epoch, the Trainer may cycle through several of the Loader's.

    Args:
        loader: the Loader. The user's loops get no batches from it until `give_back`.
        name: key of the loader in the Trainer's collection, for messages.
        number: index of the loader in the collection.
        fetched: notes each batch that is delivered.
        on_fetch: called before each batch is fetched.
        is_the_trainers: returns whether an iterator belongs to the Trainer.

    Raises:
        ConfigurationError: a different training run uses the Loader.
        UnsupportedError: batches of the Loader are in flight, and its source cannot go back.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # made in one place
        self,
        loader: Loader,
        name: str,
        number: int,
        fetched: FetchedBatches,
        on_fetch: Callable[[], None],
        is_the_trainers: Callable[[TrainStream, Iterator[Any]], bool],
    ) -> None:
        loader.drive(_DRIVER, _HINT)
        self.loader, self.name = loader, name
        self._number, self._fetched, self._on_fetch = number, fetched, on_fetch
        self._is_the_trainers = is_the_trainers
        self.stands_in_for: Any = loader
        self._home: dict[str, Any] | None = None
        self._reading: _StreamIterator | None = None  # the iterator that started last
        self.exhausted = False  # that iterator has reached the end of its epoch
        self._is_given_back = False
        self._set_base()

    def begin_run(self, *, same_epoch: bool) -> None:
        """Get ready to train.

        Args:
            same_epoch: read the same epoch again and again (`overfit_batches`).
        """
        loader = self.loader
        loader.progress.stand_together(False)  # after an error on one rank, the saved positions may differ
        if loader.progress.following.epoch > loader.acknowledged.epoch:
            loader.end_epoch()  # no batch is left in it
        self._home = without_settings(loader.state_dict()) if same_epoch else None
        self._set_base()

    def _set_base(self) -> None:
        self.base = self.epoch = self.loader.acknowledged.epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader) if self._is_given_back else _StreamIterator(self)

    def __len__(self) -> int:
        """Count the batches of the whole epoch.

        Raises:
            TypeError: the length is unknown before the epoch's end.
        """
        return self.loader.total_steps(self.epoch)

    def __repr__(self) -> str:
        return f"<TrainStream {self.name} of {self.loader!r}>"

    # ------------------------------------------------------------------ for the iterators

    def begin(self, reading: _StreamIterator) -> int:
        """Get ready to deliver batches to a new iterator, and return the number of the Loader's epoch.

        Raises:
            LoopError: the iterator is the user's.
            UnsupportedError: the Trainer dropped batches that it had fetched, and the source cannot go back.
        """
        progress = self.loader.progress
        if self._is_given_back or not self._is_the_trainers(self, reading):
            raise taken_away(_DRIVER, _HINT)
        if self.exhausted:  # the Trainer cycles
            self._reading, self.exhausted = reading, False
            return progress.delivered.epoch
        progress.rewind()
        progress.begin()
        self._fetched.forget(self._number)
        self._reading = reading
        return self.epoch

    def next_batch(self, reading: _StreamIterator, epoch: int) -> Any:
        """Deliver a batch.

        Raises:
            StopIteration: the epoch is over, or the Trainer has started a newer iterator.
        """
        self._on_fetch()
        if reading is not self._reading or self.exhausted:
            raise StopIteration
        if self.loader.cursor.epoch != epoch:
            self.exhausted = True
            raise StopIteration
        try:
            batch = deliver(self.loader, epoch)
        except StopIteration:
            self.exhausted = True
            raise
        self._fetched.add(self._number)
        return batch

    # ------------------------------------------------------------------ for the callback

    def ack(self) -> None:
        """Acknowledge the oldest batch."""
        self.loader.ack()
        self.epoch = self.loader.acknowledged.epoch

    def end_epoch(self) -> None:
        """Move to the Loader's next epoch for the Trainer's next one. Batches that were fetched ahead are skipped."""
        self.loader.progress.rewind(leaves=True)
        if self._home is not None:
            self.loader.load_state_dict(self._home)
        elif self.loader.acknowledged.epoch == self.epoch:
            self.loader.end_epoch()
        self.exhausted, self._reading = False, None
        self._set_base()

    def give_back(self) -> None:
        """Let loops over the Loader continue after the last batch in the weights."""
        if not self._is_given_back:
            self._is_given_back = True
            self.loader.give_back()
            self.loader.progress.stand_together(True)

    def bookmark(self) -> Callable[[], dict[str, Any]]:
        """Return a function that creates the argument of `restore` for the current training position."""
        epoch, base, bookmark = self.epoch, self.base, self.loader.progress.bookmark()
        return lambda: {"epoch": epoch, "base": base, "state": bookmark.state_dict()}

    def restore(self, saved: Mapping[str, Any], *, strict: bool) -> None:
        """Go to the position of a bookmark."""
        try:
            self.loader.load_state_dict(saved["state"], strict=strict)
        except Exception as error:
            error.add_note(f"This is train loader {self.name} of the Trainer.")
            if isinstance(error, StateMismatchError):
                error.add_note(_CALLS)
            raise
        self.epoch, self.base = saved["epoch"], saved["base"]
        self.exhausted, self._reading = False, None

    def go_to(self, epoch: int, batch: int) -> None:
        """Go to a batch of an epoch.

        Raises:
            UnsupportedError: the source can only return to positions that it had before.
        """
        self.loader.seek(epoch=epoch, step=batch)
        self._set_base()

    def catch_up(self, target: Mapping[str, Any]) -> None:
        """Read and discard batches up to the position of another rank's bookmark.

        Raises:
            StateMismatchError: this stream has no such position.
        """
        loader, cursor = self.loader, Cursor.from_dict(target["state"]["cursor"])
        while _step(loader.acknowledged) < _step(cursor):
            epoch = loader.acknowledged.epoch
            with suppress(StopIteration), loader.progress.catching_up():
                deliver(loader, epoch)
                loader.ack()
        if _step(loader.acknowledged) != _step(cursor):
            raise StateMismatchError(
                f"train loader {self.name} cannot reach rank 0's position on this rank.\n"
                f"  rank 0:    {cursor}\n  this rank: {loader.acknowledged}\n"
                "The ranks would train on different steps. Resume from a different checkpoint."
            )
        self.epoch, self.base = target["epoch"], target["base"]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the Loader's state."""
        self.loader.load_state_dict(state_dict)
        self.exhausted, self._reading = False, None
        self._set_base()


def _step(cursor: Cursor) -> tuple[int, int]:
    """Return the part of a position that is equal on all ranks. Their last batches may differ in size."""
    return cursor.epoch, cursor.step


class _StreamIterator:
    """An iterator of a stream. It does nothing before the first `next()`."""

    def __init__(self, stream: TrainStream) -> None:
        self._stream = stream
        self._epoch = -1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._epoch < 0:
            self._epoch = self._stream.begin(self)
        return self._stream.next_batch(self, self._epoch)


class FetchedBatches:
    """The Trainer's batches that were fetched and not trained on yet, in order.

    A batch of the Trainer has one batch from each loader, or none from an exhausted loader (`max_size`). If a loader
    delivers a second one, the Trainer's next batch has started.
    """

    def __init__(self) -> None:
        self._fetched: deque[set[int]] = deque()

    def __len__(self) -> int:
        """Count the Trainer's batches that were fetched and not trained on."""
        return len(self._fetched)

    def add(self, loader: int) -> None:
        """Note that a loader has delivered a batch."""
        if not self._fetched or loader in self._fetched[-1]:
            self._fetched.append(set())
        self._fetched[-1].add(loader)

    def take(self) -> Iterable[int]:
        """Remove the Trainer's oldest batch, and return the loaders in it."""
        return self._fetched.popleft() if self._fetched else ()

    def forget(self, loader: int) -> None:
        """Forget the batches of a loader, which will deliver them again."""
        for batch in self._fetched:
            batch.discard(loader)
        self._fetched = deque(filter(None, self._fetched))

    def clear(self) -> None:
        """Forget all that was fetched."""
        self._fetched.clear()


def replace_loaders(tree: Any, replace: Callable[[Any, str], Any]) -> Any:
    """Replace each loader in a collection of the Trainer.

    Args:
        tree: a loader, nested dictionaries, lists and tuples of loaders, or a CombinedLoader. It is not modified, so
            the user's own CombinedLoader does not read from the Trainer's streams.
        replace: called with a loader and its key in the collection.

    Returns:
        A collection of the same structure with the results of `replace`.
    """
    if _is_combined(tree):
        _, names = _flatten(tree.iterables)
        pairs = zip(tree.flattened, names, strict=True)
        combined = copy(tree)
        combined.flattened = [replace(loader, name) for loader, name in pairs]
        return combined
    leaves, names = _flatten(tree)
    replaced = [replace(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
    _, spec = pytree.tree_flatten(tree, is_leaf=_is_data)
    return pytree.tree_unflatten(replaced, spec)


def _flatten(tree: Any) -> tuple[list[Any], list[str]]:
    pairs, _ = pytree.tree_flatten_with_path(tree, is_leaf=_is_data)
    return [leaf for _, leaf in pairs], [pytree.keystr(path) or private.THE_ONLY for path, _ in pairs]


def _is_combined(tree: Any) -> bool:
    return hasattr(tree, "flattened") and hasattr(tree, "iterables")


def _is_data(node: Any) -> bool:
    """Return whether a list or tuple is data, such as a batch of tensors, and not a collection of loaders.

    Without this check, each tensor of a list would count as a loader, as it does in the Trainer alone.
    """
    if not isinstance(node, (list, tuple)):
        return False
    return not node or any(isinstance(leaf, _values()) for leaf in pytree.tree_leaves(node))


def _values() -> tuple[type, ...]:
    return (int, float, str, bytes, type(None), sys.modules["torch"].Tensor, sys.modules["numpy"].ndarray)


def make_loader(source: Any, name: str, wrap: bool | Mapping[str, Any], *, world_size: int, overfit: bool) -> Loader:
    """Return the Loader of a train loader.

    Args:
        source: the user's train loader: a Loader, or a source to wrap.
        name: key of the source in the Trainer's collection, for messages.
        wrap: whether to wrap a source that is not a Loader, or the options for `resumable.wrap`.
        world_size: number of ranks.
        overfit: do not shuffle (`overfit_batches`).

    Raises:
        UnsupportedError: the source is not a Loader, and `wrap` is False or it cannot be wrapped.
    """
    source = loader_of(source)
    if isinstance(source, Loader):
        if source.evaluation:
            raise UnsupportedError(
                f"train loader {name} was wrapped with evaluation=True, so each loop starts at its first batch.\nA "
                "resumed run would repeat the first batches of the epoch. Wrap it without evaluation=True."
            )
        return source
    if wrap is False:
        raise UnsupportedError(
            f"train loader {name} is not a resumable Loader, but a {type(source).__module__}."
            f"{type(source).__qualname__}.\nA run that is resumed mid-epoch would read its data from the start again. "
            "Pass resumable.wrap(loader) to the Trainer, or use ResumableCallback(wrap=True)."
        )
    options = dict(wrap) if wrap is not True else {}
    if _has_plain_order(source):
        if world_size > 1 and not source.drop_last:
            options.setdefault("tail", "pad")  # equal shares, as the DistributedSampler has that Lightning injects
        if overfit:
            source = _without_shuffling(source)
    try:
        return make_named(
            source, Options.of(options), suggested="train" if name == private.THE_ONLY else f"train{name}"
        )
    except Exception as error:
        error.add_note(f"This is train loader {name} of the Trainer, which ResumableCallback(wrap=...) wraps.")
        raise


def _has_plain_order(source: Any) -> bool:
    """Return whether this is a DataLoader with a `batch_size`, and without a custom sampler."""
    data = sys.modules["torch"].utils.data
    if not isinstance(source, data.DataLoader) or isinstance(source.dataset, data.IterableDataset):
        return False
    return source.batch_size is not None and type(source.sampler) in {data.SequentialSampler, data.RandomSampler}


def _without_shuffling(source: Any) -> Any:
    """Return a DataLoader like this one that reads its dataset in order."""
    data = sys.modules["torch"].utils.data
    names = "dataset", "batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "worker_init_fn"
    return data.DataLoader(**{name: getattr(source, name) for name in names}, shuffle=False)


def divide_as_strategy(loader: Loader, trainer: Any) -> None:
    """Divide the data of a Loader without `world=` as the Trainer would with a `DistributedSampler`.

    Raises:
        ConfigurationError: the Loader was already used with a different rank or world size.
    """
    kwargs = getattr(trainer.strategy, "distributed_sampler_kwargs", None)
    if not kwargs:
        return
    world = World(int(kwargs["rank"]), int(kwargs["num_replicas"]))
    if world != loader.progress.world:
        loader.progress.divide_among(world)


# ---------------------------------------------------------------------- the Trainer's view of a Loader


class _Stream(Protocol):
    loader: Loader
    stands_in_for: Any

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


class LoaderView:
    """The object that the Trainer holds instead of a Loader, such as `trainer.train_dataloader`. It iterates a stream.

    Hooks read `dataset` or `batch_size`, and Lightning searches for `sampler`. All attributes are the Loader's, with
    its errors and their advice.

    Args:
        stream: of the Loader.
        hides_dataset: hide `dataset` until the first iterator is created. With `overfit_batches`, Lightning makes a new
            DataLoader from anything that has a dataset, and raises if it is not a DataLoader. It iterates only later.
    """

    def __init__(self, stream: _Stream, *, hides_dataset: bool = False) -> None:
        self._stream, self._hides_dataset = stream, hides_dataset

    def __iter__(self) -> Iterator[Any]:
        self._hides_dataset = False
        return iter(self._stream)

    def __len__(self) -> int:
        """Count the batches of the whole epoch.

        Raises:
            TypeError: the length is unknown before the epoch's end.
        """
        return len(self._stream)

    def __bool__(self) -> bool:
        """Return True, even if the length is unknown."""
        return True

    def __repr__(self) -> str:
        return f"<{self._stream.loader!r} in a Trainer>"

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the Loader.

        Raises:
            AttributeError: the Loader does not have it. The message says what to use instead.
        """
        # Frameworks mark their own objects with names that start with "_", and a copy has no stream yet.
        if name.startswith("_") or (name == "dataset" and self._hides_dataset):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self._stream.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the Loader.

        Raises:
            AttributeError: the Loader rejects it, because it would not change the batches.
        """
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._stream.loader, name, value)


class TrainLoaderView(LoaderView):
    """A view for training. The Trainer saves the state of any loader that has these two methods.

    A run without the callback loads that state. A run with the callback loads the callback's part instead.
    """

    _stream: TrainStream

    def state_dict(self) -> dict[str, Any]:
        """Return the Loader's state."""
        return self._stream.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the Loader's state."""
        self._stream.load_state_dict(state_dict)


def stream_of(held: Any) -> Any:
    """Return the stream of an object that the Trainer holds; None if the object is the user's own."""
    return vars(held)["_stream"] if isinstance(held, LoaderView) else None


def loader_of(held: Any) -> Any:
    """Return the Loader of an object that the Trainer holds, or the object itself if it holds none."""
    stream = stream_of(held)
    return held if stream is None else stream.loader
