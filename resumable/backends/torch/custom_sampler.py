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
from itertools import islice, repeat
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
from resumable.backends.torch.changes import OF_THE_RUN, UNSET, Changes, described
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
    from resumable.backends.torch.changes import Path


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
_LARGEST = 1 << 62  # samples per epoch; positions are 64-bit integers


_ORDER_STREAM = 1
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
        if self._order.stateful:
            self.ended = self._is_over  # so a save requests no batch that a later change concerns
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
        self.inside = Inside(shows=shows, restarts_workers=True, passes_rng=True, meter=meter, follows=True)
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
            order = self._order.state(between=True)
            return {"order": order, "step": 0, "samples": 0, "ended": False, "following": None}
        return self._batches.snapshot()

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Restore the sampler's state, and continue."""
        following = None if snapshot.get("ended") else _digests_in(snapshot.get("following"))
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
        if following is not None and type(following) is not str:
            raise TypeError(f"source_state.snapshot.following must be a text with digests, but it is {following!r}")
        return [step, samples, ended]

    def elements_before(self, snapshot: Any) -> int:
        """Return how many batches were yielded before a snapshot."""
        step: int = self.own_fields(snapshot)[0]
        return step

    @property
    def replay_witness(self) -> Callable[[int], list[Any] | None] | None:
        """Returns the indices of the batch before a step; None for a sampler with a state, which is not replayed."""
        return None if self._order.stateful else self._indices_before

    lives = False  # the order itself checks whether it depends on the past

    @property
    def remembering(self) -> Any:
        """The dataset and the user's sampler: the order may depend on both."""
        return self._loader.dataset, self._order.given

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

    def _is_over(self) -> bool:
        return self._batches is not None and self._batches.ended()

    def _indices_before(self, step: int) -> list[Any] | None:
        return None if self._batches is None else self._batches.indices_before(step)

    def _begin(self, epoch: int, drawn: Iterator[IndexBatch], snapshot: Any = None) -> Iterator[Any]:
        rank, ahead = self._options.find_world().rank, deque[IndexBatch]()
        reading = self._engine.run(_requests(drawn, ahead, epoch, rank), seed=self._options.stream_seed, epoch=epoch)
        kept = 4 * self._options.find_world().size
        self._batches = _Batches(drawn, ahead, reading, snapshot, self._order, epoch=epoch, kept=kept)
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

    def __init__(  # noqa: PLR0913  # what an epoch has
        self,
        drawn: Iterator[IndexBatch],
        ahead: deque[IndexBatch],
        reading: Iterator[Any],
        snapshot: Any,
        order: UserOrder,
        *,
        epoch: int,
        kept: int,
    ) -> None:
        self._drawn, self._ahead, self._reading = drawn, ahead, reading
        self._snapshot, self._order, self._epoch = snapshot, order, epoch
        self._passed = deque[tuple[int, list[Any]]](maxlen=kept)
        self._over = self._current = False

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
        if self._snapshot is None or not (self._over or self._current):
            return self._snapshot
        state = self._order.state(between=self._over)  # with what the loop has changed since then
        if self._over:
            following = self._order.following_epoch(self._epoch + 1)
            return {"order": state, "step": 0, "samples": 0, "ended": False, "following": following}
        if self._order.changed:
            self._snapshot["following"] = None
        return {**self._snapshot, "order": state}

    def ended(self) -> bool:
        """Return whether the sampler has said that the last batch ends the epoch."""
        self._over = self._over or (self._snapshot is not None and bool(self._snapshot.get("ended")))
        return self._over

    def close(self) -> None:
        """Stop reading."""
        self._reading.close()  # type: ignore[attr-defined]  # a generator

    def indices_before(self, step: int) -> list[Any] | None:
        """Return the indices of the batch before a step, if it is one of the latest batches."""
        return dict(self._passed).get(step)

    def _pass(self, drawn: IndexBatch) -> None:
        self._passed.append((drawn.step + 1, drawn.indices))
        self._current = drawn.current
        self._snapshot = {"order": drawn.state, "step": drawn.step + 1, "samples": drawn.samples, "ended": drawn.ended}
        self._snapshot["following"] = _text_of(drawn.following)


class UserOrder:
    """Takes batches of indices from a private copy of the user's sampler, with separate randomness.

    The copy follows what the training loop changes on the user's sampler. Without workers, a batch of indices is taken
    only when its samples are read, as PyTorch does, so the batch after a change has it. If batches are taken ahead, a
    change in the middle of an epoch is rejected.

    Args:
        loader: the user's; its sampler is copied if possible.
        options: seed and randomness.
    """

    def __init__(self, loader: DataLoader[Any], options: Options) -> None:
        self._loader, self._seed, self._seeds = loader, options.stream_seed, options.randomness != "off"
        self._compares = options.compares_data and self._seeds  # unseeded, a copy would use the numbers of the original
        self._batch_size, self._drop_last = loader.batch_size, loader.drop_last
        batches: Any = loader.batch_sampler
        self._own_batches = batches is not None and not is_plain_batch_sampler(batches)
        self._user = batches if self._own_batches else loader.sampler
        if is_plain_batch_sampler(batches):
            self._user, self._batch_size, self._drop_last = batches.sampler, batches.batch_size, batches.drop_last
        self._parameters = _parameters(self._user)
        self._next_epoch = 0
        self._first: Any = None  # the sampler's state before epoch 0
        self._sampler = self._copy()
        self.length = length_or_none(self._user if batches is None else batches)  # which may compute the batches
        self._changes = Changes(self._user, loader.dataset) if self.is_copied else None
        self._copied = Changes(self._sampler, loader.dataset)
        self.changed = False  # whether the loop has changed it in this epoch
        self._state_owner = next((thing for thing in self._layers(self._sampler) if _has_state(thing)), None)
        # A batch after the last position of a state tells where the epoch ends, if neither a length nor a copy does.
        self._lazy = loader.num_workers == 0 and (not self.stateful or (self.length is not None and self._checks))
        if not self.is_copied and not self.stateful and not self._epoch_aware():
            warnings.warn(_not_copied(self._user), PromiseWarning, stacklevel=7)

    @property
    def given(self) -> Any:
        """The user's sampler."""
        return self._user

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

    def state(self, *, between: bool) -> Any:
        """Return a copy of the sampler's state, with what the loop has changed.

        Args:
            between: no epoch is being read.
        """
        self._follow(whole=between)
        return self._own_state()

    def _own_state(self) -> Any:
        return None if self._state_owner is None else copy.deepcopy(self._state_owner.state_dict())

    def draw(self, epoch: int) -> Iterator[IndexBatch]:
        """Yield the batches of indices of an epoch."""
        self._follow(whole=True)
        self._keep_first()
        goes_on = self._next_epoch == epoch
        if self._state_owner is not None and epoch == 0 and not goes_on:
            self._state_owner.load_state_dict(copy.deepcopy(self._first))
        elif not (goes_on or self.stateful) and (not self._tell_epoch(epoch) or self._counts_epochs(epoch)):
            self._replay_epochs(epoch)
        return self._draw(epoch, 0, 0)

    def restore(
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
        self._keep_first()
        self._state_owner.load_state_dict(copy.deepcopy(state))
        own = next((thing for thing in self._layers(self._user) if _has_state(thing)), None)
        if self._changes is not None and own is not None:  # the loop changes it from its saved values on
            survive("the user's sampler", lambda: own.load_state_dict(copy.deepcopy(state)), None)
            self._note()
        found = None if following is None or not self._checks else self._digests(epoch, samples)
        if found is None or found == following:
            return self._draw(epoch, step, samples)
        drawn = self._drawn_again(epoch)
        if [Canary(batch.indices).digest for batch in islice(drawn, step, step + FEW)] != following:
            raise StateMismatchError(_GONE_ELSEWHERE.format(qualname_of(type(self._user)), step, following, found))
        _log.warning(_WITHOUT_STATE, qualname_of(type(self._user)))
        return islice(self._drawn_again(epoch), step, None)

    @property
    def _checks(self) -> bool:
        """Whether what follows a state is compared."""
        return self._compares and self.stateful and self.is_copied

    def following_epoch(self, epoch: int) -> str | None:
        """Return the digests of the first batches of the next epoch as a text; None if they are not compared."""
        return _text_of(self._digests(epoch, 0) if self._checks else None)

    def _digests(self, epoch: int, samples: int) -> list[str] | None:
        """Return the digests of the next few batches of an epoch; None if the sampler cannot be copied."""
        twin = self._twin()
        if twin is None:
            return None
        for layer in self._layers(twin):
            if callable(tell := ask(layer, "set_epoch")):
                tell(epoch)
        return list(islice(self._digests_of(twin, epoch, samples), FEW))

    def _twin(self) -> Any:
        """Return a copy of the copy, which may be read ahead; None if that cannot be copied."""
        return survive(None, partial(copy.deepcopy, self._sampler, self._data), None)

    def _digests_of(self, twin: Any, epoch: int, samples: int) -> Iterator[str]:
        """Yield the digests of the batches that a sampler has next, seeded as if they were read."""
        keys = SampleKeys(self._seed, epoch, _ORDER_STREAM)
        with self._guard(keys.batch(samples)):
            batches = self._index_batches(twin)
        while True:
            with self._guard(keys.batch(samples)):
                indices = next(batches, None)
            if indices is None:
                return
            yield Canary(indices).digest or ""
            samples += len(indices)

    def _following(self, twin: Any, epoch: int, samples: int) -> Iterator[list[str] | None]:
        """Yield the digests of the few batches after each batch, until the loop changes the sampler.

        Args:
            twin: a copy of the sampler before the first of these batches; None if there is none.
            epoch: the epoch.
            samples: samples before the first of these batches.
        """
        digests = iter(()) if twin is None else self._digests_of(twin, epoch, samples)
        ahead = deque(islice(digests, 1))
        while ahead and not self.changed:
            ahead.extend(islice(digests, FEW + 1 - len(ahead)))
            ahead.popleft()
            yield list(ahead)
        yield from repeat(None)

    def _drawn_again(self, epoch: int) -> Iterator[IndexBatch]:
        """Yield the batches of an epoch from a new copy of the sampler, without its state."""
        self._sampler, self._next_epoch = self._copy(), 0
        self._state_owner = next(thing for thing in self._layers(self._sampler) if _has_state(thing))
        self._copied = Changes(self._sampler, self._loader.dataset)
        self._note()
        if epoch and not self._tell_epoch(epoch):
            self._replay_epochs(epoch)
        return self._draw(epoch, 0, 0)

    def _draw(self, epoch: int, step: int, samples: int) -> Iterator[IndexBatch]:
        self._next_epoch = -1  # until the end, the sampler is not at the start of any epoch
        keys, order_keys = SampleKeys(self._seed, epoch), SampleKeys(self._seed, epoch, _ORDER_STREAM)
        self._tell_epoch(epoch)
        self.changed = False
        following = self._following(self._twin() if self._checks else None, epoch, samples)
        with self._guard(order_keys.batch(samples)):
            batches = self._index_batches(self._sampler)

        def draw() -> tuple[list[Any] | None, Any]:
            self._follow()
            with self._guard(order_keys.batch(samples)):
                return next(batches, None), self._own_state()

        indices, state = draw()
        while indices is not None:
            before, samples = samples, samples + len(indices)
            after = next(following)
            # An epoch of a sampler that continues after a left one has fewer batches than its length says.
            ends = after == [] or step + 1 >= (self.length or 0)
            looks = not self._lazy or (self.stateful and ends)
            more, later = draw() if looks else (None, None)
            ended = looks and more is None
            self._lazy = self._lazy and (ended or not looks)  # it has more batches than its length says
            sample_keys, batch_key = keys.samples(before, samples), keys.batch(before)
            state = later if ended else state
            yield IndexBatch(indices, sample_keys, batch_key, step, samples, state, ended, not looks, after)
            step += 1
            indices, state = (more, later) if looks else draw()
        self._next_epoch = epoch + 1

    def _index_batches(self, sampler: Any) -> Iterator[list[Any]]:
        source = iter(sampler)
        if self._own_batches:
            return ([_copy_index(index) for index in batch] for batch in source)
        return _chunks(map(_copy_index, _iterate_once(source)), self._batch_size or 1, drop_last=self._drop_last)

    def _keep_first(self) -> None:
        if self._next_epoch == 0 and self._first is None:
            self._first = self._own_state()

    def _follow(self, *, whole: bool = False) -> None:
        """Bring what the loop has changed on its sampler to the copy.

        Args:
            whole: also compare large values, because no epoch is being read.

        Raises:
            UnsupportedError: batches were requested ahead without the change; or iterating changes the same attribute.
        """
        if self._changes is None or not (found := self._changes.found(whole=whole)):
            return
        copied = self._copied.found(whole=whole)
        for path, (before, now) in found.items():
            here = self._copied.content(path)
            if here == self._changes.content(path):
                continue
            if not (whole or self._lazy):
                raise _changed_ahead(self._user, path, before, now)
            if path in copied and not (whole and self._epoch_aware()):
                if before in UNSET:
                    continue
                raise _changed_twice(self._user, path, here, now)
            self._changes.bring(self._sampler, path)
            self.changed = True
        self._note()

    def _note(self) -> None:
        if self._changes is not None:
            self._changes.note()
            self._copied.note()

    def _replay_epochs(self, epoch: int) -> None:
        if epoch > FARTHEST:
            raise UnsupportedError(
                f"epoch {epoch} was requested, but the sampler {qualname_of(type(self._user))} can only get there by "
                "replaying every epoch before it.\nThat would take forever. If the number is correct, define "
                "set_epoch() on the sampler."
            )
        self._sampler, self._next_epoch = self._copy(), 0
        self._copied = Changes(self._sampler, self._loader.dataset)
        self._note()
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

    @staticmethod
    def _layers(sampler: Any) -> list[Any]:
        inner = ask(sampler, "sampler")
        return [sampler] if inner is None else [sampler, inner]

    def _epoch_aware(self) -> list[Any]:
        return [layer for layer in self._layers(self._sampler) if callable(ask(layer, "set_epoch"))]

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
    samplers finish the epoch when they yield the last batch. `current` says that no later batch was requested.
    `following` has the digests of the next few batches, if they are compared.
    """

    indices: list[Any]
    keys: Words
    batch_key: int
    step: int
    samples: int
    state: Any
    ended: bool
    current: bool
    following: list[str] | None


def _text_of(digests: list[str] | None) -> str | None:
    """Return digests as a state has them: one text, because the structure of a state is constant."""
    return None if digests is None else ",".join(digests)


def _digests_in(text: str | None) -> list[str] | None:
    return None if text is None else [one for one in text.split(",") if one]


def _parameters(sampler: Any) -> dict[str, Any]:
    """Return the parameters of a sampler's constructor, if it keeps them as plain values under their names.

    Properties are not read, as they run user code. Parameters that describe the progress or the rank are left out.
    """
    signature = signature_of(type(sampler))
    names = set() if signature is None else set(signature.parameters) - OF_THE_RUN
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


def _changed_ahead(sampler: Any, path: Path, before: Any, now: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{'.'.join(path)} of the sampler {qualname_of(type(sampler))} was changed in the middle of an epoch.\n"
        f"  at the start of the epoch: {described(before)}\n  now:                       {described(now)}\n"
        "Batches were requested ahead, for workers or to find the end of the epoch, so after a resume, different "
        "batches would have the change. Change the sampler between epochs, or read without workers (num_workers=0). A "
        "sampler with a state also needs __len__."
    )


def _changed_twice(sampler: Any, path: Path, here: Any, now: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{'.'.join(path)} of the sampler {qualname_of(type(sampler))} is changed when the sampler is iterated, and "
        "the training loop changes it as well.\n"
        f"  in the copy that is iterated: {described(here)}\n  set in the loop:              {described(now)}\n"
        "One change would undo the other, so the order is unknown. Keep what the loop changes in a separate "
        "attribute, or define set_epoch(epoch) on the sampler."
    )


def _has_state(thing: Any) -> bool:
    return callable(ask(thing, "state_dict")) and callable(ask(thing, "load_state_dict"))
