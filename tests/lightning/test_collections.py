"""Several train loaders at once, in every mode that the Trainer knows: saved at every step, resumed from each."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from pytorch_lightning.utilities import CombinedLoader
from sources import MAKERS
from trainer_runs import Model, PlannedError, SaveAlways, SaveOnce, check_rest, fit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODES = ("max_size_cycle", "min_size", "max_size")
SHORT, LONG = 3, 7


def combined(kind: str, mode: str) -> CombinedLoader:
    loaders = {"short": MAKERS[kind](SHORT, 1000), "long": MAKERS[kind](LONG, 2000)}
    return CombinedLoader(loaders, mode)  # type: ignore[arg-type]  # the modes are literals there


def grid() -> Iterator[Any]:
    """Give every kind in every mode with both windows; in `make test` with one of them, in turn."""
    for kind_number, kind in enumerate(MAKERS):
        for mode_number, mode in enumerate(MODES):
            for window in (1, 2):
                sampled = window == 1 + (kind_number + mode_number) % 2
                fast = kind in {"indexed", "replay"}
                marks = [pytest.mark.slow] * (not fast) + [pytest.mark.long] * (not sampled)
                yield pytest.param(kind, mode, window, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode", "window"), list(grid()))
def test_loaders_of_different_lengths(kind: str, mode: str, window: int, tmp_path: Path) -> None:
    saver = SaveAlways(tmp_path)
    options: dict[str, Any] = {"max_epochs": 2, "accumulate_grad_batches": window}
    whole = fit(Model(), combined(kind, mode), callbacks=[saver], **options)
    plain = fit(Model(), combined(kind, mode), **options)
    assert whole.events == plain.events, "saving changed the run"
    per_epoch = SHORT if mode == "min_size" else LONG
    assert sum(event[0] == "train" for event in whole.events) == 2 * per_epoch
    for step, path in saver.saved.items():
        in_epoch = step % per_epoch
        in_weights = step - (in_epoch % window if in_epoch else 0)
        rest = fit(Model(), combined(kind, mode), checkpoint=path, **options)
        begins = "train" if in_weights % per_epoch else "epoch end" if in_weights == step else "epoch start"
        check_rest(whole, rest, trained=in_weights, begins=begins)


@pytest.mark.parametrize("kind", list(MAKERS))
@pytest.mark.parametrize("mode", MODES)
def test_an_exception_with_several_loaders(kind: str, mode: str, tmp_path: Path) -> None:
    whole = fit(Model(), combined(kind, mode), max_epochs=2)
    fails = 2 if mode == "min_size" else 5
    path = tmp_path / "saved.ckpt"
    with suppress(PlannedError):
        fit(
            Model(fail_at=fails),
            combined(kind, mode),
            callbacks=[SaveOnce(path, "on_exception", lambda *_: True)],
            max_epochs=2,
        )
    rest = fit(Model(), combined(kind, mode), checkpoint=path, max_epochs=2)
    check_rest(whole, rest, trained=fails, begins="train")


@pytest.mark.parametrize("limit", [2, 4])
def test_a_limit_with_several_loaders(limit: int, tmp_path: Path) -> None:
    saver = SaveAlways(tmp_path)
    whole = fit(Model(), combined("replay", "max_size_cycle"), callbacks=[saver], limit_train_batches=limit)
    for step, path in saver.saved.items():
        rest = fit(Model(), combined("replay", "max_size_cycle"), checkpoint=path, limit_train_batches=limit)
        check_rest(whole, rest, trained=step, begins="train" if step % limit else "epoch end")


def test_nested_collections_of_different_kinds(tmp_path: Path) -> None:
    def loaders() -> Any:
        return {"a": [MAKERS["indexed"](4, 0), MAKERS["snapshot"](2, 1000)], "b": MAKERS["sized replay"](3, 2000)}

    saver = SaveAlways(tmp_path)
    whole = fit(Model(), loaders(), callbacks=[saver], max_epochs=2)
    for step, path in saver.saved.items():
        rest = fit(Model(), loaders(), checkpoint=path, max_epochs=2)
        check_rest(whole, rest, trained=step, begins="train" if step % 4 else "epoch end")
