"""Map-style datasets: our sampler determines the order, and the user's workers read the samples."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from resumable._data import Columns
from resumable._fetch.frameworks import Inside
from resumable._introspection import ask
from resumable._naming import identity_of
from resumable.backends.torch.engine import make_engine, meter_of, shown
from resumable.backends.torch.orders import HINTS
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
        interleaved: whether the ranks take the samples of a global batch in turn.
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
        self._engine = make_engine(loader, reader, options, meter)
        self._reader, self._seed = reader, options.stream_seed
        self._here = loader.num_workers == 0 and not loader.pin_memory
        self.length = length
        self.identity = identity_of(reader.source, options.identity)
        hints = {**HINTS, **ask(reader.source, "resumable_hints", {})}
        self.traits, self.stored = Traits(hints=hints), stored_by(reader.source, length)
        self.own_state, self.older_tail, self.interleaved = own_state, older_tail, interleaved
        shows = shown(loader, "dataset")
        self.inside = Inside(shows=shows, restarts_workers=True, meter=meter)

    def close(self) -> None:
        """Stop the persistent workers."""
        self._engine.close()

    def read(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yield one batch per request. Without workers, this bypasses the `DataLoader` and its overhead."""
        if self._here:
            yield from map(self._reader.read_isolated, requests)
            return
        source = iter(requests)
        first = next(source, None)
        if first is not None:
            yield from self._engine.run(chain([first], source), seed=self._seed, epoch=first.epoch)


def stored_by(dataset: Any, length: int) -> Columns | None:
    """Return a fingerprint of the data in a map-style dataset; None if the dataset has its own identity."""
    return None if ask(dataset, "resumable_identity") is not None else Columns(dataset, length)
