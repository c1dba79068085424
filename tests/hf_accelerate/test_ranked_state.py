"""What each rank alone knows in a trainer's checkpoint: one class for Lightning, Accelerate and transformers."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import pytest
import torch

from resumable.errors import StateFormatError, StateMismatchError
from resumable.integrations._buffers import Buffers, put_back
from resumable.integrations._saved import RankedState, gather_at_step
from resumable.integrations.accelerate.accelerate_state import AccelerateState
from resumable.integrations.lightning.lightning_state import LightningState
from resumable.integrations.transformers.transformers_state import TransformersState

PLACE = {"stage": "batch", "epoch": 0, "batch": 3, "total": 3, "is_last": False, "schedulers_due": False}


class Case(NamedTuple):
    schema: type[RankedState]
    values: dict[str, Any]  # as they are in checkpoints; of two ranks
    key: str  # of what must be there


def state(step: int, rank: int | None = None) -> dict[str, Any]:
    return {"cursor": {"epoch": 0, "position": 2 * step, "step": step}, "rank": rank}


def cases(*, own: bool) -> list[Case]:
    states = [state(3, rank if own else None) for rank in (0, 1)]
    lightning = {
        "place": PLACE,
        "torn": False,
        "ranks": [
            {"loaders": [{"epoch": 0, "base": 0, "state": one}], "generators": {}, "exact": True} for one in states
        ],
        "metrics": {},
        "partial": [],
        "accumulates": 1,
    }
    buffers = [None, [{"mean": 1.0}]]
    ranks = [
        {"loaders": [one], "generators": {"of": rank}, "buffers": buffers[rank]} for rank, one in enumerate(states)
    ]
    trainer = {"accumulation": 2, "logged": 1, "ended": False, "epoch_stopped": False, "stopped": False, "max_steps": 9}
    losses = {"states": states if own else states[:1], "world_size": 2, "losses": [0.5, 1.5], "counts": [None, None]}
    return [
        Case(LightningState, {"format": 1, **lightning}, "place"),
        Case(LightningState, {"format": 2, **lightning}, "ranks"),
        Case(AccelerateState, {"format": 1, "ranks": ranks, "step": 3, "since": None}, "step"),
        Case(TransformersState, {"format": 1, **losses, **trainer}, "states"),
    ]


@pytest.mark.parametrize("case", cases(own=False))
def test_a_part_that_is_damaged_or_newer_is_refused(case: Case) -> None:
    case.schema.from_dict(case.values)
    left = {name: value for name, value in case.values.items() if name != case.key}
    with pytest.raises(StateFormatError, match=rf"{case.schema.part} is damaged: KeyError\('{case.key}'\)"):
        case.schema.from_dict(left)
    for version in (99, None, "1", True):
        with pytest.raises(StateFormatError, match=f"{case.schema.part} has format {version!r}, but .* up to"):
            case.schema.from_dict({**case.values, "format": version})
    with pytest.raises(StateFormatError, match=f"a newer version of resumable wrote .*{case.schema.part} has shards,"):
        case.schema.from_dict({**case.values, "shards": 3})


@pytest.mark.parametrize("case", cases(own=False))
def test_more_ranks_start_from_rank_0(case: Case) -> None:
    """More ranks continue from the loaders of rank 0 and without other buffers."""
    saved = case.schema.from_dict(case.values)
    assert [saved.of_rank(rank, 2)["loaders"] for rank in (0, 1)] == [one["loaders"] for one in saved.ranks]
    third = saved.of_rank(3, 4)
    assert third["loaders"] == saved.ranks[0]["loaders"]
    assert third.get("buffers") is None
    assert third.get("generators") == saved.ranks[1].get("generators")
    with pytest.raises(StateMismatchError, match="states of 1 train loaders, and this run has 2"):
        saved.of_rank(0, 2, loaders=2)


@pytest.mark.parametrize("case", cases(own=True))
def test_streams_of_each_rank_continue_on_as_many_ranks_only(case: Case) -> None:
    saved = case.schema.from_dict(case.values)
    assert saved.of_rank(1, 2) is saved.ranks[1]
    with pytest.raises(StateMismatchError, match="2 ranks\n.* 3 ranks\nRestart with 2 ranks"):
        saved.of_rank(1, 3)
    assert saved.of_rank(1, 3, strict=False)["loaders"] == saved.ranks[0]["loaders"]


def test_a_checkpoint_without_losses_of_each_rank_is_damaged() -> None:
    values = cases(own=True)[-1].values
    for wrong in ({"losses": [0.5]}, {"states": values["states"] * 2}, {"counts": [1, 2, 3]}, {"world_size": 3}):
        with pytest.raises(StateFormatError, match="is damaged: ValueError"):
            TransformersState.from_dict({**values, **wrong})
    saved = TransformersState.from_dict(values)
    assert [saved.loss_of(1, 2), saved.loss_of(1, 3)] == [1.5, 1.0]


def test_what_is_written_is_read_again() -> None:
    for case in cases(own=True):
        saved: Any = case.schema.from_dict(case.values)
        again = type(saved).from_dict(saved.as_dict())
        assert pickle.dumps(again.as_dict()) == pickle.dumps(saved.as_dict())
        assert again == saved


def test_one_rank_exchanges_nothing() -> None:
    own = {"loaders": [state(3)]}
    assert gather_at_step(own, [], 1) == ([own], [False])


def test_a_module_gets_its_buffers_again() -> None:
    module = torch.nn.BatchNorm1d(2)
    assert module.running_mean is not None
    kept = Buffers(module).keep().copies()
    module.running_mean += 1.0
    put_back(module, kept)
    assert module.running_mean.tolist() == [0.0, 0.0]
    module.running_mean += 1.0
    put_back(torch.nn.BatchNorm1d(3), kept)  # other forms
    put_back(torch.nn.Linear(1, 1), kept)  # other names
    assert kept["running_mean"].tolist() == [0.0, 0.0]
