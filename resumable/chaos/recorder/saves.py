"""Files that a script saves itself with `torch.save`, safetensors or Lightning; compared like checkpoints in a store.

A file belongs to a *series*: its path in the case without numbers (`step_*.pt`). A save at some step is compared with
the baseline run's save to the same series when its loader was at the same step. The name may contain the step or the
time, or always be the same.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from resumable._inspect.states import find_states
from resumable._state import is_state
from resumable.chaos.digests import OF_ONE_LAUNCH
from resumable.chaos.ledger import read_events, series_of
from resumable.chaos.recorder.guard import GUARD
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Saves", "name_of", "torn"]

_MEMORY = "<memory>"  # the series of content saved to memory, which the script then writes, sends or compresses
_SHARED = ".distcp"  # a file of torch.distributed.checkpoint, which calls torch.save for each tensor in it


class Agent(Protocol):
    """The agent of an observed process."""

    def has_loader(self) -> bool:
        """Return whether the script has created a loader, in a process that trains."""

    def has_begun(self) -> bool:
        """Return whether a batch was fetched."""

    def tell(self, kind: str, **fields: Any) -> None:
        """Record an event that is not a failpoint."""


def step_in(content: Any) -> int | None:
    """Return the global step of the first loader in a checkpoint; None if there is none."""
    step = next((state.values.get("global_step") for state in find_states(content)), None)
    return step if isinstance(step, int) else None


def name_of(path: Any) -> str:
    """Return the path of a file in its case, which is the same in each case; other paths start with `/`."""
    if path is MEMORY:
        return _MEMORY
    return GUARD.name(path)


class _Held(NamedTuple):
    """The last save to a file.

    Args:
        series: of the file.
        step: of the save.
        aside: whether a thread other than the loop's saved it.
    """

    series: str
    step: int | None
    aside: bool


class _Memory:
    """A placeholder for the path of a save to memory."""


MEMORY = _Memory()


class Saves:
    """Handles the files that this process saves, renames and loads, as the guard reports them.

    Args:
        agent: of this process.
        ledgers: directory of this launch.
    """

    def __init__(self, agent: Agent, ledgers: Path) -> None:
        self._agent, self._ledgers = agent, ledgers
        self._known: dict[str, _Held] | None = None

    def saved(self, content: Any, target: Any, *, torn: bool) -> None:
        """Pass the failpoints of a file that was written, with its content."""
        if not self._agent.has_loader():
            return
        path = target if isinstance(target, str) or hasattr(target, "__fspath__") else getattr(target, "name", None)
        if path is None or isinstance(path, int) or "://" in str(path):
            if _is_ours():
                return
            if step_in(content) is None:
                self._agent.tell("unnamed")
            else:
                point("torch.save.written", MEMORY, content)
            return
        if str(path).endswith(_SHARED):
            return
        if torn and (path is target or _has_descriptor(target)):
            if path is not target:
                target.flush()
            point("torch.save.half", path)
        point("torch.save.written", path, content)

    def keep(self, name: str, step: int | None, *, aside: bool) -> None:
        """Remember the step of a file, and whether another thread saved it."""
        self._of_files()[name] = _Held(series_of(name), step, aside)

    def renamed(self, source: str, target: str) -> None:
        """Record that a saved file was renamed, so it was not written in place."""
        old, new = name_of(source), name_of(target)
        known = self._of_files()
        for name in [name for name in known if name == old or name.startswith(f"{old}/")]:
            held = known.pop(name)
            final = new + name[len(old) :]
            self.keep(final, held.step, aside=held.aside)
            more = {"step": held.step, "aside": held.aside}
            self._agent.tell("renamed", old=name, series=held.series, name=final, store=series_of(final), **more)

    def loaded(self, path: Any, content: Any) -> None:
        """Record the save from which this launch resumes, if it loads one before its first batch.

        Args:
            path: of the file; None for content read from memory.
            content: the content. It contains the step of its loop, which the ledger may lack: a kill may come between
                the save by another thread and its record.
        """
        if self._agent.has_begun():
            return
        held = self._of_files().get(_MEMORY if path is None else name_of(path))
        if held is not None and held.step is not None:
            step = step_in(content) if held.aside or path is None else held.step
            self._agent.tell("restored", root=held.series, store=held.series, step=step)

    def _of_files(self) -> dict[str, _Held]:
        """Return the last save to each file of the case."""
        if self._known is None:
            self._known = {}
            starts = sorted(self._ledgers.parent.glob("attempt-*"), key=lambda path: int(path.name.split("-")[1]))
            for path in (path for start in starts for path in start.glob("events-*.jsonl")):
                self._replay(self._known, path)
        return self._known

    @staticmethod
    def _replay(known: dict[str, _Held], path: Path) -> None:
        for event in read_events(path):
            if event["kind"] in {"wrote", "renamed"}:
                known.pop(event.get("old", ""), None)
                known[event["name"]] = _Held(event["store"], event["step"], event["aside"])


def without_states(node: Any) -> Any:
    """Return a part of a checkpoint without the states of Loaders in it, which are compared by position."""
    if isinstance(node, dict):
        has_state = any(map(is_state, node.values()))
        return {name: part for name, part in node.items() if not is_state(part)} if has_state else node
    if isinstance(node, (list, tuple)) and any(isinstance(part, (dict, list, tuple)) for part in node):
        return [part for part in node if not is_state(part)]
    return node


def plain(node: Any) -> Any:
    """Return the same with models as state dicts, and with paths without case and numbers.

    Lightning adds a number to a file or folder if an earlier launch left one of the same name.
    """
    if isinstance(node, str):
        return _without_numbers(node)
    if isinstance(node, dict):
        if node.keys() >= OF_ONE_LAUNCH:
            return {}
        named = {_without_numbers(name) if isinstance(name, str) else name: part for name, part in node.items()}
        return without_states(named)
    if isinstance(node, (list, tuple)):
        texts = [_without_numbers(part) if isinstance(part, str) else part for part in node]
        return without_states(texts)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(node, torch.nn.Module):
        return node.state_dict()
    return node


def _without_numbers(text: str) -> str:
    """Return the series of a path, if the text is a path in the case."""
    case = f"{GUARD.case}/"
    return series_of(text.replace(case, "")) if GUARD.active and case in text else text


def _has_descriptor(file: Any) -> bool:
    try:
        return isinstance(file.fileno(), int)
    except (AttributeError, OSError):
        return False


def _is_ours() -> bool:
    """Return whether this package or pickle saves: content kept in memory, and files that are recorded elsewhere."""
    frame = sys._getframe(3)  # noqa: SLF001  # the caller of torch.save
    return str(frame.f_globals.get("__name__", "")).startswith(("resumable.", "torch.storage"))


def is_in_order() -> bool:
    """Return whether this is the loop's thread; other threads may save at any step."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def torn(path: Any) -> Iterator[None]:
    """Truncate a file to its first half; the rest is restored unless an exception or a kill comes first."""
    file = Path(path)
    size = file.stat().st_size
    with GUARD.trusted(), file.open("r+b") as opened:
        opened.seek(size // 2)
        rest = opened.read()
        opened.truncate(size // 2)
    yield
    with GUARD.trusted(), file.open("r+b") as opened:
        opened.seek(size // 2)
        opened.write(rest)
