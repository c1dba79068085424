"""Megatron's own GPTDataset over the same documents, in one epoch: its indices are built, then memory-mapped."""

from __future__ import annotations

import shutil
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about optional packages
    from megatron.core.datasets import gpt_dataset, helpers
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

from benchmarks.contenders.format_files import BATCH, LENGTH, documents, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Built", "Megatron"]


class _Tokenizer:
    eod, pad, vocab_size, unique_identifiers = 0, 0, 50_000, "none"


class Megatron:
    """Samples in the order of its index; a position is a number.

    Args:
        folder: of the files.
        kind: "documents".
    """

    def __init__(self, folder: str, kind: str) -> None:
        prefix = str(Path(folder) / kind / "tokens")
        config = GPTDatasetConfig(
            random_seed=0,
            sequence_length=LENGTH,
            blend=([prefix], None),
            split="1,0,0",
            path_to_cache=f"{prefix}-cache",
            tokenizer=_Tokenizer(),
            reset_position_ids=True,
            reset_attention_mask=False,
            eod_mask_loss=True,
            create_attention_mask=False,
        )
        indexed = IndexedDataset(prefix)
        whole = np.arange(len(indexed), dtype=np.int32)
        self._dataset = GPTDataset(indexed, prefix, whole, None, Split.train, config)

    def __len__(self) -> int:
        return len(self._dataset)

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch, or continue at a sample."""
        return grouped(map(self._dataset.__getitem__, range(state or 0, len(self))))

    def state_at(self, step: int) -> Any:
        """Return the number of samples before the step."""
        return step * BATCH


class Built:
    """Builds Megatron's indices before the first sample of a run, from the lengths of documents alone.

    Args:
        folder: where the indices are written.
        count: number of documents.
        epochs: of the run.
    """

    def __init__(self, folder: str, count: int, epochs: int) -> None:
        self._folder, self._epochs = Path(folder, "built"), epochs
        self._lengths = documents(count)

    def build(self) -> float:
        """Return the processor seconds of building and writing the indices of all epochs."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        begin, drawn = time.process_time(), np.random.RandomState(0)
        whole, tokens = np.arange(len(self._lengths), dtype=np.int32), int(self._lengths.sum())
        order = gpt_dataset._build_document_index(whole, self._epochs, drawn, separate_final_epoch=False)  # noqa: SLF001  # no other name
        samples = helpers.build_sample_idx(self._lengths, order, LENGTH, self._epochs, tokens)
        shuffled = gpt_dataset._build_shuffle_index(len(samples) - 1, len(samples) - 1, drawn)  # noqa: SLF001  # the same
        for name, index in (("documents", order), ("samples", samples), ("shuffle", shuffled)):
            np.save(self._folder / name, index)
        return time.process_time() - begin

    def size(self) -> int:
        """Return the size of the files that were written last."""
        return sum(path.stat().st_size for path in self._folder.iterdir())
