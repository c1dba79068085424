"""Three small files of tokens that represent a corpus: documents with their lengths, and two long texts."""

from __future__ import annotations

import numpy as np

__all__ = ["VOCABULARY", "write"]

VOCABULARY = 128


def write(folder: str) -> None:
    """Write `web.bin` with `lengths.npy` of its documents, `code.bin` and `book.bin`, in nanoGPT's format."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 120, 300)
    np.save(f"{folder}/lengths.npy", lengths)
    for name, count, skew in (("web", lengths.sum(), 1.3), ("code", 9_000, 1.6), ("book", 4_000, 2.0)):
        (rng.zipf(skew, count) % VOCABULARY).astype(np.uint16).tofile(f"{folder}/{name}.bin")
