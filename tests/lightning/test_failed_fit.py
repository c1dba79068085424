"""After a `fit` that failed in `training_step`, the loader stands before the batch on which it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from sources import MAKERS
from trainer_runs import Model, PlannedError, SaveOnce, fit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resumable import Loader


def rest_of(loader: Loader) -> list[list[float]]:
    with torch.random.fork_rng():
        return [batch.flatten().tolist() for epoch in loader.epochs(2) for batch in epoch]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_failed_batch_is_left_out(make: Callable[[], Loader], tmp_path: Path) -> None:
    """The loader and the checkpoint leave out the batch that failed."""
    whole = rest_of(make())
    for step in (0, 2, 5, 7):
        loader, path = make(), tmp_path / f"{step}.ckpt"
        saves = SaveOnce(path, "on_exception", lambda *_: True)
        with pytest.raises(PlannedError):
            fit(Model(fail_at=step), loader, callbacks=[saves], max_epochs=2)
        assert loader.global_step == loader.state_dict()["global_step"] == step
        part = torch.load(path, weights_only=False)["callbacks"]["ResumableCallback"]
        for state in (loader.state_dict(), part["ranks"][0]["loaders"][0]["state"]):
            resumed = make()
            resumed.load_state_dict(state)
            assert resumed.global_step == step
            assert rest_of(resumed) == whole[step:]
        with torch.random.fork_rng():
            assert next(iter(loader)).flatten().tolist() == whole[step]
