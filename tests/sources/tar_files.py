"""Shards of WebDataset, written for tests, and what webdataset itself reads of them."""

from __future__ import annotations

import functools
import io
import json
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

import resumable
from resumable.samplers import Blocks

if TYPE_CHECKING:
    from collections.abc import Iterable

COUNTS = (24, 5, 19)
Members = list[tuple[str, bytes]]
TYPES = {"folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE}


def write(path: Path, members: Iterable[tuple[str, Any]], form: int = tarfile.PAX_FORMAT) -> Path:
    """Write a tar of members by name: bytes of a file, or "folder" or "link"."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, body in members:
            member = tarfile.TarInfo(name)
            if isinstance(body, bytes):
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
            else:
                member.type, member.linkname = TYPES[body], "elsewhere"
                tar.addfile(member)
    return path


def by_webdataset(path: Path) -> list[dict[str, Any]]:
    """Return the samples as webdataset groups them, undecoded."""
    from webdataset.tariterators import group_by_keys, tar_file_expander  # noqa: PLC0415  # it comes with torch

    with path.open("rb") as stream:
        files = tar_file_expander([{"url": str(path), "stream": stream}])
        return list(group_by_keys(files))


def image_of(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return (np.arange(192).reshape(8, 8, 3) + number).astype(np.uint8)


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image_of(number)).save(file, "PNG")
    return file.getvalue()


def write_images(folder: Path, counts: Iterable[int] = (40, 7, 33), first: int = 0, extra: int = 0) -> list[Path]:
    """Write shards of images with a JSON and a class each; the image and both of them tell the sample's number.

    With `extra`, each sample has so many bytes more.
    """
    paths, number = [], first
    for shard, count in enumerate(counts):
        members: Members = []
        for one in range(number, number + count):
            told = json.dumps({"number": one}).encode()
            bodies = {"png": png(one), "json": told, "cls": b"%d" % one}
            bodies |= {"bin": bytes(extra)} if extra else {}
            members += [(f"img/{one:05}.{kind}", body) for kind, body in bodies.items()]
        paths.append(write(folder / f"train-{shard:03}.tar", members))
        number += count
    return paths


@functools.cache
def kept() -> tuple[tempfile.TemporaryDirectory[str], list[Path]]:
    """Shards that are there as long as this process is."""
    folder = tempfile.TemporaryDirectory()
    return folder, write_images(Path(folder.name), COUNTS)


def tars(**given: Any) -> Any:
    return resumable.Tars(kept()[1], **given)


def number(sample: dict[str, Any]) -> tuple[int, int]:
    assert sample["cls"] == sample["json"]["number"] == int(sample["__key__"][4:])
    return sample["cls"], int(sample["png"].sum())


def alone(**options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(tars(), **{"batch_size": 8, "transform": number, "seed": 3, **options})


def classes(samples: list[dict[str, Any]]) -> list[int]:
    return [sample["cls"] for sample in samples]


def in_an_order(order: str, folder: Path, **given: Any) -> tuple[Any, dict[str, Any]]:
    """Return the shards of a folder, by themselves or in a mixture, and what `wrap` is to get with them."""
    source: Any = resumable.Tars(folder / "train-{000..002}.tar", **given)
    if order == "mix":
        return resumable.mix({"tars": source, "numbers": [{"cls": -index} for index in range(20)]}), {}
    return source, {"sampler": Blocks(source.sizes, block=4, window=12, seed=5)}
