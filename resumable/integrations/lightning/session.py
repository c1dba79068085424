"""One call of `Trainer.fit`: follows which batches are in the weights, and puts a resumed run where they are."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resumable import rng
from resumable.cursor import Cursor
from resumable.errors import PromiseWarning, StateMismatchError, StateMismatchWarning, UnsupportedError
from resumable.integrations.lightning import private
from resumable.integrations.lightning.boundary import Boundary, copy_buffers
from resumable.integrations.lightning.handed import Handed
from resumable.integrations.lightning.place import Place, rewind, where_lightning_stands
from resumable.integrations.lightning.ranks import RankState, check_ranks, exchange, replace_own
from resumable.integrations.lightning.saved import Saved
from resumable.integrations.lightning.sources import make_loader, replace_loaders, with_validation_streams
from resumable.integrations.lightning.streams import TrainStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Session"]


class Session:
    """What the callback knows about one call of `fit`.

    Args:
        trainer: the Trainer.
        wrap: whether to wrap train loaders that are no Loaders, or the options for it.
        strict: refuse a checkpoint that does not fit.
    """

    def __init__(self, trainer: Any, wrap: bool | Mapping[str, Any], *, strict: bool) -> None:
        private.check_names(trainer)
        self._trainer, self._wrap, self._strict = trainer, wrap, strict
        self._streams: list[TrainStream] = []
        self._lengths: list[float] = []
        self._handed = Handed()
        self._held: list[Iterable[int]] = []  # trained on, and not in the weights yet
        self._seen = 0  # batches that were trained on
        self._busy = False  # with the next batch or a validation, so that generators and buffers have changed
        self._following = False
        self._alone = False  # the other ranks are not to be asked
        self._boundary: Boundary | None = None
        self._saved: Saved | None = None  # to be resumed from
        self._seek: tuple[int, int] | None = None  # likewise, from a checkpoint without our part
        self._loaded_late = False
        self._known: list[RankState] = []  # what the ranks said last
        private.swap_sources(trainer, self._train_streams, with_validation_streams)

    # ------------------------------------------------------------------ loaders

    def _train_streams(self, tree: Any) -> Any:
        before, self._streams = self._streams, []
        self._handed.clear()
        tree = replace_loaders(tree, self._stream)
        if self._saved is not None or self._seek is not None:
            self._go_to_checkpoint()
        elif before:
            self._keep_counting(before)
        self._lengths = self._count()
        return tree

    def _stream(self, source: Any, name: str) -> TrainStream:
        trainer = self._trainer
        overfit = trainer.overfit_batches > 0
        loader = make_loader(source, name, self._wrap, world_size=trainer.world_size, overfit=overfit)
        number = len(self._streams)
        stream = TrainStream(loader, name, number, self._handed, self._note_fetch, same_epoch=overfit)
        self._streams.append(stream)
        return stream

    def _keep_counting(self, before: list[TrainStream]) -> None:
        """Let loaders that were made anew (`reload_dataloaders_every_n_epochs`) go on with the epoch's number."""
        for old, new in zip(before, self._streams, strict=False):
            if new.loader is not old.loader and new.loader.acknowledged == Cursor() and old.base:
                with suppress(UnsupportedError):  # a source with a state of its own begins where it was made to
                    new.go_to(old.base, 0)

    def _count(self) -> list[float]:
        return [len(stream) if stream.loader.is_sized else float("inf") for stream in self._streams]

    def _note_fetch(self) -> None:
        self._busy = True

    # ------------------------------------------------------------------ loading

    def load(self, values: Mapping[str, Any] | None, checkpoint: dict[str, Any]) -> None:
        """Take the callback's part of a checkpoint, to be resumed from when training begins.

        Raises:
            StateError: it is damaged, or there is none.
        """
        loop = checkpoint["loops"][private.FIT_LOOP]
        loop["state_dict"].pop("combined_loader", None)  # Lightning would load it a second time, and in fewer cases
        if values is not None:
            self._saved = Saved.from_dict(values)
        else:
            self._refuse_foreign(*where_lightning_stands(loop))
        if self._streams:  # they were asked for before the checkpoint was read
            self._loaded_late = True
            self._go_to_checkpoint()

    def _refuse_foreign(self, epoch: int, batch: int) -> None:
        message = (
            "the checkpoint was saved without ResumableCallback, so it does not say which batches are in its weights."
        )
        if self._strict:
            raise StateMismatchError(
                f"{message}\nLightning's counters are at batch {batch} of epoch {epoch}. Use "
                "ResumableCallback(strict=False) to go on there, or start a new run."
            )
        warnings.warn(
            f"{message}\nGone on at batch {batch} of epoch {epoch} because of strict=False.",
            StateMismatchWarning,
            stacklevel=2,
        )
        self._seek = epoch, batch

    def _go_to_checkpoint(self) -> None:
        trainer = self._trainer
        if self._saved is not None:
            self._saved.restore_loaders(self._streams, trainer.global_rank, trainer.world_size, strict=self._strict)
        elif self._seek is not None:
            for stream in self._streams:
                self._go_to_counters(stream, *self._seek)

    def _go_to_counters(self, stream: TrainStream, epoch: int, batch: int) -> None:
        try:
            stream.go_to(epoch, batch)
        except UnsupportedError:
            warnings.warn(
                f"the train loader {stream.name} cannot go to batch {batch} of epoch {epoch} without a state of its "
                "own.\nIt begins where it stands.",
                PromiseWarning,
                stacklevel=2,
            )

    # ------------------------------------------------------------------ training

    def start(self) -> None:
        """Begin to train: at the beginning, or at the checkpoint's place."""
        trainer, saved = self._trainer, self._saved
        check_ranks(trainer.world_size)
        self._seen = private.counters(trainer)[1].total.processed
        if self._loaded_late:
            private.restart_fetching(trainer)
        if saved is None:
            self._place_at_epoch(private.counters(trainer)[0].current.processed)
            return
        saved.warn(trainer.global_rank)
        saved.restore_generators(trainer.global_rank)
        private.note_reload(trainer, saved.reloaded_at)
        private.restore_metrics(trainer, saved.metrics)
        self._set_boundary(saved.place)
        self._busy = False
        if saved.place.stage == "epoch":
            private.begin_epoch_anew(trainer)
            if saved.place.schedulers_due:
                private.finish_epoch(trainer)
            self._place_at_epoch(saved.place.epoch)
        else:
            private.restore_consumed(trainer, [stream.epoch > stream.base for stream in self._streams])
            private.call_at_entry(trainer, self._enter)

    def _enter(self) -> None:
        """Go on in the middle of the checkpoint's epoch."""
        assert self._saved is not None
        saved, self._saved, trainer = self._saved, None, self._trainer
        place = saved.place
        saved.restore_generators(trainer.global_rank)
        self._known = exchange(self._rank_state(in_flight=False), trainer.world_size)
        self._set_boundary(place)
        private.finish_batch(
            trainer,
            is_last=place.is_last,
            pending=place.stage in {"batch", "validated"},
            validated=place.stage == "validated",
        )

    def begin_epoch(self) -> None:
        """Follow a new epoch."""
        trainer, saved = self._trainer, self._saved
        self._saved = self._seek = None
        if saved is not None:
            saved.restore_generators(trainer.global_rank)
        lengths = self._count()
        if lengths != self._lengths:
            self._lengths = lengths
            private.set_lengths(trainer, lengths)
        self._place_at_epoch(private.counters(trainer)[0].current.processed)
        self._known = exchange(self._rank_state(in_flight=False), trainer.world_size)

    def follow(self) -> None:
        """Look which batches were trained on since, and count those that are in the weights."""
        progress = private.counters(self._trainer)[1]
        processed = progress.total.processed
        if self._following or processed == self._seen or self._boundary is None:
            return
        self._following = True
        try:
            self._refuse_reading_ahead()
            self._held += [self._handed.take() for _ in range(processed - self._seen)]
            self._seen = processed
            if self._is_stepped():
                self._settle()
        finally:
            self._following = False

    def _refuse_reading_ahead(self) -> None:
        trainer = self._trainer
        if private.gives_iterator(trainer) and len(self._handed) > 1:
            raise UnsupportedError(
                f"training_step took {len(self._handed)} batches from dataloader_iter for one step.\n"
                "Nobody knows which of them are in the weights, so a resumed run would lose some or repeat them. Take "
                "one batch per step, or let training_step take batch and batch_idx."
            )

    def _is_stepped(self) -> bool:
        trainer = self._trainer
        if trainer.lightning_module.automatic_optimization:
            return not private.is_accumulating(trainer)
        return self._boundary is None or trainer.global_step != self._boundary.steps

    def _settle(self) -> None:
        """Count all batches that were trained on as being in the weights."""
        for loaders in self._held:
            for number in loaders:
                self._streams[number].ack()
        self._held.clear()
        epochs, batches = private.counters(self._trainer)
        last = bool(batches.is_last_batch)
        place = Place("batch", epochs.current.ready - 1, batches.current.processed, self._seen, is_last=last)
        self._set_boundary(place)

    def note_validation(self) -> None:
        """A validation begins, which uses up random numbers."""
        self._busy = True

    def end_validation(self) -> None:
        """A validation came to its end."""
        boundary = self._boundary
        if boundary is not None and boundary.place.stage == "batch" and not self._held:
            self._boundary = replace(
                boundary, place=replace(boundary.place, stage="validated"), generators=rng.capture()
            )
            self._busy = False

    def end_epoch(self) -> None:
        """Let the loaders go to their next epoch, unless the run ends in the middle of this one."""
        self.follow()
        if self._boundary is None or not private.is_over(self._trainer):
            return
        if self._held:
            self._settle()
        self._handed.clear()
        for stream in self._streams:
            stream.end_epoch()
        self._place_at_epoch(private.counters(self._trainer)[0].current.processed, schedulers_due=True)

    def _place_at_epoch(self, epoch: int, *, schedulers_due: bool = False) -> None:
        self._set_boundary(Place("epoch", epoch, 0, self._seen, schedulers_due=schedulers_due))

    def _set_boundary(self, place: Place) -> None:
        trainer = self._trainer
        self._boundary = Boundary(
            place,
            trainer.global_step,
            private.steps_logged(trainer),
            [stream.bookmark() for stream in self._streams],
            buffers=copy_buffers(trainer.lightning_module),
        )
        self._busy = False

    def finish(self) -> None:
        """Give the loaders back as they were."""
        for stream in self._streams:
            stream.loader.set_ack("auto")

    # ------------------------------------------------------------------ saving

    def save_alone(self, save: Callable[[], None]) -> None:
        """Call what saves in the handler of a signal: the other ranks may be anywhere, so nothing is asked of them."""
        self._alone = True
        try:
            save()
        finally:
            self._alone = False

    def save(self, checkpoint: dict[str, Any]) -> dict[str, Any] | None:
        """Return the callback's part of a checkpoint, and write the place of the weights into the rest of it.

        Args:
            checkpoint: the Trainer's; its counters and buffers are set back to those of the place.

        Returns:
            Plain values, or None before training has begun.
        """
        self.follow()
        boundary, trainer = self._boundary, self._trainer
        if boundary is None:
            return None
        alone = self._alone or private.is_interrupted(trainer)
        in_flight = self._busy or private.is_interrupted(trainer)
        own, rank = self._rank_state(in_flight=in_flight), trainer.global_rank
        self._known = replace_own(self._known, own, rank) if alone else exchange(own, trainer.world_size)
        if in_flight:
            weights = checkpoint["state_dict"]
            weights.update({name: value for name, value in boundary.buffers.items() if name in weights})
        place = self._place_now(boundary)
        torn = trainer.global_step != boundary.steps
        rewind(checkpoint, place)
        metrics, reloaded_at = private.metrics(trainer), private.reloaded_at(trainer)
        return Saved(place, torn, self._known, metrics, reloaded_at).as_dict()

    def _place_now(self, boundary: Boundary) -> Place:
        place = boundary.place
        if place.stage in {"batch", "validated"} and private.steps_logged(self._trainer) > boundary.logged:
            return replace(place, stage="ready")
        if place.schedulers_due and not private.at_epoch_end(self._trainer):
            return replace(place, schedulers_due=False)
        return place

    def _rank_state(self, *, in_flight: bool) -> RankState:
        boundary = self._boundary
        assert boundary is not None
        generators = boundary.generators() if in_flight else rng.state_dict()
        return RankState([make() for make in boundary.loaders], generators)
