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
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import asdict, dataclass
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from resumable._distribution import UPGRADE
from resumable._state import is_shared
from resumable.errors import StateFormatError, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FORMAT", "Saved", "pack", "unpack"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """The Loader's part of a checkpoint."""

    states: Sequence[Any]
    world_size: int
    accumulation: int
    losses: Sequence[float]
    logged: int
    ended: bool
    epoch_stopped: bool
    stopped: bool
    max_steps: int
    counts: Sequence[Any] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values of JSON."""
        equal = all(state == self.states[0] for state in self.states)
        states = [pack(state) for state in (self.states[:1] if equal else self.states)]
        return {"format": FORMAT, **asdict(self), "states": states}

    @classmethod
    def from_dict(cls, values: Any) -> Saved:
        """Read the part of a checkpoint.

        Raises:
            StateFormatError: it is something else, damaged, or of a newer version.
        """
        version = values.get("format") if isinstance(values, dict) else None
        if type(version) is not int or version > FORMAT:
            raise StateFormatError(
                f"the Loader's part of the checkpoint has the format {version!r}, and this version knows up to "
                f"{FORMAT}.\nThe data would begin somewhere else than the weights. Use a newer version: {UPGRADE}"
            )
        try:
            return cls._read(values)
        except (KeyError, TypeError, ValueError, RuntimeError, EOFError, OSError, UnpicklingError) as error:
            raise StateFormatError(
                f"the Loader's part of the checkpoint is damaged: {error!r}.\n"
                "Nothing of it was loaded. Load another checkpoint."
            ) from error

    @classmethod
    def _read(cls, values: Mapping[str, Any]) -> Saved:
        states = [unpack(state) for state in list(values["states"])]
        size, losses = int(values["world_size"]), [float(loss) for loss in list(values["losses"])]
        counts = list(values.get("counts") or [None] * size)
        if (
            len(states) not in {1, size}
            or len(counts) != size
            or len(losses) != size
            or not all(isinstance(state, dict) for state in states)
        ):
            raise ValueError("it has not one part per rank")
        return cls(
            states=states,
            world_size=size,
            accumulation=int(values["accumulation"]),
            losses=losses,
            logged=int(values["logged"]),
            ended=bool(values["ended"]),
            epoch_stopped=bool(values["epoch_stopped"]),
            stopped=bool(values["stopped"]),
            max_steps=int(values["max_steps"]),
            counts=counts,
        )

    def state_of(self, rank: int, size: int) -> Mapping[str, Any]:
        """Return the state from which a rank goes on.

        Raises:
            StateMismatchError: each rank had a stream of its own, and there were more or fewer of them.
        """
        state: Mapping[str, Any] = self.states[rank % len(self.states)]
        if size != self.world_size and not all(map(is_shared, self.states)):
            raise StateMismatchError(
                "each rank has a stream of its own, which cannot be divided by another number of ranks.\n"
                f"  in the checkpoint: {self.world_size} ranks\n  in this run:       {size} ranks\n"
                "Restart with as many ranks."
            )
        return state

    def loss_of(self, rank: int, size: int) -> float:
        """Return the sum of losses with which a rank goes on; the mean, on another number of ranks."""
        return self.losses[rank] if size == self.world_size else sum(self.losses) / len(self.losses)

    def counts_of(self, rank: int, size: int) -> Any:
        """Return what a rank goes on counting from: its own, or that of rank 0, as TRL counts over all ranks."""
        return self.counts[rank if size == self.world_size else 0]


def pack(state: Any) -> Any:
    """Return a state as JSON can have it: as it is, or as text, where it has bytes or tensors."""
    try:
        if json.loads(json.dumps(state)) == state:
            return state
    except TypeError:
        pass
    import torch  # noqa: PLC0415  # only for states of snapshots

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def unpack(packed: Any) -> Any:
    """Return the state that was packed."""
    if not isinstance(packed, str):
        return packed
    import torch  # noqa: PLC0415  # only for states of snapshots

    return torch.load(io.BytesIO(base64.b64decode(packed, validate=True)), weights_only=True)
