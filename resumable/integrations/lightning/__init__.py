"""PyTorch Lightning, under either import name: a callback for exact resumes, and a plugin for checkpoint files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.integrations.lightning import callback as _callback
from resumable.integrations.lightning import checked as _checked
from resumable.integrations.lightning.callback import derive_from_imported

if TYPE_CHECKING:
    from resumable.integrations.lightning.callback import ResumableCallback
    from resumable.integrations.lightning.checked import CheckedCheckpointIO

__all__ = ["CheckedCheckpointIO", "ResumableCallback"]


def __getattr__(name: str) -> Any:
    """Return one of the two classes, derived from every Lightning package that is imported by now."""
    if name == "ResumableCallback":
        derive_from_imported()
        return _callback.ResumableCallback
    if name == "CheckedCheckpointIO":
        _checked.register_with_imported()
        return _checked.CheckedCheckpointIO
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
