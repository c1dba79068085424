"""DALI's own iterators as a Loader, with DALI's checkpoints: one, one that a function makes, or several in turn."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from resumable._content import Canary
from resumable._introspection import attributes_of, survive
from resumable.backends.dali.identity import identity_of
from resumable.backends.dali.private import (
    BaseIterator,
    Blueprint,
    at_end,
    checkpoints_itself,
    functions_of,
    has_eaten_an_end,
    pipelines_of,
    place_of,
    rebuild,
    resets_itself,
)
from resumable.backends.dali.refusals import (
    check_fresh,
    check_holds_checkpoints,
    check_pipelines,
    check_place,
    check_shards,
    length_of_epoch,
    refuse_errors,
    shards_of,
    warn_of_lists,
    warn_of_order,
    warn_of_python,
    warn_of_samples,
)
from resumable.backends.dali.turns import BatchSource, InTurn, Turns
from resumable.errors import StateMismatchWarning, UnsupportedError
from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resumable._options import Options


__all__ = ["NativeBackend", "PythonBackend", "adapt"]


_BATCHES = "Each element of a DALI iterator is already a batch, and the pipeline determines its size."
_CHECKPOINTS = "It always resumes from DALI's checkpoints."
_TAIL = "Its last_batch_policy determines how an epoch ends."
_OPTIONS = (
    "batch_size", "graph", "initial_fill", "iterators", "last_batch_policy", "num_shards", "outputs",
    "pad_last_batch", "pipelines", "random_shuffle", "reader_name", "seed", "seeds", "shard_id", "shuffle_after_epoch",
    "shuffle_after_epoch_seed", "size", "stick_to_shard",
)  # fmt: skip
_HINTS = {
    **dict.fromkeys(_OPTIONS, "Create the DALI pipelines and their iterator as in the original run."),
    "in_turn": "Pass the same order to in_turn(..., order=...); otherwise, the state points to the wrong batches.",
}


def adapt(source: Any, options: Options) -> tuple[PythonBackend, Options]:
    """Adapt a DALI iterator, a function of `checkpoints` that makes one, or the result of `in_turn`.

    Raises:
        UnsupportedError: it cannot be resumed, or an option does not fit it; the message says why.
        MissingDependencyError: DALI is not installed.
    """
    options.refuse("a DALI iterator", batch_size=_BATCHES, collate=_BATCHES, tail=_TAIL, resume=_CHECKPOINTS)
    parts = source.sources if isinstance(source, InTurn) else [source]
    made = [None if isinstance(part, BaseIterator) else FactoryIterator(part) for part in parts]
    iterators = [part if maker is None else maker.iterator for part, maker in zip(parts, made, strict=True)]
    for iterator, maker in zip(iterators, made, strict=True):
        _check(iterator, made=maker is not None)
    unread: list[str] = []
    # Before a pipeline is rebuilt and forgets its operators.
    identity = identity_of(iterators, options.identity, unread)
    warn_of_lists(unread)
    python = bool(warn_of_python(iterators))
    if isinstance(source, InTurn):
        identity["in_turn"] = source.order
    check, lengths = partial(check_shards, shards_of(iterators), options), list(map(length_of_epoch, iterators))
    holders = [
        maker or KeptIterator(iterator, enable=not checkpoints_itself(iterator))
        for iterator, maker in zip(iterators, made, strict=True)
    ]
    tracked = [TrackedIterator(holder) for holder in holders]
    whole: BatchSource = Turns(tracked, source.order) if isinstance(source, InTurn) else tracked[0]
    length = None if None in lengths else sum(filter(None, lengths))
    divided = identity["num_shards"] not in (None, 1)  # or a list of several
    kind = PythonBackend if python else NativeBackend
    backend = kind(whole, identity, length, needs_shard=not divided, check=check, holders=holders)
    return backend, _without_shard(options, divided=divided)


def _check(iterator: Any, *, made: bool) -> None:
    check_fresh(iterator)
    check_pipelines(iterator, made=made)
    warn_of_samples(iterator)
    if not checkpoints_itself(iterator):
        warn_of_order(iterator)


def _without_shard(options: Options, *, divided: bool) -> Options:
    """Let DALI divide the data among the ranks if its readers have shards."""
    if not divided:
        return options
    if options.shard:
        raise UnsupportedError(
            "the option shard=True does not fit DALI readers with num_shards: both would divide the samples.\n"
            "No rank would read most of the samples. Remove shard=True, or num_shards and shard_id."
        )
    return replace(options, shard=False)


class PythonBackend:
    """Batches of DALI's iterators in DALI's order, resumed from DALI's checkpoints; their pipelines call Python.

    So the element after a resume is compared, and so is what the Python functions remember.

    It always continues from the current position. DALI cannot end an epoch early, so if an epoch is abandoned, the next
    one starts with the rest of it, as with DALI alone.

    Args:
        source: one iterator, or several in turn.
        identity: identifies this pipeline, its data and its shard.
        length: batches per epoch; None if unknown or varying.
        needs_shard: whether the user must say, with several ranks, if they divide the stream.
        check: called once, before the first batch.
        holders: hold the iterators.
    """

    kind = "dali"
    compares_itself = False

    def __init__(  # noqa: PLR0913  # what `adapt` has found
        self,
        source: BatchSource,
        identity: dict[str, Any],
        length: int | None,
        *,
        needs_shard: bool,
        check: Callable[[], None],
        holders: Sequence[IteratorHolder],
    ) -> None:
        self._source, self._check, self._checked, self._holders = source, check, False, holders
        self.identity = identity
        self.traits = Traits(
            hints=_HINTS,
            length=length,
            needs_shard=needs_shard,
            snapshot_every=0,  # a snapshot takes microseconds
            reads_ahead=True,
            compares_itself=self.compares_itself,
        )

    def open(self, epoch: int) -> Iterator[Any]:  # noqa: ARG002  # the pipeline counts itself
        """Continue with the next epoch, or with the rest of an abandoned one."""
        self._check_once()
        self._source.begin()
        return _Epoch(self._source)

    def snapshot(self) -> dict[str, Any]:
        """Return DALI's checkpoints after the last batch; after an epoch's last batch, at the start of the next one."""
        memory = self._memory()
        return self._source.snapshot() | ({"python": memory} if memory else {})

    def restore(self, epoch: int, snapshot: dict[str, Any]) -> Iterator[Any]:  # noqa: ARG002  # it is in the snapshot
        """Rebuild the pipelines at a snapshot."""
        self._check_once()
        self._source.restore(snapshot)
        now = self._memory()
        for name, was in snapshot.get("python", {}).items():
            if None not in (was, now.get(name)) and was != now[name]:
                warnings.warn(_remembers(name, was, now[name]), StateMismatchWarning, stacklevel=2)
        return _Epoch(self._source)

    def _memory(self) -> dict[str, str | None]:
        """Return a dict from name to digest of each value that the Python functions keep from call to call."""
        pipelines = [pipeline for holder in self._holders for pipeline in pipelines_of(holder.iterator)]
        kept = [(place, *one) for place, pipe in enumerate(pipelines) for one in functions_of(pipe).items()]
        return {
            f"{place}/{name}.{attribute}": survive(name, partial(_digest, value), None)
            for place, name, function in kept
            for attribute, value in _kept_by(function).items()
        }

    def _check_once(self) -> None:
        if not self._checked:
            self._checked = True
            self._check()


class NativeBackend(PythonBackend):
    """The same without Python in the pipelines: nothing needs to be compared, so nothing is read ahead of a state."""

    compares_itself = True

    def ended(self) -> bool:
        """Return whether DALI's own count says that this epoch has no batches left."""
        return self._source.ended()

    def _memory(self) -> dict[str, str | None]:
        return {}


def _kept_by(function: Any) -> dict[str, Any]:
    """Return the attributes of a callable object, or the variables that a function closes over."""
    if inspect.ismethod(function):
        return attributes_of(function.__self__)
    if inspect.isfunction(function):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        return {name: survive(name, partial(_content, cell), None) for name, cell in cells}
    return attributes_of(function)


def _content(cell: Any) -> Any:
    return cell.cell_contents


def _digest(value: Any) -> str | None:
    return Canary(value).digest


def _remembers(name: str, was: str | None, now: str | None) -> str:
    return (
        f"{name.partition('/')[2]}, which Python code in this DALI pipeline keeps from call to call, differs from the "
        f"saved run.\n  in the checkpoint: a value with the digest {was}\n  in this run:       one with {now}\n"
        "DALI does not save it, so batches may differ if they depend on it, from the next epoch on at the latest. "
        "Compute them from the argument alone: info.epoch_idx, info.iteration and info.idx_in_epoch."
    )


class _Epoch:
    """The remaining batches of an epoch; once ended, it stays ended."""

    def __init__(self, source: BatchSource) -> None:
        self._source, self._over = source, False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        try:
            return self._source.draw()
        except StopIteration:
            self._over = True
            raise


class TrackedIterator:
    """A DALI iterator with a known position after every batch, and the same end of epochs for all options.

    Args:
        holder: holds it.
    """

    def __init__(self, holder: IteratorHolder) -> None:
        self._holder = holder
        self._ahead: list[Any] = []  # at most one batch, read to find out whether there is one
        self._error: Exception | None = None  # raised while reading ahead
        self._over = False
        self._place = place_of(holder.iterator)  # as the loader left it
        self._snapshot: dict[str, Any] | None = self._take()

    def draw(self) -> Any:
        """Return the next batch; if that fails, the snapshot is unchanged."""
        self.snapshot()
        if self._over:
            raise StopIteration
        batch = self._ahead.pop() if self._ahead else self._next()
        self._snapshot = None
        return batch

    def ended(self) -> bool:
        """Return whether the epoch is over, according to DALI's own count or, without one, by reading ahead."""
        if self._over or self._ahead or self._error is not None:
            return self._over
        self.snapshot()
        self._check_place()
        if at_end(self._holder.iterator) is not False:
            try:
                self._ahead = [self._next()]
            except StopIteration:
                self._over = True
            except Exception as error:  # noqa: BLE001  # any type; raised again for the next batch
                self._error = error
        return self._over

    def begin(self) -> None:
        """Continue with the next epoch, if this one is over."""
        self._over = False

    def snapshot(self) -> dict[str, Any]:
        """Return DALI's checkpoints after the last returned batch, or at the start of the next epoch."""
        if self._snapshot is None:
            self._snapshot = self._take()
        return self._snapshot

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Rebuild the pipelines at a snapshot."""
        self._ahead, self._error = [], None
        self._over = self._holder.rewind(list(snapshot["checkpoints"]))
        self._place = place_of(self._holder.iterator)
        self._snapshot = self._take() if self._over else snapshot

    def _next(self) -> Any:
        """Return a batch. At an epoch's end, start the next one immediately: in between, DALI's state is not usable."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        self._check_place()
        iterator = self._holder.iterator
        try:
            return next(iterator)
        except StopIteration:
            if not resets_itself(iterator):
                iterator.reset()
            self._place = place_of(iterator)
            self._over, self._snapshot = True, self._take()
            raise
        finally:
            self._place = place_of(iterator)

    def _check_place(self) -> None:
        check_place(self._place, place_of(self._holder.iterator))

    def _take(self) -> dict[str, Any]:
        self._check_place()
        return {"checkpoints": list(self._holder.iterator.checkpoints())}


class IteratorHolder(Protocol):
    """Holds a DALI iterator and can restore it to a checkpoint, in place or as a new one."""

    iterator: Any

    def rewind(self, checkpoints: list[bytes]) -> bool:
        """Restore the iterator to checkpoints; return whether that has passed the end of an epoch."""
        ...


class KeptIterator:
    """The user's own iterator, restored in place to keep references to it valid.

    Args:
        iterator: no batch was taken from it yet.
        enable: rebuild its pipelines with checkpointing on.
    """

    def __init__(self, iterator: Any, *, enable: bool) -> None:
        self.iterator = iterator
        with refuse_errors([]):
            self._blueprints = [Blueprint(pipeline) for pipeline in pipelines_of(iterator)]
        if enable:
            self._build([None] * len(self._blueprints))

    def rewind(self, checkpoints: list[bytes]) -> bool:
        """Rebuild the pipelines at checkpoints."""
        self._build(checkpoints)
        return False

    def _build(self, checkpoints: list[Any]) -> None:
        with refuse_errors(checkpoints):
            rebuild(self.iterator, self._blueprints, checkpoints)


class FactoryIterator:
    """An iterator that a user's function makes, for pipelines that cannot be serialized.

    Args:
        function: `function(checkpoints)` returns a new iterator. The checkpoints are None at the start of a run, or
            one `bytes` per pipeline, for `Pipeline(..., enable_checkpointing=True, checkpoint=checkpoints[i])`.
    """

    def __init__(self, function: Callable[[list[bytes] | None], Any]) -> None:
        self._function = function
        self.iterator = function(None)
        check_holds_checkpoints(self.iterator, at_checkpoint=False)

    def rewind(self, checkpoints: list[bytes]) -> bool:
        """Drop the old iterator, and make a new one at checkpoints."""
        self.iterator = None  # first, so a GPU never holds both
        with refuse_errors(checkpoints):
            self.iterator = self._function(checkpoints)
        check_holds_checkpoints(self.iterator, at_checkpoint=True)
        return has_eaten_an_end(self.iterator)
