"""One of two machines dies, the other continues, and a new one joins: python examples/elastic_torchrun.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch.distributed as dist

import resumable

TORCHRUN = "-m torch.distributed.run --nnodes=1:2 --nproc-per-node=1 --max-restarts=3 --local-addr=127.0.0.1"
RENDEZVOUS = f"--rdzv-id=job --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{20_000 + os.getpid() % 10_000} --rdzv-conf"
QUICK = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=6"  # seconds, for a demonstration


def train() -> None:
    """Train an epoch on as many ranks as there are, from the newest checkpoint."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    loader = resumable.wrap(list(range(64)), batch_size=8 // size, shuffle=True, seed=0)
    store = resumable.CheckpointStore("checkpoints", shared=True, keep=2)
    if (saved := store.latest()) is not None:  # the checkpoint that rank 0 finds, on all ranks
        loader.load_state_dict(saved)
    for batch in loader.steps(8):
        Path(f"step{loader.global_step}-{rank}of{size}").write_text(" ".join(map(str, batch)), encoding="utf-8")
        dist.barrier()  # as with DDP's gradients
        store.save(loader.global_step, loader.state_dict())  # rank 0 does
        if size == 2 and loader.global_step >= 3 and os.environ["MACHINE"] == "1":
            for pid in (os.getppid(), os.getpid()):  # the agent of torchrun, and its rank
                os.kill(pid, signal.SIGKILL)
        if size == 1 and loader.global_step >= 5:
            time.sleep(600)  # torchrun ends it when a machine joins, and restarts all ranks


def machine(number: int, folder: str) -> subprocess.Popen[bytes]:
    """Start an agent of torchrun; the first one hosts the rendezvous."""
    words = [*TORCHRUN.split(), *RENDEZVOUS.split(), f"is_host={number == 0},{QUICK}", __file__, "train"]
    own = {**os.environ, "MACHINE": str(number), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.Popen([sys.executable, *words], cwd=folder, env=own, stderr=subprocess.DEVNULL)  # noqa: S603


if "train" in sys.argv:
    train()
else:
    with tempfile.TemporaryDirectory() as name:
        machines = [machine(0, name), machine(1, name)]
        while machines[1].poll() is None or not Path(name, "step5-0of1").exists():
            time.sleep(0.1)
        machines.append(machine(2, name))
        assert [one.wait() for one in machines] == [0, -signal.SIGKILL, 0]
        found = {(path.name[4], sample) for path in Path(name).glob("step*") for sample in path.read_text().split()}
        print(*sorted(path.name for path in Path(name).glob("step*")), sep="\n")
    assert len(found) == 64 == len({sample for _, sample in found})  # each sample once, in the same step on all ranks
