"""List any batch without reading it, seek to any batch, and go back after a loss spike.

python examples/time_travel.py
"""

from __future__ import annotations

import resumable
from resumable.samplers import Permutation

BILLION = 1_000_000_000


class Virtual:
    """A billion samples, generated when they are read."""

    reads = 0

    def __len__(self) -> int:
        return BILLION

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return index


data = Virtual()
loader = resumable.wrap(data, batch_size=4, shuffle=True, seed=0)
print(f"{len(loader):,} batches in an epoch")

there = loader.sample_indices(epoch=7, step=123_456_789)
assert data.reads == 0
print(f"epoch 7, step 123,456,789 will contain the samples {there}; nothing was read")

loader.seek(epoch=7, step=123_456_789)
assert next(iter(loader)) == there
assert data.reads == 4
print(f"went there: {loader.cursor}")

position = Permutation(BILLION, 0, 7).inverse(42)
epoch, step = 7, position // 4
assert 42 in loader.sample_indices(epoch=epoch, step=step)
print(f"sample 42 appears at step {step:,} of epoch 7")

loader.seek(epoch=0)
good, seen = loader.state_dict(), []
for batch in loader:
    seen.append(batch)
    if len(seen) == 3:
        print(f"loss spike at {loader.cursor}, back to {good['cursor']}")
        loader.load_state_dict(good)  # together with the weights from the same step
    if len(seen) == 6:
        break
assert seen[:3] == seen[3:]
print(f"the same three batches again: {seen[3:]}")
