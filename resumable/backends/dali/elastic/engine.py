"""One DALI pipeline, kept over epochs and seeks."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from nvidia.dali.plugin.pytorch.torch_utils import to_torch_tensor
from nvidia.dali.tensors import TensorGPU

from resumable._fetch.lost_workers import is_death
from resumable.backends.dali.elastic.failures import find_bad_sample
from resumable.backends.dali.elastic.fetcher import Fetcher
from resumable.backends.dali.elastic.graph import check_graph, make_pipeline
from resumable.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable.backends.dali.elastic.graph import Pipeline
    from resumable.backends.dali.elastic.inputs import Fed
    from resumable.backends.dali.elastic.source import Source

__all__ = ["Engine"]


class Engine:
    """Runs batches through a pipeline, in order.

    DALI works ahead. What is left of that when a run is given up, by a seek or a `break`, is thrown away when the next
    run begins: a fresh pipeline would cost more on a GPU, and by then the work is done anyway.

    Args:
        source: graph and options.
        batch_size: most samples per batch.
        files: the pipeline is given paths.
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
        """Refuse the graph if it would not give the same batches again."""
        check_graph(self.pipeline, self._source, self._fetcher)

    def run(self, source: Iterator[Fed]) -> Iterator[Any]:
        """Yield a batch for each input.

        Raises:
            SampleError: a sample could not be read or decoded; the message names it.
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
            raise find_bad_sample(self._source, self._fetcher.asked, error, files=self._files) from error
        try:
            batch = tensors(outputs, self._source.outputs, copy=not self.pipeline.exec_dynamic)
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
        except RuntimeError:  # of a batch that is not asked for any more; one that is asked for again fails again
            self.pipeline = self._make()


def tensors(outputs: Sequence[Any], names: Sequence[str], *, copy: bool) -> dict[str, torch.Tensor]:
    """Return one tensor per output, on the device of the output.

    Args:
        outputs: lists of tensors as `Pipeline.share_outputs` returns them.
        names: their names.
        copy: DALI uses the memory again; otherwise it belongs to whoever holds it.

    Raises:
        BackendError: the samples of an output differ in shape.
    """
    return {name: _tensor(output, name, copy=copy) for name, output in zip(names, outputs, strict=True)}


def _tensor(output: Any, name: str, *, copy: bool) -> torch.Tensor:
    if not output.is_dense_tensor():
        shapes = sorted({tuple(shape) for shape in output.shape()})[:4]
        raise BackendError(
            f"the samples of the output {name!r} differ in shape: {', '.join(map(str, shapes))} and so on.\n"
            "They make no tensor. Resize, crop or pad them to one size in the graph (fn.resize, fn.crop, fn.pad)."
        )
    dense = output.as_tensor()
    on_gpu = isinstance(dense, TensorGPU)
    with torch.cuda.device(dense.device_id()) if on_gpu else nullcontext():
        tensor: torch.Tensor = to_torch_tensor(dense, copy)
    return tensor
