"""Make any training data loader resume, after any crash, at the exact batch it crashed on.

    import resumable

    loader = resumable.wrap(DataLoader(dataset, batch_size=64, shuffle=True), seed=0)
    for epoch in loader.epochs(10):
        for batch in epoch:
            ...
            saved = loader.state_dict()

`wrap` is the front door; what it opens to is described in the documentation under "Concepts".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable import errors, failpoints, rng, samplers
from resumable._options import Options
from resumable._order.cursor import Cursor
from resumable._order.world import World
from resumable._stats import LoaderStats
from resumable._version import __version__
from resumable.errors import ResumableError
from resumable.loader.iterators import Epoch
from resumable.loader.loader import Loader
from resumable.loader.registry import register
from resumable.loader.wrap import wrap
from resumable.protocols import IndexedBackend, ReplayBackend, Request, SnapshotBackend, Traits

if TYPE_CHECKING:
    from resumable import chaos as chaos  # known to type checkers, and not in `import *`
    from resumable import flight as flight  # likewise
    from resumable import torch as torch  # likewise
    from resumable._adopt import Adoption, adopt
    from resumable._inspect import diff as diff  # likewise; `import *` would hide the standard library's `inspect`
    from resumable._inspect import inspect as inspect
    from resumable._inspect import samples as samples
    from resumable._selfcheck import CheckReport, check
    from resumable._selfcheck.doctor import doctor
    from resumable._selfcheck.verify import verify
    from resumable.backends.torch.sampler import ResumableSampler
    from resumable.checkpoint import CheckpointStore
    from resumable.distributed.preemption import preemption
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

_LAZY = {
    "Adoption": "resumable._adopt",  # torch comes with it
    "adopt": "resumable._adopt",  # the same
    "chaos": "resumable.chaos",  # training does without it
    "flight": "resumable.flight",  # for after a crash
    "diff": "resumable._inspect",  # for questions about checkpoints
    "inspect": "resumable._inspect",  # the same
    "samples": "resumable._inspect",  # the same
    "CheckReport": "resumable._selfcheck",  # for a look at a script, before training
    "check": "resumable._selfcheck",  # the same
    "doctor": "resumable._selfcheck.doctor",  # the same
    "verify": "resumable._selfcheck.verify",  # the same
    "CheckpointStore": "resumable.checkpoint",  # its file systems are imported with it
    "mix": "resumable.sources",  # for those who mix
    "Packed": "resumable.sources",  # for those who train on tokens
    "Parquet": "resumable.sources",  # for those who read Parquet
    "Tars": "resumable.sources",  # for those who train on WebDataset
    "Tokens": "resumable.sources",  # for those who train on tokens
    "preemption": "resumable.distributed.preemption",  # for jobs that are ended from outside
    "sources": "resumable.sources",  # for those who read one
    "torch": "resumable.torch",  # PyTorch is imported with it
    "ResumableSampler": "resumable.backends.torch.sampler",  # a torch Sampler, so torch comes with it
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415  # only on this path

    module = importlib.import_module(_LAZY[name])
    return module if _LAZY[name] == f"{__name__}.{name}" else getattr(module, name)


failpoints.activate()
