"""Make any training data loader resume, after any crash, at the exact batch it crashed on.

    import resumable

    loader = resumable.wrap(DataLoader(dataset, batch_size=64, shuffle=True), seed=0)
    for epoch in loader.epochs(10):
        for batch in epoch:
            ...
            saved = loader.state_dict()

`wrap` is the main function. The documentation describes what it can wrap under "Concepts".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable import errors, failpoints
from resumable._distribution import warn_of_other_project as _warn_of_other_project
from resumable._version import __version__

if TYPE_CHECKING:
    from resumable import chaos as chaos  # visible to type checkers, but not in `import *`
    from resumable import flight as flight  # the same
    from resumable import rng, samplers
    from resumable import torch as torch  # the same
    from resumable._adopt import Adoption, adopt
    from resumable._inspect import diff as diff  # the same; `import *` would hide the standard library's `inspect`
    from resumable._inspect import inspect as inspect
    from resumable._inspect import samples as samples
    from resumable._options import Options
    from resumable._order.cursor import Cursor
    from resumable._order.world import World
    from resumable._randomness.passed import SampleRNG
    from resumable._selfcheck import CheckReport, check
    from resumable._selfcheck.doctor import doctor
    from resumable._selfcheck.verify import verify
    from resumable._stats import LoaderStats
    from resumable.backends.torch.sampler import ResumableSampler
    from resumable.checkpoint import CheckpointStore
    from resumable.distributed.preemption import preemption
    from resumable.errors import ResumableError
    from resumable.loader.iterators import Epoch
    from resumable.loader.loader import Loader
    from resumable.loader.registry import register
    from resumable.loader.wrap import wrap
    from resumable.protocols import IndexedBackend, ReplayBackend, Request, SnapshotBackend, Traits
    from resumable.sources import Packed, Parquet, Tars, Tokens, mix

__all__ = [
    "Adoption",
    "CheckReport",
    "CheckpointStore",
    "Cursor",
    "Epoch",
    "IndexedBackend",
    "Loader",
    "LoaderStats",
    "Options",
    "Packed",
    "Parquet",
    "ReplayBackend",
    "Request",
    "ResumableError",
    "ResumableSampler",
    "SampleRNG",
    "SnapshotBackend",
    "Tars",
    "Tokens",
    "Traits",
    "World",
    "__version__",
    "adopt",
    "check",
    "doctor",
    "errors",
    "mix",
    "preemption",
    "register",
    "rng",
    "samplers",
    "sources",
    "verify",
    "wrap",
]

_LAZY = {  # every name, which keeps the command line fast
    **dict.fromkeys(("IndexedBackend", "ReplayBackend", "Request", "SnapshotBackend", "Traits"), "resumable.protocols"),
    "Cursor": "resumable._order.cursor",
    "Epoch": "resumable.loader.iterators",
    "Loader": "resumable.loader.loader",
    "LoaderStats": "resumable._stats",
    "Options": "resumable._options",
    "ResumableError": "resumable.errors",
    "SampleRNG": "resumable._randomness.passed",
    "World": "resumable._order.world",
    "register": "resumable.loader.registry",
    "rng": "resumable.rng",
    "samplers": "resumable.samplers",
    "wrap": "resumable.loader.wrap",
    "Adoption": "resumable._adopt",  # imports torch
    "adopt": "resumable._adopt",
    "chaos": "resumable.chaos",  # training does not need it
    "flight": "resumable.flight",  # for use after a crash
    "diff": "resumable._inspect",  # for questions about checkpoints
    "inspect": "resumable._inspect",
    "samples": "resumable._inspect",
    "CheckReport": "resumable._selfcheck",  # for tests before training
    "check": "resumable._selfcheck",
    "doctor": "resumable._selfcheck.doctor",
    "verify": "resumable._selfcheck.verify",
    "CheckpointStore": "resumable.checkpoint",  # imports file systems
    "mix": "resumable.sources",
    "Packed": "resumable.sources",
    "Parquet": "resumable.sources",
    "Tars": "resumable.sources",
    "Tokens": "resumable.sources",
    "preemption": "resumable.distributed.preemption",
    "sources": "resumable.sources",
    "torch": "resumable.torch",  # imports torch
    "ResumableSampler": "resumable.backends.torch.sampler",  # imports torch: it is a torch Sampler
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415  # only on this path

    module = importlib.import_module(_LAZY[name])
    found = globals()[name] = module if _LAZY[name] == f"{__name__}.{name}" else getattr(module, name)
    return found


_warn_of_other_project()
failpoints.activate()
