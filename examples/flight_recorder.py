"""Training is killed with SIGKILL, and the next run says at which batch: python examples/flight_recorder.py."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import resumable


class Samples:
    """Sample indices; reading one of them kills the process, like a crash in a decoder."""

    def __init__(self, poison: int | None) -> None:
        self.poison = poison

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        if index == self.poison:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def train(folder: Path, poison: int | None) -> None:
    """Train an epoch, from the checkpoint if there is one; save every fourth step."""
    loader = resumable.wrap(Samples(poison), batch_size=4, shuffle=True, flight_recorder=folder / "flight")
    if (folder / "state").exists():
        loader.load_state_dict(json.loads((folder / "state").read_text()))
    for _ in loader:
        if loader.cursor.step % 4 == 0:
            (folder / "state").write_text(json.dumps(loader.state_dict()))


if len(sys.argv) > 1:
    train(Path(sys.argv[1]), poison=26)
else:
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        child = subprocess.run([sys.executable, __file__, temporary], check=False)  # noqa: S603  # this very file
        assert child.returncode == -signal.SIGKILL
        (record,) = resumable.flight.read(directory / "flight")
        print(f"the training was {record.status} {record.where}; its last state was at {record.saved}")
        train(directory, poison=None)
        (record,) = resumable.flight.read(directory / "flight")
        print(f"the next one is {record.where}")
