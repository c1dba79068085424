"""Whether ranks can divide a stream among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable._order.plan import check_share
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from resumable._options import Options
    from resumable._order.plan import Tail
    from resumable._order.world import World
    from resumable.protocols import Capabilities

__all__ = ["check_divided"]


def check_divided(global_batch: int, world: World, tail: Tail, options: Options, can: Capabilities) -> None:
    """Refuse a stream that these ranks cannot divide among them.

    Raises:
        ConfigurationError: who divides it is not known; or the ranks could end with different numbers of batches.
        UnevenBatchError: some rank would get no element.
    """
    if world.size > 1 and options.shard is None and can.needs_shard:
        raise ConfigurationError(
            f"with {world.size} ranks, the source does not say whether it gives each rank the whole stream or its "
            "own part.\nBatches would be lost or repeated by a wrong guess. Give wrap(..., shard=True) if every "
            "rank's source gives the same and the ranks are to divide it, or shard=False if the source or its "
            "sampler looks at the rank itself."
        )
    check_share(global_batch, world)
    if tail == "partial" and world.size > 1:
        raise ConfigurationError(
            f'with tail="partial", {world.size} ranks could end with different numbers of batches: '
            'this source has no length.\nThe ranks would wait for each other. Use tail="drop".'
        )
