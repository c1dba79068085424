"""Which sample of a failed batch was it? DALI does not say, so each is tried alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.backends.dali.elastic.graph import make_pipeline
from resumable.backends.dali.elastic.samples import Files
from resumable.backends.dali.elastic.uniforms import uniforms
from resumable.errors import DataError, SampleError, WorkerError
from resumable.randomness import isolated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.backends.dali.elastic.source import Source
    from resumable.protocols import Request

__all__ = ["find_bad_sample", "worker_death"]


def worker_death(error: Exception) -> WorkerError | None:
    """Return an error that says that a worker died, if that is what happened.

    PyTorch tells it by the handler of a signal, so between any two lines; or the pipe to the worker is broken.
    """
    if isinstance(error, DataError) or not isinstance(error, (RuntimeError, ConnectionError, EOFError)):
        return None
    if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker"):
        return None
    return WorkerError(
        f"a process that reads samples died: {error or type(error).__name__}\n"
        "The loader's state is that before this batch. Look for a crash in the dataset, or for memory."
    )


def find_bad_sample(source: Source, requests: Sequence[Request], error: RuntimeError, *, files: bool) -> DataError:
    """Return an error that names the first sample that fails alone, or the batch where none does.

    Args:
        source: graph and samples.
        requests: those that were asked for and not handed over; the first one failed, or one behind it.
        error: what DALI said.
        files: the pipeline is fed with paths.
    """
    told = str(error).strip().split("encountered:")[-1].strip().split("\n")[0]
    for request in requests:
        for place, index in enumerate(request.indices):
            if not _works(source, request, place, int(index), files=files):
                return SampleError(
                    f"DALI failed on {source.samples.name(int(index))} (sample {index}): {told}\n"
                    f"It belongs to epoch {request.epoch}, step {request.step}, rank {request.rank}. "
                    "The loader's state is that before this batch: mend the file and go on from it."
                )
    steps = ", ".join(f"{request.epoch}:{request.step}" for request in requests)
    return DataError(f"DALI failed on a batch of the steps {steps}, but on none of its samples alone: {told}")


def _works(source: Source, request: Request, place: int, index: int, *, files: bool) -> bool:
    samples = source.samples
    if files and isinstance(samples, Files):
        raw, label = samples.paths(np.array([index]))[0], samples.labels[index : index + 1]
    else:
        with isolated(int(request.keys[place]) if len(request.keys) else None):  # as it was read, if it draws
            raw, label = samples[index]
    drawn = (uniforms(request.keys[place : place + 1], source.uniforms),) if source.uniforms else ()
    inputs: tuple[Any, ...] = ([raw], [label], *drawn)
    try:
        make_pipeline(source, [inputs], 1, files=files).run()
    except RuntimeError:
        return False
    return True
