"""What a script saves by itself: by `torch.save`, safetensors or Lightning; it is compared as what is in a store is.

A file has a *series*, its path in the case without numbers (`step_*.pt`): what is saved to it at a step stands beside
what the baseline run saved to the same series when its loader had come as far. The name may have the step in it, or the
time, or be the same each time.
"""

from __future__ import annotations

import posixpath
import re
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from resumable.chaos.recorder.events import read_events
from resumable.chaos.recorder.overlay import STATE
from resumable.chaos.recorder.overlay.view import is_dir
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Saves", "name_of", "series_of", "torn"]

_NUMBER = re.compile(r"\d+(\.\d+)*")
_VERSION = re.compile(r"-v\d+(?=\.ckpt$)")  # Lightning's, of a name that is taken already
_FILES = {"best_model_path", "kth_best_model_path"}  # Lightning's ModelCheckpoint: which files this start has written
_LONGEST = 4096  # characters of a path
_SHARED = ".distcp"  # of torch.distributed.checkpoint, which calls torch.save for each tensor in it


class Agent(Protocol):
    """What watches a process."""

    def has_loader(self) -> bool:
        """Return whether the script has made a loader, in a process that trains."""

    def has_begun(self) -> bool:
        """Return whether a batch was fetched."""

    def tell(self, kind: str, **fields: Any) -> None:
        """Write down an event at which nothing goes wrong."""


def name_of(path: Any) -> str:
    """Return the path of a file in its case, which is the same in each; a path elsewhere begins with `/`."""
    view = STATE.view
    if view is None:
        return str(Path(path).absolute())
    return view.written(view.find(path).real).removeprefix(f"{view.case}/").removeprefix("work/")


def series_of(name: str) -> str:
    """Return a name without its numbers.

    >>> series_of("checkpoints/epoch=2-loss=0.31.ckpt")
    'checkpoints/epoch=*-loss=*.ckpt'
    """
    return _NUMBER.sub("*", _VERSION.sub("", name))


class Saves:
    """Is told by the overlay of the files that this process saves, renames and loads.

    Args:
        agent: of this process.
        ledgers: directory of this start.
    """

    def __init__(self, agent: Agent, ledgers: Path) -> None:
        self._agent, self._ledgers = agent, ledgers
        self._known: dict[str, tuple[str, int | None]] | None = None

    def saved(self, content: Any, target: Any, *, torn: bool) -> None:
        """Come by the points of a file that was written, with its content."""
        if not self._agent.has_loader():
            return
        path = target if isinstance(target, str) or hasattr(target, "__fspath__") else getattr(target, "name", None)
        if path is None or isinstance(path, int) or "://" in str(path):
            if not _is_ours():
                self._agent.tell("unnamed")
            return
        if str(path).endswith(_SHARED):
            return
        if torn and (path is target or _has_descriptor(target)):
            if path is not target:
                target.flush()
            point("torch.save.half", path)
        point("torch.save.written", path, content)

    def keep(self, name: str, step: int | None) -> None:
        """Remember what was saved to a file."""
        self._of_files()[name] = (series_of(name), step)

    def renamed(self, source: str, target: str) -> None:
        """Tell that a file which was saved has another name now: it was not written in place."""
        old, new = name_of(source), name_of(target)
        known = self._of_files()
        for name in [name for name in known if name == old or name.startswith(f"{old}/")]:
            series, step = known.pop(name)
            final = new + name[len(old) :]
            self.keep(final, step)
            self._agent.tell("renamed", old=name, series=series, name=final, store=series_of(final), step=step)

    def loaded(self, path: Any) -> None:
        """Tell from which save this start goes on, if it does: before its first batch."""
        if not self._agent.has_begun():
            name = name_of(path)
            series, step = self._of_files().get(name, (None, None))
            if series is not None and step is not None:
                self._agent.tell("restored", root=series, store=series, step=step)

    def _of_files(self) -> dict[str, tuple[str, int | None]]:
        """Return what is in each file of the case: its series, and the step at which it was saved."""
        if self._known is None:
            self._known = {}
            starts = sorted(self._ledgers.parent.glob("attempt-*"), key=lambda path: int(path.name.split("-")[1]))
            for path in (path for start in starts for path in start.glob("events-*.jsonl")):
                self._replay(self._known, path)
        return self._known

    @staticmethod
    def _replay(known: dict[str, tuple[str, int | None]], path: Path) -> None:
        for event in read_events(path)[0]:
            if event["kind"] == "wrote":
                known[event["name"]] = (event["store"], event["step"])
            elif event["kind"] == "renamed":
                known.pop(event["old"], None)
                known[event["name"]] = (event["store"], event["step"])


def plain(content: Any) -> Any:
    """Return what a script saved, with models by their states, and paths of what it writes without case and numbers.

    Lightning gives a file or a folder another number where an earlier start has left one of that name.
    """
    if isinstance(content, dict):
        if content.keys() >= _FILES:
            return {}
        return {plain(name) if isinstance(name, str) else name: plain(part) for name, part in content.items()}
    if isinstance(content, (list, tuple)):
        return [plain(part) for part in content]
    if isinstance(content, str):
        return _without_numbers(content)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(content, torch.nn.Module):
        return content.state_dict()
    return content


def _without_numbers(text: str) -> str:
    """Return the path of a file of the case, or of one that is redirected into it, as that of a series."""
    view = STATE.view
    if view is None:
        return text
    if (case := f"{view.case}/") in text:
        return series_of(text.replace(case, ""))
    if not text.startswith("/") or len(text) > _LONGEST or "\0" in text:
        return text
    real = view.find(text).real
    return series_of(text) if view.is_redirected(real) and is_dir(posixpath.dirname(view.copy_of(real))) else text


def _has_descriptor(file: Any) -> bool:
    try:
        return isinstance(file.fileno(), int)
    except (AttributeError, OSError):
        return False


def _is_ours() -> bool:
    """Return whether this package saves, or pickle does: what is kept in memory, and files that are seen otherwise."""
    frame = sys._getframe(3)  # noqa: SLF001  # of the call of torch.save
    return str(frame.f_globals.get("__name__", "")).startswith(("resumable.", "torch.storage"))


def is_in_order() -> bool:
    """Return whether this thread does what the loop does: another one may save at any step."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def torn(path: Any) -> Iterator[None]:
    """Let a file have its first half only; the rest comes back, unless an exception or a kill comes first."""
    file = Path(STATE.view.written(STATE.view.find(path).real)) if STATE.view is not None else Path(path)
    size = file.stat().st_size
    with STATE.trusted(), file.open("r+b") as opened:
        opened.seek(size // 2)
        rest = opened.read()
        opened.truncate(size // 2)
    yield
    with STATE.trusted(), file.open("r+b") as opened:
        opened.seek(size // 2)
        opened.write(rest)
