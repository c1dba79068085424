"""What a Loader tells of itself: where it stands, how much is in the weights, and which stream it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from resumable._fetch import Fetcher
    from resumable._options import Options
    from resumable._order.cursor import Cursor
    from resumable.progress import Progress

__all__ = ["TellsPlace"]


class TellsPlace:
    """Read-only attributes of a Loader's place and stream."""

    progress: Progress
    _fetcher: Fetcher
    _options: Options

    @property
    def global_step(self) -> int:
        """Global batches in the weights, over all epochs: those that `acknowledged` is after. The checkpoint's number.

        It only grows, whatever the batch size, the ranks or the lengths of the epochs become, and whether epochs are
        left early or gone to by `seek`. `load_state_dict` sets it to the state's.
        """
        return self.progress.counted[0]

    @property
    def samples_seen(self) -> int:
        """Samples in the weights, over all epochs and ranks; counted as `global_step` is. Elements, in a stream."""
        return self.progress.counted[1]

    @property
    def cursor(self) -> Cursor:
        """How far the loader is: after the last batch that was delivered."""
        return self.progress.delivered

    @property
    def acknowledged(self) -> Cursor:
        """How far a state that is taken now would be: the cursor, or with `ack="manual"` what `ack()` confirmed.

        Where an exception came up after the last batch was delivered, that batch is not counted.
        """
        return self.progress.acknowledged

    @property
    def ack_mode(self) -> Literal["auto", "manual"]:
        """Who acknowledges: the loader itself, or `ack()`."""
        return self.progress.ack_mode

    @property
    def global_batch_size(self) -> int:
        """Samples per step over all ranks, `G`."""
        return self.progress.global_batch

    @property
    def accumulation(self) -> int | None:
        """How many steps make one of the run's first global batches, after a resize with `on_change="keep_local"`.

        Accumulate the gradients of so many: then the optimizer steps as before. 1 where the global batch has not
        changed; None where no whole number of steps makes one.
        """
        first, now = self.progress.first_global_batch, self.global_batch_size
        return None if first % now else first // now

    @property
    def seed(self) -> int:
        """The seed of order and randomness: the one given, found, or brought along by a state."""
        return self._options.seed or 0

    @property
    def name(self) -> str:
        """What sets this stream apart from others of its seed; empty where nothing does."""
        return self._options.name or ""

    @property
    def shuffles(self) -> bool:
        """Whether the order depends on `seed` and `name`."""
        return self._fetcher.unit == "sample" and "sampler.seed" in self._fetcher.fingerprint()

    @property
    def evaluation(self) -> bool:
        """Whether each loop begins at the first batch of epoch 0 (`wrap(..., evaluation=True)`)."""
        return self._options.evaluation
