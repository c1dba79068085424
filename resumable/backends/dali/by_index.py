"""The indexed backend: runs our requests through the user's DALI graph."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from nvidia.dali.plugin.pytorch.torch_utils import to_torch_tensor
from nvidia.dali.tensors import TensorGPU

from resumable._data import Columns
from resumable._fetch.failures import describe_death, is_death
from resumable._fetch.reader import Reader
from resumable._randomness.keys import isolated
from resumable._randomness.seeding import Seeding
from resumable.backends.dali.graph import Fetcher, check_graph, make_pipeline, uniforms
from resumable.backends.dali.samples import Files, read_here, read_paths
from resumable.errors import BackendError, ConfigurationError, DataError, SampleError, UnsupportedError, WorkerError
from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from resumable._options import Options
    from resumable._randomness.keyed import Words
    from resumable.backends.dali.graph import Pipeline
    from resumable.backends.dali.samples import Fed
    from resumable.backends.dali.source import Source
    from resumable.backends.dali.workers import SampleWorkers
    from resumable.protocols import Request


__all__ = ["adapt"]


def adapt(source: Source, options: Options) -> tuple[DaliBackend, Options]:
    """Adapt a source that `resumable.backends.dali.source` described."""
    in_graph = "Do it in the graph that you pass to source()."
    options.refuse("a DALI source", transform=in_graph, collate=in_graph, shard="The ranks share every global batch.")
    options.refuse_passed("a DALI source", 'Its graph gets random numbers per sample with randomness="sample".')
    if options.batch_size is None:
        raise ConfigurationError("a DALI source needs a batch size.\nPass for example wrap(source, batch_size=32).")
    options = options.with_defaults()
    if source.uniforms and options.randomness != "sample":
        raise UnsupportedError(
            f'randomness="{options.randomness}" does not fit a DALI source with uniforms={source.uniforms}.\n'
            'The uniforms are derived from the keys of the samples, which exist only with randomness="sample". Remove '
            "randomness=, or use uniforms=0."
        )
    return DaliBackend(source, options), options


class DaliBackend:
    """Reads requests with DALI.

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
            fed.close()  # otherwise the error's traceback keeps it, and the workers with it
            if died:
                raise
            raise describe_death(error) from error
        finally:
            if not engine.broken:
                self._idle.append(engine)

    def close(self) -> None:
        """Stop the workers, and drop the pipelines."""
        self._idle.clear()
        if self._workers is not None:
            self._workers.end()
            self._workers = None

    def _take(self, samples: int) -> Engine:
        """Return an unused pipeline that is large enough, as batches may have grown with fewer ranks."""
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
            from resumable.backends.dali.workers import SampleWorkers  # noqa: PLC0415  # torch, where needed

            self._workers = SampleWorkers(self._reader, self._source.workers, self._source.start_method)
        return self._workers


class Engine:
    """Runs batches through one DALI pipeline, in order; kept across epochs and seeks.

    DALI works ahead. After a seek or a `break`, the next run discards what DALI has left. A new
    pipeline would cost more on a GPU, and by then the work is done anyway.

    Args:
        source: graph and options.
        batch_size: maximum number of samples per batch.
        files: whether the pipeline gets paths.
    """

    def __init__(self, source: Source, batch_size: int, *, files: bool) -> None:
        self._source, self.batch_size, self._files = source, batch_size, files
        self._fetcher = Fetcher(source.uniforms)
        self.pipeline = self._make()
        self._used = False
        self.broken = False

    def _make(self) -> Pipeline:
        return make_pipeline(self._source, self._fetcher, self.batch_size, files=self._files)

    def check(self) -> None:
        """Raise an error if the graph would not repeat the same batches."""
        check_graph(self.pipeline, self._source, self._fetcher)

    def run(self, source: Iterator[Fed]) -> Iterator[Any]:
        """Yield a batch for each input.

        Raises:
            SampleError: a sample could not be read or decoded; the message shows which.
        """
        if self._used:
            self._drain()
        self._fetcher.begin(source)
        self._used = True
        try:
            self._schedule()
            while (batch := self._next()) is not None:
                yield batch
        finally:
            self._fetcher.end()
        failure, self._fetcher.failure = self._fetcher.failure, None  # its traceback would keep the workers
        if failure is not None:
            raise failure

    def _schedule(self) -> None:
        with warnings.catch_warnings():  # the first call builds the pipeline
            warnings.filterwarnings("ignore", message=".*produces . outputs, but the output", category=Warning)
            self.pipeline.schedule_run()

    def _next(self) -> Any:
        try:
            outputs = self.pipeline.share_outputs()
        except StopIteration:
            return None
        except RuntimeError as error:
            self.broken = True
            if is_death(error):
                raise
            raise _find_bad_sample(self._source, self._fetcher.asked, error, files=self._files) from error
        try:
            copy = not self.pipeline.exec_dynamic  # otherwise DALI reuses the memory
            named = zip(self._source.outputs, outputs, strict=True)
            batch = {name: _tensor(output, name, copy=copy) for name, output in named}
        finally:
            self.pipeline.release_outputs()
        self._fetcher.asked.pop(0)
        self.pipeline.schedule_run()
        return batch

    def _drain(self) -> None:
        try:
            while True:
                self.pipeline.share_outputs()
                self.pipeline.release_outputs()
        except StopIteration:
            self.pipeline.reset()
        except RuntimeError:  # of a batch that is no longer needed; if it is requested again, it fails again
            self.pipeline = self._make()


def _tensor(output: Any, name: str, *, copy: bool) -> torch.Tensor:
    if not output.is_dense_tensor():
        shapes = sorted({tuple(shape) for shape in output.shape()})[:4]
        raise BackendError(
            f"the samples of the output {name!r} have different shapes, such as {', '.join(map(str, shapes))}.\n"
            "They cannot form a tensor. Resize, crop or pad them to one size in the graph (fn.resize, fn.crop, fn.pad)."
        )
    dense = output.as_tensor()
    on_gpu = isinstance(dense, TensorGPU)
    with torch.cuda.device(dense.device_id()) if on_gpu else nullcontext():
        tensor: torch.Tensor = to_torch_tensor(dense, copy)
    return tensor


def _find_bad_sample(source: Source, requests: Sequence[Request], error: RuntimeError, *, files: bool) -> DataError:
    """Return an error with the first sample that fails on its own, or with the batch if none does; DALI does not say.

    Args:
        source: graph and samples.
        requests: those not delivered yet; the first one failed, or one after it.
        error: DALI's error.
        files: whether the pipeline gets paths.
    """
    reason = str(error).strip().split("encountered:")[-1].strip().split("\n")[0]
    for request in requests:
        keys = request.keys
        for place, index in enumerate(request.indices):
            if not _works(source, keys[place : place + 1], int(index), files=files):
                return SampleError(
                    f"DALI failed on {source.samples.name(int(index))} (sample {index}): {reason}\n"
                    "No batch can be made with it. Fix the file, or remove it."
                )
    steps = ", ".join(f"{request.epoch}:{request.step}" for request in requests)
    return DataError(f"DALI failed on a batch (epoch:step {steps}), but on none of its samples alone: {reason}")


def _works(source: Source, key: Words, index: int, *, files: bool) -> bool:
    samples = source.samples
    if files and isinstance(samples, Files):
        raw, label = samples.paths(np.array([index]))[0], samples.labels[index : index + 1]
    else:
        with isolated(int(key[0]) if len(key) else None):  # as it was read, in case it uses random numbers
            raw, label = samples[index]
    drawn = (uniforms(key, source.uniforms),) if source.uniforms else ()
    inputs: tuple[Any, ...] = ([raw], [label], *drawn)
    try:
        make_pipeline(source, [inputs], 1, files=files).run()
    except RuntimeError:
        return False
    return True
