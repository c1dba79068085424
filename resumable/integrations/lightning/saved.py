"""What the callback adds to a checkpoint, under `checkpoint["callbacks"]["ResumableCallback"]`.

format       version of this schema
place        where training stood (`place.py`)
torn         an optimizer step was being taken, so that weights and data do not belong together
ranks        per rank: states of the train loaders, generators, whether both are exact, and when the Trainer asked for
             the loaders: epoch, step, epoch from which reloads count, generators if the call changed them
metrics      logged metrics that schedulers and other callbacks look at
partial      names of training metrics that are averaged over the epoch, of which no part is saved
accumulates  batches per optimizer step
unstarted    in place of all of these but the format: training had not begun
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from resumable import rng
from resumable._distribution import UPGRADE
from resumable.errors import PromiseWarning, StateFormatError, StateMismatchError
from resumable.integrations.lightning.place import Place
from resumable.integrations.lightning.ranks import RankState, is_shared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable.integrations.lightning.asked import Asked
    from resumable.integrations.lightning.streams import TrainStream

__all__ = ["FORMAT", "Saved"]

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Saved:
    """The callback's part of a checkpoint."""

    place: Place
    torn: bool
    ranks: Sequence[RankState]
    metrics: Mapping[str, Any]
    partial: Sequence[str] = ()
    accumulates: int = 1

    def as_dict(self) -> dict[str, Any]:
        """Return plain values and tensors, such as `torch.load(weights_only=True)` takes."""
        return {
            "format": FORMAT,
            "place": self.place.as_dict(),
            "torn": self.torn,
            "ranks": [rank.as_dict() for rank in self.ranks],
            "metrics": dict(self.metrics),
            "partial": list(self.partial),
            "accumulates": self.accumulates,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Saved:
        """Read the part of a checkpoint, of this format or of an older one.

        Raises:
            StateFormatError: it is damaged, or of a newer version.
            StateMismatchError: weights and data of this checkpoint do not belong together.
        """
        version = values.get("format")
        if type(version) is not int or version > FORMAT:
            raise StateFormatError(
                f"the checkpoint's part of ResumableCallback is of format {version!r}, and this version of resumable "
                f"reads up to {FORMAT}.\nNothing was loaded. Use the version that wrote it, or a newer one: {UPGRADE}"
            )
        try:
            saved = cls(
                Place.from_dict(values["place"]),
                values["torn"],
                [RankState.from_dict(one) for one in values["ranks"]],
                *(values[name] for name in ("metrics", "partial", "accumulates")),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise StateFormatError(
                f"the checkpoint's part of ResumableCallback is damaged: {error!r}.\n"
                "Nothing was loaded. Resume from another checkpoint."
            ) from error
        if saved.torn:
            raise StateMismatchError(
                "the checkpoint was saved while an optimizer step was being taken, after batch "
                f"{saved.place.batch} of epoch {saved.place.epoch}.\nIts weights hold a part of the next batch, which "
                "would be trained on twice or not at all. Resume from another checkpoint."
            )
        return saved

    def restore_loaders(self, streams: Sequence[TrainStream], rank: int, world_size: int, *, strict: bool) -> None:
        """Bring the train loaders of a rank to the checkpoint's place.

        Raises:
            StateMismatchError: they are others than the checkpoint's, or cannot be brought there.
        """
        leader = self.ranks[0].loaders
        if len(streams) != len(leader):
            raise StateMismatchError(
                f"the Trainer has {len(streams)} train loaders, and the checkpoint has states of {len(leader)}.\n"
                "Some loaders would begin again. Give the Trainer the loaders that the run was started with."
            )
        if strict and len(self.ranks) != world_size:
            self._refuse_own_streams(streams, world_size)
        own = self.ranks[rank] if len(self.ranks) == world_size else self.ranks[0]
        for stream, mine, target in zip(streams, own.loaders, leader, strict=True):
            if own.exact or is_shared(target["state"]):
                stream.restore(mine if own.exact else target, strict=strict)
            else:
                stream.restore(mine, strict=strict)
                stream.catch_up(target)

    def _refuse_own_streams(self, streams: Sequence[TrainStream], world_size: int) -> None:
        for stream, saved in zip(streams, self.ranks[0].loaders, strict=True):
            if saved["state"].get("rank") is not None:
                raise StateMismatchError(
                    f"each rank has a stream of its own in the train loader {stream.name}, which cannot be divided "
                    "by another number of ranks.\n"
                    f"  in the checkpoint: {len(self.ranks)} ranks\n  in this run:       {world_size} ranks\n"
                    "Restart with as many ranks."
                )

    def asked(self, rank: int) -> Mapping[str, Asked]:
        """Return when the Trainer asked for the loaders of each of its loops, which was at one step on all ranks."""
        own, leader = self.ranks[rank % len(self.ranks)].asked, self.ranks[0].asked
        return {loop: _at(asked, own.get(loop)) for loop, asked in leader.items()}

    def restore_generators(self, rank: int) -> None:
        """Put back the global generators of a rank; one that is new begins as one of the old ones."""
        own = self.ranks[rank % len(self.ranks)]
        rng.restore(own.generators)

    def warn(self, rank: int) -> None:
        """Say which promise does not hold for this checkpoint, whose generators have been restored once."""
        rng.warn_of_devices(self.ranks[rank % len(self.ranks)].generators)
        if self.partial and self.place.stage != "epoch":
            warnings.warn(
                f"the epoch's means of {', '.join(self.partial)}, logged in training with on_epoch=True, begin at the "
                "resume: Lightning saves no part of them.\nWhat looks at them at the end of this epoch sees another "
                "value than in the uninterrupted run. Validation metrics are not concerned.",
                PromiseWarning,
                stacklevel=1,
            )
        if not self.ranks[rank % len(self.ranks)].exact:
            warnings.warn(
                f"the checkpoint was saved when the run was interrupted, without asking rank {rank} for its random "
                "generators.\nIts data goes on exactly, but dropout and the like go on from an earlier state on this "
                "rank. A checkpoint of a regular save has the generators of all ranks.",
                PromiseWarning,
                stacklevel=1,
            )


def _at(asked: Asked, own: Asked | None) -> Asked:
    """Return a rank's own note of a moment, or that of rank 0 without its generators if the rank has noted none."""
    if own is not None and (own.epoch, own.step) == (asked.epoch, asked.step):
        return own
    return replace(asked, generators=None)
