"""What a Trainer's checkpoint says of its Loader: in `trainer_state.json`, which is written last.

format         of this dictionary
states         of the Loader, after the last optimizer step: one, or one per rank where they differ
world_size     number of ranks
accumulation   micro-batches of an optimizer step
losses         per rank: sum of the losses since the last line of the log
logged         step of that line
counts         per rank: what a Trainer of TRL has counted for its log; None for any other, and in older checkpoints
ended          whether the Trainer had come to the end of its epoch, or of the run
epoch_stopped  whether a callback had ended the epoch, so that no batch of it was to come
stopped        whether a callback had stopped the run, as for early stopping
max_steps      number of optimizer steps of the run, as it was planned then

The Trainer writes file after file in place, `trainer_state.json` at the end. So a checkpoint is whole if that file is
there and has the Loader's state in it; on several ranks, once all of them have written theirs (`Session`).
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from resumable.errors import CheckpointError, CheckpointNotFoundError
from resumable.integrations._buffers import put_back
from resumable.integrations._saved import RankedState
from resumable.integrations.transformers import private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from resumable.integrations._buffers import KeptBuffers

__all__ = ["NAME", "TransformersState", "last_whole_checkpoint", "load_buffers", "read_saved", "save_buffers"]

NAME = "ResumableState"  # the Trainer files states under the name of the callback's class


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
        """Return plain values of JSON."""
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
            raise TypeError("a state is no dictionary")
        parts = zip(  # a ValueError, if there are more or fewer of one
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
        """Return the sum of losses with which a rank goes on; the mean, on another number of ranks."""
        losses: list[float] = [one["losses"] for one in self.ranks]
        return losses[rank] if size == len(losses) else sum(losses) / len(losses)

    def counts_of(self, rank: int, size: int) -> Any:
        """Return what a rank goes on counting from: its own, or that of rank 0, as TRL counts over all ranks."""
        return self.ranks[rank if size == len(self.ranks) else 0]["counts"]


def _pack(state: Any) -> Any:
    """Return a state as JSON can have it: as it is, or as text, where it has bytes or tensors."""
    try:
        if json.loads(json.dumps(state)) == state:
            return state
    except TypeError:
        pass
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def _unpack(packed: Any) -> Any:
    """Return the state that was packed."""
    if not isinstance(packed, str):
        return packed
    return torch.load(io.BytesIO(base64.b64decode(packed, validate=True)), weights_only=True)


def last_whole_checkpoint(folder: str | PathLike[str]) -> str | None:
    """Find the newest checkpoint of a prepared Trainer that was written to its end.

    `trainer.train(resume_from_checkpoint=True)` takes it by itself. The Trainer's own `get_last_checkpoint` takes the
    highest number, which a kill within a save leaves without optimizer or state.

    Args:
        folder: the Trainer's `output_dir`.

    Returns:
        The path; None where there is none.
    """
    found = sorted(private.checkpoints_in(folder), reverse=True)
    return next((str(path) for _, path in found if _is_whole(path)), None)


def read_saved(checkpoint: str) -> TransformersState:
    """Read the Loader's part of a checkpoint.

    Raises:
        CheckpointError: it is not there, not whole, or was saved without a prepared Loader.
        StateFormatError: it is damaged, or of a newer version.
    """
    if not Path(checkpoint).is_dir():
        raise CheckpointNotFoundError(
            f"there is no checkpoint {checkpoint}.\nThe run would begin again. Give the path of one, or True for the "
            "newest one in the Trainer's output_dir."
        )
    values = _read(Path(checkpoint))
    if values is None:
        raise CheckpointError(
            f"{checkpoint} has no {private.STATE_FILE} that can be read: a kill within the save left it so.\n"
            "The run would begin at another batch than the weights. Resume by train(resume_from_checkpoint=True), "
            "which takes the newest whole one, as last_whole_checkpoint(output_dir) does."
        )
    try:
        saved = values["stateful_callbacks"][NAME]["attributes"]["saved"]
    except (KeyError, TypeError):
        raise CheckpointError(
            f"{checkpoint} was saved by a Trainer that was not prepared: it does not say where its data stood.\n"
            "Augmentations and order would be others than before. Resume it without prepare() once more, or begin a "
            "new run, whose checkpoints have the place."
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
    """Write the buffers of a rank that differ from those of rank 0, which the Trainer saves."""
    torch.save(buffers.copies(), _path(folder, rank))


def load_buffers(model: Any, folder: str, rank: int) -> None:
    """Give a rank the buffers that it wrote, if it did."""
    path = _path(folder, rank)
    if path.is_file():
        put_back(model, torch.load(path, map_location="cpu", weights_only=True))


def _path(folder: str, rank: int) -> Path:
    return Path(folder, f"resumable_buffers_{rank}.pt")
