"""Where training stands between two optimizer steps, and the Trainer's counters of that place.

stage        what has been done                                      a resumed run goes on with
epoch        nothing of the epoch                                    the epoch's start
batch        `batch` batches; not what comes after the last one     a validation if one is due, then the next batch
validated    the same, and the validation after it                   what is left after the validation
ready        `batch` batches, and all that comes after them         the next batch, or the epoch's end
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from resumable.errors import StateFormatError
from resumable.integrations.lightning.private import FIT_LOOP

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Place", "Stage", "rewind"]

Stage = Literal["epoch", "batch", "validated", "ready"]


@dataclass(frozen=True, slots=True)
class Place:
    """A place at which the weights hold exactly the batches before it.

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

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Place:
        """Make the place of `as_dict`'s values.

        Raises:
            StateFormatError: they are none.
        """
        try:
            place = cls(**values)
            numbers = (place.epoch, place.batch, place.total)
            valid = place.stage in get_args(Stage) and all(type(number) is int and number >= 0 for number in numbers)
        except TypeError as error:
            raise StateFormatError(f"the checkpoint's place of training is damaged: {error}.\n{_OTHER}") from error
        if not valid:
            raise StateFormatError(f"the checkpoint's place of training is damaged: {dict(values)}.\n{_OTHER}")
        return place


_OTHER = "Nothing was loaded. Resume from another checkpoint."


def rewind(checkpoint: dict[str, Any], place: Place, *, as_saved: bool = False) -> None:
    """Write the counters of a place into a checkpoint of the Trainer, in place of those of the moment of saving.

    They differ where batches were fetched, accumulated or begun that are not in the weights, or where an epoch's end
    was being done.

    Args:
        checkpoint: of the Trainer.
        place: whose counters to write.
        as_saved: as Lightning saves them in `on_train_batch_end`, where the place is such a one: the last batch is not
            completed. By that Lightning alone knows where to go on. The callback resumes from whole counts.
    """
    loop = checkpoint["loops"][FIT_LOOP]
    begun = place.stage != "epoch"
    epochs = loop["epoch_progress"]
    offset = epochs["total"]["ready"] - epochs["current"]["ready"]
    for name, count in (("current", place.epoch), ("total", place.epoch + offset)):
        epochs[name].update(ready=count + begun, started=count + begun, processed=count, completed=count)
    batches = loop["epoch_loop.batch_progress"]
    for name, count in (("current", place.batch), ("total", place.total)):
        open_batch = as_saved and place.stage == "batch" and count > 0
        batches[name].update({**dict.fromkeys(batches[name], count), "completed": count - open_batch})
    batches["is_last_batch"] = as_saved and place.is_last
    for name, progress in loop.items():
        if name.startswith("epoch_loop.") and name != "epoch_loop.batch_progress":
            _settle(progress)
    checkpoint["epoch"] = place.epoch


def _settle(progress: Mapping[str, Any]) -> None:
    """Count what was begun and not completed as not begun."""
    for value in progress.values():
        if isinstance(value, dict):
            _settle(value)
    if "completed" in progress and isinstance(progress, dict):
        progress.update(dict.fromkeys(progress, progress["completed"]))
