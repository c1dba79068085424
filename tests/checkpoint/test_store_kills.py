"""CheckpointStore under SIGKILL at every file operation of a save.

The kills are real: this file is also a script, whose children kill themselves.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from stores import PROJECT, assert_tidy, content, found, prepared

from resumable.checkpoint import CheckpointStore

if TYPE_CHECKING:
    from collections.abc import Callable


OPERATIONS = {"open", "write", "flush", "fsync", "close", "replace", "mkdir", "unlink", "remove", "rmdir", "listdir"}
SCENARIOS: dict[str, tuple[Callable[[str | Path], None], int, list[tuple[int, int] | None]]] = {
    "first": (lambda root: None, 1, [None, (1, 1)]),
    "next": (prepared, 4, [(3, 0), (4, 1)]),
    "again": (prepared, 3, [(3, 0), (3, 1)]),
}


def killed_in_child(point: int, action: Callable[[], None]) -> bool:
    """Run `action` in a child that kills itself just before its n-th file operation; tell if it came to that."""
    counter = itertools.count(1)

    def kill(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in OPERATIONS and next(counter) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    if (child := os.fork()) == 0:
        try:
            sys.setprofile(kill)
            action()
            sys.setprofile(None)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


def save_again(root: Path, step: int) -> None:
    CheckpointStore(root, keep=1).save(step, content(step, 1))


def save_under_fire(scenario: str) -> int:
    """Kill a save at point 1, 2, 3, ... until one ends by itself; check the store after each; count the points."""
    prepare, step, allowed = SCENARIOS[scenario]
    outcomes = []
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        prepare(model)
        for point in itertools.count(1):
            shutil.rmtree(Path(directory) / f"run{point - 1}", ignore_errors=True)
            root = Path(directory) / f"run{point}"  # this process is the writer of each of them in its turn
            if model.exists():
                shutil.copytree(model, root)
            harmed = killed_in_child(point, functools.partial(save_again, root, step))
            outcomes.append(allowed.index(found(root)))
            store = CheckpointStore(root, keep=2)
            store.save(9, content(9))
            assert found(root) == (9, 0)
            assert_tidy(root, store)
            if not harmed:
                break
    assert outcomes == sorted(outcomes), "a committed checkpoint was lost again at a later point"
    assert outcomes[0] == 0
    assert outcomes[-2:] == [1, 1], "the kills never came after the commit"
    return len(outcomes) - 1


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sigkill_at_every_file_operation(scenario: str) -> None:
    """SIGKILL at every file operation leaves the old or the new checkpoint."""
    command = [sys.executable, __file__, scenario]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


if __name__ == "__main__":
    sys.stdout.write(str(save_under_fire(sys.argv[1])))
