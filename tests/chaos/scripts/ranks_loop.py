"""A training loop of several ranks, which add up gradients over sockets, or with --torch by torch.distributed.

With --resized its global batch can be shared by 4, 3, 1 and 2 ranks. Other options make it wrong.
"""

from __future__ import annotations

import json
import os
import sys
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

import resumable

OPTIONS = set(sys.argv[1:])
WORLD = resumable.World.detect()
AGENT = os.getppid()
USES_TORCH = "--torch" in OPTIONS
SAMPLES, GLOBAL_BATCH = (96, 12) if "--resized" in OPTIONS else (48, 8)
ADDRESS = ("127.0.0.1", int(os.environ["MASTER_PORT"]))


def connect() -> list[Connection]:
    """Connect rank 0 with all others, in their order."""
    if WORLD.rank == 0:
        with Listener(ADDRESS) as listener:
            made = [listener.accept() for _ in range(1, WORLD.size)]
        return [peer for _, peer in sorted((peer.recv(), peer) for peer in made)]
    while True:
        try:
            peer = Client(ADDRESS)
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            peer.send(WORLD.rank)
            return [peer]


def share(value: Any) -> list[Any]:
    """Give a value of each rank to all of them."""
    if USES_TORCH:
        values = [None] * WORLD.size
        distributed.all_gather_object(values, value)
        return values
    try:
        if WORLD.rank:
            PEERS[0].send(value)
            return list(PEERS[0].recv())
        values = [value, *(peer.recv() for peer in PEERS)]
        for peer in PEERS:
            peer.send(values)
    except (EOFError, ConnectionError):
        if "--no-agent" in OPTIONS:
            time.sleep(3600)  # as a collective that waits
        raise
    return values


if USES_TORCH:
    from torch import distributed

    distributed.init_process_group("gloo")
PEERS = [] if USES_TORCH else connect()
DRAWS = bool({"--one-generator", "--own-generators"} & OPTIONS)  # on each rank
np.random.seed(WORLD.rank)
batch_size = GLOBAL_BATCH // WORLD.size
loader = resumable.wrap(np.arange(SAMPLES), batch_size=batch_size, shuffle=True, seed=1, world=WORLD)
states: list[Any] = []
weights, own = 0.0, f"{WORLD.rank if '--own-newest' in OPTIONS else 0}-"
saved = sorted(Path().glob(f"{own}*.json"))[-1:]
if "--own-newest" not in OPTIONS:
    saved = share(saved)[0]
for path in saved:
    state = json.loads(path.read_text())
    loader.load_state_dict(state["loader"])
    weights = 0.0 if "--lose-weights" in OPTIONS else state["weights"]
    if DRAWS:
        kind, key, *rest = state["generator"][WORLD.rank if "--own-generators" in OPTIONS else 0]
        np.random.set_state((kind, np.array(key, dtype=np.uint32), *rest))


def generator() -> list[Any]:
    """Return the state of this rank's generator."""
    state: Any = np.random.get_state()
    return [state[0], state[1].tolist(), *state[2:]]


def save() -> None:
    """Write a checkpoint, which has its name when it is whole."""
    content = {"loader": loader.state_dict(), "weights": weights, "generator": states}
    name = Path(f"{own}{loader.global_step:03}")
    name.with_suffix(".tmp").write_text(json.dumps(content))
    name.with_suffix(".tmp").replace(name.with_suffix(".json"))


for epoch in loader.epochs(2):
    for batch in epoch:
        gradients = share(float(np.mean(batch)) + DRAWS * np.random.rand())
        order = gradients[::-1] if saved and WORLD.size > 2 else gradients  # as gloo may after a restart
        if os.getppid() != AGENT:
            time.sleep(3600)  # it lives on without its agent
        weights = 0.9 * weights + 0.1 * sum(order, 0.0) / (WORLD.size if "--resized" in OPTIONS else 1)
        if loader.global_step % 2 == 0:
            states = share(generator()) if DRAWS else []
            for rank in range(WORLD.size if "--own-newest" in OPTIONS else 1):
                if rank == WORLD.rank:
                    save()
                share(None)
resumable.chaos.record_weights({"weights": weights})
