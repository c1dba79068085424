"""One DALI pipeline, kept over epochs and seeks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from resumable.backends.dali.elastic.failures import find_bad_sample, worker_death
from resumable.backends.dali.elastic.graph import check_graph, make_pipeline
from resumable.backends.dali.elastic.inputs import Feed
from resumable.backends.dali.elastic.outputs import tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        files: the pipeline is fed with paths.
    """

    def __init__(self, source: Source, batch_size: int, *, files: bool) -> None:
        self._source, self.batch_size, self._files = source, batch_size, files
        self._feed = Feed(source.uniforms)
        self.pipeline = self._make()
        self._used = False
        self.broken = False

    def _make(self) -> Pipeline:
        return make_pipeline(self._source, self._feed, self.batch_size, files=self._files)

    def check(self) -> None:
        """Refuse the graph if it would not give the same batches again."""
        check_graph(self.pipeline, self._source, self._feed)

    def run(self, source: Iterator[Fed]) -> Iterator[Any]:
        """Yield a batch for each input.

        Raises:
            SampleError: a sample could not be read or decoded; the message names it.
        """
        if self._used:
            self._drain()
        self._feed.begin(source)
        self._used = True
        try:
            self._schedule()
            while (batch := self._next()) is not None:
                yield batch
        finally:
            self._feed.end()
        failure, self._feed.failure = self._feed.failure, None  # its traceback would keep the workers
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
            if worker_death(error) is not None:
                raise
            raise find_bad_sample(self._source, self._feed.asked, error, files=self._files) from error
        try:
            batch = tensors(outputs, self._source.outputs, copy=not self.pipeline.exec_dynamic)
        finally:
            self.pipeline.release_outputs()
        self._feed.asked.pop(0)
        self.pipeline.schedule_run()
        return batch

    def _drain(self) -> None:
        try:
            while True:
                self.pipeline.share_outputs()
                self.pipeline.release_outputs()
        except StopIteration:
            self.pipeline.reset()
        except RuntimeError:  # of a batch that nobody asks for any more; one that is asked for again fails again
            self.pipeline = self._make()
