"""Sizes of images that change between epochs: a run that was cut goes on with the sizes that it would have had."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import ffcv_data
import numpy as np
import pytest
import torch
from ffcv.fields.decoders import CenterCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.pipeline.operation import Operation
from ffcv.transforms import ToTensor
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

import resumable
from resumable.backends.ffcv.identity import Settings
from resumable.errors import StateFormatError
from resumable.integrations.lightning import ResumableCallback
from resumable.testing import digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning")]

SIZES = [(8, 8), (12, 10), (16, 16), (10, 10)]
EPOCHS = 3


def make(**options: Any) -> tuple[Any, resumable.Loader]:
    """Return a decoder and the wrapped loader: three batches an epoch."""
    decoder = CenterCropRGBImageDecoder(SIZES[0], 1)
    pipelines = {"raw": [decoder, ToTensor()], "label": None}
    inner = Loader(
        ffcv_data.beton(), batch_size=20, num_workers=1, order=OrderOption.RANDOM, pipelines=pipelines, drop_last=True
    )
    return decoder, resumable.wrap(inner, seed=3, **options)


Run = list[tuple[str, dict[str, Any]]]  # batches, and the state after each


def before(decoder: Any, loader: resumable.Loader) -> Run:
    """Set by the number of the epoch, before it."""
    run = []
    for epoch in loader.epochs(EPOCHS):
        decoder.output_size = SIZES[epoch.number]
        run += [(digest(batch), loader.state_dict()) for batch in epoch]
    return run


def after(decoder: Any, loader: resumable.Loader) -> Run:
    """Set after an epoch for the next one."""
    run = []
    for epoch in loader.epochs(EPOCHS):
        run += [(digest(batch), loader.state_dict()) for batch in epoch]
        decoder.output_size = SIZES[epoch.number + 1]
        run[-1:] = [(run[-1][0], loader.state_dict())] if run else []
    return run


def middle(decoder: Any, loader: resumable.Loader) -> Run:
    """Set in the middle of an epoch for the next one."""
    run = []
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            if loader.cursor.step == 2:
                decoder.output_size = SIZES[epoch.number + 1]
            run.append((digest(batch), loader.state_dict()))
    return run


def once(decoder: Any, loader: resumable.Loader) -> Run:
    """Set once in the run."""
    run = []
    for epoch in loader.epochs(EPOCHS):
        if epoch.number == 1:
            decoder.output_size = list(SIZES[2])
        run += [(digest(batch), loader.state_dict()) for batch in epoch]
    return run


@pytest.mark.parametrize("loop", [before, after, middle, once])
def test_a_run_that_was_cut_goes_on_with_the_same_sizes(loop: Callable[[Any, resumable.Loader], Run]) -> None:
    whole = loop(*make())
    assert len(whole) == 9
    for step, (_, state) in enumerate(whole, start=1):
        decoder, loader = make()
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert loader.state_dict() == state
        rest = [batch for batch, _ in loop(decoder, loader)]
        assert rest == [batch for batch, _ in whole[step:]], f"cut after step {step}"


def shapes(loader: resumable.Loader) -> list[tuple[int, ...]]:
    return [tuple(images.shape[1:3]) for (images,) in loader]


def test_loading_sets_what_was_set_whatever_was_set_before() -> None:
    decoder, loader = make()
    begin = loader.state_dict()
    decoder.output_size = SIZES[1]
    next(iter(loader))
    state = loader.state_dict()
    assert state["journal"] == [
        [[0, 0], {"in_force": {"raw.0.output_size": [12, 10]}}],
        [[0, 20], {"set": {"raw.0.output_size": [12, 10]}}],
    ]
    decoder, loader = make()
    decoder.output_size = SIZES[2]
    loader.load_state_dict(state)
    assert decoder.output_size == SIZES[1]
    decoder.output_size = SIZES[3]  # for the next epoch: this one has begun
    assert shapes(loader) == [SIZES[1]] * 2
    assert decoder.output_size == SIZES[3]
    assert shapes(loader) == [SIZES[3]] * 3
    loader.load_state_dict(begin)
    assert decoder.output_size == SIZES[0]
    decoder.output_size = SIZES[2]  # a hook that runs at the epoch's begin
    assert shapes(loader) == [SIZES[2]] * 3


def test_epoch_without_a_batch_changes_size() -> None:
    """An epoch without a batch may begin again with another size."""
    decoder, loader = make(ack="manual")
    decoder.output_size = SIZES[2]
    next(iter(loader))
    decoder.output_size = SIZES[1]  # the first was too large for the memory
    loader.rewind()
    assert shapes(loader)[0] == SIZES[1]


def test_a_bookmark_that_is_read_later_is_of_its_own_place() -> None:
    decoder, loader = make()
    state = loader.state_dict()
    decoder.output_size = SIZES[1]
    next(iter(loader))
    bookmark, expected = loader.progress.bookmark(), loader.state_dict()
    loader.load_state_dict(state)
    assert bookmark.state_dict() == expected
    decoder.output_size = SIZES[2]
    next(iter(loader))
    assert bookmark.state_dict() == expected
    bookmark = loader.progress.bookmark()
    decoder.output_size = SIZES[3]  # at the same place still, as by a hook at an epoch's end
    assert bookmark.state_dict()["journal"][1] == [[0, 20], {"set": {"raw.0.output_size": [10, 10]}}]


def test_a_damaged_journal_is_refused() -> None:
    decoder, loader = make()
    decoder.output_size = SIZES[1]
    next(iter(loader))
    state = loader.state_dict()
    for damage in ([[[0, 40], {"set": {}}]], [[0, {}]], [[["0", 0], {}]], 7, [[[0, 0], {"set": 3}]]):
        with pytest.raises(StateFormatError, match="truncated or damaged"):
            loader.load_state_dict({**state, "journal": damage, "digest": None})
    other = copy.deepcopy(state)
    other["journal"][0][1]["in_force"]["raw.0.output_size"] = [4, 4]
    with pytest.raises(StateFormatError, match="its digest"):
        loader.load_state_dict(other)


class Brighter(Operation):  # type: ignore[misc]  # FFCV ships no types
    """An operation of a user with a setting, and with a count of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.by: Any = 3
        self.range, self.calls, self.table, self._hidden = (0.5, [1, 2]), 0, np.zeros(2), 1

    def generate_code(self) -> Any:
        def brighten(images: Any, memory: Any) -> Any:
            self._count()
            return images + self.by

        return brighten

    def _count(self) -> None:
        self.calls += 1

    def declare_state_and_memory(self, previous_state: Any) -> Any:
        return previous_state, None


def test_settings_are_plain_attributes() -> None:
    """Settings are plain attributes that the operation does not assign itself."""
    operation = Brighter()
    pipelines = {"raw": [CenterCropRGBImageDecoder((8, 8), 1), ToTensor(), operation], "label": None}
    settings = Settings(Loader(ffcv_data.beton(), batch_size=20, num_workers=1, pipelines=pipelines))
    assert settings.changed() == {}
    operation.by, operation.range, operation.calls, operation._hidden = np.int64(4), (0.25, [1, 2]), 7, 2
    operation.table[0] = 1
    changed = settings.changed()
    assert json.loads(json.dumps(changed)) == {"raw.2.by": 4, "raw.2.range": [0.25, [1, 2]]}
    settings.change({})
    assert (operation.by, operation.range, operation.calls) == (3, (0.5, [1, 2]), 7)
    settings.change({**changed, "raw.9.gone": 1})
    assert operation.by == 4
    assert isinstance(operation.range, tuple)
    assert settings.changed() == changed


# ---------------------------------------------------------------------------------------------- Lightning


class Model(LightningModule):
    """Notes its batches, and changes the size in a hook."""

    def __init__(self, decoder: Any, hook: str) -> None:
        super().__init__()
        self.decoder, self.hook = decoder, hook
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[str] = []

    def training_step(self, batch: Any) -> Any:
        self.seen.append(digest([part.clone() for part in batch]))
        return self.layer(batch[0].float().mean().reshape(1, 1)).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-5)

    def on_train_epoch_start(self) -> None:
        if self.hook == "start":
            self.decoder.output_size = SIZES[self.current_epoch]

    def on_train_epoch_end(self) -> None:
        if self.hook == "end":
            self.decoder.output_size = SIZES[self.current_epoch + 1]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.hook == "batch" and batch_idx == 1:
            self.decoder.output_size = SIZES[self.current_epoch + 1]


def fit(folder: Path, hook: str, checkpoint: Path | None = None) -> list[str]:
    decoder, loader = make()
    model = Model(decoder, hook)
    saves = [
        ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=1),
        ModelCheckpoint(folder, "end-{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True),
    ]
    trainer = Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ResumableCallback(), *(saves if checkpoint is None else [])], default_root_dir=folder,
        enable_checkpointing=checkpoint is None,
    )  # fmt: skip
    trainer.fit(model, loader, ckpt_path=None if checkpoint is None else str(checkpoint))
    return model.seen


@pytest.fixture(scope="module", params=["start", "end", "batch"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, fit(folder, request.param)


CUTS = {"step=3": 3, "step=4": 4, "step=5": 5, "end-epoch=0": 3, "end-epoch=1": 6}
LONG_CUTS = {"step=1": 1, "step=2": 2, "step=6": 6, "step=7": 7, "step=8": 8}


@pytest.mark.parametrize("cut", [*CUTS, *(pytest.param(cut, marks=pytest.mark.long) for cut in LONG_CUTS)])
def test_lightning_goes_on_with_the_sizes_that_a_hook_sets(whole: Any, cut: str, tmp_path: Path) -> None:
    hook, folder, seen = whole
    assert len(seen) == 9
    rest = fit(tmp_path, hook, folder / f"{cut}.ckpt")
    assert rest == seen[{**CUTS, **LONG_CUTS}[cut] :]
