"""The indexed backend: our requests through the user's DALI graph."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from resumable._data import Columns
from resumable._fetch.lost_workers import describe_death, is_death
from resumable._fetch.reader import Reader
from resumable._randomness.idle import Seeding
from resumable.backends.dali.elastic.engine import Engine
from resumable.backends.dali.elastic.inputs import read_here, read_paths
from resumable.backends.dali.elastic.samples import Files
from resumable.errors import ConfigurationError, UnsupportedError, WorkerError
from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from resumable._options import Options
    from resumable.backends.dali.elastic.inputs import Fed
    from resumable.backends.dali.elastic.source import Source
    from resumable.backends.dali.elastic.workers import SampleWorkers
    from resumable.protocols import Request

__all__ = ["DaliBackend", "adapt"]


def adapt(source: Source, options: Options) -> tuple[DaliBackend, Options]:
    """Adapt what `resumable.backends.dali.source` described."""
    in_graph = "Do it in the graph that source() got."
    options.refuse("a DALI source", transform=in_graph, collate=in_graph, shard="The ranks share every global batch.")
    if options.batch_size is None:
        raise ConfigurationError("a DALI source needs a batch size.\nUse for instance wrap(source, batch_size=32).")
    options = options.with_defaults()
    if source.uniforms and options.randomness != "sample":
        raise UnsupportedError(
            f'randomness="{options.randomness}" does not fit a DALI source with uniforms={source.uniforms}.\n'
            'The uniforms are made from the keys of the samples, which are there with randomness="sample" only. Leave '
            "randomness out, or use uniforms=0."
        )
    return DaliBackend(source, options), options


class DaliBackend:
    """Reads requests through DALI.

    Args:
        source: samples, graph and options.
        options: batch size, randomness and identity.
    """

    kind = "dali-indexed"
    traits = Traits(reads_ahead=True)

    def __init__(self, source: Source, options: Options) -> None:
        assert options.batch_size is not None
        assert options.randomness is not None
        self._source = source
        self._batch_size = options.batch_size
        self._by_path = isinstance(source.samples, Files) and not source.workers
        drawn = "off" if isinstance(source.samples, Files) else options.randomness
        self._reader = Reader(source.samples, list, drawn, seeding=Seeding({"dataset": source.samples}))
        self._workers: SampleWorkers | None = None
        self.length = source.samples.length
        self.identity = {**source.samples.identity, **({"source": options.identity} if options.identity else {})}
        samples = source.samples
        self.stored = None if isinstance(samples, Files) else Columns(samples.source, self.length)
        self._idle = [self._engine(self._batch_size)]
        self._idle[0].check()

    def read(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yield one batch per request: a dict of tensors."""
        left = iter(requests)
        first = next(left, None)
        if first is None:
            return
        engine, fed = self._take(first.size), self._fetcher(chain([first], left))
        try:
            yield from engine.run(fed)
        except Exception as error:
            died = isinstance(error, WorkerError)
            if not self._source.workers or not (died or is_death(error)):
                raise
            self._started().end()
            self._workers = None
            fed.close()  # else the error's traceback keeps it, and the workers with it
            if died:
                raise
            raise describe_death(error) from error
        finally:
            if not engine.broken:
                self._idle.append(engine)

    def close(self) -> None:
        """End the workers, and drop the pipelines."""
        self._idle.clear()
        if self._workers is not None:
            self._workers.end()
            self._workers = None

    def _take(self, samples: int) -> Engine:
        """Return a pipeline that is not in use, large enough for batches that may have grown with fewer ranks."""
        self._batch_size = max(self._batch_size, samples)
        while self._idle:
            engine = self._idle.pop()
            if engine.batch_size >= samples:
                return engine
        return self._engine(self._batch_size)

    def _engine(self, batch_size: int) -> Engine:
        return Engine(self._source, batch_size, files=self._by_path)

    def _fetcher(self, requests: Iterable[Request]) -> Generator[Fed]:
        samples = self._source.samples
        if self._source.workers:
            return self._started().read(requests)
        if isinstance(samples, Files):
            return read_paths(samples, requests)
        return read_here(self._reader, requests)

    def _started(self) -> SampleWorkers:
        if self._workers is None:
            from resumable.backends.dali.elastic.workers import SampleWorkers  # noqa: PLC0415  # torch, where needed

            self._workers = SampleWorkers(self._reader, self._source.workers, self._source.start_method)
        return self._workers
