"""Loops of a user's over the Loader of torchtitan's dataloader while it is read; prints what happened as JSON.

Run in torchtitan's environment.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import resumable
from resumable.errors import LoopError
from resumable.integrations.torchtitan import LoaderConfig


def make(world: resumable.World, **_: Any) -> resumable.Loader[Any]:
    return resumable.wrap(list(range(6)), batch_size=2, shuffle=True, seed=0, world=world)


def build(epochs: int | None) -> Any:
    return LoaderConfig(make=make, epochs=epochs).build(dp_world_size=1, dp_rank=0)


def attempt(loader: Any, into: list[str]) -> None:
    """Try to evaluate by a loop over the Loader."""
    try:
        list(loader)
    except LoopError as error:
        into.append(str(error))


def main() -> None:
    whole = [batch for epoch in make(resumable.World()).epochs(2) for batch in epoch]
    endless, told, trained, passes = build(None), list[str](), list[Any](), list[Any]()
    for batch in endless:
        trained.append(batch)
        attempt(endless.loader, told)
        passes.append(list(endless.loader.for_evaluation()))
        if len(trained) == len(whole):
            break
    ended, at_ends, within = build(2), list[Any](), list[str]()
    for batch in ended:
        at_ends.append(batch)
        passes.append(list(ended.loader.for_evaluation()))
    again, cut = build(2), list[Any]()
    try:
        for batch in again:
            cut.append(batch)
            cut += again.loader  # the rest of the epoch, as a function of a user's own reads it
    except LoopError as error:
        within.append(str(error))
    found = {"whole": whole, "endless": trained, "told": told, "passes": passes, "ended": at_ends, "cut": cut}
    sys.stdout.write("\n" + json.dumps({**found, "within": within}))


if __name__ == "__main__":
    main()
