"""Writes checkpoints by transformers' Trainer and a distributed strategy of Lightning: `frameworks_run.py FOLDER`."""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

import resumable
from resumable.integrations.lightning import ResumableCallback

SAMPLES = 22


class Words(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.tensor([index, 1, 2]), "labels": index % 2}


class InTrainerState(TrainerCallback, ExportableState):  # type: ignore[misc]
    """The loader's state in `trainer_state.json`, as it is and packed, and in a file beside it."""

    def __init__(self, loader: resumable.Loader[Any]) -> None:
        self.loader = loader

    def state(self) -> dict[str, Any]:
        packed = io.BytesIO()
        torch.save({"loader": self.loader.state_dict()}, packed)
        text = base64.b64encode(packed.getvalue()).decode()
        return {"args": {}, "attributes": {"state": self.loader.state_dict(), "packed": text}}

    def on_save(self, args: Any, state: Any, _: Any, **__: Any) -> None:
        torch.save(self.loader.state_dict(), Path(args.output_dir) / f"checkpoint-{state.global_step}" / "loader.pt")


def write_trainer(folder: Path) -> None:
    small: dict[str, Any] = {"vocab_size": 64, "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 8}
    model = BertForSequenceClassification(BertConfig(**small, num_hidden_layers=1, num_attention_heads=2))
    loader = resumable.wrap(DataLoader(Words(), 4, shuffle=True), seed=3, name="train")
    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "use_cpu": True}
    options = TrainingArguments(str(folder), max_steps=9, save_steps=4, per_device_train_batch_size=4, **quiet)
    trainer = Trainer(model, options, train_dataset=Words(), callbacks=[InTrainerState(loader)])
    trainer.get_train_dataloader = lambda: loader
    trainer.train()


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def configure_model(self) -> None:
        fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]

    def training_step(self, batch: Any, _: int) -> Any:
        return self.layer(batch[0].float().reshape(-1, 1)).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


def write_lightning(path: Path) -> None:
    strategy = lightning.strategies.ModelParallelStrategy(
        data_parallel_size=1, tensor_parallel_size=1, process_group_backend="gloo"
    )
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=1,
        max_steps=9,
        enable_checkpointing=False,
        callbacks=[ResumableCallback()],
        **quiet,
    )
    data = TensorDataset(torch.arange(SAMPLES))
    trainer.fit(Model(), resumable.wrap(DataLoader(data, 4, shuffle=True), seed=3, name="train"))
    trainer.save_checkpoint(path)


if __name__ == "__main__":
    write_trainer(Path(sys.argv[1]) / "trainer")
    write_lightning(Path(sys.argv[1]) / "last.ckpt")
