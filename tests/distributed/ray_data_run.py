"""What Ray Data gives is wrapped, or refused: prints the names, the batches, the warnings and errors as JSON."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import ray
from ray import data

import resumable
from resumable import World
from resumable.errors import UnsupportedError


def wrapped(source: Any, **options: Any) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            loader = resumable.wrap(source, tail="drop", **options)
        except UnsupportedError as error:
            return {"refused": str(error)}
    told = [str(one.message) for one in warned if issubclass(one.category, resumable.errors.PromiseWarning)]
    return {"name": loader.state_dict()["backend"]["source"], "warned": told}


def main() -> None:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    dataset = data.range(12)
    batches = dataset.iter_torch_batches(batch_size=3)
    loader, fresh = resumable.wrap(batches, tail="drop"), resumable.wrap(batches, tail="drop")
    for _ in loader.steps(2):
        pass
    fresh.load_state_dict(loader.state_dict())
    found = {
        "rest": [[one["id"].tolist() for one in rest] for rest in (loader, fresh)],
        "alone": wrapped(batches),
        "named": wrapped(batches, identity="numbers"),
        "ranks": wrapped(batches, world=World(0, 2)),
        "shards": wrapped(batches, world=World(0, 2), shard=False),
        "dataset": wrapped(dataset),
        "iterator": wrapped(dataset.iterator()),
    }
    ray.shutdown()
    sys.stdout.write("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
