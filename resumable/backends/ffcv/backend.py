"""The indexed backend: our sampler says what is read, FFCV's compiled operations read it."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable.backends.ffcv.code_cache import default_folder
from resumable.backends.ffcv.compiling import CodeMaker
from resumable.backends.ffcv.describe import describe_pipelines
from resumable.backends.ffcv.epoch import EpochRun
from resumable.backends.ffcv.file import describe_fields, fingerprint, hash_content
from resumable.backends.ffcv.pipeline import Pipeline
from resumable.protocols import Capabilities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resumable.backends.ffcv.source import Source
    from resumable.options import Options
    from resumable.protocols import Request

__all__ = ["FFCVBackend"]


class FFCVBackend:
    """Reads requests through the operations of a Loader of FFCV.

    Args:
        source: the Loader, and the options for it.
        options: randomness, identity, and whether the shares of the ranks may differ.
    """

    kind = "ffcv"
    capabilities = Capabilities(
        hints={
            "pipeline": "Give the Loader the pipelines that the run was started with.",
            "sampler.window": "QUASI_RANDOM shuffles by windows of pages: give the one of the run that saved it, "
            "wrap(resumable.backends.ffcv.source(loader, window=...)).",
        }
    )

    def __init__(self, source: Source, options: Options) -> None:
        loader = source.loader
        self._loader, self._more = loader, int(options.uneven)
        self.length = int(loader.reader.num_samples)
        self.identity = {
            "file": options.identity or fingerprint(loader.reader),
            "fields": describe_fields(loader.reader),
            "pipeline": describe_pipelines(loader),
        }
        if source.content_hash:
            self.identity["content"] = hash_content(loader.reader.file_name)
        told = None if options.randomness == "off" else source.modes
        self.pipeline = Pipeline(loader, CodeMaker(_folder(source)), told)

    def read(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yield one batch per request: a tuple with one part for each field."""
        source = iter(requests)
        first = next(source, None)
        if first is not None:
            yield from EpochRun(self._loader, self.pipeline, chain([first], source), self._more).batches()


def _folder(source: Source) -> Path | None:
    if source.compile_cache is True:
        return default_folder()
    return Path(source.compile_cache) if source.compile_cache else None
