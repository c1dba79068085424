"""Starts a script as several ranks, and starts them again when one fails: what torchrun does, without torch.

    python launch_ranks.py RANKS RESTARTS SCRIPT [OPTION ...]

With the option `--no-agent` it says nothing of itself to the ranks, and leaves those alone that wait for a dead one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

RANKS, RESTARTS, *WORDS = sys.argv[1:]
IS_AGENT = "--no-agent" not in WORDS


def start(restart: int) -> list[subprocess.Popen[bytes]]:
    """Start all ranks, each in a session of its own, as torchrun does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": str(restart)} if IS_AGENT else {}
    return [
        subprocess.Popen(
            [sys.executable, *WORDS],
            env={**os.environ, **own, "RANK": str(rank), "WORLD_SIZE": RANKS, "MASTER_PORT": str(port)},
            start_new_session=True,
        )
        for rank in range(int(RANKS))
    ]


def wait(ranks: list[subprocess.Popen[bytes]]) -> bool:
    """Return whether all ranks came to their end; the others of one that failed are ended."""
    while any(rank.poll() is None for rank in ranks):
        if IS_AGENT and any(rank.poll() for rank in ranks):
            break
        time.sleep(0.01)
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGTERM)
    statuses = [rank.wait() for rank in ranks]
    return not any(statuses)


sys.exit(not any(wait(start(restart)) for restart in range(int(RESTARTS) + 1)))
