"""The indexed backend: our sampler says what is read, FFCV's compiled operations read it."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from resumable.backends.ffcv.describe import describe_pipelines
from resumable.backends.ffcv.epoch import EpochRun
from resumable.backends.ffcv.file import describe_fields, fingerprint, hash_content
from resumable.backends.ffcv.pipeline import Pipeline
from resumable.backends.ffcv.settings import Settings
from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from resumable._options import Options
    from resumable.backends.ffcv.source import Source
    from resumable.protocols import Request

__all__ = ["FFCVBackend"]


_HINTS = {
    "pipeline": "Give the Loader the pipelines that the run was started with.",
    "sampler.window": "QUASI_RANDOM shuffles by windows of pages: give the one of the run that saved it, "
    "wrap(resumable.backends.ffcv.source(loader, window=...)).",
}


class FFCVBackend:
    """Reads requests through the operations of a Loader of FFCV.

    Args:
        source: the Loader, and the options for it.
        options: randomness, identity, and the ranks.
    """

    kind = "ffcv"

    def __init__(self, source: Source, options: Options) -> None:
        loader = source.loader
        self._loader, self._options = loader, options
        self.length = int(loader.reader.num_samples)
        self.identity = {
            "file": options.identity or fingerprint(loader.reader),
            "fields": describe_fields(loader.reader),
            "pipeline": describe_pipelines(loader),
        }
        if source.content_hash:
            self.identity["content"] = hash_content(loader.reader.file_name)
        self.traits, self._settings = Traits(hints=_HINTS, reads_ahead=True), Settings(loader)
        told = None if options.randomness == "off" else source.modes
        self.pipeline = Pipeline(loader, told)

    def settings(self) -> dict[str, Any]:
        """Return what a user has changed in the Loader."""
        return self._settings.changed()

    def set_settings(self, settings: Mapping[str, Any]) -> None:
        """Change the Loader as `settings` says."""
        self._settings.change(settings)

    def read(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yield one batch per request: a tuple with one part for each field.

        The operations' settings are those at the call, and not those at the first batch.
        """
        source = iter(requests)
        first = next(source, None)
        if first is None:
            return iter(())
        more = int(self._options.find_world().size > 1)  # shares may differ by one
        return EpochRun(self._loader, self.pipeline, chain([first], source), more).batches()
