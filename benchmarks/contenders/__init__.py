"""The loaders that are compared, each reading the same `Case`. A library is imported when its contender is created."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["ENTRIES", "OURS", "PEERS", "Check", "Contender", "make"]


class Contender(Protocol):
    """One loader. `start` may be called only once; another pass needs a new contender."""

    def start(self, state: Any = None) -> Iterator[Any]:
        """Return an iterator over the batches of the first epoch, or over the batches after a state."""
        ...

    def state(self) -> Any:
        """Return the state after the last batch."""
        ...

    def state_at(self, step: int) -> Any:
        """Return the state after the first `step` batches, for a contender that was not started yet."""
        ...


class Entry(NamedTuple):
    """The name of a contender in tables, how it is created, and how its library is installed."""

    label: str
    path: str
    options: dict[str, Any]
    install: str = ""


_OURS = "benchmarks.contenders.ours:Ours"
_TORCHDATA = "pip install torchdata"
_GRAIN = "pip install grain"
_PEERS_ENV = "make peers"

ENTRIES = {
    "plain": Entry("torch DataLoader", "benchmarks.contenders.plain:Plain", {}),
    "off": Entry("resumable (off)", _OURS, {"randomness": "off"}),
    "batch": Entry("resumable (batch)", _OURS, {"randomness": "batch"}),
    "sample": Entry("resumable (sample)", _OURS, {"randomness": "sample"}),
    "passed": Entry("resumable (passed)", _OURS, {"randomness": "passed"}),
    "stateful": Entry("torchdata StatefulDataLoader", "benchmarks.contenders.stateful:Stateful", {}, _TORCHDATA),
    "drop-in": Entry("resumable StatefulDataLoader", "benchmarks.contenders.stateful:DropIn", {}, _TORCHDATA),
    "nodes": Entry("torchdata.nodes", "benchmarks.contenders.nodes:Nodes", {}, _TORCHDATA),
    "grain-loader": Entry("Grain DataLoader", "benchmarks.contenders.grain_loader:GrainLoader", {}, _GRAIN),
    "grain-dataset": Entry("Grain Dataset", "benchmarks.contenders.grain_dataset:GrainDataset", {}, _GRAIN),
    "streaming": Entry("MosaicML Streaming", "benchmarks.contenders.streaming_loader:Streaming", {}, _PEERS_ENV),
    "litdata": Entry("LitData", "benchmarks.contenders.lit:Lit", {}, _PEERS_ENV),
    "webdataset": Entry("WebDataset", "benchmarks.contenders.web:Web", {}, _PEERS_ENV),
    "hf": Entry("datasets, by index", "benchmarks.contenders.hugging:Hugging", {"stream": False}, _PEERS_ENV),
    "hf-stream": Entry("datasets, a stream", "benchmarks.contenders.hugging:Hugging", {"stream": True}, _PEERS_ENV),
}
OURS = ("off", "batch", "sample", "passed")
PEERS = (
    *("plain", "drop-in", "stateful", "nodes", "grain-loader", "grain-dataset"),
    *("streaming", "litdata", "webdataset", "hf", "hf-stream"),
)


def make(name: str, case: Case) -> Contender:
    """Create a contender.

    Raises:
        ImportError: its library is not installed.
    """
    entry = ENTRIES[name]
    module, _, kind = entry.path.partition(":")
    return cast("Contender", getattr(importlib.import_module(module), kind)(case, **entry.options))


class Check:
    """A task that only imports a contender's library.

    Args:
        name: of the contender.

    Raises:
        ImportError: it is not installed.
    """

    def __init__(self, name: str) -> None:
        importlib.import_module(ENTRIES[name].path.partition(":")[0])
