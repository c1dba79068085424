"""The scripts on the cluster pages, run by stand-ins for SLURM, Kubernetes and torchrun."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs import ROOT, blocks

import resumable

pytestmark = pytest.mark.slow

STEPS = 20
# Starts the tasks of a step on this machine, and ends all of them when one fails.
SRUN = """#!/bin/bash
[ "$1" = --kill-on-bad-exit=1 ] || exit 64
shift
export SLURM_STEP_NUM_TASKS=$SLURM_NTASKS
for ((task = 0; task < SLURM_NTASKS; task++)); do
  SLURM_PROCID=$task "$@" >>"out-$task" 2>>errors & tasks+=($!)
done
echo "${tasks[@]}" >tasks
for task in "${tasks[@]}"; do
  wait -n || { kill -9 "${tasks[@]}" 2>/dev/null; exit 1; }
done
"""
SCONTROL = '#!/bin/bash\n[ "$1 $2" = "show hostnames" ] && echo localhost && echo other\n'


WORK = "...  # forward, backward, optimizer.step()"
NOTES = "print(loader.global_step, *batch.tolist(), flush=True); dist.barrier()"  # a step of DDP waits for all ranks


def files_of(page: str, folder: Path) -> None:
    for block in blocks(ROOT / "docs/clusters" / page):
        if block.title is not None:
            (folder / block.title).write_text(block.code.replace(WORK, NOTES) + "\n", encoding="utf-8")


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(Path.cwd()), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": paths, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def wait_for(path: Path, process: subprocess.Popen[Any]) -> None:
    while not path.exists():
        assert process.poll() is None, (path.parents[2] / "errors").read_text(encoding="utf-8")
        time.sleep(0.005)


def check(folder: Path, ranks: int) -> None:
    """See that each step had the samples of the baseline run, on all ranks, whenever it was done."""
    baseline = list(resumable.wrap(list(range(240)), batch_size=12, shuffle=True, seed=0).steps(STEPS))
    size = 12 // ranks
    for rank in range(ranks):
        lines = [list(map(int, line.split())) for line in (folder / f"out-{rank}").read_text().splitlines()]
        for step, *batch in lines:
            assert batch in (baseline[step - 1][rank * size : (rank + 1) * size], baseline[step - 1]), step
        assert rank or {line[0] for line in lines} == set(range(1, STEPS + 1))


def test_the_slurm_job_continues_with_fewer_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files_of("preemption.md", tmp_path)
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        Path(name).write_text(text, encoding="utf-8")
        Path(name).chmod(0o755)
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "localhost,other"}
    first = subprocess.Popen(["/bin/bash", "job.sh"], env=environment(SLURM_NTASKS="2", **job))
    wait_for(tmp_path / "checkpoints/step-000000000004/COMMIT.json", first)
    os.kill(int(Path("tasks").read_text(encoding="utf-8").split()[1]), signal.SIGKILL)
    assert first.wait(60) == 1
    again = subprocess.run(["/bin/bash", "job.sh"], env=environment(SLURM_NTASKS="1", **job), timeout=120, check=False)
    assert again.returncode == 0, Path("errors").read_text(encoding="utf-8")
    check(tmp_path, 2)


def test_the_kubernetes_job_restarts_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files_of("preemption.md", tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    service, job = yaml.safe_load_all(Path("job.yaml").read_text(encoding="utf-8"))
    pods = job["spec"]["template"]["spec"]
    (container,) = pods["containers"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert service["metadata"]["name"] == pods["subdomain"]
    assert pods["restartPolicy"] == "OnFailure"

    def start() -> list[subprocess.Popen[bytes]]:
        started = []
        for index in range(2):
            given = {one["name"]: one.get("value", str(index)) for one in container["env"]}
            assert given["MASTER_ADDR"] == "train-0.train"
            with Path(f"out-{index}").open("ab") as out, Path("errors").open("ab") as errors:
                started.append(
                    subprocess.Popen(
                        container["command"], env=environment(**{**given, **address}), stdout=out, stderr=errors
                    )
                )
        return started

    ranks = start()
    wait_for(tmp_path / "checkpoints/step-000000000004/COMMIT.json", ranks[0])
    ranks[1].kill()
    assert all(rank.wait(60) for rank in ranks)  # the surviving rank fails as well
    assert [rank.wait(120) for rank in start()] == [0, 0], Path("errors").read_text(encoding="utf-8")
    check(tmp_path, 2)


def test_the_script_of_torchrun_continues_on_fewer_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that loads nothing would fail: the store rejects a step below its newest."""
    monkeypatch.chdir(tmp_path)
    files_of("elastic.md", tmp_path)
    store = resumable.CheckpointStore("checkpoints")
    for ranks in ("2", "1"):
        command = ["torchrun", "--standalone", "--nproc-per-node", ranks, "train.py"]
        child = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
        assert child.returncode == 0, child.stderr
        assert store.latest_step() == 40
        shutil.rmtree(f"checkpoints/step-{40:012d}")
