"""What a watched process is stopped for: it would go on from a real run outside of its directory.

Nothing would be lost, as all that it writes is redirected. But each start would go on from there, and that it resumes
from its own checkpoints would not be tested.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable.chaos.recorder.overlay import STATE
from resumable.chaos.recorder.overlay.listing import names_in
from resumable.chaos.recorder.overlay.remote import is_remote, refuse_remote

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

__all__ = ["REFUSALS"]

_WAY_OUT = (
    "Each start would go on from there, and what it saves itself would not be tested. Give the checkpoints a relative "
    "path, which leads to a fresh directory, or {dir}, in this test."
)


def _refuse_remote_store(_: Any, root: str, filesystem: Any, path: str) -> None:
    """Refuse a store elsewhere; of one on this machine, remember that it holds checkpoints."""
    if is_remote(filesystem):
        refuse_remote(root)
    if STATE.view is not None and "file" in filesystem.protocol:
        STATE.view.exempt.checkpoints.add(STATE.view.find(path).real)


def _refuse_real_steps(_: Any, store: Any) -> None:
    """Refuse to load from a store that has steps which this case has not saved."""
    from resumable.checkpoint.marker import MARKER  # noqa: PLC0415  # where there is a store, they are imported
    from resumable.checkpoint.steps import DIRECTORY  # noqa: PLC0415  # the same

    view = STATE.view
    if view is None or "://" in store.root:
        return
    real = view.find(store.root).real
    if not Path(store.root).is_dir():
        return
    found = sorted(name for name in names_in(view, real) if DIRECTORY.fullmatch(name))
    if steps := [int(name[5:]) for name in found if view.is_the_machines(f"{real}/{name}/{MARKER}")]:
        which = f"step {steps[-1]}" if len(steps) == 1 else f"{len(steps)} checkpoints, the newest of step {steps[-1]}"
        _refuse(f"the command loads from {store.root}, which holds a real run outside of its directory: {which}")


def _refuse_real_state(plan: dict[str, Any], *_: Any) -> None:
    """Refuse the state of a loader before any state was taken in this case: it can only be that of another run."""
    if plan["attempt"] == 0 and not _has_taken_a_state(Path(plan["directory"])):
        last = f" The last file that it read outside of its directory: {STATE.recent}" if STATE.recent else ""
        _refuse(
            "the command loads the state of a loader in its first start, before it has taken one: that of a real run",
            f" To begin at a place on purpose, use loader.seek(...).{last}",
        )


def _has_taken_a_state(ledgers: Path) -> bool:
    kinds = (b'"kind": "state"', b'"kind": "save"')
    return any(kind in path.read_bytes() for path in ledgers.glob("*.jsonl") for kind in kinds)


def _refuse_real_checkpoint(_: Any, trainer: Any) -> None:
    """Refuse to let the Trainer go on from a file that this case has not written."""
    view, path = STATE.view, trainer.ckpt_path
    if view is not None and path and view.is_the_machines(view.find(path).real):
        _refuse(f"the Trainer goes on from {path}, which is of a real run, outside of its directory")


def _refuse(what: str, more: str = "") -> NoReturn:
    assert STATE.view is not None
    STATE.refuse(f"{what}.\n  the run's directory: {STATE.view.case}\n{_WAY_OUT}{more}")


REFUSALS: dict[str, Callable[..., None]] = {
    "store.opened": _refuse_remote_store,
    "store.load": _refuse_real_steps,
    "loader.load": _refuse_real_state,
    "lightning.load": _refuse_real_checkpoint,
}
