"""Ranks that differ are told so on all of them, before a byte is written and before one of them has moved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from forked import ranks
from torch import distributed

import resumable
from resumable import World
from resumable.errors import StateFormatError, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # torch's, of groups that are not there

Loader = resumable.Loader[Any]


def a_list(rank: int, size: int = 3, *, length: int = 48, **options: Any) -> Loader:
    """A loader that is the same on all ranks, but for its options; the ranks find that out in DCP alone."""
    given = {"batch_size": 4, "shuffle": True, "seed": 0, "world": World(rank, size), "watch": False, **options}
    return resumable.wrap(list(range(length)), **given)


def at(loader: Loader, steps: int) -> Loader:
    for _ in loader.steps(steps):
        pass
    return loader


class Own:
    """A stream of its own on each rank, whose state is what it was told."""

    def __init__(self, snapshot: Any) -> None:
        self.snapshot, self.breaks = snapshot, False

    def __iter__(self) -> Any:
        return iter(range(100))

    def state_dict(self) -> Any:
        if self.breaks:
            raise RuntimeError("the disk is gone")
        return {"is": self.snapshot}

    def load_state_dict(self, state: Any) -> None:
        self.snapshot = state["is"]


def own(rank: int, snapshot: Any = None, **options: Any) -> Loader:
    given: dict[str, Any] = {"batch_size": 4, "tail": "drop", "seed": 0, "shard": False, "watch": False}
    given["world"] = World(rank, 3)
    given |= options
    return resumable.wrap(Own(snapshot), **given)


# What the last of three ranks has otherwise, and what the message has to say.
DIFFERENT: dict[str, tuple[Callable[[int], Loader], str]] = {
    "length": (lambda rank: a_list(rank, length=48 if rank < 2 else 60), "backend.length differs"),
    "seed": (lambda rank: a_list(rank, seed=int(rank == 2)), "randomness.seed differs"),
    "order": (lambda rank: a_list(rank, shuffle=rank < 2), "sampler.* differs"),
    "batch size": (lambda rank: a_list(rank, batch_size=4 if rank < 2 else 2), "batch_size differs"),
    "tail": (lambda rank: a_list(rank, tail="drop" if rank < 2 else "carry"), "tail differs"),
    "name": (lambda rank: a_list(rank, name="" if rank < 2 else "other"), "name differs|sampler.seed differs"),
    "randomness": (lambda rank: a_list(rank, randomness="sample" if rank < 2 else "batch"), "randomness.mode differs"),
    "place": (lambda rank: at(a_list(rank), 2 + rank // 2), "cursor.position differs"),
    "epoch": (lambda rank: at(a_list(rank), 2 + rank // 2 * 4), "cursor.epoch differs"),
    "content": (
        lambda rank: at(
            resumable.wrap(
                [str(i) for i in (range(48) if rank < 2 else reversed(range(48)))],
                batch_size=4,
                seed=0,
                identity="files",
                world=World(rank, 3),
                watch=False,
            ),
            2,
        ),
        "fingerprint.* differs",
    ),
    "kind": (lambda rank: a_list(rank) if rank < 2 else own(rank), "backend.kind differs"),
    "own batch size": (lambda rank: own(rank, batch_size=4 if rank < 2 else 2), "batch_size differs"),
    "own step": (lambda rank: at(own(rank, rank), 2 + rank // 2), "global_step differs"),
    "own seed": (lambda rank: own(rank, seed=int(rank == 2)), "randomness.seed differs"),
}


def try_to_save(rank: int, size: int, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (make, _) in DIFFERENT.items():
        for save in (dcp.save, dcp.async_save):
            try:
                save({"loader": make(rank)}, checkpoint_id=folder / name)
            except StateMismatchError as error:
                found[f"{name}, {save.__name__}"] = str(error)
    return found


def test_each_fact_that_differs_is_named_on_all_ranks_before_anything_is_written(tmp_path: Path) -> None:
    found = ranks(3, try_to_save, tmp_path)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 2 * len(DIFFERENT)
    for name, (_, message) in DIFFERENT.items():
        for kind in ("save", "async_save"):
            text = found[0][f"{name}, {kind}"]
            told = rf"({message})[^\n]*\n  ranks 0, 1: .*\n  rank 2: .*\nNothing was written\."
            assert re.match(told, text), text
    assert not list(tmp_path.iterdir())


def fail(rank: int, size: int, folder: Path) -> list[str]:
    """Save what one rank cannot; return the errors."""
    source = Own(rank)
    options: dict[str, Any] = {"batch_size": 4, "tail": "drop", "seed": 0, "shard": False, "world": World(rank, size)}
    breaking = at(resumable.wrap(source, watch=False, **options), 2)
    source.breaks = rank == 1
    found = []
    for number, loader in enumerate((breaking, own(rank, Path("/data")))):
        try:
            dcp.save({"loader": loader}, checkpoint_id=folder / str(number))
        except Exception as error:  # noqa: BLE001  # whatever it is, it is looked at
            found.append(f"{type(error).__name__}: {error}")
    return found


def test_a_rank_that_cannot_take_its_state_ends_the_save_of_all(tmp_path: Path) -> None:
    found = ranks(3, fail, tmp_path)
    assert "the disk is gone" in found[1][0]
    for rank in (0, 2):
        assert found[rank][0].startswith("StateMismatchError: rank 1 failed, so no rank went on. Nothing was written.")
        assert "the disk is gone" in found[rank][0]
    assert all(UnsupportedError.__name__ in one[1] and "weights_only=True" in one[1] for one in found)
    assert not list(tmp_path.iterdir())


def load_differently(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Load what one rank refuses, or from another place; return the errors, and where the loader stands then."""
    for step in (1, 3):
        dcp.save({"loader": at(a_list(rank, size), step)}, checkpoint_id=folder / str(step))
    found = {}
    loaders = {
        "other checkpoint": (a_list(rank, size), 1 if rank else 3),
        "other seed": (a_list(rank, size, seed=rank // 2), 3),
    }
    for name, (loader, step) in loaders.items():
        at(loader, 2)
        before = loader.state_dict()
        try:
            dcp.load({"loader": loader}, checkpoint_id=folder / str(step))
        except StateMismatchError as error:
            found[name] = str(error), loader.state_dict() == before
    return found


def test_no_rank_moves_unless_all_can(tmp_path: Path) -> None:
    found = ranks(3, load_differently, tmp_path)
    for one in found:
        text, unmoved = one["other checkpoint"]
        assert text.startswith("cursor.position differs between the ranks")
        assert "\n  rank 0: 36\n  ranks 1, 2: 12\nNothing was loaded." in text
        assert unmoved
        text, unmoved = one["other seed"]
        assert "seed differs from the checkpoint's" in text
        assert unmoved
    assert all(one["other seed"][0].startswith("rank 2 failed, so no rank went on.") for one in found[:2])


class App:
    """A user's object around model and loader, as torch's tutorial has it."""

    def __init__(self, model: torch.nn.Module, loader: Loader) -> None:
        self.model, self.loader = model, loader

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "more": {"loader": self.loader.state_dict()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.loader.load_state_dict(state["more"]["loader"])


def by_an_object(rank: int, size: int, folder: Path) -> Any:
    loader = at(own(rank, rank), 2 + 0 * size)
    app = App(torch.nn.Linear(2, 2), loader)
    dcp.save({"app": app}, checkpoint_id=folder / "app")
    fresh = own(rank, None)
    dcp.load({"app": App(torch.nn.Linear(2, 2), fresh)}, checkpoint_id=folder / "app")
    return fresh.state_dict() == loader.state_dict(), fresh.state_dict()["source_state"]["snapshot"]["is"]


def test_an_object_around_the_loader_saves_it_as_well(tmp_path: Path) -> None:
    assert ranks(3, by_an_object, tmp_path) == [(True, rank) for rank in range(3)]


def in_groups(rank: int, size: int, folder: Path) -> Any:
    """Two pairs of ranks read the same data; each pair saves by itself, then all together, then rank 0 alone."""
    part = World(rank // 2, 2)
    groups = [distributed.new_group([0, 2]), distributed.new_group([1, 3])]
    here = groups[rank % 2]
    loader = at(own(part.rank, part.rank, world=part), 2)
    fresh = [own(part.rank, None, world=part) for _ in range(3)]
    dcp.save({"loader": loader}, checkpoint_id=folder / f"pair{rank % 2}", process_group=here)
    dcp.load({"loader": fresh[0]}, checkpoint_id=folder / f"pair{rank % 2}", process_group=here)
    dcp.save({"loader": loader}, checkpoint_id=folder / "all")
    dcp.load({"loader": fresh[1]}, checkpoint_id=folder / "all")
    if rank == 0:
        dcp.save({"loader": loader}, checkpoint_id=folder / "alone", no_dist=True)
        dcp.load({"loader": fresh[2]}, checkpoint_id=folder / "alone", no_dist=True)
    odd = own(part.rank, rank, world=part)
    try:
        dcp.save({"loader": odd}, checkpoint_id=folder / "odd")
    except StateMismatchError as error:
        message = str(error)
    try:
        dcp.save(
            {"loader": loader},
            checkpoint_id=folder / f"one{rank % 2}",
            process_group=_alone(rank),
        )
    except StateMismatchError as error:
        message += str(error)
    places = [one.state_dict() == loader.state_dict() for one in fresh]
    return places if rank == 0 else places[:2], message


def _alone(rank: int) -> Any:
    return [distributed.new_group([one]) for one in range(4)][rank]


def test_the_process_group_of_the_call_is_that_of_the_exchange(tmp_path: Path) -> None:
    found = ranks(4, in_groups, tmp_path)
    for rank, (places, message) in enumerate(found):
        assert all(places), rank
        assert (
            "ranks 0, 1 read the same part of the data (part 0 of 2), and their sources' own states differ" in message
        )
        assert f"rank {1 - rank // 2} took no part in the save" in message


def peek_alone(rank: int, size: int, folder: Path) -> bool:
    """Rank 0 looks at the next batch, of a stream that all ranks share."""
    options: dict[str, Any] = {"batch_size": 4, "tail": "drop", "seed": 0, "world": World(rank, size)}
    loader = resumable.wrap(lambda: iter(range(48)), identity="numbers", **options)
    for step in range(3):
        at(loader, step)
        if rank == 0:
            loader.peek()
        dcp.save({"loader": loader}, checkpoint_id=folder / str(step))
    return True


def test_ranks_may_know_less_of_the_data_than_others(tmp_path: Path) -> None:
    assert ranks(2, peek_alone, tmp_path) == [True, True]


def test_a_leaf_is_loaded_by_hand_on_one_rank(tmp_path: Path) -> None:
    """One process without a group: plain code may read the leaf, and a damaged one is refused."""
    loader = at(a_list(0, 1), 2)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path)
    content: dict[str, Any] = {"loader": {"states": b""}}
    dcp.load(content, checkpoint_id=tmp_path)
    fresh = a_list(0, 1)
    fresh.load_state_dict(content["loader"])
    assert fresh.state_dict() == loader.state_dict()
    for damaged in (b"", b"{", b"[]", b'{"format":1,"states":[]}', b"PK\x03\x04", content["loader"]["states"][:-9]):
        with pytest.raises(StateFormatError, match="leaf of a Loader .* is damaged"):
            fresh.load_state_dict({"states": damaged})
    with pytest.raises(StateFormatError, match="newer version"):
        fresh.load_state_dict({"states": b'{"format":2,"states":[{}]}'})
    assert fresh.state_dict() == loader.state_dict()
