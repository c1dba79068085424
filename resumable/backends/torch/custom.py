"""Map-style datasets with a sampler or batch sampler of the user's own: its order is kept.

A sampler with a state resumes by that, taken after each batch of indices, as the workers read ahead. Any other one is
replayed: its indices are drawn again, no data is read, and those of the batch before the place are compared. A sampler
that is not told the epoch by `set_epoch` is replayed from epoch 0, as its order may depend on what it gave before.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from resumable._fetch.element_reader import too_few
from resumable._fetch.frameworks import Inside
from resumable._naming import identity_of
from resumable.backends.torch.engine import meter_of
from resumable.backends.torch.indexed import make_engine, shown, stored_by
from resumable.backends.torch.user_order import Drawn, UserOrder
from resumable.protocols import Listed, Request, Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.utils.data import DataLoader

    from resumable._fetch.reader import Reader
    from resumable._options import Options

__all__ = ["CustomOrderBackend"]

_HINTS = dict.fromkeys(
    ("batch", "drop_last", "order", "parameters"), "Make the DataLoader with the options that the run was started with."
)
_LARGEST = 1 << 62  # samples of an epoch, as positions are 64-bit integers


class CustomOrderBackend:
    """Reads the batches that a user's sampler asks for.

    Args:
        loader: the user's.
        reader: reads a request where the samples are read.
        options: seed, world, randomness and identity.
        length: number of samples of the dataset; None if it does not say: only the sampler must know them.
    """

    kind = "torch-map-own-order"

    def __init__(self, loader: DataLoader[Any], reader: Reader, options: Options, length: int | None) -> None:
        meter = meter_of(loader)
        self._engine = make_engine(loader, reader, options, meter)
        self._order = UserOrder(loader, options)
        self._options = options
        self._batches: _Batches | None = None
        self.length = length
        self.traits = Traits(
            hints=_HINTS,
            length=self._order.length,
            keyed=True,
            needs_shard=True,
            compares_itself=True,  # an element is a batch of samples, and what is restored is its indices
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
        """Begin an epoch."""
        return self._begin(epoch, self._order.draw(epoch))

    def snapshot(self) -> Any:
        """Return the sampler's state after the batch that was yielded last; None where it has none."""
        if not self._order.stateful:
            return None
        if self._batches is None:
            return {"order": self._order.state(), "step": 0, "samples": 0, "ended": False}
        return self._batches.snapshot()

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Give the sampler its state back, and go on."""
        drawn = self._order.restore(epoch, snapshot["order"], snapshot["step"], snapshot["samples"])
        return self._begin(epoch, iter(()) if snapshot.get("ended") else drawn, snapshot)

    def own_fields(self, snapshot: Any) -> list[Any]:
        """Return what of a snapshot is not the sampler's own state."""
        step, samples, ended = snapshot["step"], snapshot["samples"], snapshot.get("ended", False)
        if (
            not type(step) is type(samples) is int
            or not 0 <= min(step, samples) <= max(step, samples) <= _LARGEST
            or type(ended) is not bool
        ):
            raise TypeError(f"source_state.snapshot was taken after {step!r} batches of {samples!r} samples: {ended!r}")
        return [step, samples, ended]

    def elements_before(self, snapshot: Any) -> int:
        """Return how many batches were given before a snapshot."""
        step: int = self.own_fields(snapshot)[0]
        return step

    @property
    def replay_witness(self) -> Callable[[int], list[Any] | None] | None:
        """Returns the indices of the batch before a step; None for a sampler with a state, which is not replayed."""
        return None if self._order.stateful else self._indices_before

    def close(self) -> None:
        """End the workers that live on between epochs."""
        self._engine.close()

    def _indices_before(self, step: int) -> list[Any] | None:
        return None if self._batches is None else self._batches.indices_before(step)

    def _begin(self, epoch: int, drawn: Iterator[Drawn], snapshot: Any = None) -> Iterator[Any]:
        rank, ahead = self._options.find_world().rank, deque[Drawn]()
        reading = self._engine.run(_requests(drawn, ahead, epoch, rank), seed=self._options.stream_seed, epoch=epoch)
        self._batches = _Batches(drawn, ahead, reading, snapshot, kept=4 * self._options.find_world().size)
        return self._batches


class _Batches:
    """Batches of an epoch, each with what the sampler's state was when its indices were drawn."""

    anywhere = False  # only before the first batch is read: what workers read ahead comes before what is skipped

    def __init__(
        self, drawn: Iterator[Drawn], ahead: deque[Drawn], reading: Iterator[Any], snapshot: Any, *, kept: int
    ) -> None:
        self._drawn, self._ahead, self._reading = drawn, ahead, reading
        self._snapshot = snapshot
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
        """Draw the indices of `count` batches and read none of them."""
        for done in range(count):
            drawn = next(self._drawn, None)
            if drawn is None:
                raise too_few(count, done)
            self._pass(drawn)

    def snapshot(self) -> Any:
        """Return the sampler's state after the last batch; after the end, that from which the next epoch begins."""
        if self._over and self._snapshot is not None:
            return {**self._snapshot, "step": 0, "samples": 0, "ended": False}
        return self._snapshot

    def close(self) -> None:
        """Stop reading."""
        self._reading.close()  # type: ignore[attr-defined]  # a generator

    def indices_before(self, step: int) -> list[Any] | None:
        """Return the indices of the batch before a step, if that is among the last ones."""
        return dict(self._passed).get(step)

    def _pass(self, drawn: Drawn) -> None:
        self._passed.append((drawn.step + 1, drawn.indices))
        self._snapshot = {"order": drawn.state, "step": drawn.step + 1, "samples": drawn.samples, "ended": drawn.ended}


def _requests(drawn: Iterator[Drawn], ahead: deque[Drawn], epoch: int, rank: int) -> Iterator[Request]:
    for batch in drawn:
        ahead.append(batch)
        listed = Listed(batch.indices, batch.keys, batch.batch_key)
        yield Request(epoch, batch.step, rank, batch.samples - len(batch.indices), batch.samples, 0, listed)
