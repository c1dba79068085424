"""Ranks that differ can load, and cannot save: all of them raise, before a byte is written or a rank moves."""

from __future__ import annotations

import base64
import copy
import io
import json
import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from dcp_sources import LOADERS, rest
from forked import ranks
from torch import distributed
from torch.distributed.checkpoint.api import CheckpointException

import resumable
from resumable import World
from resumable.errors import ConfigurationError, StateFormatError, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # torch's, of groups that are not there

Loader = resumable.Loader[Any]


def a_list(rank: int, size: int = 3, *, length: int = 48, **options: Any) -> Loader:
    """A loader that is the same on all ranks, but for its options; the ranks find that out in DCP alone."""
    given = {"batch_size": 4, "shuffle": True, "seed": 0, "world": World(rank, size), "checks": "data", **options}
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
    given: dict[str, Any] = {"batch_size": 4, "tail": "drop", "seed": 0, "shard": False, "checks": "data"}
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
                checks="data",
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


def why_not(save: Callable[[], Any], size: int) -> str:
    """Return the error of a save; what DCP makes of one in its plan must have the same kind from all ranks."""
    try:
        save()
    except StateMismatchError as error:  # of async_save, which copies first
        return str(error)
    except CheckpointException as error:
        failures = {rank: failure for rank, (failure, _) in error.failures.items()}
        if {rank: type(failure) for rank, failure in failures.items()} == dict.fromkeys(
            range(size), StateMismatchError
        ):
            return str(failures[0 if size == 1 else distributed.get_rank()])
        return f"of other ranks: {failures}"
    return "saved"


def try_to_save(rank: int, size: int, folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, (make, _) in DIFFERENT.items():
        for save in (dcp.save, dcp.async_save):
            content = {"loader": make(rank).dcp(), "weights": torch.arange(8)}
            found[f"{name}, {save.__name__}"] = why_not(lambda: save(content, checkpoint_id=folder / name), size)  # noqa: B023  # called here
        content = {"loader": make(rank).dcp()}
        found[f"{name}, alone"] = why_not(
            lambda: dcp.save(content, checkpoint_id=folder / name, use_collectives=False),  # noqa: B023  # called here
            size,
        )
    return found


def test_differing_facts_are_named_before_a_write(tmp_path: Path) -> None:
    """Each fact that differs is named on all ranks before anything is written."""
    found = ranks(3, try_to_save, tmp_path)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 3 * len(DIFFERENT)
    for name, (_, message) in DIFFERENT.items():
        for kind in ("save", "async_save", "alone"):
            text = found[0][f"{name}, {kind}"]
            told = rf"({message})[^\n]*\n  ranks 0, 1: .*\n  rank 2: .*\nNothing was written\."
            assert re.match(told, text), text
    assert not list(tmp_path.iterdir())


def load_where_ranks_differ(rank: int, size: int, folder: Path) -> list[Any]:
    """Load where the ranks are at different positions, or one cannot say where it is."""
    saved = at(a_list(rank, size), 3)
    dcp.save({"loader": saved.dcp()}, checkpoint_id=folder / "list")
    streams = [at(own(rank, rank), 3), at(own(rank, rank), 3 + rank), own(rank)]
    dcp.save({"loader": streams[0].dcp()}, checkpoint_id=folder / "own")
    source = Own(rank)
    options: dict[str, Any] = {"batch_size": 4, "tail": "drop", "seed": 0, "shard": False, "world": World(rank, size)}
    streams.append(at(resumable.wrap(source, checks="data", **options), 2))
    source.breaks = rank == 1
    lists = [at(a_list(rank, size), 2 + rank), a_list(rank, size) if rank else at(a_list(rank, size), 9)]
    for loader in (*lists, *streams):
        where = "list" if loader in lists else "own"
        dcp.load({"loader": loader.dcp()}, checkpoint_id=folder / where)
    source.breaks = False
    return [
        *(one.state_dict() == saved.state_dict() for one in lists),
        *(one.state_dict() == streams[0].state_dict() for one in streams),
    ]


def test_ranks_at_different_positions_load(tmp_path: Path) -> None:
    assert ranks(3, load_where_ranks_differ, tmp_path) == [[True] * 6] * 3


def fail(rank: int, size: int, folder: Path) -> list[str]:
    """Save what one rank cannot, or none; return the errors."""
    source = Own(rank)
    options: dict[str, Any] = {"batch_size": 4, "tail": "drop", "seed": 0, "shard": False, "world": World(rank, size)}
    breaking = at(resumable.wrap(source, checks="data", **options), 2)
    source.breaks = rank == 1
    loaders = (breaking, own(rank, Path("/data")), own(rank, Unpicklable() if rank == 1 else rank))
    return [
        why_not(lambda: dcp.save({"loader": loader.dcp()}, checkpoint_id=folder / str(number)), size)  # noqa: B023  # called here
        for number, loader in enumerate(loaders)
    ]


class Unpicklable:
    """In a state that can be copied, and neither saved nor sent."""

    def __deepcopy__(self, memo: object) -> Unpicklable:
        return self

    def __reduce__(self) -> str:
        raise TypeError("it belongs to this process")


def test_a_rank_that_cannot_take_its_state_ends_the_save_of_all(tmp_path: Path) -> None:
    found = ranks(3, fail, tmp_path)
    for rank, (broken, no_plain_values, unpicklable) in enumerate(found):
        for text, reason in ((broken, "RuntimeError: the disk is gone"), (unpicklable, "it belongs to this process")):
            assert reason in text
            if rank != 1:
                assert text.startswith("rank 1 failed, and the ranks save and load together. Nothing was written.")
        assert UnsupportedError.__name__ in no_plain_values
        assert "weights_only=True" in no_plain_values
    assert not list(tmp_path.iterdir())


def load_differently(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Load what one rank refuses, or from another place; return the errors, and where the loader stands then."""
    for step in (1, 3):
        dcp.save({"loader": at(a_list(rank, size), step).dcp()}, checkpoint_id=folder / str(step))
    found = {}
    loaders = {
        "other checkpoint": (a_list(rank, size), 1 if rank else 3),
        "other seed": (a_list(rank, size, seed=rank // 2), 3),
    }
    for name, (loader, step) in loaders.items():
        at(loader, 2)
        before = loader.state_dict()
        with pytest.raises(StateMismatchError) as raised:
            dcp.load({"loader": loader.dcp()}, checkpoint_id=folder / str(step))
        found[name] = str(raised.value), loader.state_dict() == before
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
    assert all(one["other seed"][0].startswith("rank 2 failed, and the ranks save and load") for one in found[:2])


class Remembers(torch.utils.data.Dataset[int]):
    """Read by index, with a state, which one rank does not take back."""

    def __init__(self, *, breaks: bool) -> None:
        self.breaks = breaks

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> int:
        return index

    def state_dict(self) -> dict[str, int]:
        return {"seen": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if self.breaks and state:
            raise RuntimeError("the dataset is gone")


def go_where_one_cannot(rank: int, size: int, folder: Path) -> list[str]:
    """All ranks accept their states, and one fails on the way; a second Loader follows."""
    found = []
    for breaks in (False, True):
        source = torch.utils.data.DataLoader(Remembers(breaks=breaks and rank == 1), batch_size=4)
        loaders = [resumable.wrap(source, seed=0, world=World(rank, size), checks="data"), a_list(rank, size)]
        content = {str(number): loader.dcp() for number, loader in enumerate(loaders)}
        try:
            (dcp.load if breaks else dcp.save)(content, checkpoint_id=folder)
        except Exception as error:  # noqa: BLE001  # the test compares it
            found.append(f"{type(error).__name__}: {error}")
    return found


def test_a_rank_that_fails_on_the_way_ends_the_load_of_all(tmp_path: Path) -> None:
    (first,), (second,), (third,) = ranks(3, go_where_one_cannot, tmp_path)
    assert "the dataset is gone" in second
    assert first == third
    assert first.startswith("StateMismatchError: rank 1 failed")
    assert "Load again on all of them, or restart.\nThe error on rank 1: " in first


class App:
    """A user's object around model and loader, as torch's tutorial has it."""

    def __init__(self, model: torch.nn.Module, loader: Loader) -> None:
        self.model, self.loader = model, loader

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "more": {"loader": self.loader.dcp().state_dict()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.loader.dcp().load_state_dict(state["more"]["loader"])


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
    here, own_group = groups[rank % 2], [distributed.new_group([one]) for one in range(size)][rank]
    loader = at(own(part.rank, part.rank, world=part), 2)
    fresh = [own(part.rank, None, world=part) for _ in range(3)]
    pair = {"checkpoint_id": folder / f"pair{rank % 2}", "process_group": here}
    dcp.save({"loader": loader.dcp(here)}, **pair)
    dcp.load({"loader": fresh[0].dcp(process_group=here)}, **pair)
    dcp.save({"loader": loader.dcp()}, checkpoint_id=folder / "all")
    dcp.load({"loader": fresh[1].dcp()}, checkpoint_id=folder / "all")
    if rank == 0:
        dcp.save({"loader": loader.dcp(no_dist=True)}, checkpoint_id=folder / "alone", no_dist=True)
        dcp.load({"loader": fresh[2].dcp(no_dist=True)}, checkpoint_id=folder / "alone", no_dist=True)
    odd = own(part.rank, rank, world=part)
    message = why_not(lambda: dcp.save({"loader": odd.dcp()}, checkpoint_id=folder / "odd"), size)
    one = {"checkpoint_id": folder / f"one{rank % 2}", "process_group": own_group}
    message += why_not(lambda: dcp.save({"loader": loader.dcp(own_group)}, **one), 1)
    places = [one.state_dict() == loader.state_dict() for one in fresh]
    names = [repr(one) for one in (loader.dcp(), loader.dcp(here), loader.dcp(no_dist=True))]
    return places if rank == 0 else places[:2], message, names


def test_the_process_group_of_the_call_is_that_of_the_exchange(tmp_path: Path) -> None:
    found = ranks(4, in_groups, tmp_path)
    here = "<DCPState of <Loader of iterable, batches of 4, at Cursor(epoch=0, position=8, step=2)>"
    for rank, (places, message, names) in enumerate(found):
        assert all(places), rank
        assert "ranks 0, 1 read the same part of the data (part 0 of 2), and the states of their sources" in message
        assert f"rank {1 - rank // 2} took no part in the save" in message
        assert names == [f"{here}, {who}>" for who in ("all ranks", "the ranks of a process group", "this rank alone")]


def peek_alone(rank: int, size: int, folder: Path) -> bool:
    """Rank 0 looks at the next batch, of a stream that all ranks share."""
    options: dict[str, Any] = {"batch_size": 4, "tail": "drop", "seed": 0, "world": World(rank, size)}
    loader = resumable.wrap(lambda: iter(range(48)), identity="numbers", **options)
    for step in range(3):
        at(loader, step)
        if rank == 0:
            loader.peek()
        dcp.save({"loader": loader.dcp()}, checkpoint_id=folder / str(step))
    return True


def test_ranks_may_know_less_of_the_data_than_others(tmp_path: Path) -> None:
    assert ranks(2, peek_alone, tmp_path) == [True, True]


def test_a_leaf_is_loaded_by_hand_on_one_rank(tmp_path: Path) -> None:
    """One process without a group: plain code may read the leaf, and a damaged one is refused."""
    loader = at(a_list(0, 1), 2)
    dcp.save({"loader": loader.dcp()}, checkpoint_id=tmp_path)
    content: dict[str, Any] = {"loader": {"states": b""}}
    dcp.load(content, checkpoint_id=tmp_path)
    fresh = a_list(0, 1)
    with pytest.raises(StateFormatError, match=r"did you mean load_state_dict\(state\['loader'\]\)"):
        fresh.load_state_dict(content)
    fresh.load_state_dict(content["loader"])
    assert fresh.state_dict() == loader.state_dict()
    for load in (fresh.load_state_dict, fresh.dcp().load_state_dict):
        for damaged in (b"", b"{", b"[]", b'{"format":1,"states":[]}', b"PK\x03\x04", content["loader"]["states"][:-9]):
            with pytest.raises(StateFormatError, match="leaf of a Loader .* is damaged"):
                load({"states": damaged})
        with pytest.raises(StateFormatError, match="newer version"):
            load({"states": b'{"format":2,"states":[{}]}'})
        with pytest.raises(StateFormatError, match="newer version of .*the ranks' part has shards"):
            load({"states": b'{"format":1,"states":[{}],"shards":2}'})
    for nothing in ({}, None, {"states": 3}, loader.state_dict()):
        with pytest.raises(StateFormatError, match="leaf of a Loader .* is damaged"):
            fresh.dcp().load_state_dict(nothing)  # type: ignore[arg-type]  # that is the point
    assert fresh.state_dict() == loader.state_dict()


def test_checkpoints_of_earlier_versions_load(tmp_path: Path) -> None:
    """The leaves were saved by `dcp.save({"loader": loader})`, when a Loader recognised DCP by its frames."""
    saved = json.loads(Path(__file__).with_name("earlier_leaves.json").read_text(encoding="utf-8"))
    assert {case["name"] for case in saved} == set(LOADERS)
    for case in saved:
        leaf, size, name = base64.b64decode(case["leaf"]), len(case["rest"]), case["name"]
        dcp.save({"loader": {"states": leaf}}, checkpoint_id=tmp_path / f"{name}{size}")
        for rank, wanted in enumerate(case["rest"]):
            by_hand, by_dcp = (LOADERS[name](World(rank, size)) for _ in range(2))
            by_hand.load_state_dict({"states": leaf})
            dcp.load({"loader": by_dcp.dcp()}, checkpoint_id=tmp_path / f"{name}{size}")
            assert rest(by_hand) == rest(by_dcp) == wanted, (name, rank)


def test_what_cannot_be_saved_cannot_be_copied_either(tmp_path: Path) -> None:
    source = Own(1)
    loader = at(resumable.wrap(source, batch_size=4, tail="drop", seed=0), 2)
    source.breaks = True
    content = loader.dcp().state_dict()
    for write in (pickle.dumps, copy.copy, copy.deepcopy, lambda leaf: torch.save(leaf, io.BytesIO())):
        with pytest.raises(StateMismatchError, match="the state cannot be saved: RuntimeError: the disk is gone"):
            write(content["states"])
    (tmp_path / "leaf").write_bytes(content["states"])
    with pytest.raises(StateFormatError, match="it is empty"):
        loader.load_state_dict({"states": (tmp_path / "leaf").read_bytes()})


def test_the_object_belongs_to_its_loader() -> None:
    loader = a_list(0, 1)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UnsupportedError, match="cannot be copied or pickled: it belongs to a Loader"):
            copied(loader.dcp())
    assert not hasattr(loader.dcp(), "__dict__")
    with pytest.raises(ConfigurationError, match=r"process_group must be a process group .*, but it is World\("):
        loader.dcp(World(0, 1))
    with pytest.raises(UnsupportedError, match=r"dcp\(\) was called on a loader with evaluation=True"):
        a_list(0, 1, evaluation=True).dcp()
