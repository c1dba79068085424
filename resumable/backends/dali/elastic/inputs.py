"""Requests made into what a pipeline is given: paths for DALI to read, or bytes that were read already.

Worker processes import this, too, which do without DALI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from resumable._fetch.reader import Reader
    from resumable.backends.dali.elastic.samples import Files, Labelled
    from resumable.protocols import Request

__all__ = ["Fed", "read_here", "read_paths"]


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
