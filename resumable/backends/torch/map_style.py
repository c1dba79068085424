"""Map-style datasets: our sampler determines the order, and the user's workers read the samples."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from resumable._data import Columns
from resumable._fetch.frameworks import Inside
from resumable._introspection import ask
from resumable._naming import identity_of
from resumable._warn import warn
from resumable.backends.torch.changes import OF_THE_RUN, Changes, described, shows_values
from resumable.backends.torch.engine import make_engine, meter_of, shown
from resumable.backends.torch.orders import HINTS, kind_of
from resumable.backends.torch.sampler import ResumableSampler
from resumable.errors import PromiseWarning
from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.utils.data import DataLoader

    from resumable._fetch.own_state import OwnState
    from resumable._fetch.reader import Reader
    from resumable._options import Options
    from resumable._order.plan import Tail
    from resumable.protocols import Request


__all__ = ["TorchBackend", "stored_by"]


class TorchBackend:
    """Reads requests through a `DataLoader`.

    Args:
        loader: the user's.
        reader: reads the samples of a request.
        options: seed and identity.
        length: number of samples of the dataset.
        own_state: gets and sets the state of the dataset.
        older_tail: the tail that earlier versions used for the `DataLoader`.
        interleaved: whether the ranks take the samples of a global batch alternately.
    """

    kind = "torch-map"

    def __init__(  # noqa: PLR0913  # what the adapter knows
        self,
        loader: DataLoader[Any],
        reader: Reader,
        options: Options,
        length: int,
        *,
        own_state: OwnState | None,
        older_tail: Tail | None,
        interleaved: bool,
    ) -> None:
        meter = meter_of(loader)
        self._changes = None if options.evaluation else _changes_of(loader)
        self._engine = make_engine(loader, reader, options, meter)
        self._reader, self._seed = reader, options.stream_seed
        self._here = loader.num_workers == 0 and not loader.pin_memory
        self.length = length
        self.identity = identity_of(reader.source, options.identity)
        hints = {**HINTS, **ask(reader.source, "resumable_hints", {})}
        self.traits, self.stored = Traits(hints=hints), stored_by(reader.source, length)
        self.own_state, self.older_tail, self.interleaved = own_state, older_tail, interleaved
        shows = shown(loader, "dataset")
        self.inside = Inside(shows=shows, restarts_workers=True, passes_rng=True, meter=meter)

    def close(self) -> None:
        """Stop the persistent workers."""
        self._engine.close()

    def read(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yield one batch per request. Without workers, this bypasses the `DataLoader` and its overhead."""
        self._tell_changes()
        if self._here:
            yield from map(self._reader.read_isolated, requests)
            return
        source = iter(requests)
        first = next(source, None)
        if first is not None:
            yield from self._engine.run(chain([first], source), seed=self._seed, epoch=first.epoch)

    def _tell_changes(self) -> None:
        """Compare the sampler with what it was when it was wrapped, or at the last call.

        Warns:
            PromiseWarning: its values have changed, which this package does not follow.
        """
        if self._changes is None or not (found := self._changes.found(whole=True)):
            return
        self._changes.note()
        for path, (before, now) in found.items():
            if path[-1] not in OF_THE_RUN and shows_values(now):
                warn(_changed(".".join(path), described(before), described(now)), PromiseWarning)


def _changes_of(loader: DataLoader[Any]) -> Changes | None:
    """Return the changes of PyTorch's samplers; `ResumableSampler` has a position, which changes."""
    batches = loader.batch_sampler
    if kind_of(loader.sampler) is ResumableSampler:
        return None
    return Changes(loader.sampler if batches is None else batches, loader.dataset)


def _changed(name: str, before: str, now: str) -> str:
    return (
        f"{name} of the DataLoader's batch sampler was changed since it was wrapped.\n"
        f"  then: {before}\n  now:  {now}\n"
        "It has no effect: the Loader computes the order from the earlier values. Use a sampler class with its own "
        "__iter__, which is read as PyTorch reads it. Or create a new Loader, and continue with its seek(epoch=...)."
    )


def stored_by(dataset: Any, length: int) -> Columns | None:
    """Return a fingerprint of the data in a map-style dataset; None if the dataset has its own identity."""
    return None if ask(dataset, "resumable_identity") is not None else Columns(dataset, length)
