"""What is probably wrong in a script, by the signs that its ledgers show: the table of causes.

The first cause whose signs are all there counts. What each sign is, `signs.py` says.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CAUSES", "Cause", "find_cause"]


class Cause(NamedTuple):
    """A cause.

    Args:
        name: for reports and for programs that read them.
        signs: all that have to be there.
        text: what is probably wrong, and the way out; `{...}` is what was seen of a sign.
    """

    name: str
    signs: frozenset[str]
    text: str


def _cause(name: str, signs: str, text: str) -> Cause:
    return Cause(name, frozenset(signs.split(", ")), text)


CAUSES = (
    _cause(
        "ranks resume apart",
        "ranks apart",
        "in start {ranks apart}: each rank probably looks for its own newest checkpoint; let rank 0 look, and tell the "
        "others which step it found (torch.distributed.broadcast_object_list)",
    ),
    _cause(
        "loader not loaded",
        "place not loaded",
        "the checkpoint has the loader's state, and start {place not loaded} did not load it: loader.load_state_dict",
    ),
    _cause(
        "loader not saved",
        "no place",
        "the loader's state is not in the checkpoint from which start {no place} went on: save loader.state_dict()",
    ),
    _cause(
        "loader one batch early",
        "place earlier",
        "after a resume the loader's place is {place earlier} earlier than the weights: its state is probably taken "
        "too early, before the batch that the weights hold, which is then trained on twice",
    ),
    _cause(
        "loader one batch late",
        "place later",
        "after a resume the loader's place is {place later} later than the weights: its state is probably taken too "
        "late, when the next batch was fetched already, which is then left out",
    ),
    _cause(
        "loader from elsewhere",
        "other place",
        "the loader of start {other place} went on at a place that is in no checkpoint with its weights: its state is "
        "probably in a file of its own, or changed after it was loaded; save both in one checkpoint",
    ),
    _cause(
        "step counter not restored",
        "counts backwards",
        "the number of the step begins again after a resume: it is probably not restored",
    ),
    _cause(
        "memory of the dataset",
        "other content",
        "the indices of the samples are equal and their content is not, first in {other content}: the dataset probably "
        "remembers what it read before, as a counter does, or draws from what no seed reaches; let a sample depend on "
        "its index, and draw from torch, numpy or random",
    ),
    _cause(
        "order of the source",
        "other samples",
        "other samples come after a resume, first in {other samples}: the source's order probably is not a function of "
        "its state, as by os.listdir, a set, or a shuffle without a seed; sort it",
    ),
    _cause(
        "saved before the step",
        "step after the save",
        "the optimizer steps after {step after the save} was saved and before the next batch is fetched: save after "
        "optimizer.step(), as this step is lost in a resume",
    ),
    _cause(
        "model not restored",
        "other weights",
        "start {other weights} went on from weights that are not in its checkpoint: the model is probably not restored",
    ),
    _cause(
        "saved before the step",
        "old weights",
        "the weights in the checkpoint of start {old weights} are older than those that the baseline run went on with: "
        "the model is probably copied before optimizer.step()",
    ),
    _cause(
        "optimizer not restored",
        "other optimizer",
        "start {other optimizer} went on with another state of the optimizer than the baseline run, from equal "
        "weights: it is probably not restored, or not saved",
    ),
    _cause(
        "evaluation skipped",
        "entry missing",
        "{entry missing} is shorter than in the baseline run: what appends to it was probably skipped in a resume, "
        "such as the evaluation at an epoch's end",
    ),
    _cause(
        "evaluation skipped",
        "evaluation missing",
        "only steps of {evaluation missing} are lost: the evaluation at an epoch's end was probably skipped in a "
        "resume",
    ),
    _cause("scheduler not restored", "scheduler", "{scheduler} differs first: the scheduler is probably not restored"),
    _cause("GradScaler not restored", "scaler", "{scaler} differs first: the GradScaler is probably not restored"),
    _cause(
        "generators not restored",
        "generators",
        "the generator of {generators} is elsewhere than in the baseline run: it is probably not restored; save "
        "resumable.rng.state_dict()",
    ),
    _cause(
        "step counter not restored",
        "counter",
        "{counter} counts otherwise than in the baseline run: it is probably not restored",
    ),
    _cause(
        "in no checkpoint",
        "weights alone",
        "no tensor in the checkpoints differs, and {weights alone}: what they depend on is probably in no "
        "checkpoint, such as an average of the weights (EMA)",
    ),
    _cause(
        "a part not restored",
        "first part",
        "{first part} differs first: it is probably not restored",
    ),
    _cause(
        "gradients lost",
        "equal weights, equal optimizer, tensors",
        "start {equal weights} went on from equal weights and an equal state of the optimizer, and came to others: "
        "gradients of batches before the save are probably lost, as by a save amid an accumulation; save after "
        "optimizer.step(). Or what the loss depends on is in no checkpoint",
    ),
    _cause(
        "non-atomic save",
        "in place",
        "{in place} is written in place and read at the start: a kill within the save loses it; write to a temporary "
        "name, and os.replace it",
    ),
)


def find_cause(signs: dict[str, str]) -> Cause | None:
    """Return the first cause whose signs are there, with what was seen of them in its text; None for no known one."""
    for cause in CAUSES:
        if cause.signs <= signs.keys():
            return cause._replace(text=cause.text.format_map(signs))
    return None
