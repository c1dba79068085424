"""The Loader's part of a Trainer's checkpoint, in `trainer_state.json`, which is written last.

format         version of this schema
states         of the Loader, after the last optimizer step: one, or one per rank if they differ
world_size     number of ranks
accumulation   micro-batches per optimizer step
losses         per rank: sum of the losses since the last log entry
logged         step of that entry
counts         per rank: metrics and tokens that a TRL Trainer has counted; None for others, missing in old checkpoints
ended          whether the Trainer was done with the epoch or the run
epoch_stopped  whether a callback had ended the epoch early
stopped        whether a callback had stopped the run, as early stopping does
max_steps      planned number of optimizer steps of the run

The Trainer writes its files one after the other, in place, and `trainer_state.json` last. So a checkpoint is complete
if that file exists and has the Loader's state. On several ranks, `Session` makes it wait for the other ranks' files.
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from resumable.errors import CheckpointError, CheckpointNotFoundError, ConfigurationError
from resumable.integrations._buffers import put_back
from resumable.integrations._saved import RankedState
from resumable.integrations.transformers import private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from resumable.integrations._buffers import KeptBuffers

__all__ = [
    "NAME",
    "TransformersState",
    "last_whole_checkpoint",
    "load_buffers",
    "newest_whole",
    "read_saved",
    "save_buffers",
]

NAME = "ResumableState"  # the Trainer saves states under the name of the callback's class


@dataclass(frozen=True)
class TransformersState(RankedState):
    """The Loader's part of a checkpoint.

    Args:
        ranks: per rank, `loaders` with the state of its Loader, `losses` and `counts`.
    """

    part: ClassVar[str] = "the Loader's part of the checkpoint"

    ranks: Sequence[Mapping[str, Any]]
    accumulation: int
    logged: int
    ended: bool
    epoch_stopped: bool
    stopped: bool
    max_steps: int

    def as_dict(self) -> dict[str, Any]:
        """Return values that JSON can represent."""
        states = [one["loaders"][0] for one in self.ranks]
        equal = all(state == states[0] for state in states)
        return {
            "format": self.newest,
            "states": [_pack(state) for state in (states[:1] if equal else states)],
            "world_size": len(self.ranks),
            "accumulation": self.accumulation,
            "losses": [one["losses"] for one in self.ranks],
            "logged": self.logged,
            "counts": [one["counts"] for one in self.ranks],
            "ended": self.ended,
            "epoch_stopped": self.epoch_stopped,
            "stopped": self.stopped,
            "max_steps": self.max_steps,
        }

    @classmethod
    def _read(cls, values: Mapping[str, Any]) -> Self:
        states, size = [_unpack(state) for state in list(values["states"])], int(values["world_size"])
        if not all(isinstance(state, dict) for state in states):
            raise TypeError("a state is not a dictionary")
        parts = zip(  # raises a ValueError if the lengths differ
            states * size if len(states) == 1 else states,
            list(values["losses"]),
            list(values.get("counts") or [None] * size),
            range(size),
            strict=True,
        )
        return cls(
            ranks=[{"loaders": [state], "losses": float(loss), "counts": counts} for state, loss, counts, _ in parts],
            accumulation=int(values["accumulation"]),
            logged=int(values["logged"]),
            ended=bool(values["ended"]),
            epoch_stopped=bool(values["epoch_stopped"]),
            stopped=bool(values["stopped"]),
            max_steps=int(values["max_steps"]),
        )

    def loss_of(self, rank: int, size: int) -> float:
        """Return the sum of losses that a rank continues with. If the world size has changed, this is the mean."""
        loss: float = self.ranks[rank]["losses"] if size == len(self.ranks) else self.mean_loss
        return loss

    @property
    def mean_loss(self) -> float:
        """The mean of the ranks' sums of losses since the last log entry."""
        losses: list[float] = [one["losses"] for one in self.ranks]
        return sum(losses) / len(losses)

    def counts_of(self, rank: int, size: int) -> Any:
        """Return the counts of a rank; or of rank 0 if the world size has changed, as TRL counts over all ranks."""
        return self.ranks[rank if size == len(self.ranks) else 0]["counts"]


def _pack(state: Any) -> Any:
    """Return a state as JSON can represent it: unchanged, or as text if it contains bytes or tensors."""
    try:
        if json.loads(json.dumps(state)) == state:
            return state
    except TypeError:
        pass
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def _unpack(packed: Any) -> Any:
    """Undo `_pack`."""
    if not isinstance(packed, str):
        return packed
    return torch.load(io.BytesIO(base64.b64decode(packed, validate=True)), weights_only=True)


def last_whole_checkpoint(folder: str | PathLike[str]) -> str | None:
    """Find the newest complete checkpoint of a prepared Trainer.

    `trainer.train(resume_from_checkpoint=True)` does this automatically. The Trainer's own `get_last_checkpoint`
    returns the highest number, even if the save was killed and the checkpoint has no optimizer or state.

    Args:
        folder: the Trainer's `output_dir`.

    Returns:
        The checkpoint's path; None if there is none, or if a kill in the first save left only an incomplete one.

    Raises:
        ConfigurationError: none can be resumed, because the complete ones were saved without `prepare`.
    """
    newest = newest_whole(folder)
    if newest is None and any(_read(path) is not None for _, path in private.checkpoints_in(folder)):
        raise ConfigurationError(
            f"{folder} has checkpoints, but none can be resumed: they were saved without prepare(), so they have no "
            "position of the data.\nThe run would start from scratch, and overwrite them. Use a new folder, delete the "
            "checkpoints, or resume without prepare()."
        )
    return newest


def newest_whole(folder: str | PathLike[str]) -> str | None:
    """Return the path of the newest complete checkpoint of a prepared Trainer, if any."""
    found = sorted(private.checkpoints_in(folder), reverse=True)
    return next((str(path) for _, path in found if _is_whole(path)), None)


def read_saved(checkpoint: str) -> TransformersState:
    """Read the Loader's part of a checkpoint.

    Raises:
        CheckpointError: the checkpoint does not exist, is incomplete, or was saved without `prepare`.
        StateFormatError: the Loader's part is damaged, or has a newer format.
    """
    if not Path(checkpoint).is_dir():
        raise CheckpointNotFoundError(
            f"the checkpoint {checkpoint} does not exist.\nThe run would start from scratch. Pass the path of an "
            "existing checkpoint, or True for the newest one in the Trainer's output_dir."
        )
    values = _read(Path(checkpoint))
    if values is None:
        raise CheckpointError(
            f"the checkpoint {checkpoint} is incomplete: it has no readable {private.STATE_FILE}, probably because the "
            "save was killed.\nThe data would not match the weights. Use train(resume_from_checkpoint=True) to resume "
            "from the newest complete checkpoint; last_whole_checkpoint(output_dir) returns its path."
        )
    try:
        saved = values["stateful_callbacks"][NAME]["attributes"]["saved"]
    except (KeyError, TypeError):
        raise CheckpointError(
            f"the checkpoint {checkpoint} was saved without prepare(), so it has no position of the data.\n"
            "The order and the augmentations would differ from the original run. Resume without prepare(), or start a "
            "new run with it."
        ) from None
    return TransformersState.from_dict(saved)


def _read(checkpoint: Path) -> Any:
    try:
        return json.loads((checkpoint / private.STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _is_whole(checkpoint: Path) -> bool:
    values = _read(checkpoint)
    callbacks = values.get("stateful_callbacks") if isinstance(values, dict) else None
    return isinstance(callbacks, dict) and bool(callbacks.get(NAME, {}).get("attributes"))


def save_buffers(buffers: KeptBuffers, folder: str, rank: int) -> None:
    """Write the buffers of a rank, if they differ from rank 0's, which the Trainer saves."""
    torch.save(buffers.copies(), _path(folder, rank))


def load_buffers(model: Any, folder: str, rank: int) -> None:
    """Restore the buffers that a rank has written, if any."""
    path = _path(folder, rank)
    if path.is_file():
        put_back(model, torch.load(path, map_location="cpu", weights_only=True))


def _path(folder: str, rank: int) -> Path:
    return Path(folder, f"resumable_buffers_{rank}.pt")
