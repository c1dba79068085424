"""Removing steps, and the leftovers of crashed saves, so that a crash or a reader in between sees nothing torn."""

from __future__ import annotations

import contextlib
import secrets
import threading
from typing import TYPE_CHECKING

from resumable._warn import warn
from resumable.checkpoint.marker import MARKER, OURS
from resumable.errors import WriterFencedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable.checkpoint.steps import Steps
    from resumable.checkpoint.writer import Writer

__all__ = ["Cleaner", "being_written"]

_writing: set[tuple[str, str]] = set()  # (directory, token) of the saves under way in this process
_registry = threading.Lock()  # so that no step is registered as being written while it is removed


@contextlib.contextmanager
def being_written(directory: str) -> Iterator[str]:
    """Give a token to name files with, and keep this process from cleaning the directory while the block runs."""
    writer = directory, secrets.token_hex(8)
    with _registry:
        _writing.add(writer)
    try:
        yield writer[1]
    finally:
        _writing.discard(writer)


class Cleaner:
    """Removes what a store no longer needs: old steps, and the leftovers of crashed saves."""

    def __init__(self, steps: Steps, writer: Writer) -> None:
        self.steps, self._writer = steps, writer
        self._settled: set[int] = set()  # committed steps without leftovers, which need not be listed at each save

    def tidy(self, saved: int, replaced: set[str], keep: int | None, keep_every: int | None = None) -> None:
        """Remove what the commit of `saved` made superfluous; a failure here is no failed save, for it is durable.

        Raises:
            WriterFencedError: another process is the writer, and what this one would remove is that one's.
        """
        try:
            for name in sorted(replaced):
                self.steps.files.remove(f"{self.steps.directory(saved)}/{name}")
            self._prune(saved, keep, keep_every)
        except WriterFencedError:
            raise
        except Exception as error:  # noqa: BLE001 - a filesystem may raise anything, and training must go on
            message = f"step {saved} is saved in {self.steps.root}, but older files could not be removed: {error!r}. "
            warn(message + "They take up space until the next save tries again.", RuntimeWarning)

    def remove(self, step: int) -> None:
        """Remove a step: first the marker, durably, then the files that it may have named."""
        directory = self.steps.directory(step)
        self._settled.discard(step)
        names = self.steps.files.names(directory)
        if MARKER in names:
            self.steps.files.remove(f"{directory}/{MARKER}")
        self._remove_files(directory, names)
        self.steps.files.remove_dir(directory)

    def _remove_files(self, directory: str, names: set[str]) -> None:
        """Remove files that no marker names, after it is durable that none does."""
        with contextlib.suppress(FileNotFoundError):
            self.steps.files.settle(directory)
        for name in filter(OURS.fullmatch, names):
            self.steps.files.remove(f"{directory}/{name}")

    def _prune(self, saved: int, keep: int | None, keep_every: int | None) -> None:
        """Remove the oldest steps first: a reader on its way down must not find an older one than it missed."""
        committed = [step for step in self.steps.listed() if step == saved or self._is_committed(step, saved)]
        passing = [step for step in committed if keep_every is None or step % keep_every]
        old = [step for step in (passing[:-keep] if keep else ()) if step != saved]
        if old:
            self._writer.claim(f"step {saved} is saved to {self.steps.root}, but no older step was removed")
        for step in old:
            with _registry:
                if not self._is_busy(step):
                    self.remove(step)

    def _is_committed(self, step: int, saved: int) -> bool:
        """Return whether a step may be removed when it is old, and remove leftovers below the one just saved."""
        with _registry:
            if self._is_busy(step) or self.steps.is_linked(step):
                return False
            return step in self._settled or self._sweep(step, saved)

    def _is_busy(self, step: int) -> bool:
        return any(directory == self.steps.directory(step) for directory, _ in tuple(_writing))

    def _sweep(self, step: int, saved: int) -> bool:
        directory = self.steps.directory(step)
        names = self.steps.files.names(directory)
        if step < saved and MARKER not in names:
            self.remove(step)
        elif step < saved:
            if live := self.steps.data_files(step):
                self._remove_files(directory, names - live)
            self._settled.add(step)
        return MARKER in names
