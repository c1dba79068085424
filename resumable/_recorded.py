"""Progress that a flight recorder writes down; without one, a loader has none of this on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable._fetch import Fetcher
    from resumable._flight import Recorder
    from resumable._options import Options
    from resumable._state import Mark, State

__all__ = ["progress_of"]


def progress_of(fetcher: Fetcher, options: Options) -> Progress:
    """Return the progress of a loader, recorded where the options say so.

    Raises:
        ConfigurationError: nothing can be written to the folder of the records.
    """
    folder = options.flight_recorder
    if folder is None:
        return Progress(fetcher, options)
    from resumable._flight import Recorder  # noqa: PLC0415  # a sixth of the import, which others do without

    return _Recorded(fetcher, options, Recorder(folder, fetcher))


class _Recorded(Progress):
    def __init__(self, fetcher: Fetcher, options: Options, recorder: Recorder) -> None:
        super().__init__(fetcher, options)
        self._recorder = recorder

    def read_from(self, fetcher: Fetcher, options: Options) -> None:
        super().read_from(fetcher, options)
        self._recorder.read_from(fetcher)

    def end_epoch(self) -> None:
        mark = self._delivered
        super().end_epoch()
        self._recorder.between(mark)

    def bookmark(self) -> Callable[[], dict[str, Any]]:
        make = super().bookmark()
        self._recorder.state_taken(self._counts.global_step)
        return make

    def load(self, state: State, mark: Mark, global_batch: int) -> None:
        super().load(state, mark, global_batch)
        self._recorder.begin(self._delivered, global_batch, loaded=True)

    def _next(self, epoch: int) -> Any:
        mark, recorder = self._delivered, self._recorder
        if self._stream is None:
            recorder.begin(mark, self.global_batch)
        recorder.reading(mark.cursor, mark.global_step)
        batch = super()._next(epoch)
        recorder.delivered()
        return batch

    def _peek(self) -> Any:
        self._recorder.begin(self._delivered, self.global_batch)
        return self._recorder.looking(super()._peek, self.following, self._delivered.global_step)

    def _finish(self, epoch: int) -> None:
        if self._delivered.cursor.epoch == epoch:
            self._recorder.between(self._delivered)
        super()._finish(epoch)
