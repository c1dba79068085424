"""One save of one rank: alone, or with the parts of all ranks."""

from __future__ import annotations

import contextlib
from time import sleep
from typing import TYPE_CHECKING, Any

from resumable.checkpoint.cleaning import being_written
from resumable.checkpoint.limits import waiting_for
from resumable.checkpoint.reports import reporting
from resumable.checkpoint.writing import not_saved, write_and_commit, write_part
from resumable.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resumable.checkpoint.marker import Part
    from resumable.checkpoint.steps import Steps
    from resumable.checkpoint.together import Meeting

__all__ = ["Saving"]

_APPEARS = 15.0  # seconds after which a file of another host is there; network file systems cache names for a while


class Saving:
    """A save of a step.

    Args:
        steps: those of the store.
        step: to be saved.
        meeting: of the ranks that save parts; None for a checkpoint without parts.
    """

    def __init__(self, steps: Steps, step: int, meeting: Meeting | None) -> None:
        self._steps, self.step, self._meeting = steps, step, meeting

    @property
    def rank(self) -> int:
        """This process's rank; 0 for the one that commits."""
        return 0 if self._meeting is None else self._meeting.rank

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Tell the other ranks if this one fails, so that none of them waits for it."""
        with self._meeting.leading() if self._meeting else contextlib.nullcontext():
            yield

    def add(self, part: Any) -> None:
        """Write this rank's part, tell rank 0, and wait until it has committed the step."""
        assert self._meeting is not None
        with being_written(self._steps.directory(self.step)) as name:
            self._meeting.bring(self.step, write_part(self._steps, self.step, self.rank, name, part))
            with reporting(
                f"step {self.step} may or may not be saved to {self._steps.root}", "`steps()` says whether."
            ):
                self._meeting.hear(not_saved(self._steps, self.step))

    def commit(self, content: Any, part: Any, check: Callable[[], None]) -> set[str]:
        """Write the content and rank 0's part, wait for the parts of the others, and commit the step.

        Args:
            content: what is saved once for all ranks.
            part: of this rank, if the checkpoint has parts.
            check: called when all is written, and nothing is committed.

        Returns:
            The names of the data files that an earlier save of this step has left.
        """
        directory = self._steps.directory(self.step)
        with being_written(directory) as name, contextlib.ExitStack() as own:

            def before() -> Sequence[Part]:
                parts: list[Part] = []
                if self._meeting is not None:
                    token = own.enter_context(being_written(directory))
                    parts = self._meeting.collect(self.step, write_part(self._steps, self.step, 0, token, part))
                    self._see(parts)
                check()
                return parts

            replaced = write_and_commit(self._steps, self.step, name, content, before=before)
        if self._meeting is not None:
            self._meeting.announce(self.step)
        return replaced

    def _see(self, parts: Sequence[Part]) -> None:
        """See that rank 0 finds the parts that other hosts have written."""
        waited = 0.0
        while True:
            held = self._steps.files.sizes(self._steps.directory(self.step))
            hidden = [part for part in parts if held.get(part.file) != part.size]
            if not hidden:
                waiting_for("")
                return
            if waited >= _APPEARS:
                part = hidden[0]
                raise CheckpointError(
                    f"the part of rank {part.rank} is not in {self._steps.root} as rank 0 sees it.\n"
                    f"  written:  {part.file}, {part.size} bytes\n  found:    {held.get(part.file, 'no such file')}\n"
                    "A shared store needs a root that all hosts share: a network file system or a bucket."
                )
            waiting_for(f"the file of rank {hidden[0].rank} to appear")
            sleep(pause := 0.05 + waited / 5)
            waited += pause
