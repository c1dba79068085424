"""torchdata's StatefulDataLoader, replaced: after a crash in mid-epoch, training continues at the exact batch."""

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


def train(saved: dict[str, Any] | None = None) -> tuple[list[Any], list[dict[str, Any]]]:
    """Train two epochs; return the batches, and the checkpoint after each."""
    loader = StatefulDataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2)
    if saved is not None:
        loader.load_state_dict(saved)
    seen, checkpoints = [], []
    for epoch in range(0 if saved is None else saved["epoch"], 2):
        for indices, noise in loader:
            seen.append((indices.tolist(), noise.tolist()))
            checkpoints.append({**loader.state_dict(), "epoch": epoch})
    return seen, checkpoints


torch.manual_seed(0)
baseline, checkpoints = train()
torch.manual_seed(1)  # a new process, with a different global seed
after, _ = train(checkpoints[2])
print(f"3 batches before the crash, {len(after)} after it")
print(f"same batches and augmentations: {baseline[3:] == after}")
