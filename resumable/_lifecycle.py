"""The end of a Loader's stream: by `close()`, or by a `with` block."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from resumable.progress import Progress

__all__ = ["Closes"]


class Closes:
    """Ends what a Loader has opened, when its user says so.

        with resumable.wrap(DataLoader(dataset, num_workers=2)) as loader:
            for batch in loader:
                ...

    The block gives the loader itself, and closes it at its end, however that comes. An exception that leaves the block
    stays the same.
    """

    progress: Progress

    def close(self) -> None:
        """End the worker processes, threads and open files of the stream, and wait for them; the place stays.

        A state that is taken after it is that of before it. Iterating again opens the stream again at the place, as in
        a run that is resumed, so a closed loader is not used up; only a source that can be read once is over. Workers
        that live on between epochs (`persistent_workers=True`) end, too. Calling it again does nothing. In a process
        that was forked from the one that reads, it leaves everything to that.

        Raises:
            UnsupportedError: a batch is being read meanwhile, by another thread or by what calls this.
        """
        self.progress.close()

    def __enter__(self) -> Self:
        """Return the loader."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close the loader; what goes wrong with that becomes a note of the exception that leaves the block."""
        try:
            self.close()
        except Exception as later:
            if error is None:
                raise
            error.add_note(f"resumable: closing the loader failed, too: {type(later).__name__}: {later}")
