"""Curves: what `loader.stats()` says of the train loaders, for the loggers of the Trainer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from resumable._stats import LoaderStats, between
from resumable.errors import ConfigurationError
from resumable.integrations.lightning import private
from resumable.integrations.lightning.sources import THE_ONLY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.integrations.lightning.streams import TrainStream
    from resumable.loader import Loader

__all__ = ["Curves"]

_GROUP = "data"


class Curves:
    """Logs what lies between two steps at which the Trainer logs, as its own monitors do: past the module.

    Args:
        trainer: the Trainer.

    Raises:
        ConfigurationError: it has no logger.
    """

    def __init__(self, trainer: Any) -> None:
        if not trainer.loggers:
            raise ConfigurationError(
                "ResumableCallback(log_stats=True) was given to a Trainer with logger=False.\n"
                "The numbers would go nowhere. Give the Trainer a logger, or leave log_stats out."
            )
        self._trainer = trainer
        self._last: dict[str, tuple[Loader, LoaderStats]] = {}

    def begin(self, streams: Sequence[TrainStream]) -> None:
        """Count from here on, whatever was read of the loaders before."""
        self._last = {stream.name: (stream.loader, stream.loader.stats()) for stream in streams}

    def log(self, streams: Sequence[TrainStream]) -> None:
        """Log what came since the last time, if the Trainer logs after this batch."""
        trainer = self._trainer
        if not private.logs_now(trainer) or private.is_accumulating(trainer):
            return
        values = {name: value for stream in streams for name, value in self._since_last(stream).items()}
        for logger in trainer.loggers:
            separator = logger.group_separator
            named = {separator.join((_GROUP, *path)): value for path, value in values.items()}
            logger.log_metrics(named, step=private.steps_logged(trainer))

    def _since_last(self, stream: TrainStream) -> dict[tuple[str, ...], float]:
        loader, now = stream.loader, stream.loader.stats()
        known, before = self._last.get(stream.name, (loader, LoaderStats()))
        self._last[stream.name] = loader, now
        recent = between(before if known is loader else LoaderStats(), now)
        return {(*_path(stream.name), name): value for name, value in _curves(recent).items()}


def _curves(stats: LoaderStats) -> dict[str, float]:
    seconds = stats.wait_seconds + stats.loop_seconds
    values = {
        "wait_fraction": stats.wait_fraction,
        "wait_seconds": stats.wait_seconds,
        "read_seconds": stats.read_seconds,
        "samples_per_second": stats.samples_per_second,
        "estimated_bytes_per_second": stats.estimated_bytes / seconds if seconds else 0.0,
        "queue_depth": stats.queue_depth,
        "starved_fraction": stats.starved_fraction,
    }
    return {name: value for name, value in values.items() if value is not None}


def _path(name: str) -> tuple[str, ...]:
    """Return the keys of a loader's place in the Trainer's collection, as in `["images"][0]`."""
    return () if name == THE_ONLY else tuple(re.findall(r"[\w .-]+", name))
