"""Map-style datasets: our sampler says what is read, the user's workers read it."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from resumable._data import Columns
from resumable._fetch.frameworks import Inside
from resumable._fetch.workers import RequestDataset
from resumable._introspection import ask
from resumable._naming import identity_of
from resumable.backends.torch.asked_order import HINTS
from resumable.backends.torch.engine import Engine, WorkerSetup, meter_of, restart_policy_of, wants_stacks
from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.utils.data import DataLoader

    from resumable._fetch.own_state import OwnState
    from resumable._fetch.reader import Reader
    from resumable._options import Options
    from resumable._order.plan import Tail
    from resumable._stats import Meter
    from resumable.protocols import Request

__all__ = ["TorchBackend", "make_engine", "shown", "stored_by"]


def shown(loader: DataLoader[Any], *also: str) -> dict[str, Any]:
    """Return what a Loader shows of a `DataLoader`."""
    return {name: getattr(loader, name) for name in ("batch_size", "num_workers", "collate_fn", *also)}


def stored_by(dataset: Any, length: int) -> Columns | None:
    """Return what tells what a map-style dataset stores; None where the dataset's identity says it all."""
    return None if ask(dataset, "resumable_identity") is not None else Columns(dataset, length)


class TorchBackend:
    """Reads requests through a `DataLoader`.

    Args:
        loader: the user's.
        reader: reads a request where the samples are read.
        options: seed and identity.
        length: number of samples of the dataset.
        own_state: gets and sets what the dataset remembers from sample to sample.
        older_tail: the tail that earlier versions made of the `DataLoader`.
        interleaved: the ranks take the samples of a global batch in turn.
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
        """End the workers that live on between epochs."""
        self._engine.close()

    def read(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yield one batch per request; without workers, past the `DataLoader` and what it costs."""
        if self._here:
            yield from map(self._reader.read_isolated, requests)
            return
        source = iter(requests)
        first = next(source, None)
        if first is not None:
            yield from self._engine.run(chain([first], source), seed=self._seed, epoch=first.epoch)


def make_engine(loader: DataLoader[Any], reader: Reader, options: Options, meter: Meter | None) -> Engine:
    """Return what reads requests with the workers of a `DataLoader`, or in this process where it has none."""
    dataset = RequestDataset(reader, in_worker=loader.num_workers > 0)
    setup = WorkerSetup(loader.worker_init_fn, stacks=wants_stacks(loader, options))
    return Engine(loader, dataset, setup, restart_policy_of(loader, options), meter)
