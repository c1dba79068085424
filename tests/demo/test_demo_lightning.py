"""The training program with Lightning: it writes the ledger as the hand-written loop does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from demo.digits import load_digits, write_digits
from demo.ledger import Ledger, read_events
from demo.lightning_ledger import LedgerCheckpointIO

REPOSITORY = Path(__file__).parents[2]
BOTH = """
import sys
from examples.demo import lightning_training, training

for program in training, lightning_training:
    name = program.__name__.rpartition(".")[2]
    files = [f"--checkpoints={name}", f"--ledger={name}.jsonl", "--data=digits.npz"]
    program.main(["--make=examples.demo.sources:make_map_style", *files])
"""


def happened(path: Path) -> list[tuple[Any, ...]]:
    """What a ledger says, without times, saves and what depends on the program's random numbers."""
    events, _ = read_events(path)
    return [
        (event["kind"], event["count"], event.get("epoch"), event.get("step"), event.get("digest"))
        for event in events
        if event["kind"] != "save"
    ]


def saved(path: Path) -> set[int]:
    return {event["count"] for event in read_events(path)[0] if event["kind"] == "save"}


@pytest.mark.slow
def test_both_programs_train_on_the_same_and_write_the_same_down(tmp_path: Path) -> None:
    write_digits(load_digits(), tmp_path / "digits.npz")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", BOTH], cwd=tmp_path, env=environment, check=True, capture_output=True)
    loop, lightning = tmp_path / "training.jsonl", tmp_path / "lightning_training.jsonl"
    assert happened(lightning) == happened(loop)
    assert saved(lightning) == saved(loop) == set(range(6, 73, 6))
    assert {path.name for path in tmp_path.iterdir()} == {
        "digits.npz",
        *(f"{name}{suffix}" for name in ("training", "lightning_training") for suffix in ("", ".jsonl")),
    }


def checkpoint(steps: int) -> dict[str, Any]:
    ranks = [{"loaders": [{"state": {"position": steps}}]}]
    return {"global_step": steps, "callbacks": {"ResumableCallback": {"ranks": ranks}}}


def test_a_checkpoint_is_noted_when_all_of_it_is_there(tmp_path: Path) -> None:
    files = LedgerCheckpointIO(Ledger(tmp_path / "ledger"))
    last = tmp_path / "checkpoints" / "last.ckpt"
    files.save_checkpoint(checkpoint(6), last)
    files.save_checkpoint(checkpoint(12), last.with_name("epoch=0-step=12.ckpt"))
    with pytest.raises(Exception, match="pickle"):
        files.save_checkpoint({**checkpoint(12), "something": lambda: None}, last)
    assert files.load_checkpoint(last) == checkpoint(6)
    (noted,), _ = read_events(tmp_path / "ledger")
    assert (noted["kind"], noted["count"], noted["state_bytes"]) == ("save", 6, 28)
