"""`ResumableCallback(log_stats=True)`: curves of the loaders' stats, and a run that is the same without them."""

from __future__ import annotations

import csv
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities import CombinedLoader
from sources import MAKERS, indexed
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader
from trainer_runs import Model, PlannedError, SaveAlways, check_rest, fit

import resumable
from resumable.errors import ConfigurationError
from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from pathlib import Path

    from resumable.loader.loader import Loader

CURVES = {"wait_fraction", "wait_seconds", "read_seconds", "samples_per_second", "estimated_bytes_per_second"}
QUEUE = {"queue_depth", "starved_fraction"}


def logging() -> ResumableCallback:
    return ResumableCallback(log_stats=True)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]


def logged(folder: Path, loader: Any, model: Model | None = None, **options: Any) -> list[dict[str, str]]:
    logger = CSVLogger(folder, name="", version="")
    fit(model or Model(), loader, resume=options.pop("resume", logging()), logger=logger, **options)
    return [row for row in rows(folder) if any(name.startswith("data/") for name in row)]


@pytest.mark.parametrize("every", [1, 2, 5])
def test_it_logs_when_the_trainer_logs(every: int, tmp_path: Path) -> None:
    found = logged(tmp_path, indexed(), log_every_n_steps=every)
    assert [int(row["step"]) for row in found] == list(range(every - 1, 15, every))
    for row in found:
        assert set(row) - {"epoch"} == {"step", *(f"data/{name}" for name in CURVES)}
        assert 0 < float(row["data/wait_fraction"]) <= 1


def test_a_row_is_what_came_since_the_last_one(tmp_path: Path) -> None:
    loader = indexed()
    list(loader)  # before the run
    before = loader.stats()
    found = logged(tmp_path, loader, log_every_n_steps=3)
    now = loader.stats()
    assert len(found) == 5
    total = sum(float(row["data/wait_seconds"]) for row in found)
    assert total == pytest.approx(now.wait_seconds - before.wait_seconds, rel=0.5)
    assert total <= now.wait_seconds - before.wait_seconds
    for row in found:
        seconds = float(row["data/wait_seconds"]) / float(row["data/wait_fraction"])
        samples = float(row["data/samples_per_second"]) * seconds
        assert samples == pytest.approx(round(samples), rel=1e-3)
        assert float(row["data/estimated_bytes_per_second"]) * seconds == pytest.approx(4 * samples, rel=1e-3)


def test_once_per_step_where_gradients_are_accumulated(tmp_path: Path) -> None:
    found = logged(tmp_path, indexed(6), log_every_n_steps=1, accumulate_grad_batches=2)
    assert [int(row["step"]) for row in found] == list(range(9))


def test_several_loaders_by_their_keys(tmp_path: Path) -> None:
    loaders = CombinedLoader(
        {"image": indexed(3, 1000), "text": [indexed(5, 2000), indexed(4, 3000)]}, "max_size_cycle"
    )
    (row, *_) = logged(tmp_path, loaders, log_every_n_steps=5)
    for key in ("image", "text/0", "text/1"):
        assert {f"data/{key}/{name}" for name in CURVES} <= set(row)


class Data(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


def test_workers_have_a_queue(tmp_path: Path) -> None:
    loader: Loader[Any] = resumable.wrap(DataLoader(Data(), batch_size=4, num_workers=1), seed=0)
    found = logged(tmp_path, loader, max_epochs=2, log_every_n_steps=5)
    assert {f"data/{name}" for name in CURVES | QUEUE} <= set(found[-1])
    assert float(found[-1]["data/read_seconds"]) > 0


def same_values(one: Any, other: Any) -> bool:
    leaves, spec = pytree.tree_flatten(one)
    others, other_spec = pytree.tree_flatten(other)
    assert len(leaves) > 3
    return spec == other_spec and all(map(same_value, leaves, others))


def same_value(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["indexed", "snapshot"])
def test_the_run_is_bit_for_bit_that_without_it(kind: str, tmp_path: Path) -> None:
    def run(name: str, model: Model, resume: ResumableCallback, checkpoint: Path | None = None) -> Any:
        logger, saver = CSVLogger(tmp_path / name, name="", version=""), SaveAlways(tmp_path / name)
        options: dict[str, Any] = {"logger": logger, "log_every_n_steps": 1, "checkpoint": checkpoint}
        return saver, fit(model, MAKERS[kind](), resume=resume, callbacks=[saver], **options)

    plain, whole = run("plain", Model(), ResumableCallback())
    curved, same = run("curved", Model(), logging())
    check_rest(whole, same, trained=0, begins="epoch start")
    for trained, path in curved.saved.items():
        one, other = (torch.load(saved, weights_only=False) for saved in (path, plain.saved[trained]))
        assert same_values(one["callbacks"], other["callbacks"])
        assert same_values(one["loops"], other["loops"])
        check_rest(whole, fit(Model(), MAKERS[kind](), resume=ResumableCallback(), checkpoint=path), trained=trained,
                   begins="train" if trained % 5 else "epoch end")  # fmt: skip
    with pytest.raises(PlannedError):
        run("failed", Model(fail_at=8), logging())
    _, rest = run("resumed", Model(), logging(), curved.saved[8])
    check_rest(whole, rest, trained=8, begins="train")
    steps = [int(row["step"]) for row in rows(tmp_path / "resumed") if "data/wait_fraction" in row]
    assert steps == list(range(8, 15))


def test_a_trainer_without_logger_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"log_stats=True, but the Trainer has no logger \(logger=False\)"):
        fit(Model(), indexed(), resume=logging())


def test_it_is_off_by_default_and_kept_by_copies(tmp_path: Path) -> None:
    plain = CSVLogger(tmp_path, name="", version="")
    fit(Model(), indexed(), logger=plain, log_every_n_steps=1)
    assert not plain.experiment.metrics
    assert not (tmp_path / "metrics.csv").exists()
    callback = logging()
    logged(tmp_path / "one", indexed(), resume=callback, log_every_n_steps=1)
    copy = pickle.loads(pickle.dumps(callback))  # noqa: S301  # what was just made
    assert copy.log_stats
    assert logged(tmp_path / "other", indexed(), resume=copy, log_every_n_steps=1)
