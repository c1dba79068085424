"""Removing steps, and the leftovers of crashed saves, so that a crash or a reader in between sees nothing torn."""

from __future__ import annotations

import contextlib
import secrets
import threading
import warnings
from typing import TYPE_CHECKING

from resumable.checkpoint.marker import MARKER, OURS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable.checkpoint.steps import Steps

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

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self._settled: set[int] = set()  # committed steps without leftovers, which need not be listed at each save

    def tidy(self, saved: int, replaced: str | None, keep: int | None) -> None:
        """Remove what the commit of `saved` made superfluous; a failure here is no failed save, for it is durable."""
        try:
            if replaced is not None:
                self.steps.files.remove(f"{self.steps.directory(saved)}/{replaced}")
            self._prune(saved, keep)
        except Exception as error:  # noqa: BLE001 - a filesystem may raise anything, and training must go on
            message = f"step {saved} is saved in {self.steps.root}, but older files could not be removed: {error!r}. "
            warnings.warn(message + "They take up space until the next save tries again.", RuntimeWarning, 3)

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

    def _prune(self, saved: int, keep: int | None) -> None:
        """Remove the oldest steps first: a reader on its way down must not find an older one than it missed."""
        committed = [step for step in self.steps.listed() if step == saved or self._is_committed(step, saved)]
        for step in committed[:-keep] if keep else ():
            with _registry:
                if step != saved and not self._is_busy(step):
                    self.remove(step)

    def _is_committed(self, step: int, saved: int) -> bool:
        """Return whether a step not being written is committed, and remove leftovers below the one just saved."""
        with _registry:
            return not self._is_busy(step) and (step in self._settled or self._sweep(step, saved))

    def _is_busy(self, step: int) -> bool:
        return any(directory == self.steps.directory(step) for directory, _ in tuple(_writing))

    def _sweep(self, step: int, saved: int) -> bool:
        directory = self.steps.directory(step)
        names = self.steps.files.names(directory)
        if step < saved and MARKER not in names:
            self.remove(step)
        elif step < saved:
            if live := self.steps.data_file(step):
                self._remove_files(directory, names - {live})
            self._settled.add(step)
        return MARKER in names
