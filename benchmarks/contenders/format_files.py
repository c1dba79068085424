"""Files in common training formats, written on the spot: tar shards, Parquet, and documents of tokens."""

from __future__ import annotations

import io
import json
import tarfile
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = [
    "BATCH",
    "LENGTH",
    "documents",
    "grouped",
    "windows",
    "write_images",
    "write_rows",
    "write_tars",
    "write_tokens",
]

LENGTH = 256  # tokens per window
BATCH = 64
_SHARDS = 8


def write_tars(folder: Path, samples: int) -> None:
    """Write shards with a text of 1 kB and a class per sample."""
    rng = np.random.default_rng(0)
    body = rng.integers(97, 123, 1 << 20).astype(np.uint8).tobytes()
    texts = (body[(at := number * 37 % (len(body) - 1000)) : at + 1000] for number in range(samples))
    _write_shards(folder, ({"txt": text, "cls": str(number).encode()} for number, text in enumerate(texts)), samples)


def write_images(folder: Path, images: int) -> None:
    """Write shards with a JPEG of 224 x 224 pixels and JSON per sample."""
    from PIL import Image  # noqa: PLC0415  # for this format only

    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(16):
        data, coarse = io.BytesIO(), rng.integers(0, 256, (14, 14, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((224, 224)).save(data, "JPEG")
        drawn.append(data.getvalue())
    notes = (json.dumps({"number": number}).encode() for number in range(images))
    _write_shards(folder, ({"jpg": drawn[number % 16], "json": note} for number, note in enumerate(notes)), images)


def _write_shards(folder: Path, samples: Iterator[dict[str, bytes]], count: int) -> None:
    folder.mkdir()
    each = -(-count // _SHARDS)
    for shard in range(_SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(shard * each, min(shard * each + each, count)):
                for extension, data in next(samples).items():
                    member = tarfile.TarInfo(f"{number:08}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def write_rows(folder: Path, rows: int) -> None:
    """Write Parquet files with a number, a text of 72 characters, and 64 tokens per row."""
    import pyarrow as pa  # noqa: PLC0415  # for this format only
    import pyarrow.parquet as pq  # noqa: PLC0415  # the same

    folder.mkdir()
    each = -(-rows // _SHARDS)
    for part in range(_SHARDS):
        numbers = range(part * each, min(part * each + each, rows))
        tokens = np.arange(64 * len(numbers), dtype=np.int32).reshape(-1, 64) % 50_000
        columns = {"id": list(numbers), "text": [f"{number:072}" for number in numbers], "tokens": list(tokens)}
        pq.write_table(pa.table(columns), folder / f"{part}.parquet", row_group_size=max(rows // 200, 100))


def documents(count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return lengths of documents, lognormal from 16 to 4096 with a mean of 600, as 32-bit integers."""
    drawn = np.random.default_rng(0).lognormal(6.0, 0.9, count)
    return drawn.clip(16, 4096).astype(np.int32)


def write_tokens(folder: Path, count: int) -> None:
    """Write documents in Megatron's format: tokens, and the index of their lengths."""
    folder.mkdir()
    lengths = documents(count)
    total = int(lengths.sum())
    np.random.default_rng(1).integers(1, 50_000, total).astype(np.uint16).tofile(folder / "tokens.bin")
    begins = (np.cumsum(lengths, dtype=np.int64) - lengths) * 2
    with (folder / "tokens.idx").open("wb") as index:
        index.write(b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([8]))
        index.write(count.to_bytes(8, "little") + (count + 1).to_bytes(8, "little"))
        index.write(lengths.tobytes() + begins.tobytes() + np.arange(count + 1, dtype=np.int64).tobytes())


def windows(folder: Path) -> Iterator[np.ndarray[tuple[int], np.dtype[np.uint16]]]:
    """Yield the tokens in windows of `LENGTH + 1`, for libraries that write their own files."""
    tokens = np.memmap(folder / "tokens.bin", np.uint16, "r")
    for first in range(0, len(tokens) - LENGTH, LENGTH):
        yield tokens[first : first + LENGTH + 1]


def grouped(samples: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield samples in batches, as lists."""
    rest = iter(samples)
    while batch := list(islice(rest, BATCH)):
        yield batch
