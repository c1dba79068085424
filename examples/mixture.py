"""A mixture: exact proportions in every batch, a phase that starts later, stopped on two ranks and resumed on one.

Run it with `python examples/mixture.py`; it needs nothing but this package.
"""

from __future__ import annotations

import json
import logging

import resumable

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare
SOURCES = {"web": range(1000), "code": range(300), "math": range(50)}
PHASES = [(0, {"web": 0.75, "code": 0.25}), (400, {"web": 0.5, "code": 0.25, "math": 0.25})]


def make(batch_size: int, rank: int = 0, ranks: int = 1) -> resumable.Loader[list[tuple[str, int]]]:
    """Return the loader of a rank; each sample contains the name of its source."""
    mixture = resumable.mix(SOURCES, weights=PHASES, named=True)
    return resumable.wrap(mixture, batch_size=batch_size, seed=1, world=resumable.World(rank, ranks))


def main() -> None:
    """Compare a stopped run with an uninterrupted one, and print how much of each source was read."""
    baseline = list(make(8).steps(300))
    ranks = [make(4, rank, 2) for rank in range(2)]
    parts = [list(loader.steps(120)) for loader in ranks]
    before = [first + second for first, second in zip(*parts, strict=True)]
    state = json.dumps(ranks[0].state_dict())

    resumed = make(8)
    resumed.load_state_dict(json.loads(state))
    after = list(resumed.steps(300))
    if before + after != baseline:
        raise SystemExit("the resumed order differs from the baseline one")
    print(f"stopped after {len(before)} of {len(baseline)} batches on 2 ranks, resumed on 1: the order is identical")

    for step in (0, 100):
        names = [name for name, _ in baseline[step]]
        print(f"batch {step}: {', '.join(f'{names.count(name)} of {name}' for name in SOURCES)}")
    for name, count in resumed.consumed().items():
        print(f"{name}: {count} samples, {count / len(SOURCES[name]):.1f} epochs of this source")


if __name__ == "__main__":
    main()
