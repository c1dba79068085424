"""A shuffle in blocks: shards in random order, mixed in windows, stopped in the middle of an epoch and resumed.

Run it with `python examples/shuffle_in_blocks.py`; it needs nothing but this package.
"""

from __future__ import annotations

import json
import logging

import resumable
from resumable.samplers import Blocks

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare


class Shards:
    """Samples in files that are read a block at a time."""

    sizes = (100,) * 19 + (37,)

    def __len__(self) -> int:
        return sum(self.sizes)

    def __getitem__(self, index: int) -> int:
        return index


def make() -> resumable.Loader[list[int]]:
    """Return a loader with windows of 8 blocks of 16 samples."""
    return resumable.wrap(Shards(), batch_size=2, sampler=Blocks(Shards.sizes, block=16, window=8, seed=1))


def main() -> None:
    """Compare a stopped run with an uninterrupted one, and print which blocks to fetch."""
    baseline = list(make().steps(1500))
    loader = make()
    before = list(loader.steps(700))
    state = json.dumps(loader.state_dict())

    resumed = make()
    resumed.load_state_dict(json.loads(state))
    after = list(resumed.steps(1500))
    if before + after != baseline:
        raise SystemExit("the resumed order differs from the baseline run")
    print(f"stopped after {len(before)} of {len(baseline)} batches and resumed: the order is identical")

    order, place = Blocks(Shards.sizes, block=16, window=8, seed=1), loader.cursor
    for window in order.blocks_of(place.epoch, place.position, ahead=1):
        print(f"positions {window.start}..{window.stop - 1} need the blocks {window.blocks.tolist()}")


if __name__ == "__main__":
    main()
