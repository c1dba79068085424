"""The callback's part of a checkpoint: `checkpoint["callbacks"]["ResumableCallback"]`.

format       version of this schema
place        position of the Trainer, as in the table below
torn         an optimizer step was in progress, so weights and data do not match
ranks        per rank: states of the train loaders, RNG states, whether both are exact, and when the Trainer asked for
             the loaders: epoch, step, epoch from which reloads count, RNG states if the call changed them
metrics      logged metrics that schedulers and other callbacks read
partial      names of training metrics that are averaged over the epoch; the partial averages are not saved
accumulates  batches per optimizer step
unstarted    training had not started; replaces all other fields except the format

A position is between two optimizer steps:

stage        done so far                                        a resumed run continues with
epoch        nothing of the epoch                               the epoch's start
batch        `batch` batches, nothing after the last one        a validation if one is due, then the next batch
validated    the same, and the validation after it              the rest of the work after that batch
ready        `batch` batches, and all work after them           the next batch, or the epoch's end
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


@dataclass(frozen=True)
class LightningState(RankedState):
    """The callback's part of a checkpoint.

    Args:
        position: of the Trainer.
        torn: an optimizer step was in progress.
        ranks: what each rank knows. Empty if the checkpoint was saved without the callback.
        metrics: logged metrics.
        partial: names of metrics that are averaged over the epoch.
        accumulates: batches per optimizer step.
    """

    part: ClassVar[str] = "the checkpoint's part of ResumableCallback"
    newest: ClassVar[int] = _FORMAT
    former: ClassVar[tuple[str, ...]] = ("reloaded_at",)

    position: TrainerPosition
    torn: bool
    ranks: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, Any]
    partial: Sequence[str] = ()
    accumulates: int = 1

    def as_dict(self) -> dict[str, Any]:
        """Return plain values and tensors, which `torch.load(weights_only=True)` can load."""
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
            StateFormatError: it is damaged, or has a newer format.
            StateMismatchError: the weights and the data of this checkpoint do not match.
        """
        saved = super().from_dict(values)
        if saved.torn:
            raise StateMismatchError(
                "the checkpoint was saved during an optimizer step, after batch "
                f"{saved.position.batch} of epoch {saved.position.epoch}.\nIts weights are partly updated with the "
                "next batch, which would be trained on twice or not at all. Resume from a different checkpoint."
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
        """Build the state from Lightning's counters, for a checkpoint that was saved without the callback.

        Args:
            loop: the counters of the Trainer's fit loop.
            strict: raise an error instead of a warning.
            every: `reload_dataloaders_every_n_epochs`.

        Raises:
            StateMismatchError: `strict` is set.
        """
        position = TrainerPosition.from_counters(loop)
        where = f"batch {position.batch} of epoch {position.epoch}"
        message = (
            "the checkpoint was saved without ResumableCallback, so it does not say which batches are in its weights.\n"
        )
        if strict:
            raise StateMismatchError(
                f"{message}Lightning's counters are at {where}. To continue there, use "
                "ResumableCallback(strict=False); otherwise start a new run."
            )
        message += f"The run continues at {where}, as Lightning counts, because of strict=False."
        if every > 1:
            message += (
                f"\nThe loaders are made in epoch {position.epoch} and every {every} epochs from there. The original "
                "run may have made them in other epochs."
            )
        warnings.warn(message, StateMismatchWarning, stacklevel=2)
        return cls(position, torn=False, ranks=(), metrics={})

    @property
    def states(self) -> Sequence[Mapping[str, Any]]:
        """The states of the Loaders of rank 0."""
        return [one["state"] for one in self.ranks[0]["loaders"]]

    def restore_loaders(self, streams: Sequence[TrainStream], rank: int, size: int, *, strict: bool) -> None:
        """Move the train loaders of a rank to the saved position.

        Raises:
            StateMismatchError: the loaders differ from the checkpoint's, or cannot go to that position.
        """
        if not self.ranks:
            self._seek(streams)
            return
        own = self.of_rank(rank, size, len(streams), strict=strict)
        for stream, mine, target in zip(streams, own["loaders"], self.ranks[0]["loaders"], strict=True):
            if own["exact"] or is_shared(target["state"]):
                stream.restore(mine if own["exact"] else target, strict=strict)
            else:  # this rank was not asked when the run was interrupted, and each rank has a separate stream
                stream.restore(mine, strict=strict)
                stream.catch_up(target)

    def _seek(self, streams: Sequence[TrainStream]) -> None:
        for stream in streams:
            try:
                stream.go_to(self.position.epoch, self.position.batch)
            except UnsupportedError:
                warnings.warn(
                    f"train loader {stream.name} cannot go to batch {self.position.batch} of epoch "
                    f"{self.position.epoch}: its source needs a saved state, and the checkpoint has none.\n"
                    f"It continues at {stream.loader.acknowledged} instead. To resume exactly, save with "
                    "ResumableCallback.",
                    PromiseWarning,
                    stacklevel=2,
                )

    def calls(self, rank: int) -> Mapping[str, LoaderCall]:
        """Return when the Trainer asked for the loaders of each of its loops: at the same step on all ranks."""
        if not self.ranks:
            return {}
        own, leader = self._of(rank)["asked"], self.ranks[0]["asked"]
        return {loop: _at(call, own.get(loop)) for loop, call in leader.items()}

    def restore_generators(self, rank: int) -> None:
        """Restore the global RNGs of a rank. A new rank gets the RNG states of an old one."""
        if self.ranks:
            rng.restore(self._of(rank)["generators"])

    def _of(self, rank: int) -> Mapping[str, Any]:
        return self.ranks[rank % len(self.ranks)]

    def warn(self, rank: int) -> None:
        """Warn about promises that do not hold for this checkpoint. Its RNG states must already be restored."""
        if not self.ranks:
            return
        rng.warn_of_devices(self._of(rank)["generators"])
        if self.partial and self.position.stage != "epoch":
            warnings.warn(
                f"the epoch means of {', '.join(self.partial)} (logged in training with on_epoch=True) restart at this "
                "resume, because Lightning does not save them mid-epoch.\nAt the end of this epoch, schedulers and "
                "callbacks see different values than in an uninterrupted run. Validation metrics are not affected. To "
                "avoid this, resume from a checkpoint that was saved at the end of an epoch.",
                PromiseWarning,
                stacklevel=1,
            )
        if not self._of(rank)["exact"]:
            warnings.warn(
                f"the checkpoint was saved when the run was interrupted, without the current RNG state of rank {rank}."
                "\nThe data continues exactly, but dropout and other random operations of this rank continue from an "
                "earlier state. Regular checkpoints have the RNG states of all ranks.",
                PromiseWarning,
                stacklevel=1,
            )


def _at(call: LoaderCall, own: LoaderCall | None) -> LoaderCall:
    """Return a rank's own note of a call. Without one, return rank 0's note, without its RNG states."""
    if own is not None and (own.epoch, own.step) == (call.epoch, call.step):
        return own
    return replace(call, generators=None)


@dataclass(frozen=True, slots=True)
class LoaderCall:
    """A call of the code that makes loaders.

    Args:
        epoch: `current_epoch` during the call.
        step: `global_step` during the call.
        reloaded_at: the epoch from which Lightning counts to the next reload; None if it does not count yet.
        generators: states of the global RNGs before the call, if the call changed them.
    """

    epoch: int
    step: int
    reloaded_at: int | None
    generators: Mapping[str, Any] | None


# ---------------------------------------------------------------------- the Trainer's position and counters


@dataclass(frozen=True, slots=True)
class TrainerPosition:
    """A position of the Trainer. The weights contain exactly the batches before it.

    Args:
        stage: as in the table above.
        epoch: of the Trainer, from 0.
        batch: batches of the epoch that are in the weights.
        total: the same over all epochs.
        is_last: the last of them ended the epoch.
        schedulers_due: schedulers that wait for the metrics of the previous epoch have not been stepped yet.
    """

    stage: Stage
    epoch: int
    batch: int
    total: int
    is_last: bool = False
    schedulers_due: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainerPosition:
        """Create a position from plain values.

        Raises:
            TypeError: a field is missing or unknown.
            ValueError: a field has an invalid value.
        """
        position = cls(**values)
        numbers = (position.epoch, position.batch, position.total)
        if position.stage not in get_args(Stage) or not all(type(one) is int and one >= 0 for one in numbers):
            raise ValueError(f"not a position of the Trainer: {dict(values)}")
        return position

    @classmethod
    def from_counters(cls, loop: Mapping[str, Any]) -> TrainerPosition:
        """Create a position from the counters of a fit loop, as Lightning saves them without the callback."""
        epochs, batches = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
        epoch, batch = int(epochs["processed"]), int(batches["current"]["processed"])
        total = int(batches["total"]["processed"])
        ended = epochs["started"] == epoch  # the last batch's epoch, and no other epoch has started since
        if epochs["started"] < epochs["ready"] or batches["is_last_batch"] or not batch:
            return cls("epoch", epoch if ended else epoch + bool(batches["is_last_batch"]), 0, total)
        return cls("ready", epoch - 1 if ended else epoch, batch, total)


def write_counters(checkpoint: dict[str, Any], position: TrainerPosition, *, as_saved: bool = False) -> None:
    """Replace the counters in a checkpoint of the Trainer with the counters of a position.

    They differ if the Trainer has fetched, accumulated or started batches that are not in the weights, or if it was at
    work on an epoch's end.

    Args:
        checkpoint: of the Trainer.
        position: whose counters to write.
        as_saved: at stage `batch`, leave the last batch uncompleted, as Lightning saves it in `on_train_batch_end`.
            Lightning needs that to resume without the callback. The callback needs complete counts.
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
    """Reset the counters of work that was started and not completed."""
    for value in progress.values():
        if isinstance(value, dict):
            _settle(value)
    if "completed" in progress and isinstance(progress, dict):
        progress.update(dict.fromkeys(progress, progress["completed"]))


# ---------------------------------------------------------------------- saves that cannot wait for other ranks


class RankNotes:
    """Notes that the ranks leave for rank 0 when a run is interrupted. No rank waits for another.

    On a regular save the ranks exchange what they know. After an interruption, some rank may hang or be dead, and the
    others would wait for it until the process group times out. So each rank leaves a note in the process group's
    key-value store. Rank 0 waits briefly for notes about its own position. If a rank left none, the checkpoint has its
    last report, which is at most one epoch old. On resume, that rank catches up with rank 0 from there.

    Args:
        exchanges: how often the ranks have exchanged what they know. Distinguishes the notes of several interruptions.
    """

    _PATIENCE = 2.0  # seconds in which a live rank reaches its own save

    def __init__(self, exchanges: int) -> None:
        self._exchanges = exchanges

    def gather(
        self, known: Sequence[Mapping[str, Any]], own: Mapping[str, Any], rank: int, place: str
    ) -> list[Mapping[str, Any]]:
        """Leave a note, and return what is known about all ranks.

        Args:
            known: the last report of each rank.
            own: what this rank knows now.
            rank: of this process.
            place: position of the Trainer. Notes about other positions are ignored.
        """
        store = None if len(known) == 1 else find_store()
        if store is not None and rank:
            with suppress(RuntimeError):  # the process that hosts the store may be gone
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
        except (AttributeError, RuntimeError):  # the store or the note does not exist
            return None
        known: Mapping[str, Any] = pickle.loads(note)  # noqa: S301  # a rank of this run wrote it
        return known
