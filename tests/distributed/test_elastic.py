"""torchrun with `--nnodes 1:2`: a machine dies, the other goes on alone, a new one joins; the stream is the same.

Each agent is a fresh process: one forked from here would hold whatever other tests have imported, and DALI's and
TensorFlow's threads do not survive a fork.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from elastic_run import GLOBAL_BATCH, STEPS, unharmed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SETTINGS = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=6,join_timeout=120"
AGENT = Path(__file__).with_name("elastic_run.py")
RANKS = {"RANK", "WORLD_SIZE", "LOCAL_RANK"}
PATIENCE = 240.0  # seconds in which what has to happen does, on a machine that does other things, too


class Machines:
    """Agents of one elastic job, each as torchrun starts it on a machine of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._agents = folder, list[subprocess.Popen[bytes]]()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._endpoint = f"127.0.0.1:{probe.getsockname()[1]}"

    def start(self) -> subprocess.Popen[bytes]:
        """Start an agent; the first one hosts the store of the rendezvous."""
        words = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--monitor-interval=0.1", "--rdzv-id=job"]
        words += ["--local-addr=127.0.0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint={self._endpoint}"]
        words += [f"--rdzv-conf={SETTINGS},is_host={not self._agents}"]
        output = self.folder / f"output-{len(self._agents)}"
        outside = {name: value for name, value in os.environ.items() if name not in RANKS}
        settings = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with output.open("wb") as file:
            command = [sys.executable, str(AGENT), str(self.folder), *words]
            agent = subprocess.Popen(command, stdout=file, stderr=file, env=outside | settings)
        self._agents.append(agent)
        return agent

    def ranks(self) -> list[dict[str, Any]]:
        """Return what each process of a rank has written down, in the order of the starts."""
        found = []
        for path in self.folder.glob("rank-*.jsonl"):
            whole, _, _ = path.read_text().rpartition("\n")
            if whole:
                about, *lines = map(json.loads, whole.split("\n"))
                found.append({**about, "lines": lines})
        return sorted(found, key=lambda one: (one["start"], one["rank"]))

    def wait_for(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until something is true of a rank, and return that."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for one in self.ranks():
                if what(one):
                    return one
            assert any(agent.poll() is None for agent in self._agents), self.said()
            time.sleep(0.02)
        raise TimeoutError(self.said())

    def may(self, steps: int) -> None:
        """Let the ranks do so many steps."""
        (self.folder / "new").write_text(str(steps))
        (self.folder / "new").replace(self.folder / "may")

    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("output-*")))

    def close(self) -> None:
        """End what a test that failed has left; an agent that is asked to end ends its rank."""
        for agent in self._agents:
            agent.terminate()
        for agent in self._agents:
            with suppress(subprocess.TimeoutExpired):
                agent.wait(40)
            agent.kill()
            agent.wait()
        for one in self.ranks():
            kill(one["pid"])


def kill(pid: int) -> None:
    """Kill a rank, a fork of its agent: never a process that has the same number by chance."""
    with suppress(ProcessLookupError, FileNotFoundError):
        if os.fsencode(AGENT) in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    made.may(0)
    yield made
    made.close()


def check_stream(ranks: list[dict[str, Any]], expected: list[list[Any]]) -> list[tuple[int, int]]:
    """Compare every line of every start with the unharmed run; return the size of each start, and where it went on.

    What is in the weights at the end are the steps of each start up to where the next one goes on.
    """
    starts: dict[int, list[dict[str, Any]]] = {}
    for one in ranks:
        starts.setdefault(one["start"], []).append(one)
    begins = [(start[0]["size"], start[0]["done"]) for start in starts.values()]
    for start, (size, done), (_, goes_on) in zip(starts.values(), begins, [*begins[1:], (0, STEPS)], strict=True):
        assert {(one["size"], one["done"]) for one in start} == {(size, done)}, "ranks went on from other places"
        for one in start:
            first, last = (rank * GLOBAL_BATCH // size for rank in (one["rank"], one["rank"] + 1))
            for step, line in enumerate(one["lines"], done + 1):
                assert line == [step, *(values[first:last] for values in expected[step - 1][1:])]
        if goes_on > done:
            assert [one["rank"] for one in start] == list(range(size))
            assert all(len(one["lines"]) >= goes_on - done for one in start), (
                "a step that was saved is not of all ranks"
            )
    return begins


@pytest.mark.slow
@pytest.mark.parametrize("orphan", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_machine_dies_and_another_joins(machines: Machines, orphan: bool) -> None:
    """Of a machine that dies, nothing is left; an agent that is killed alone leaves its rank, which trains on."""
    host, dies = machines.start(), machines.start()
    machines.wait_for(lambda one: one["size"] == 2)
    machines.may(7)
    victim = machines.wait_for(lambda one: one["agent"] == dies.pid and len(one["lines"]) >= 5)
    dies.kill()
    if not orphan:
        kill(victim["pid"])
        machines.wait_for(lambda one: one["size"] == 1 and one["done"] > 0)
    machines.may(11)
    machines.wait_for(lambda one: one["done"] + len(one["lines"]) == 11)
    joins = machines.start()
    machines.wait_for(lambda one: one["agent"] == joins.pid)
    machines.may(STEPS)
    assert [agent.wait(PATIENCE) for agent in (host, dies, joins)] == [0, -9, 0], machines.said()
    expected, weights = unharmed()
    begins = check_stream(machines.ranks(), expected)
    assert begins[-1] == (2, 9)
    if not orphan:
        assert [size for size, _ in begins[-3:]] == [2, 1, 2]
        assert begins[-2][1] in (3, 6)
    found = torch.load(machines.folder / "weights.pt")
    assert all(torch.allclose(found[name], tensor, atol=1e-6) for name, tensor in weights.items())
