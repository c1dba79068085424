"""Runs parts of the job in forked processes: each part starts as a new run of the script would."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from benchmarks.compare.job import Job, Setting

__all__ = ["Failure", "Part", "Run", "run"]

LIMIT = 600  # seconds for a part, which takes one or two on a machine with nothing else to do
Batch = list[list[float]]
Checkpoint = tuple[bytes, ...]  # of each rank


@dataclass(frozen=True)
class Part:
    """The task of a process: it reads until it has saved, or to the end.

    Args:
        setting: what the script is started with.
        checkpoint: what it continues from.
        read: batches to read before it saves.
        after_epoch: save after the inner loop that read the last of them, instead of in it.
        leave: leave the first inner loop after so many batches.
        save_loaded: save right after loading, and read nothing.
        roll_back: read so many batches more after saving, load what was saved, and read to the end.
    """

    setting: Setting
    checkpoint: Checkpoint | None = None
    read: int | None = None
    after_epoch: bool = False
    leave: int | None = None
    save_loaded: bool = False
    roll_back: int | None = None


@dataclass
class Run:
    """The batches that a process has read, in the inner loops of the script, and its checkpoint."""

    loops: list[list[Batch]] = field(default_factory=list)
    checkpoint: Checkpoint | None = None

    @property
    def batches(self) -> list[Batch]:
        """Return all batches."""
        return [batch for loop in self.loops for batch in loop]


class Failure(NamedTuple):
    """An exception that ended a process."""

    kind: str
    message: str


def run(job: type[Job], part: Part, folder: str) -> Run | Failure:
    """Run a part on its number of ranks, and return the batches of all ranks together."""
    ranks = part.setting.ranks
    port = _free_port()
    context = multiprocessing.get_context("fork")
    started = []
    for rank in range(ranks):
        here, there = context.Pipe(duplex=False)
        one = replace(part, setting=replace(part.setting, rank=rank))
        process = context.Process(target=_child, args=(job, one, folder, port, there))
        process.start()
        there.close()
        started.append((process, here))
    answers = [_answer(here) for _, here in started]
    for process, _ in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)  # its workers too
        process.kill()
        process.join()
    for answer in answers:
        if isinstance(answer, Failure):
            return answer
    runs = [answer for answer in answers if isinstance(answer, Run)]
    if ranks == 1:
        return runs[0]
    checkpoint = tuple(chain.from_iterable(one.checkpoint or () for one in runs))
    return Run(list(_together(runs)), checkpoint or None)


def _answer(pipe: Connection) -> Run | Failure:
    try:
        answer: Run | Failure = pipe.recv() if pipe.poll(LIMIT) else Failure("TimeoutError", f"hangs for {LIMIT} s")
    except EOFError:
        return Failure("a crash", "the process ended")
    return answer


def _together(runs: list[Run]) -> Iterator[list[Batch]]:
    """Join what the ranks have read in the same step."""
    for loops in zip(*(one.loops for one in runs), strict=False):
        yield [sorted(chain.from_iterable(batches)) for batches in zip(*loops, strict=False)]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _child(job: type[Job], part: Part, folder: str, port: int, pipe: Connection) -> None:
    os.setsid()
    setting = part.setting
    names = {"RANK": setting.rank, "LOCAL_RANK": setting.rank, "WORLD_SIZE": setting.ranks}
    names |= {"LOCAL_WORLD_SIZE": setting.ranks, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"}
    tempfile.tempdir = tempfile.mkdtemp(dir=folder)
    try:
        if setting.ranks > 1:
            dist.init_process_group("gloo", init_method="env://")
        answer: Run | Failure = _follow(job(setting, folder), part)
    except Exception as error:  # noqa: BLE001  # whatever the library raises is the result
        answer = Failure(type(error).__name__, str(error))
    pipe.send(answer)
    signal.pause()  # until all ranks are killed


def _follow(job: Job, part: Part) -> Run:
    """Do what the script does, with its own count of epochs and steps as scripts have it."""
    done, epoch, step = Run(), 0, 0
    if part.checkpoint is not None:
        epoch, step = _load(job, part.checkpoint, part.setting)
    if part.save_loaded:
        done.checkpoint = _saved(epoch, step, job.state())
        return done
    read = 0
    for loop in job.loops(epoch, step):
        done.loops.append([])
        for batch in loop:
            done.loops[-1].append(batch.tolist())
            read, step = read + 1, step + 1
            if read == part.read and not part.after_epoch:
                done.checkpoint = _saved(epoch, step, job.state())
                if part.roll_back is None:
                    return done
            if part.roll_back is not None and read == (part.read or 0) + part.roll_back:
                return _rolled_back(job, done, part.setting)
            if len(done.loops) == 1 and step == part.leave:
                break
        epoch, step = epoch + 1, 0
        if read == part.read and part.after_epoch:
            done.checkpoint = _saved(epoch, step, job.state())
            return done
    return done


def _rolled_back(job: Job, done: Run, setting: Setting) -> Run:
    """Load the state in the process that saved it, and read what is left in new loops."""
    epoch, step = _load(job, done.checkpoint or (), setting)
    return Run([[batch.tolist() for batch in loop] for loop in job.loops(epoch, step)])


def _saved(*values: Any) -> Checkpoint:
    file = io.BytesIO()
    torch.save(values, file)
    return (file.getvalue(),)


def _load(job: Job, checkpoint: Checkpoint, setting: Setting) -> tuple[int, int]:
    """Load what was saved; return the epoch and step that the script saved."""
    opened = [torch.load(io.BytesIO(one), weights_only=False) for one in checkpoint]
    job.load_ranks([state for _, _, state in opened], setting)
    epoch, step, _ = opened[0]
    return epoch, step
