"""A Hugging Face stream of Parquet files in two workers, resumed exactly: python examples/hugging_face_files.py."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import datasets
from torch.utils.data import DataLoader

import resumable

BATCH, EPOCHS = 4, 2
datasets.disable_progress_bars()


def write(folder: Path) -> list[str]:
    """Write five files of six rows each."""
    names = [str(folder / f"{number}.parquet") for number in range(5)]
    for number, name in enumerate(names):
        datasets.Dataset.from_dict({"sample": [10 * number + row for row in range(6)]}).to_parquet(name)
    return names


def make(names: list[str], cache: str) -> resumable.Loader[Any]:
    """Stream the files, in a different order in each epoch, and drop some rows."""
    stream = datasets.load_dataset("parquet", data_files=names, streaming=True, split="train", cache_dir=cache)
    stream = stream.filter(lambda row: row["sample"] % 3 != 0).with_format("torch")
    return resumable.wrap(DataLoader(stream, batch_size=BATCH, num_workers=2))


with tempfile.TemporaryDirectory() as folder:
    files = write(Path(folder))
    loader = make(files, folder)
    whole, states = [], []
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            whole.append(batch["sample"].tolist())
            states.append(loader.state_dict())

    for step in (1, 4, 7):
        resumed = make(files, folder)
        resumed.load_state_dict(states[step - 1])
        rest = [batch["sample"].tolist() for epoch in resumed.epochs(EPOCHS) for batch in epoch]
        assert rest == whole[step:], step
print(f"{len(whole)} batches; resumed after the 1st, 4th and 7th, the rest was the same.")
