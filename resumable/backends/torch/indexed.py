"""Map-style datasets: our sampler says what is read, the user's workers read it."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from resumable.backends.torch.engine import Engine, WorkerSetup
from resumable.naming import identity_of
from resumable.protocols import Capabilities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.utils.data import DataLoader

    from resumable.options import Options
    from resumable.protocols import Request
    from resumable.reading import Reader

__all__ = ["RequestDataset", "TorchBackend"]


class TorchBackend:
    """Reads requests through a `DataLoader`.

    Args:
        loader: the user's.
        reader: reads a request where the samples are read.
        options: seed and identity.
        length: number of samples of the dataset.
    """

    kind = "torch-map"

    def __init__(self, loader: DataLoader[Any], reader: Reader, options: Options, length: int) -> None:
        self._engine = Engine(loader, RequestDataset(reader), WorkerSetup(loader.worker_init_fn))
        self._reader, self._seed = reader, options.seed
        self._here = loader.num_workers == 0 and not loader.pin_memory
        self.length = length
        self.identity = identity_of(reader.source, options.identity)
        self.capabilities = Capabilities(hints=getattr(reader.source, "resumable_hints", {}))

    def read(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yield one batch per request; without workers, past the `DataLoader` and what it costs."""
        if self._here:
            yield from map(self._reader.read_isolated, requests)
            return
        source = iter(requests)
        first = next(source, None)
        if first is not None:
            yield from self._engine.run(chain([first], source), seed=self._seed, epoch=first.epoch)


class RequestDataset:
    """What a worker sees: a dataset whose index is a whole request and whose sample is a whole batch."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def user_dataset(self) -> Any:
        """The user's dataset, without what was put around it for its care."""
        return getattr(self._reader.source, "user_dataset", self._reader.source)

    def __getitem__(self, request: Request) -> Any:
        """Read a request; in the training process without touching its generators."""
        return self._reader.read_isolated(request) if get_worker_info() is None else self._reader.read(request)
