"""What the callback adds to a checkpoint, under `checkpoint["callbacks"]["ResumableCallback"]`.

format       version of this schema
place        where training stood, as in the table below
torn         an optimizer step was being taken, so that weights and data do not belong together
ranks        per rank: states of the train loaders, generators, whether both are exact, and when the Trainer asked for
             the loaders: epoch, step, epoch from which reloads count, generators if the call changed them
metrics      logged metrics that schedulers and other callbacks look at
partial      names of training metrics that are averaged over the epoch, of which no part is saved
accumulates  batches per optimizer step
unstarted    in place of all of these but the format: training had not begun

Training stands between two optimizer steps:

stage        what has been done                                      a resumed run goes on with
epoch        nothing of the epoch                                    the epoch's start
batch        `batch` batches; not what comes after the last one     a validation if one is due, then the next batch
validated    the same, and the validation after it                   what is left after the validation
ready        `batch` batches, and all that comes after them         the next batch, or the epoch's end
"""

from __future__ import annotations

import pickle
import time
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from resumable import rng
from resumable._ranks.store import find_store
from resumable._state import is_shared
from resumable.errors import PromiseWarning, StateMismatchError, StateMismatchWarning, UnsupportedError
from resumable.integrations._saved import RankedState
from resumable.integrations.lightning.private import FIT_LOOP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable.integrations.lightning.loaders import TrainStream

__all__ = ["UNSTARTED", "LightningState", "LoaderCall", "RankNotes", "TrainerPosition", "write_counters"]

_FORMAT = 2
UNSTARTED: dict[str, Any] = {"format": _FORMAT, "unstarted": True}
Stage = Literal["epoch", "batch", "validated", "ready"]


@dataclass(frozen=True, slots=True)
class TrainerPosition:
    """A position of the Trainer at which the weights hold exactly the batches before it.

    Args:
        stage: as in the table above.
        epoch: of the Trainer, from 0.
        batch: batches of the epoch that are in the weights.
        total: the same over all epochs.
        is_last: the last of them ended the epoch.
        schedulers_due: the schedulers that wait for the metrics of the epoch before are still to be stepped.
    """

    stage: Stage
    epoch: int
    batch: int
    total: int
    is_last: bool = False
    schedulers_due: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainerPosition:
        """Make the position of plain values.

        Raises:
            TypeError: a field is missing, or unknown.
            ValueError: a field has no such value.
        """
        position = cls(**values)
        numbers = (position.epoch, position.batch, position.total)
        if position.stage not in get_args(Stage) or not all(type(one) is int and one >= 0 for one in numbers):
            raise ValueError(f"no place of training: {dict(values)}")
        return position

    @classmethod
    def from_counters(cls, loop: Mapping[str, Any]) -> TrainerPosition:
        """Make the position of the counters of a fit loop, as Lightning saves them without the callback."""
        epochs, batches = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
        epoch, batch = int(epochs["processed"]), int(batches["current"]["processed"])
        total = int(batches["total"]["processed"])
        ended = epochs["started"] == epoch  # the epoch of the last batch, and none was begun since
        if epochs["started"] < epochs["ready"] or batches["is_last_batch"] or not batch:
            return cls("epoch", epoch if ended else epoch + bool(batches["is_last_batch"]), 0, total)
        return cls("ready", epoch - 1 if ended else epoch, batch, total)


@dataclass(frozen=True, slots=True)
class LoaderCall:
    """A call of the code that makes loaders.

    Args:
        epoch: `current_epoch` during the call.
        step: `global_step` during the call.
        reloaded_at: the epoch from which Lightning counts to the next reload; None if it does not count yet.
        generators: state of the global generators before the call, if the call changed it.
    """

    epoch: int
    step: int
    reloaded_at: int | None
    generators: Mapping[str, Any] | None


@dataclass(frozen=True)
class LightningState(RankedState):
    """The callback's part of a checkpoint.

    Args:
        position: of the Trainer.
        torn: an optimizer step was being taken.
        ranks: what each rank knows; none, if the checkpoint was saved without the callback.
        metrics: logged ones.
        partial: names of metrics of which no part is saved.
        accumulates: batches per optimizer step.
    """

    part: ClassVar[str] = "the checkpoint's part of ResumableCallback"
    newest: ClassVar[int] = _FORMAT

    position: TrainerPosition
    torn: bool
    ranks: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, Any]
    partial: Sequence[str] = ()
    accumulates: int = 1

    def as_dict(self) -> dict[str, Any]:
        """Return plain values and tensors, such as `torch.load(weights_only=True)` takes."""
        return {
            "format": _FORMAT,
            "place": asdict(self.position),
            "torn": self.torn,
            "ranks": [
                {**one, "asked": {loop: asdict(call) for loop, call in one["asked"].items()}} for one in self.ranks
            ],
            "metrics": dict(self.metrics),
            "partial": list(self.partial),
            "accumulates": self.accumulates,
        }

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Read the part of a checkpoint.

        Raises:
            StateFormatError: it is damaged, or of a newer format.
            StateMismatchError: weights and data of this checkpoint do not belong together.
        """
        saved = super().from_dict(values)
        if saved.torn:
            raise StateMismatchError(
                "the checkpoint was saved while an optimizer step was being taken, after batch "
                f"{saved.position.batch} of epoch {saved.position.epoch}.\nIts weights hold a part of the next batch, "
                "which would be trained on twice or not at all. Resume from another checkpoint."
            )
        return saved

    @classmethod
    def _read(cls, values: Mapping[str, Any]) -> Self:
        ranks = [
            {
                **{name: one[name] for name in ("loaders", "generators", "exact")},
                "asked": {loop: LoaderCall(**call) for loop, call in one.get("asked", {}).items()},  # not in format 1
            }
            for one in values["ranks"]
        ]
        position = TrainerPosition.from_dict(values["place"])
        return cls(position, values["torn"], ranks, *(values[name] for name in ("metrics", "partial", "accumulates")))

    @classmethod
    def from_counters(cls, loop: Mapping[str, Any], *, strict: bool, every: int) -> Self:
        """Make the part of a checkpoint that was saved without the callback: only Lightning's counters tell the place.

        Args:
            loop: the counters of the Trainer's fit loop.
            strict: raise.
            every: `reload_dataloaders_every_n_epochs`.

        Raises:
            StateMismatchError: as asked for by `strict`.
        """
        position = TrainerPosition.from_counters(loop)
        where = f"batch {position.batch} of epoch {position.epoch}"
        message = (
            "the checkpoint was saved without ResumableCallback, so it does not say which batches are in its weights.\n"
        )
        if strict:
            raise StateMismatchError(
                f"{message}Lightning's counters are at {where}. Use ResumableCallback(strict=False) to go on there, or "
                "start a new run."
            )
        message += f"Gone on at {where} because of strict=False."
        if every > 1:
            message += (
                f"\nIts loaders are made for epoch {position.epoch}, and every {every} epochs from there, whenever "
                "the run before had made them."
            )
        warnings.warn(message, StateMismatchWarning, stacklevel=2)
        return cls(position, torn=False, ranks=(), metrics={})

    @property
    def states(self) -> Sequence[Mapping[str, Any]]:
        """The states of the Loaders of rank 0."""
        return [one["state"] for one in self.ranks[0]["loaders"]]

    def restore_loaders(self, streams: Sequence[TrainStream], rank: int, size: int, *, strict: bool) -> None:
        """Bring the train loaders of a rank to the checkpoint's place.

        Raises:
            StateMismatchError: they are others than the checkpoint's, or cannot be brought there.
        """
        if not self.ranks:
            self._seek(streams)
            return
        own = self.of_rank(rank, size, len(streams), strict=strict)
        for stream, mine, target in zip(streams, own["loaders"], self.ranks[0]["loaders"], strict=True):
            if own["exact"] or is_shared(target["state"]):
                stream.restore(mine if own["exact"] else target, strict=strict)
            else:  # the rank was not asked when the run was interrupted, and its stream has a state of its own
                stream.restore(mine, strict=strict)
                stream.catch_up(target)

    def _seek(self, streams: Sequence[TrainStream]) -> None:
        for stream in streams:
            try:
                stream.go_to(self.position.epoch, self.position.batch)
            except UnsupportedError:
                warnings.warn(
                    f"the train loader {stream.name} cannot go to batch {self.position.batch} of epoch "
                    f"{self.position.epoch} without a state of its own.\nIt begins where it stands.",
                    PromiseWarning,
                    stacklevel=2,
                )

    def calls(self, rank: int) -> Mapping[str, LoaderCall]:
        """Return when the Trainer asked for the loaders of each of its loops, which was at one step on all ranks."""
        if not self.ranks:
            return {}
        own, leader = self._of(rank)["asked"], self.ranks[0]["asked"]
        return {loop: _at(call, own.get(loop)) for loop, call in leader.items()}

    def restore_generators(self, rank: int) -> None:
        """Put back the global generators of a rank; one that is new begins as one of the old ones."""
        if self.ranks:
            rng.restore(self._of(rank)["generators"])

    def _of(self, rank: int) -> Mapping[str, Any]:
        return self.ranks[rank % len(self.ranks)]

    def warn(self, rank: int) -> None:
        """Say which promise does not hold for this checkpoint, whose generators have been restored once."""
        if not self.ranks:
            return
        rng.warn_of_devices(self._of(rank)["generators"])
        if self.partial and self.position.stage != "epoch":
            warnings.warn(
                f"the epoch's means of {', '.join(self.partial)}, logged in training with on_epoch=True, begin at the "
                "resume: Lightning saves no part of them.\nWhat looks at them at the end of this epoch sees another "
                "value than in the uninterrupted run. Validation metrics are not concerned.",
                PromiseWarning,
                stacklevel=1,
            )
        if not self._of(rank)["exact"]:
            warnings.warn(
                f"the checkpoint was saved when the run was interrupted, without asking rank {rank} for its random "
                "generators.\nIts data goes on exactly, but dropout and the like go on from an earlier state on this "
                "rank. A checkpoint of a regular save has the generators of all ranks.",
                PromiseWarning,
                stacklevel=1,
            )


def _at(call: LoaderCall, own: LoaderCall | None) -> LoaderCall:
    """Return a rank's own note of a call, or that of rank 0 without its generators if the rank has noted none."""
    if own is not None and (own.epoch, own.step) == (call.epoch, call.step):
        return own
    return replace(call, generators=None)


# ---------------------------------------------------------------------- ranks that are not asked


class RankNotes:
    """What the ranks leave for rank 0 when a run is interrupted, where no rank waits for another.

    On a regular save the ranks exchange what they know. A rank that hangs or has died would never answer, and all
    others would wait for it until the process group's time is over. So each leaves a note in the process group's
    key-value store, and rank 0 looks for those of the same place for a moment. Of a rank that left none, the checkpoint
    has what it said last (at least once per epoch); it goes on from there to the place of rank 0 by itself.

    Args:
        exchanges: how often they have exchanged what they know; tells the notes of several interruptions apart.
    """

    _PATIENCE = 2.0  # seconds in which a rank that is alive comes to its own save, too

    def __init__(self, exchanges: int) -> None:
        self._exchanges = exchanges

    def gather(
        self, known: Sequence[Mapping[str, Any]], own: Mapping[str, Any], rank: int, place: str
    ) -> list[Mapping[str, Any]]:
        """Leave a note, and return what is known of all ranks.

        Args:
            known: what they said last.
            own: what this rank knows now.
            rank: of this process.
            place: where training stands; notes of other places are no use.
        """
        store = None if len(known) == 1 else find_store()
        if store is not None and rank:
            with suppress(RuntimeError):  # whoever hosts it may be gone
                store.set(self._key(place, rank), pickle.dumps(own))
        end = time.monotonic() + self._PATIENCE
        found: list[Mapping[str, Any]] = []
        for number, last in enumerate(known):
            note = None if rank or not number else self._find(store, place, number, end)
            found.append(own if number == rank else note or {**last, "exact": False})
        return found

    def _key(self, place: str, rank: int) -> str:
        return f"resumable/{self._exchanges}/{place}/{rank}"

    def _find(self, store: Any, place: str, rank: int, end: float) -> Mapping[str, Any] | None:
        left = timedelta(seconds=max(end - time.monotonic(), 0.001))
        try:
            store.wait([self._key(place, rank)], left)
            note = store.get(self._key(place, rank))
        except (AttributeError, RuntimeError):  # there is no store, or no note
            return None
        known: Mapping[str, Any] = pickle.loads(note)  # noqa: S301  # by a rank of this run
        return known


# ---------------------------------------------------------------------- the Trainer's counters


def write_counters(checkpoint: dict[str, Any], position: TrainerPosition, *, as_saved: bool = False) -> None:
    """Write the counters of a position into a checkpoint of the Trainer, in place of those of the moment of saving.

    They differ where batches were fetched, accumulated or begun that are not in the weights, or where an epoch's end
    was being done.

    Args:
        checkpoint: of the Trainer.
        position: whose counters to write.
        as_saved: as Lightning saves them in `on_train_batch_end`, if the position is such a one: the last batch is not
            completed. By that Lightning alone knows where to go on. The callback resumes from whole counts.
    """
    loop = checkpoint["loops"][FIT_LOOP]
    begun = position.stage != "epoch"
    epochs = loop["epoch_progress"]
    offset = epochs["total"]["ready"] - epochs["current"]["ready"]
    for name, count in (("current", position.epoch), ("total", position.epoch + offset)):
        epochs[name].update(ready=count + begun, started=count + begun, processed=count, completed=count)
    batches = loop["epoch_loop.batch_progress"]
    for name, count in (("current", position.batch), ("total", position.total)):
        open_batch = as_saved and position.stage == "batch" and count > 0
        batches[name].update({**dict.fromkeys(batches[name], count), "completed": count - open_batch})
    batches["is_last_batch"] = as_saved and position.is_last
    for name, progress in loop.items():
        if name.startswith("epoch_loop.") and name != "epoch_loop.batch_progress":
            _settle(progress)
    checkpoint["epoch"] = position.epoch


def _settle(progress: Mapping[str, Any]) -> None:
    """Count what was begun and not completed as not begun."""
    for value in progress.values():
        if isinstance(value, dict):
            _settle(value)
    if "completed" in progress and isinstance(progress, dict):
        progress.update(dict.fromkeys(progress, progress["completed"]))
