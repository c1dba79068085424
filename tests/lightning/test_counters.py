"""The Loader's counters in the Trainer: they only grow, over epochs, limits, accumulation and resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pytorch_lightning.callbacks import Callback
from sources import MAKERS, validation
from trainer_runs import Model, SaveAlways, fit

if TYPE_CHECKING:
    from pathlib import Path

    import resumable


class Counts(Callback):
    """Notes what the Loader counts at each batch's begin, and at each epoch's end."""

    def __init__(self, loader: resumable.Loader[Any]) -> None:
        self.loader = loader
        self.at_begin: list[int] = []
        self.samples: list[int] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.at_begin.append(self.loader.global_step)
        self.samples.append(self.loader.samples_seen)

    def on_train_epoch_end(self, *_: Any) -> None:
        self.samples.append(self.loader.samples_seen)


def counted(kind: str, **options: Any) -> Counts:
    loader = MAKERS[kind]()
    counts = Counts(loader)
    fit(Model(), loader, validation(), callbacks=[counts, *options.pop("callbacks", ())], **options)
    return counts


@pytest.mark.parametrize("kind", ["indexed", pytest.param("snapshot", marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{}, {"limit_train_batches": 3}], ids=["whole epochs", "left early"])
def test_they_count_each_batch_once_also_from_each_checkpoint(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    saver = SaveAlways(tmp_path)
    whole = counted(kind, callbacks=[saver], **options)
    assert whole.at_begin == list(range(len(whole.at_begin)))
    assert whole.loader.global_step == len(whole.at_begin)
    assert whole.samples == sorted(whole.samples)
    for trained, path in list(saver.saved.items())[1::4]:
        rest = counted(kind, checkpoint=path, **options)
        assert rest.at_begin == whole.at_begin[trained:]
        assert rest.loader.samples_seen == whole.loader.samples_seen


def test_accumulated_step_counts_its_batches() -> None:
    """Batches of an accumulated step count when the optimizer steps."""
    counts = counted("indexed", accumulate_grad_batches=2)
    assert counts.at_begin == sorted(counts.at_begin)
    assert counts.at_begin[:5] == [0, 0, 2, 2, 4]
    assert counts.loader.global_step == len(counts.at_begin)
