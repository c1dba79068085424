"""The situations in which the job is interrupted: each returns a verdict from its runs."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from benchmarks.compare.job import BATCH, EPOCHS, SAMPLES, Setting
from benchmarks.compare.judge import Verdict, compare, failed, same_draws
from benchmarks.compare.processes import Checkpoint, Failure, Part, Run, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.compare.job import Job

__all__ = ["SITUATIONS", "Situation", "Trial"]

LENGTH = SAMPLES // BATCH  # batches of an epoch
ODD, FIRST, LATER = 7, 6, LENGTH + 6  # batches before an interruption
GLOBALS, OWN = slice(1, 4), slice(4, 5)
NOT_ASKED = Verdict("n/a", "none")


class PartError(Exception):
    """A process of a trial raised."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Trial:
    """A library with a number of workers.

    Args:
        job: its script.
        setting: what the script is started with at first.
        folder: for its files.
        streams: whether it takes an `IterableDataset`.
    """

    def __init__(self, job: type[Job], setting: Setting, folder: str, *, streams: bool) -> None:
        self.job, self.setting, self.folder, self.streams = job, setting, folder, streams
        self._whole: dict[Part, Run] = {}

    def run(self, part: Part) -> Run:
        """Run a part.

        Raises:
            PartError: it raised.
        """
        done = run(self.job, part, self.folder)
        if isinstance(done, Failure):
            raise PartError(done)
        return done

    def whole(self, setting: Setting, leave: int | None = None) -> Run:
        """Return an uninterrupted run."""
        part = Part(setting, leave=leave)
        if part not in self._whole:
            self._whole[part] = self.run(part)
        return self._whole[part]

    def save(self, setting: Setting, read: int, *, after_epoch: bool = False) -> Checkpoint:
        """Return the checkpoint of a run that ended after some batches."""
        done = self.run(Part(setting, read=read, after_epoch=after_epoch))
        return done.checkpoint or ()

    def state_bytes(self) -> int:
        """Return the size of a pickled state; 0 if the script saves none."""
        (saved,) = self.save(self.setting, FIRST)
        *_, state = torch.load(io.BytesIO(saved), weights_only=False)
        return 0 if state is None else len(pickle.dumps(state))

    def resumed(self, read: int, *, after_epoch: bool = False) -> tuple[Run, Run]:
        """Return an uninterrupted run, and what a resumed one read."""
        checkpoint = self.save(self.setting, read, after_epoch=after_epoch)
        return self.whole(self.setting), self.run(Part(self.setting, checkpoint))


def _first_epoch(trial: Trial) -> Verdict:
    whole, found = trial.resumed(ODD)
    return compare(whole, ODD, found)


def _later_epoch(trial: Trial) -> Verdict:
    whole, found = trial.resumed(LATER)
    return compare(whole, LATER, found)


def _chain(trial: Trial) -> Verdict:
    checkpoint, read, loops = None, 0, 8
    for _ in range(loops):
        checkpoint = trial.run(Part(trial.setting, checkpoint, read=4)).checkpoint
        read += 4
    return compare(trial.whole(trial.setting), read, trial.run(Part(trial.setting, checkpoint)))


def _save_loaded(trial: Trial) -> Verdict:
    checkpoint = trial.save(trial.setting, FIRST)
    again = trial.run(Part(trial.setting, checkpoint, save_loaded=True)).checkpoint
    return compare(trial.whole(trial.setting), FIRST, trial.run(Part(trial.setting, again)))


def _last_batch(trial: Trial) -> Verdict:
    whole, found = trial.resumed(LENGTH)
    return compare(whole, LENGTH, found)


def _epoch_end(trial: Trial) -> Verdict:
    whole = trial.whole(trial.setting)
    if len(whole.loops) < EPOCHS:
        return NOT_ASKED  # one loop reads all epochs
    whole, found = trial.resumed(LENGTH, after_epoch=True)
    return compare(whole, LENGTH, found)


def _break(trial: Trial) -> Verdict:
    whole = trial.whole(trial.setting)
    if len(whole.loops) < EPOCHS:
        return NOT_ASKED
    left = trial.whole(trial.setting, leave=FIRST)
    read = FIRST + 4
    checkpoint = trial.run(Part(trial.setting, read=read, leave=FIRST)).checkpoint
    found = trial.run(Part(trial.setting, checkpoint))
    due = Run(left.loops[1:])
    if [len(loop) for loop in due.loops] != [LENGTH] * (EPOCHS - 1):
        due = Run([left.batches[FIRST:]])
    return compare(Run([*due.loops, *due.loops[-1:]]), 4, Run([*found.loops, *due.loops[-1:]]))


def _after_break(trial: Trial) -> Verdict:
    whole = trial.whole(trial.setting)
    if len(whole.loops) < EPOCHS:
        return Verdict("the rest", "none")
    loops = trial.whole(trial.setting, leave=FIRST).loops
    ids = [[[sample[0] for sample in batch] for batch in loop] for loop in (*whole.loops[:1], *loops[1:2])]
    names = {"the same epoch again": ids[0], "the rest": ids[0][FIRST:]}
    return Verdict(next((name for name, due in names.items() if due == ids[1]), "the next epoch"), "none")


def _used_loader(trial: Trial) -> Verdict:
    found = trial.run(Part(trial.setting, read=FIRST, roll_back=4))
    return compare(trial.whole(trial.setting), FIRST, found)


def _augmentations(trial: Trial) -> Verdict:
    return _draws(trial, GLOBALS)


def _own_generator(trial: Trial) -> Verdict:
    if not any(sample[4] for batch in trial.whole(trial.setting).batches for sample in batch):
        return NOT_ASKED
    return _draws(trial, OWN)


def _draws(trial: Trial, column: slice) -> Verdict:
    whole, found = trial.resumed(FIRST)
    again = trial.run(Part(trial.setting))
    if compare(whole, FIRST, found).grade != "good":
        return Verdict("different samples", "silent")
    if same_draws(whole, FIRST, found, column):
        return Verdict("exact", "good")
    return Verdict("different" if same_draws(whole, 0, again, column) else "different in every run", "silent")


def _workers(trial: Trial) -> Verdict:
    return _changed(trial, replace(trial.setting, workers=2 - trial.setting.workers))


def _stream_workers(trial: Trial) -> Verdict:
    if not trial.streams:
        return NOT_ASKED
    stream = replace(trial.setting, data="stream")
    checkpoint = trial.save(stream, FIRST)
    found = trial.run(Part(replace(stream, workers=2 - stream.workers), checkpoint))
    return compare(trial.whole(stream), FIRST, found)


def _fewer_ranks(trial: Trial) -> Verdict:
    two, one = _ranked(trial)
    found = trial.run(Part(one, trial.save(two, FIRST)))
    return compare(trial.whole(two), FIRST, _sorted(found))


def _more_ranks(trial: Trial) -> Verdict:
    two, one = _ranked(trial)
    found = trial.run(Part(two, trial.save(one, FIRST)))
    return compare(_sorted(trial.whole(one)), FIRST, found)


def _ranked(trial: Trial) -> tuple[Setting, Setting]:
    """Return a script on two ranks, and on one with the same global batch, which is run first: it writes the files."""
    two = replace(trial.setting, ranks=2, distributed=True)
    one = replace(two, ranks=1, batch=2 * BATCH)
    trial.whole(one)
    return two, one


def _sorted(done: Run) -> Run:
    """Return a run as several ranks have it: a step has a set of samples."""
    return Run([[sorted(batch) for batch in loop] for loop in done.loops], done.checkpoint)


def _batch_size(trial: Trial) -> Verdict:
    checkpoint = trial.save(trial.setting, 2 * FIRST)
    try:
        found = trial.run(Part(replace(trial.setting, batch=2 * BATCH), checkpoint))
    except PartError as error:
        return failed(error.failure, wanted=True)
    whole = trial.whole(trial.setting)
    return compare(_single(whole), 2 * FIRST * BATCH, _single(found))


def _single(done: Run) -> Run:
    """Return a run in batches of one sample."""
    return Run([[[sample] for batch in loop for sample in batch] for loop in done.loops])


def _seed(trial: Trial) -> Verdict:
    return _unwanted(trial, replace(trial.setting, seed=1))


def _shuffle(trial: Trial) -> Verdict:
    return _unwanted(trial, replace(trial.setting, shuffle=False))


def _other_data(trial: Trial) -> Verdict:
    return _unwanted(trial, replace(trial.setting, data="reordered files"))


def _more_data(trial: Trial) -> Verdict:
    return _unwanted(trial, replace(trial.setting, data="more files"))


def _changed(trial: Trial, setting: Setting) -> Verdict:
    found = trial.run(Part(setting, trial.save(trial.setting, FIRST)))
    return compare(trial.whole(trial.setting), FIRST, found)


def _unwanted(trial: Trial, setting: Setting) -> Verdict:
    try:
        return _changed(trial, setting)
    except PartError as error:
        return failed(error.failure, wanted=True)


class Situation(NamedTuple):
    """A row of the tables.

    Args:
        name: its head.
        ask: runs it.
    """

    name: str
    ask: Callable[[Trial], Verdict]

    def verdict(self, trial: Trial) -> Verdict:
        """Run the situation; an error of a library is an outcome."""
        try:
            return self.ask(trial)
        except PartError as error:
            return failed(error.failure)


SITUATIONS = {
    "first-epoch": Situation("Killed in the first epoch", _first_epoch),
    "later-epoch": Situation("Killed in a later epoch", _later_epoch),
    "chain": Situation("Killed eight times", _chain),
    "save-loaded": Situation("Saved again right after the load", _save_loaded),
    "last-batch": Situation("Saved after an epoch's last batch", _last_batch),
    "epoch-end": Situation("Saved after the loop of an epoch", _epoch_end),
    "break": Situation("Killed after a `break`", _break),
    "used-loader": Situation("Loaded into a loader in use", _used_loader),
    "augmentations": Situation("Augmentations: `random`, NumPy, PyTorch", _augmentations),
    "own-generator": Situation("Augmentations: the library's own generator", _own_generator),
    "workers": Situation("A different number of workers", _workers),
    "stream-workers": Situation("The same with an `IterableDataset`", _stream_workers),
    "fewer-ranks": Situation("2 ranks, then 1", _fewer_ranks),
    "more-ranks": Situation("1 rank, then 2", _more_ranks),
    "batch-size": Situation("Twice the batch size", _batch_size),
    "seed": Situation("A different seed", _seed),
    "shuffle": Situation("`shuffle=True` is missing", _shuffle),
    "other-data": Situation("Files in a different order", _other_data),
    "more-data": Situation("More files", _more_data),
    "after-break": Situation("The next loop after `break` reads", _after_break),
}
