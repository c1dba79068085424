"""Check that a loader resumes exactly, and catch one that does not: python examples/check_loader.py."""

from __future__ import annotations

import random
from typing import Any

import resumable


class Photos:
    """Sample indices with a random angle each: `random` is seeded per sample."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"photo": index, "angle": random.uniform(-10, 10)}


class Counts(Photos):
    """The same, but the angle grows with each photo read before, which no state contains."""

    reads = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads += 1
        return {"photo": index, "angle": self.reads % 360}


def make_loader() -> resumable.Loader:
    """Return a fresh loader, as a training script does on startup."""
    return resumable.wrap(Photos(), batch_size=4, shuffle=True, seed=0)


def make_wrong_loader() -> resumable.Loader:
    """Return a loader that cannot resume."""
    return resumable.wrap(Counts(), batch_size=4, shuffle=True, seed=0)


if __name__ == "__main__":
    right = resumable.check(make_loader)
    print(right)
    wrong = resumable.check(make_wrong_loader)
    broken = [trial for loader in wrong.loaders for trial in loader.trials if trial.kept is False]
    print(f"\n{broken[0]}")
    assert right.ok
    assert wrong.status == 1
