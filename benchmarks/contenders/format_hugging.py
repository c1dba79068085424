"""A stream of Hugging Face's datasets over the same Parquet files, with a shuffle buffer."""

from __future__ import annotations

from pathlib import Path

from datasets import load_dataset

from benchmarks.contenders.format_states import Stateful

__all__ = ["Hugging"]


class Hugging(Stateful):
    """Files in random order, with a shuffle buffer of 1000, which is not part of the state.

    Args:
        folder: of the files.
        kind: "rows".
        samples: their number, which the stream does not know.
    """

    def __init__(self, folder: str, kind: str, samples: int) -> None:
        files = sorted(map(str, (Path(folder) / kind).glob("*.parquet")))
        stream = load_dataset("parquet", data_files=files, split="train", streaming=True)
        super().__init__(stream.shuffle(seed=0, buffer_size=1000), samples, batched=False)
