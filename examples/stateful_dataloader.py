"""torchdata's StatefulDataLoader, replaced: killed in the middle of an epoch, a run continues at the exact batch."""

from typing import Any

import torch
from torch.utils.data import Dataset

from resumable.torch import StatefulDataLoader


class Noisy(Dataset[Any]):
    """Sixteen samples with a random augmentation."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.rand(())


def train(saved: dict[str, Any] | None = None, stop_after: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Train two epochs, or until the crash; return the batches and the last state."""
    loader = StatefulDataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2)
    if saved is not None:
        loader.load_state_dict(saved)
    seen: list[Any] = []
    first = 0 if saved is None else saved["epoch"]
    for epoch in range(first, 2):
        for indices, noise in loader:
            seen.append((indices.tolist(), noise.tolist()))
            if len(seen) == stop_after:
                return seen, {**loader.state_dict(), "epoch": epoch}
    return seen, {}


torch.manual_seed(0)
baseline, _ = train()
torch.manual_seed(0)
before, state = train(stop_after=3)
torch.manual_seed(1)  # a new process, with a different global seed
after, _ = train(state)
print(f"{len(before)} batches before the crash, {len(after)} after it")
print(f"same batches and augmentations: {before + after == baseline}")
