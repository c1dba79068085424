"""A training with a flight recorder that kills itself with SIGKILL, after it wrote down where it is.

python flight_run.py FOLDER WORKERS PHASE EPOCH STEP

The folder gets `truth`, a line of JSON for all that is done, and `state`, the last checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import resumable

LENGTH, BATCH, TOTAL, SAVE_EVERY = 22, 2, 11, 3


class Truth:
    """What is done, in a file that nothing stands before: each line is with the kernel when `say` returns."""

    def __init__(self, folder: Path, fatal: tuple[str, int, int]) -> None:
        self._file = os.open(folder / "truth", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._fatal = fatal

    def say(self, phase: str, epoch: int, step: int, **more: Any) -> None:
        os.write(self._file, (json.dumps({"phase": phase, "epoch": epoch, "step": step, **more}) + "\n").encode())
        if phase != "reading" and (phase, epoch, step) == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)


class Samples:
    """Their own indices. The fatal one kills the training process, once that says that it reads its batch."""

    def __init__(self, folder: Path, fatal: int | None, line: dict[str, Any]) -> None:
        self.folder, self.fatal, self.line, self.trainer = folder, fatal, line, os.getpid()

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        if index == self.fatal and (os.getpid() != self.trainer or self.now() == self.line):
            self.wait()
            os.kill(self.trainer, signal.SIGKILL)
        return index

    def now(self) -> Any:
        """Return what the training did last, by its own words."""
        return json.loads((self.folder / "truth").read_text().splitlines()[-1])

    def wait(self) -> None:
        """Wait until the trainer is in its `next()`; one that never says so is killed as well."""
        for _ in range(3000):
            if self.now() == self.line and resumable.flight.read(self.folder / "flight")[0].phase == self.line["phase"]:
                return
            time.sleep(0.01)


def wrap(samples: Any, folder: Path, workers: int) -> resumable.Loader:
    if not workers:
        return resumable.wrap(samples, batch_size=BATCH, shuffle=True, flight_recorder=folder / "flight", identity="it")
    from torch.utils.data import DataLoader  # noqa: PLC0415  # takes seconds, and most runs do without

    loader: Any = DataLoader(samples, batch_size=BATCH, shuffle=True, num_workers=workers)
    return resumable.wrap(loader, flight_recorder=folder / "flight", identity="it")


def load(loader: resumable.Loader, folder: Path) -> None:
    if (folder / "state").exists():
        loader.load_state_dict(json.loads((folder / "state").read_text()))


def save(loader: resumable.Loader, folder: Path) -> None:
    (folder / "new").write_text(json.dumps(loader.state_dict()))
    (folder / "new").replace(folder / "state")


def main(folder: Path, workers: int, fatal: tuple[str, int, int]) -> None:
    truth = Truth(folder, fatal)
    order = resumable.wrap(list(range(LENGTH)), batch_size=BATCH, shuffle=True)
    phase, epoch, step = fatal
    sample = order.sample_indices(epoch=epoch, step=step)[1] if phase == "reading" else None
    line = {"phase": phase, "epoch": epoch, "step": step}
    loader = wrap(Samples(folder, sample, line), folder, workers)
    load(loader, folder)
    for number in loader.epochs(3):
        batches, step = iter(number), loader.cursor.step
        truth.say("reading", int(number), step)
        for batch in batches:
            truth.say("training", int(number), step, samples=[int(index) for index in batch])
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                save(loader, folder)
                truth.say("state", int(number), step, samples=[int(index) for index in batch])
            step += 1
            truth.say("reading", int(number), step)
        truth.say("between", int(number), step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), (sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
