"""NativeBackend: DALI's iterators as a Loader, by DALI's own checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable.backends.dali.native.passes import Source

__all__ = ["NativeBackend"]


_OPTIONS = (
    "batch_size", "graph", "initial_fill", "iterators", "last_batch_policy", "num_shards", "outputs",
    "pad_last_batch", "pipelines", "random_shuffle", "reader_name", "seed", "seeds", "shard_id", "shuffle_after_epoch",
    "shuffle_after_epoch_seed", "size", "stick_to_shard",
)  # fmt: skip


_HINTS = {
    **dict.fromkeys(_OPTIONS, "Make the DALI pipelines and their iterator as before."),
    "in_turn": "Give in_turn(..., order=...) as before: in another order, a state would stand for other batches.",
}


class NativeBackend:
    """Batches as DALI's iterators give them, in DALI's order; resumed by DALI's checkpoints.

    It goes on where it stands: DALI cannot end an epoch early, so after an epoch that was left in its middle, the next
    one begins with the rest of it, as with DALI alone.

    Args:
        source: one iterator, or several in turn.
        identity: tells this pipeline, its data and its shard from others.
        length: batches per epoch; None where that changes or is unknown.
        needs_shard: with several ranks, the user has to say whether they divide the stream.
        check: called once, before the first batch.
    """

    kind = "dali"

    def __init__(
        self,
        source: Source,
        identity: dict[str, Any],
        length: int | None,
        *,
        needs_shard: bool,
        check: Callable[[], None],
    ) -> None:
        self._source, self._check, self._checked = source, check, False
        self.identity = identity
        self.traits = Traits(
            hints=_HINTS,
            length=length,
            needs_shard=needs_shard,
            snapshot_every=0,  # it costs microseconds
            reads_ahead=True,
            compares_itself=True,  # nothing is drawn ahead of a state
        )

    def ended(self) -> bool:
        """Return whether DALI has no more batches in this epoch: it counts by itself."""
        return self._source.ended()

    def open(self, epoch: int) -> Iterator[Any]:  # noqa: ARG002  # the pipeline counts by itself
        """Go on: with the epoch that comes, or with the rest of one that was left."""
        self._check_once()
        self._source.begin()
        return _Epoch(self._source)

    def snapshot(self) -> dict[str, Any]:
        """Return DALI's checkpoints after the last batch, or of the next epoch's beginning where none is left."""
        return self._source.snapshot()

    def restore(self, epoch: int, snapshot: dict[str, Any]) -> Iterator[Any]:  # noqa: ARG002  # it is in the snapshot
        """Build the pipelines again at a snapshot."""
        self._check_once()
        self._source.restore(snapshot)
        return _Epoch(self._source)

    def _check_once(self) -> None:
        if not self._checked:
            self._checked = True
            self._check()


class _Epoch:
    """The batches of an epoch that are left; at its end it stays there."""

    def __init__(self, source: Source) -> None:
        self._source, self._over = source, False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        try:
            return self._source.draw()
        except StopIteration:
            self._over = True
            raise
