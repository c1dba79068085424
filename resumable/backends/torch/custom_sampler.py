"""Map-style datasets with a custom sampler or batch sampler, whose order is kept.

A sampler with a state resumes from that state, saved after each batch of indices because workers read ahead. Any other
sampler is replayed: it yields its indices again without reading data, and the indices of the batch before the position
are compared. A sampler is replayed from epoch 0 if it has no `set_epoch`, or yields a different order after another
epoch.
"""

from __future__ import annotations

import copy
import warnings
from collections import deque
from contextlib import nullcontext
from functools import partial
from itertools import chain, islice
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from resumable._content import Canary
from resumable._fetch.element_reader import FEW, too_few
from resumable._fetch.frameworks import Inside
from resumable._fetch.own_state import without_state
from resumable._introspection import (
    ask,
    attributes_of,
    is_exactly,
    length_or_none,
    qualname_of,
    signature_of,
    survive,
)
from resumable._naming import identity_of
from resumable._randomness.keys import SampleKeys, isolated
from resumable.backends.torch.engine import make_engine, meter_of, shown
from resumable.backends.torch.map_style import stored_by
from resumable.backends.torch.orders import FARTHEST, is_plain_batch_sampler
from resumable.errors import PromiseWarning, StateMismatchError, UnsupportedError
from resumable.protocols import Listed, Request, Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch.utils.data import DataLoader

    from resumable._fetch.reader import Reader
    from resumable._options import Options
    from resumable._randomness.keyed import Words


__all__ = ["CustomOrderBackend"]


_HINTS = dict.fromkeys(
    ("batch", "drop_last", "order", "parameters"), "Use the same DataLoader options as the original run."
)
_log = getLogger("resumable")
_WITHOUT_STATE = (
    "the state of the sampler %s does not lead to the next indices, but reading the epoch again does, so the state "
    "is not used. Include the position in state_dict(), or remove it."
)
_GONE_ELSEWHERE = (
    "the sampler {} was restored from its own state, but continues with different indices than in the saved run.\n"
    "  in the checkpoint: after batch {}, batches with the digests {}\n  in this run:       {}\n"
    "Samples would be read twice, or never. Reading the epoch again also leads to different ones. Include "
    "everything that the next indices depend on in state_dict(), such as the position and the generator."
)
_AHEAD = 2  # batches of indices: the next, and the one after it, which says whether the next is the last
_LARGEST = 1 << 62  # samples per epoch; positions are 64-bit integers


_ORDER_STREAM = 1
_OF_THE_RUN = {
    "epoch",
    "start_epoch",
    "epochs",
    "num_epochs",
    "start",
    "start_index",
    "rank",
    "num_replicas",
    "world_size",
}
_REFILLED = (list, np.ndarray, dict, set, deque, bytearray)


class CustomOrderBackend:
    """Reads the batches that a custom sampler asks for.

    Args:
        loader: the user's.
        reader: reads the samples of a request.
        options: seed, world, randomness and identity.
        length: number of samples of the dataset; None if it has no length, as only the sampler needs to know.
    """

    kind = "torch-map-own-order"

    def __init__(self, loader: DataLoader[Any], reader: Reader, options: Options, length: int | None) -> None:
        meter = meter_of(loader)
        self._engine = make_engine(loader, reader, options, meter)
        self._order = UserOrder(loader, options)
        self._loader, self._options = loader, options
        self._batches: _Batches | None = None
        self.length = length
        self.traits = Traits(
            hints=_HINTS,
            length=self._order.length,
            keyed=True,
            needs_shard=True,
            compares_itself=True,  # elements are batches, but a restore concerns only their indices
        )
        self.stored = None if length is None else stored_by(reader.source, length)
        shows = shown(loader, "dataset")
        self.inside = Inside(shows=shows, restarts_workers=True, meter=meter)
        self.identity = {
            **identity_of(reader.source, options.identity),
            "samples": self.length,
            **self._order.identity,
        }

    def open(self, epoch: int) -> Iterator[Any]:
        """Start an epoch."""
        return self._begin(epoch, self._order.draw(epoch))

    def snapshot(self) -> Any:
        """Return the sampler's state after the last yielded batch; None if it has no state."""
        if not self._order.stateful:
            return None
        if self._batches is None:
            return {"order": self._order.state(), "step": 0, "samples": 0, "ended": False}
        return self._batches.snapshot()

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Restore the sampler's state, and continue."""
        following = None if snapshot.get("ended") else snapshot.get("following")
        drawn = self._order.restore(epoch, snapshot["order"], snapshot["step"], snapshot["samples"], following)
        return self._begin(epoch, iter(()) if snapshot.get("ended") else drawn, snapshot)

    def own_fields(self, snapshot: Any) -> list[Any]:
        """Return the fields of a snapshot other than the sampler's own state."""
        step, samples, ended = snapshot["step"], snapshot["samples"], snapshot.get("ended", False)
        if (
            not type(step) is type(samples) is int
            or not 0 <= min(step, samples) <= max(step, samples) <= _LARGEST
            or type(ended) is not bool
        ):
            raise TypeError(f"source_state.snapshot has step {step!r}, samples {samples!r} and ended {ended!r}")
        following = snapshot.get("following")
        if following is not None and not (isinstance(following, list) and all(type(one) is str for one in following)):
            raise TypeError(f"source_state.snapshot.following must be a list of digests, but it is {following!r}")
        return [step, samples, ended]

    def elements_before(self, snapshot: Any) -> int:
        """Return how many batches were yielded before a snapshot."""
        step: int = self.own_fields(snapshot)[0]
        return step

    @property
    def replay_witness(self) -> Callable[[int], list[Any] | None] | None:
        """Returns the indices of the batch before a step; None for a sampler with a state, as it is not replayed."""
        return None if self._order.stateful else self._indices_before

    lives = False  # the order itself checks whether it depends on the past

    @property
    def remembering(self) -> Any:
        """The dataset, on which the order may depend."""
        return self._loader.dataset

    @property
    def replays(self) -> bool:
        """Whether the sampler is a copy, and has no state."""
        return self._order.is_copied and not self._order.stateful

    def apart(self) -> _OnlyIndices:
        """Return a backend that only yields the indices, from a new copy of the sampler."""
        return _OnlyIndices(UserOrder(self._loader, self._options), self.identity)

    def close(self) -> None:
        """Stop the persistent workers."""
        self._engine.close()

    def _indices_before(self, step: int) -> list[Any] | None:
        return None if self._batches is None else self._batches.indices_before(step)

    def _begin(self, epoch: int, drawn: Iterator[IndexBatch], snapshot: Any = None) -> Iterator[Any]:
        rank, ahead = self._options.find_world().rank, deque[IndexBatch]()
        reading = self._engine.run(_requests(drawn, ahead, epoch, rank), seed=self._options.stream_seed, epoch=epoch)
        upcoming = partial(self._order.following_epoch, epoch + 1)
        self._batches = _Batches(drawn, ahead, reading, snapshot, upcoming, kept=4 * self._options.find_world().size)
        return self._batches


class _OnlyIndices:
    """Yields the indices of each batch instead of the batch."""

    kind = CustomOrderBackend.kind
    remembering = None

    def __init__(self, order: UserOrder, identity: dict[str, Any]) -> None:
        self._order, self.identity = order, identity

    def open(self, epoch: int) -> Iterator[Any]:
        """Start an epoch."""
        return (batch.indices for batch in self._order.draw(epoch))

    def leave(self) -> None:
        """Do nothing: a copy of the sampler is left."""

    close = leave


def _requests(drawn: Iterator[IndexBatch], ahead: deque[IndexBatch], epoch: int, rank: int) -> Iterator[Request]:
    for batch in drawn:
        ahead.append(batch)
        listed = Listed(batch.indices, batch.keys, batch.batch_key)
        yield Request(epoch, batch.step, rank, batch.samples - len(batch.indices), batch.samples, 0, listed)


class _Batches:
    """The batches of an epoch, each with the sampler's state after it yielded their indices."""

    anywhere = False  # skip only before the first batch: batches that were read ahead would precede the skipped ones

    def __init__(  # noqa: PLR0913  # what it takes from, and where it starts
        self,
        drawn: Iterator[IndexBatch],
        ahead: deque[IndexBatch],
        reading: Iterator[Any],
        snapshot: Any,
        upcoming: Callable[[], dict[str, Any]],
        *,
        kept: int,
    ) -> None:
        self._drawn, self._ahead, self._reading = drawn, ahead, reading
        self._snapshot, self._upcoming = snapshot, upcoming
        self._next: dict[str, Any] | None = None  # the snapshot between this epoch and the next
        self._passed = deque[tuple[int, list[Any]]](maxlen=kept)
        self._over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._reading)
        except StopIteration:
            self._over = True
            raise
        self._pass(self._ahead.popleft())
        return batch

    def skip(self, count: int) -> None:
        """Take the indices of `count` batches from the sampler without reading the samples."""
        for done in range(count):
            drawn = next(self._drawn, None)
            if drawn is None:
                raise too_few(count, done)
            self._pass(drawn)

    def snapshot(self) -> Any:
        """Return the sampler's state after the last batch; after the end, its state at the start of the next epoch."""
        if self._over and self._snapshot is not None:
            if self._next is None:
                self._next = {"order": self._snapshot["order"], "step": 0, "samples": 0, "ended": False}
                self._next |= self._upcoming()
            return self._next
        return self._snapshot

    def close(self) -> None:
        """Stop reading."""
        self._reading.close()  # type: ignore[attr-defined]  # a generator

    def indices_before(self, step: int) -> list[Any] | None:
        """Return the indices of the batch before a step, if it is one of the latest batches."""
        return dict(self._passed).get(step)

    def _pass(self, drawn: IndexBatch) -> None:
        self._passed.append((drawn.step + 1, drawn.indices))
        self._snapshot = {"order": drawn.state, "step": drawn.step + 1, "samples": drawn.samples, "ended": drawn.ended}
        if drawn.following is not None:
            self._snapshot["following"] = drawn.following


class UserOrder:
    """Takes batches of indices from a private copy of the user's sampler, with separate randomness.

    Args:
        loader: the user's; its sampler is copied if possible.
        options: seed and randomness.
    """

    def __init__(self, loader: DataLoader[Any], options: Options) -> None:
        self._loader, self._seed, self._seeds = loader, options.stream_seed, options.randomness != "off"
        self._compares = options.compares_data
        self._batch_size, self._drop_last = loader.batch_size, loader.drop_last
        batches: Any = loader.batch_sampler
        self._own_batches = batches is not None and not is_plain_batch_sampler(batches)
        self._user = batches if self._own_batches else loader.sampler
        if is_plain_batch_sampler(batches):
            self._user, self._batch_size, self._drop_last = batches.sampler, batches.batch_size, batches.drop_last
        self._parameters = _parameters(self._user)
        self._next_epoch = 0
        self._sampler = self._copy()
        self._state_owner = next((thing for thing in self._layers() if _has_state(thing)), None)
        if not self.is_copied and not self.stateful and not self._epoch_aware():
            warnings.warn(_not_copied(self._user), PromiseWarning, stacklevel=7)

    @property
    def is_copied(self) -> bool:
        """Whether the sampler is a copy of the user's."""
        return self._sampler is not self._user

    @property
    def stateful(self) -> bool:
        """Whether the sampler has `state_dict` and `load_state_dict`."""
        return self._state_owner is not None

    @property
    def identity(self) -> dict[str, Any]:
        """Plain values that identify this order."""
        batch = 0 if self._own_batches else self._batch_size or 1
        return {"order": qualname_of(type(self._user)), "batch": batch, "parameters": self._parameters}

    @property
    def length(self) -> int | None:
        """Batches per epoch, if the sampler knows."""
        batches = self._loader.batch_sampler
        return length_or_none(self._user if batches is None else batches)

    def state(self) -> Any:
        """Return a copy of the sampler's state."""
        return None if self._state_owner is None else copy.deepcopy(self._state_owner.state_dict())

    def draw(self, epoch: int) -> Iterator[IndexBatch]:
        """Yield the batches of indices of an epoch."""
        goes_on = self._next_epoch == epoch
        if not goes_on and not self.stateful and (not self._tell_epoch(epoch) or self._counts_epochs(epoch)):
            self._replay_epochs(epoch)
        return self._draw(epoch, 0, 0)

    def restore(  # the fields of a snapshot
        self, epoch: int, state: Any, step: int, samples: int, following: list[str] | None = None
    ) -> Iterator[IndexBatch]:
        """Restore the sampler's state, and yield the remaining batches of indices of the epoch.

        Args:
            epoch: the epoch.
            state: as in `IndexBatch.state`.
            step: batches of the epoch that are done.
            samples: samples of the epoch that are done.
            following: as in `IndexBatch.following`; None if it is unknown.

        Raises:
            StateMismatchError: the sampler has no state, or continues with different indices.
        """
        if self._state_owner is None:
            raise without_state(f"the sampler {qualname_of(type(self._user))}")
        self._state_owner.load_state_dict(copy.deepcopy(state))
        drawn = self._draw(epoch, step, samples)
        return drawn if following is None or not self._compares else self._checked(drawn, following, epoch, step)

    def _checked(
        self, drawn: Iterator[IndexBatch], following: list[str], epoch: int, step: int
    ) -> Iterator[IndexBatch]:
        """Yield batches of indices if the first fits its digest, else the indices without the sampler's state.

        Raises:
            StateMismatchError: neither fits.
        """
        first = list(islice(drawn, 1))
        if (found := _digests(first)) != following:
            drawn = self._drawn_again(epoch, step)
            first = list(islice(drawn, 1))
            if _digests(first) != following:
                raise StateMismatchError(_GONE_ELSEWHERE.format(qualname_of(type(self._user)), step, following, found))
            _log.warning(_WITHOUT_STATE, qualname_of(type(self._user)))
        yield from chain(first, drawn)

    def following_epoch(self, epoch: int) -> dict[str, list[str]]:
        """Return the digests of the first batch of the next epoch, from a copy; empty if there is none."""
        twin = survive(None, partial(copy.deepcopy, self._sampler, self._data), None)
        if twin is None or not (self.stateful and self.is_copied and self._compares):
            return {}
        kept = self._sampler, self._state_owner, self._next_epoch
        self._sampler, self._state_owner = twin, None
        following = _digests(list(islice(self._draw(epoch, 0, 0), 1)))
        self._sampler, self._state_owner, self._next_epoch = kept
        return {"following": following}

    def _drawn_again(self, epoch: int, step: int) -> Iterator[IndexBatch]:
        """Yield the batches after a step of an epoch from a new copy of the sampler, without its state."""
        self._sampler, self._next_epoch = self._copy(), 0
        self._state_owner = next(thing for thing in self._layers() if _has_state(thing))
        if epoch and not self._tell_epoch(epoch):
            self._replay_epochs(epoch)
        return islice(self._draw(epoch, 0, 0), step, None)

    def _draw(self, epoch: int, step: int, samples: int) -> Iterator[IndexBatch]:
        self._next_epoch = -1  # until the end, the sampler is not at the start of any epoch
        keys, order_keys = SampleKeys(self._seed, epoch), SampleKeys(self._seed, epoch, _ORDER_STREAM)
        self._tell_epoch(epoch)
        with self._guard(order_keys.batch(samples)):
            batches = self._index_batches()

        ahead, position = deque[_Drawn](), samples
        compares = self.stateful and self.is_copied and self._compares
        while True:
            while len(ahead) < _AHEAD and (not ahead or ahead[-1].indices is not None):
                with self._guard(order_keys.batch(position)):
                    indices = next(batches, None)
                    digest = Canary(indices).digest if self.stateful and indices is not None else ""
                    ahead.append(_Drawn(indices, self.state(), digest or ""))
                position += len(indices or ())
            indices, state, _ = ahead.popleft()
            if indices is None:
                break
            before, samples = samples, samples + len(indices)
            ended = ahead[0].indices is None
            state = ahead[0].state if ended else state
            following = [one.digest for one in ahead if one.indices is not None] if compares else None
            sample_keys, batch_key = keys.samples(before, samples), keys.batch(before)
            yield IndexBatch(indices, sample_keys, batch_key, step, samples, state, ended, following)
            step += 1
        self._next_epoch = epoch + 1

    def _index_batches(self) -> Iterator[list[Any]]:
        source = iter(self._sampler)
        if self._own_batches:
            return ([_copy_index(index) for index in batch] for batch in source)
        return _chunks(map(_copy_index, _iterate_once(source)), self._batch_size or 1, drop_last=self._drop_last)

    def _replay_epochs(self, epoch: int) -> None:
        if epoch > FARTHEST:
            raise UnsupportedError(
                f"epoch {epoch} was requested, but the sampler {qualname_of(type(self._user))} can only get there by "
                "replaying every epoch before it.\nThat would take forever. If the number is correct, define "
                "set_epoch() on the sampler."
            )
        self._sampler, self._next_epoch = self._copy(), 0
        for past in tqdm(range(epoch), desc="replaying the sampler", unit="epoch", delay=1.0, leave=False):
            for _ in self._draw(past, 0, 0):
                pass

    def _counts_epochs(self, epoch: int) -> bool:
        """Return whether the order depends on earlier epochs, although the sampler has `set_epoch`."""
        if epoch == 0 or not self.is_copied:
            return False
        return self._first_of([epoch]) != self._first_of([epoch - 1, epoch])

    def _first_of(self, epochs: list[int]) -> list[list[str]]:
        """Return the first indices of the last of some epochs, of which the others are left early."""
        kept, self._sampler = self._sampler, self._copy()
        first = list[list[str]]()
        for epoch in epochs:
            first = [list(map(repr, batch.indices)) for batch in islice(self._draw(epoch, 0, 0), FEW)]
        self._sampler, self._next_epoch = kept, -1
        return first

    def _copy(self) -> Any:
        """Copy the user's sampler but not its dataset; return the original if it cannot be copied."""
        return survive(None, partial(copy.deepcopy, self._user, self._data), self._user)

    @property
    def _data(self) -> dict[int, Any]:
        """The objects that copies of the sampler share."""
        return {id(self._loader.dataset): self._loader.dataset}

    def _layers(self) -> list[Any]:
        inner = ask(self._sampler, "sampler")
        return [self._sampler] if inner is None else [self._sampler, inner]

    def _epoch_aware(self) -> list[Any]:
        return [layer for layer in self._layers() if callable(ask(layer, "set_epoch"))]

    def _tell_epoch(self, epoch: int) -> bool:
        layers = self._epoch_aware()
        for layer in layers:
            layer.set_epoch(epoch)
        return bool(layers)

    def _guard(self, key: int) -> AbstractContextManager[None]:
        return isolated(key) if self._seeds else nullcontext()


class IndexBatch(NamedTuple):
    """A batch of indices with the keys of its samples.

    `step` is the number of batches before it, `samples` the number of samples up to and including it. `state` is the
    sampler's state after it. After the last batch (`ended`), it is the state after the end of the epoch, as some
    samplers finish the epoch when they yield the last batch. `following` has the digest of the next batch.
    """

    indices: list[Any]
    keys: Words
    batch_key: int
    step: int
    samples: int
    state: Any
    ended: bool
    following: list[str] | None = None


class _Drawn(NamedTuple):
    """Indices that were taken ahead, None after the last; the sampler's state after them; and their digest."""

    indices: list[Any] | None
    state: Any
    digest: str


def _digests(batches: list[IndexBatch]) -> list[str]:
    return [Canary(batch.indices).digest or "" for batch in batches]


def _parameters(sampler: Any) -> dict[str, Any]:
    """Return the parameters of a sampler's constructor, if it keeps them as plain values under their names.

    Properties are not read, as they run user code. Parameters that describe the progress or the rank are left out.
    """
    signature = signature_of(type(sampler))
    names = set() if signature is None else set(signature.parameters) - _OF_THE_RUN
    kept = attributes_of(sampler)
    found = {name: kept.get(name, kept.get(f"_{name}")) for name in sorted(names)}
    return {name: value for name, value in found.items() if is_exactly(value, (bool, int, float, str))}


def _copy_index(index: Any) -> Any:
    """Copy an index that the sampler may reuse: the next index is requested before this one is read."""
    if is_exactly(index, _REFILLED):
        return index.copy()
    return index.clone() if type(index) is torch.Tensor else index


def _iterate_once(source: Iterator[Any]) -> Iterator[Any]:
    """Yield the items of an iterator without calling `iter` on it, as `islice` does: that may reset a sampler."""
    while True:
        try:
            index = next(source)
        except StopIteration:
            return
        yield index


def _chunks(source: Iterator[Any], size: int, *, drop_last: bool) -> Iterator[list[Any]]:
    while chunk := list(islice(source, size)):
        if drop_last and len(chunk) < size:
            return
        yield chunk


def _not_copied(sampler: Any) -> str:
    return (
        f"the sampler {qualname_of(type(sampler))} cannot be copied, so the original object is used, and it cannot be "
        "restarted.\nA new process resumes exactly. After load_state_dict() or seek() in the same process, the order "
        "may differ.\nDefine state_dict and load_state_dict on the sampler, or set_epoch, or make copy.deepcopy work "
        "(a lock, a file or a generator often prevents it)."
    )


def _has_state(thing: Any) -> bool:
    return callable(ask(thing, "state_dict")) and callable(ask(thing, "load_state_dict"))
