"""What the ranks have to have in common when a stream opens, and which of them have to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from resumable._order.world import World
from resumable._ranks import Group
from resumable._ranks.store import is_initialized

if TYPE_CHECKING:
    from resumable._data import DataFingerprint
    from resumable._fetch import Fetcher
    from resumable._options import Options
    from resumable._ranks import Watch
    from resumable._state import Mark

__all__ = ["compares", "fingerprint_of_rank"]


def compares(watch: Watch, options: Options) -> bool:
    """Turn the watch of a loader on, where there are ranks to compare with, and return whether it is."""
    if not options.compares_ranks or not is_initialized():
        watch.turn_off()
        return False
    distributed: Any = sys.modules["torch.distributed"]
    given, world = options.world, options.find_world()
    if isinstance(given, World) and given.size != distributed.get_world_size():
        watch.turn_off()  # which of the ranks divide these data among them is not known
        return False
    watch.turn_on(distributed.get_rank(), world, given.peers() if isinstance(given, Group) else None)
    return watch.is_on


def fingerprint_of_rank(
    fetcher: Fetcher, options: Options, mark: Mark, global_batch: int, noted: DataFingerprint
) -> dict[str, Any]:
    """Return what the ranks have to have in common, that first which explains most of the rest.

    Ranks with streams of their own (`shard=False`) have the place in common: their data and options may differ. Where
    an integration lets ranks catch up, as the Lightning callback does after an error, the place is not compared.
    """
    cursor = mark.cursor
    step = f"epoch {cursor.epoch}, step {cursor.step}"
    place = {"place": f"{step}, after {cursor.position} samples"} if options.ranks.together else {}
    if options.shard is False:
        return {"place": step} if place else {}
    own = fetcher.fingerprint()
    of_data = {name: own.pop(name) for name in list(own) if name.startswith("backend.")}
    of_order = {name: value for name, value in own.items() if name not in {"rank", "randomness.seed"}}
    return {
        **of_data,
        "length": fetcher.traits.length,
        "samples": noted.of_rank(),
        "batch_size": options.batch_size,
        "randomness.seed": own["randomness.seed"],
        **of_order,
        "global_batch": global_batch,
        **place,
    }
