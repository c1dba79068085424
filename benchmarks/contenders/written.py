"""For libraries that read their own file formats: the samples are written once, to a temporary folder."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.case import Case

__all__ = ["again", "busy", "length_of", "sample", "tars", "written"]

_BYTES = 256 * 2**20
_MOST = 100_000
_SHARDS = 8


def length_of(case: Case) -> int:
    """Return how many samples are written: 100,000, or 256 MB of them."""
    return max(min(_MOST, case.length, _BYTES // max(case.size, 1)) // case.batch, 2) * case.batch


def sample(number: int, case: Case) -> Any:
    """Return the sample at an index: the number, or a tensor full of it."""
    return torch.full((case.size // 4,), float(number)) if case.size else number


def busy(cost: int) -> None:
    """Wait for some microseconds."""
    end = time.perf_counter() + cost * 1e-6
    while time.perf_counter() < end:
        pass


def written(kind: str, case: Case, write: Callable[[str], None]) -> str:
    """Return the folder with the files of a case, which are written if they do not exist."""
    name = f"resumable-benchmark-{kind}-{length_of(case)}-{case.size}-{os.getuid()}"
    path = Path(tempfile.gettempdir(), name)
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        shutil.rmtree(unfinished, ignore_errors=True)
        write(str(unfinished))
        unfinished.rename(path)
    return str(path)


def tars(case: Case) -> list[str]:
    """Return the paths of tar files for WebDataset."""

    def write(folder: str) -> None:
        Path(folder).mkdir()
        for shard in range(_SHARDS):
            with tarfile.open(Path(folder, f"{shard}.tar"), "w") as tar:
                for number in range(shard, length_of(case), _SHARDS):
                    _add(tar, number, case)

    folder = written("tars", case, write)
    return [str(path) for path in sorted(Path(folder).glob("*.tar"))]


def _add(tar: tarfile.TarFile, number: int, case: Case) -> None:
    value = sample(number, case)
    data = value.numpy().tobytes() if case.size else str(value).encode()
    member = tarfile.TarInfo(f"{number:08}.{'bin' if case.size else 'cls'}")
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def again(loader: Any) -> Iterator[Any]:
    """Yield the batches of a loader, pass after pass: the files may have fewer samples than a measurement reads."""
    while True:
        yield from loader
