"""Lightning's strategy says which ranks divide the data: those that have a whole model together."""

from __future__ import annotations

import os
from typing import Any

import lightning
import pytest
import torch
from forked import ranks
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.utils.data import DataLoader, TensorDataset

import resumable
from resumable.integrations.lightning import ResumableCallback


class Module(lightning.LightningModule):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def configure_model(self) -> None:
        """Leave the model as it is."""

    def training_step(self, batch: Any) -> Any:
        self.seen.append([int(number) for number in batch[0]])
        return self.layer(batch[0]).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def parallel_run(rank: int, _size: int, *, wrapped: bool) -> Any:
    loader: Any = DataLoader(TensorDataset(torch.arange(24.0)[:, None]), batch_size=2, shuffle=True)
    if wrapped:
        loader = resumable.wrap(loader, seed=1)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=4,
        max_epochs=1,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2),
        callbacks=[ResumableCallback(wrap={"seed": 1})],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    assert trainer.global_rank == rank
    return module.seen


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [True, pytest.param(False, marks=pytest.mark.long)])
def test_ranks_of_one_model_read_the_same(*, wrapped: bool) -> None:
    def run(rank: int, size: int) -> Any:
        os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0"}
        os.environ |= {"LOCAL_WORLD_SIZE": str(size)}
        return parallel_run(rank, size, wrapped=wrapped)

    results = ranks(4, run, group=False)
    assert all(isinstance(result, list) for result in results), results
    assert results[0] == results[1]
    assert results[2] == results[3]
    together = [first + second for first, second in zip(results[0], results[2], strict=True)]
    assert sorted(number for batch in together for number in batch) == list(range(24))
    assert len(together) == 6
