"""Requests made into what a pipeline is given: paths for DALI to read, or bytes that were read already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable.backends.dali.elastic.uniforms import uniforms
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from resumable._fetch.reader import Reader
    from resumable.backends.dali.elastic.samples import Files, Labelled
    from resumable.protocols import Request

__all__ = ["Fed", "Fetcher", "read_here", "read_paths"]


class Fed(NamedTuple):
    """What one batch is made from.

    Args:
        request: who asked.
        raw: paths or encoded samples, one array per sample.
        labels: one array per sample.
    """

    request: Request
    raw: Any
    labels: Any


def read_paths(files: Files, requests: Iterable[Request]) -> Generator[Fed]:
    """Leave the reading to DALI's threads."""
    for request in requests:
        point("worker.read", request)
        indices = np.asarray(request.indices)
        yield Fed(request, files.paths(indices), files.labels[indices][:, None])


def read_here(reader: Reader, requests: Iterable[Request]) -> Generator[Fed]:
    """Read the samples in this process."""
    for request in requests:
        yield split(request, reader.read_isolated(request))


def split(request: Request, samples: list[Labelled]) -> Fed:
    """Take samples apart."""
    return Fed(request, [raw for raw, _ in samples], [label for _, label in samples])


class Fetcher:
    """Called by DALI for each batch. It knows nothing of the pipeline, so that dropping that frees it at once.

    Args:
        count: uniforms per sample.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._source: Iterator[Fed] = iter(())
        self.asked: list[Request] = []
        self.failure: Exception | None = None

    def begin(self, source: Iterator[Fed]) -> None:
        """Draw from another source from now on."""
        self._source, self.asked, self.failure = source, [], None

    def end(self) -> None:
        """Draw no more."""
        self._source = iter(())

    def __call__(self) -> tuple[Any, ...]:
        """Return the inputs of the next batch.

        Raises:
            StopIteration: there is none, or reading it failed; then the batches before it are delivered first.
        """
        try:
            fed = next(self._source)
        except StopIteration:
            raise
        except Exception as error:  # raised again when it is its turn
            self.failure = error
            raise StopIteration from error
        self.asked.append(fed.request)
        drawn = (uniforms(fed.request.keys, self._count),) if self._count else ()
        return fed.raw, fed.labels, *drawn
