"""The examples of loops as programs, killed by SIGKILL at any event, or run to their end.

Run as a script it is a server, as `run_server.py` says. It logs what a program does: global hooks of torch see every
module and optimizer, and the output and `CheckpointStore.save` are replaced. The program itself is unchanged.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import signal
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import models.killed  # noqa: F401  # the programs import it
import torch
import torch._dynamo  # torch imports it at the first step of an optimizer
from run_server import Log, serve
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

import resumable


@dataclass(frozen=True, kw_only=True)
class Run:
    """A program to run.

    Args:
        folder: of the checkpoints and the log.
        script: the program.
        kill_at: kill the process after so many events.
        port: not needed, as there is one rank.
    """

    folder: str
    script: str
    kill_at: int | None = None
    port: int = 0


class Events(StringIO):
    """Writes down what happens, also what is printed, and kills the process.

    Args:
        run: says where, and when.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._log, self._kill_at, self._count = Log(Path(run.folder, "log-0")), run.kill_at, 0
        self._log.write("start")

    def add(self, *event: Any) -> None:
        self._log.write(*event)
        self._count += 1
        if self._count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, text: str) -> int:
        if text.strip():
            self.add("print", text.strip())
        return len(text)

    def forward(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, torch.nn.Sequential):
            self.add("train" if module.training else "validate", digest(*inputs))

    def step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        (group,) = optimizer.param_groups
        self.add("step", group["lr"], digest(*group["params"]))


def digest(*tensors: torch.Tensor) -> str:
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()[:16]


def start(run: Run, rank: int) -> None:
    os.fsync = lambda fd: None  # half of the time; what a process has written survives its SIGKILL
    events, save = Events(run), resumable.CheckpointStore.save

    def saving(store: resumable.CheckpointStore, step: int, content: Any, **options: Any) -> None:
        events.add("saving", step)
        save(store, step, content, **options)
        events.add("saved", step, content.get("loader"))

    resumable.CheckpointStore.save = saving  # type: ignore[assignment]  # mypy takes it for a method twice
    register_module_forward_pre_hook(events.forward)
    register_optimizer_step_post_hook(events.step)
    sys.argv = [run.script, str(Path(run.folder, "checkpoints"))]
    with redirect_stdout(events):
        runpy.run_path(run.script, run_name="__main__")


if __name__ == "__main__":
    serve(Run, start, lambda run: 1)
