"""Loaders that the callback wraps anew, in each epoch or in the next `fit`: no order comes twice."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from pytorch_lightning.strategies import SingleDeviceStrategy
from sources import MAKERS, Samples
from torch.utils.data import DataLoader
from trainer_runs import Model, SaveAlways, check_rest, fit, ids, make_trainer

from resumable.errors import LoopError
from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WRAP: dict[str, Any] = {"seed": 3}


def plain() -> DataLoader[Any]:
    return DataLoader(Samples(10, 0), batch_size=2, shuffle=True)


class MakesOne(Model):
    """A module that makes its loader."""

    def train_dataloader(self) -> DataLoader[Any]:
        return plain()


def batches(model: Model) -> list[Any]:
    return [event[4] for event in model.events if event[0] == "train"]


@pytest.mark.parametrize("every", [1, 2])
def test_loaders_that_are_made_again_are_no_twins(every: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither by their order, nor by what is logged; in a resumed run, too."""
    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": every, "max_epochs": 4}
    saver = SaveAlways(tmp_path)
    once = fit(Model(), plain(), resume=ResumableCallback(wrap=WRAP), max_epochs=4)
    with caplog.at_level(logging.WARNING, "resumable"):
        whole = fit(MakesOne(), None, callbacks=[saver], resume=ResumableCallback(wrap=WRAP), **options)
        for trained in (5, 8, 13):
            resume = ResumableCallback(wrap=WRAP)
            rest = fit(MakesOne(), None, checkpoint=saver.saved[trained], resume=resume, **options)
            check_rest(whole, rest, trained=trained, begins="train" if trained % 5 else "epoch end")
    assert not [one for one in caplog.records if one.name == "resumable"]
    assert whole.events == once.events, "as of one loader"


def test_another_fit_continues_the_epochs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another fit of the same trainer continues with the number of the epoch."""
    once, parts = MakesOne(), MakesOne()
    trainers = [make_trainer([ResumableCallback(wrap=WRAP)], max_epochs=epochs) for epochs in (4, 2)]
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "resumable"):
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning|torch")
        trainers[0].fit(once)
        trainers[1].fit(parts)
        trainers[1].fit_loop.max_epochs = 4
        trainers[1].fit(parts)
    assert batches(parts) == batches(once)
    assert len(batches(once)) == 20
    assert not [one for one in caplog.records if one.name == "resumable"]


def test_the_same_loader_may_be_returned_in_each_epoch() -> None:
    whole, own = fit(Model(), MAKERS["indexed"]()), MAKERS["indexed"]()

    class Returns(Model):
        def train_dataloader(self) -> Any:
            return own

    again = fit(Returns(), None, reload_dataloaders_every_n_epochs=1)
    assert again.events == whole.events
    assert (own.driver, own.ack_mode, own.epoch) == ("", "auto", 3)
    assert len(list(own)) == 5


def test_an_iterator_of_a_loader_that_was_replaced_gets_no_batch() -> None:
    early: list[Any] = []

    class Keeps(MakesOne):
        def on_train_batch_end(self, *_: Any) -> None:
            held: Any = self.trainer.train_dataloader
            early.append(iter(held))
            for one in early:
                with pytest.raises(LoopError, match="Lightning's Trainer"):
                    next(one)

    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 1, "max_epochs": 3}
    whole = fit(MakesOne(), None, resume=ResumableCallback(wrap=WRAP), **options)
    assert fit(Keeps(), None, resume=ResumableCallback(wrap=WRAP), **options).events == whole.events
    assert len(early) == 15


# ---------------------------------------------------------------------- a strategy's own loader around ours


class Around:
    """What some strategies put around each loader."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


class Puts(SingleDeviceStrategy):
    def process_dataloader(self, dataloader: object) -> Any:
        return Around(dataloader)


class Reads(Around):
    """Reads in its own iterator."""

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader


class PutsAReader(SingleDeviceStrategy):
    def process_dataloader(self, dataloader: object) -> Any:
        return Reads(dataloader)


@pytest.mark.parametrize("strategy", [Puts, PutsAReader])
@pytest.mark.parametrize("kind", ["indexed", "sized replay"])
def test_a_strategy_may_put_its_own_loader_around(kind: str, strategy: Any) -> None:
    whole = fit(Model(), MAKERS[kind]())
    assert fit(Model(), MAKERS[kind](), strategy=strategy()).events == whole.events


def test_loop_after_the_fit() -> None:
    """After the fit, a loop over the trainer's loader is one over the Loader.

    An iterator that was made before, and not read, gets none.
    """
    early: list[Any] = []

    class MakesAnIterator(Model):
        def on_train_batch_end(self, *_: Any) -> None:
            held: Any = self.trainer.train_dataloader
            early.append(iter(held))

    loader, whole = MAKERS["indexed"](), [ids(batch) for epoch in MAKERS["indexed"]().epochs(2) for batch in epoch]
    trainer = make_trainer([ResumableCallback()], max_steps=3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning|torch")
        trainer.fit(MakesAnIterator(), loader)
    with pytest.raises(LoopError, match="Lightning's Trainer"):
        next(early[0])
    held: Any = trainer.train_dataloader
    assert ids(next(iter(held))) == whole[3]
    assert [ids(batch) for batch in loader] == whole[4:5]
