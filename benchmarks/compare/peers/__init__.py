"""The job with each library."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from benchmarks.compare.job import Job

__all__ = ["PEERS", "Peer", "job_of"]


class Peer(NamedTuple):
    """A library with its script.

    Args:
        label: its name in tables.
        script: the class in a module of this package.
        packages: what pip installs.
        streams: whether it takes an `IterableDataset`.
        workers: with how many it runs.
    """

    label: str
    script: str
    packages: tuple[str, ...]
    streams: bool = False
    workers: tuple[int, ...] = (2, 0)


PEERS = {
    "wrap": Peer("`resumable.wrap`", "ours:Wrapped", ("torch",), streams=True),
    "drop-in": Peer("`resumable.torch`", "ours:DropIn", ("torch",), streams=True),
    "plain": Peer("`DataLoader`", "plain:Plain", ("torch",), streams=True),
    "stateful": Peer("torchdata `StatefulDataLoader`", "stateful:Stateful", ("torch", "torchdata"), streams=True),
    "grain": Peer("Grain", "grained:Grained", ("grain",)),
    "streaming": Peer("MosaicML Streaming", "mosaic:Mosaic", ("torch", "mosaicml-streaming")),
    "litdata": Peer("LitData", "lit:Lit", ("torch", "litdata")),
    "webdataset": Peer("WebDataset", "web:Web", ("torch", "webdataset")),
    "datasets": Peer("`datasets`, a stream", "hugging:Hugging", ("torch", "torchdata", "datasets")),
    "accelerate": Peer("Accelerate", "accelerated:Accelerated", ("torch", "accelerate")),
    "lancedb": Peer("LanceDB", "lance:Lance", ("torch", "lancedb")),
}


def job_of(name: str) -> type[Job]:
    """Return the script of a library.

    Raises:
        ImportError: the library is not installed.
    """
    module, _, kind = PEERS[name].script.partition(":")
    return cast("type[Job]", getattr(importlib.import_module(f"benchmarks.compare.peers.{module}"), kind))
