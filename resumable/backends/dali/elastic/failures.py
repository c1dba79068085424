"""Which sample of a failed batch was it? DALI does not say, so each is tried alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._randomness.keys import isolated
from resumable.backends.dali.elastic.graph import make_pipeline
from resumable.backends.dali.elastic.samples import Files
from resumable.backends.dali.elastic.uniforms import uniforms
from resumable.errors import DataError, SampleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable._randomness.keyed import Words
    from resumable.backends.dali.elastic.source import Source
    from resumable.protocols import Request

__all__ = ["find_bad_sample"]


def find_bad_sample(source: Source, requests: Sequence[Request], error: RuntimeError, *, files: bool) -> DataError:
    """Return an error that names the first sample that fails alone, or the batch where none does.

    Args:
        source: graph and samples.
        requests: those that were asked for and not delivered; the first one failed, or one after it.
        error: what DALI said.
        files: the pipeline is given paths.
    """
    told = str(error).strip().split("encountered:")[-1].strip().split("\n")[0]
    for request in requests:
        keys = request.keys
        for place, index in enumerate(request.indices):
            if not _works(source, keys[place : place + 1], int(index), files=files):
                return SampleError(
                    f"DALI failed on {source.samples.name(int(index))} (sample {index}): {told}\n"
                    "No batch can be made with it. Mend the file, or leave it out."
                )
    steps = ", ".join(f"{request.epoch}:{request.step}" for request in requests)
    return DataError(f"DALI failed on a batch of the steps {steps}, but on none of its samples alone: {told}")


def _works(source: Source, key: Words, index: int, *, files: bool) -> bool:
    samples = source.samples
    if files and isinstance(samples, Files):
        raw, label = samples.paths(np.array([index]))[0], samples.labels[index : index + 1]
    else:
        with isolated(int(key[0]) if len(key) else None):  # as it was read, if it draws
            raw, label = samples[index]
    drawn = (uniforms(key, source.uniforms),) if source.uniforms else ()
    inputs: tuple[Any, ...] = ([raw], [label], *drawn)
    try:
        make_pipeline(source, [inputs], 1, files=files).run()
    except RuntimeError:
        return False
    return True
