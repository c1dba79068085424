"""The ledger: what each observed process did, written by it and read after its end or kill.

Each event is one JSON object in a line, so nothing is lost if the process is killed. `read_attempts` makes of them the
record of each rank in each launch.

kind       fields in addition to time, pid, point, number (of the failpoint in this process), rank, world
start      attempt, restarts, agent                   how often an agent has restarted its ranks; whether there is one
wrapped                                               a loader was created
point                                                 a failpoint without further fields
fetch      loader                                     a batch is about to be read
batch      loader, epoch, position, step, acked,      a batch was delivered; whether by a loader for evaluation
           evaluation, indices (or null), digests,
           generators, line, indexed                  by which loop of the program, and whether by `enumerate`
ack        loader, epoch, position, step              the acknowledged position
state      loader, epoch, position, step, says        the position at which a state was saved, and the one in the state
load       loader, says                               the position in a state that is about to be loaded
loaded     loader, epoch, position, step              the loader's position after that
saving     root, store, step, places, parts, lost,    a store starts to save a checkpoint; positions of the loaders in
           generators                                 it, its parts by path, and digests of the RNGs
saved      root, store, step                          it is committed
restored   root, store, step                          a checkpoint that a store returned; step is null for none
half       name                                       torch.save has written the first half of a file
wrote      name, store, step, places, parts, lost,    it is complete: its path in the case and its content, its series
           generators, aside                          instead of a store; whether another thread wrote it
renamed    old, series, name, store, step, aside      a saved file has a new name and a new series
unnamed                                               something was saved to no file
stepped                                               a step of an optimizer, after the first batch
update     after, store, step, optimizer, weights,    the first step of an optimizer after a checkpoint was saved or
           optimizer_parts, stands, backward          restored: its state before that step, and whether gradients were
                                                      computed since the checkpoint
file       path                                       a file of a checkpoint on its way to disk
save       step, places                               a checkpoint of the Trainer
model      elements                                   number of parameters that PyTorch trains here, if any
weights    digest, lost                               of the final weights
fire       fault                                      number of the fault that happens now

Events about files are in separate files, `files-*.jsonl`, with fewer fields:

read       path                                       a file outside the case that `torch.load` read
appended   path, size                                 a file of so many bytes was opened to append
in place   path, over                                 a file was written under its final name, or over an older one
read in place path                                    a file that an earlier launch wrote in place was read
stopped    why                                        the process ended itself
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


__all__ = [
    "Attempt",
    "Batch",
    "InPlace",
    "Left",
    "RankLog",
    "Save",
    "StepRef",
    "Update",
    "Writer",
    "read_attempts",
    "read_events",
    "series_of",
]


_NUMBER = re.compile(r"\d+(\.\d+)*")
_VERSION = re.compile(r"-v\d+(?=\.ckpt$)")  # Lightning's suffix for a name that is already taken


class Writer:
    """Appends events to a file of this process, each with a single write, so a kill leaves only complete lines.

    Args:
        directory: of one attempt's ledgers.
        name: prefix of the file name.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._pid = os.getpid()
        path = directory / f"{name}-{self._pid}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, kind: str, **fields: Any) -> None:
        """Append an event."""
        event = {"kind": kind, "time": time.time_ns() / 1e9, "pid": self._pid, **fields}
        os.write(self._file, json.dumps(event).encode() + b"\n")


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events of a process; an incomplete line at the end is left out."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line]


# The record of one rank in one launch.

Save: TypeAlias = "tuple[str, int]"  # the name of a store or the series of a file, and a step


def series_of(name: str) -> str:
    """Return a name without its numbers.

    >>> series_of("checkpoints/epoch=2-loss=0.31.ckpt")
    'checkpoints/epoch=*-loss=*.ckpt'
    """
    return _NUMBER.sub("*", _VERSION.sub("", name))


class StepRef(NamedTuple):
    """A position in a loader's stream: after `step` batches of an epoch."""

    epoch: int
    step: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, step {self.step}"


class Batch(NamedTuple):
    """The batch that one rank received in a step."""

    indices: tuple[str, ...] | None
    digests: tuple[str, ...]


class Update(NamedTuple):
    """The first step of an optimizer after a checkpoint.

    Args:
        resumed: whether the checkpoint was restored; otherwise it was saved.
        save: name of the store, and the step.
        optimizer: its number.
        weights: their parts before the step.
        state: parts of the optimizer's state before the step.
        stands: positions of the loaders.
        backward: whether gradients were computed since the checkpoint was saved.
        before: number of steps of all optimizers before it, since the first batch.
    """

    resumed: bool
    save: Save
    optimizer: int
    weights: dict[str, str]
    state: dict[str, str]
    stands: tuple[StepRef, ...]
    backward: bool = False
    before: int = 0


@dataclass
class RankLog:
    """The record of one rank's training process.

    Args:
        batches: by loader and position after the batch, in the order of delivery.
        acked: the last acknowledged position of each loader.
        evaluating: numbers of the loaders wrapped for evaluation.
        begun: position of each loader before its first batch, or after its state was loaded.
        saved: root and step of the checkpoints that were committed to a store.
        saved_at: number of failpoints before each of them, and before each checkpoint of the Trainer.
        parts: from name and step to the parts of that checkpoint of a store; one entry for each save.
        generators: digests of the global RNGs when a checkpoint was saved, by store and step.
        held: positions of the loaders in the latest save of each checkpoint, by store and step.
        drawn: digests of the global RNGs at the delivery of each batch, for its loader and position.
        loops: line of the program's loop to which a batch was delivered, and whether it counts with `enumerate`.
        updates: first steps of optimizers after a checkpoint was saved or restored.
        stepped: number of steps of all optimizers since the first batch.
        restored: root and step of each checkpoint that a store returned.
        resumed: the same with the names of the stores, if there was a checkpoint.
        saved_places: positions of the loaders in each checkpoint of a store, by root and step.
        loaded: position of each loader after its state was loaded.
        saves: series and step of each file that the script saved itself, by its path in the case.
        moved: files that were renamed after they had been saved.
        drafts: series of files that were renamed after they had been saved.
        half: the file that was half-written at the end.
        unplaced: files that another thread saved at an unknown step.
        unnamed: number of saves to no file, such as to memory.
        untrue: contradictions between the positions of states and loaders, in words.
        files: failpoints of checkpoint files: point and path.
        weights: digest of the final weights, if the Trainer or the script reports them.
        wrapped: whether a loader was created.
        lost: whether weights, or tensors in the checkpoints of a store, are entirely NaN.
        trains: number of parameters that PyTorch trains in this process; None if none.
        points: names of the failpoints, in order.
        loaders: from the number of a failpoint, counted from 1, to the number of its loader.
        fired: numbers of the faults.
        times: of the first and the last event.
        went: positions to which states moved each loader, in order.
        agent: whether an agent such as torchrun started it.
    """

    rank: int
    world: int
    batches: dict[tuple[int, StepRef], Batch] = field(default_factory=dict)
    acked: dict[int, StepRef] = field(default_factory=dict)
    evaluating: set[int] = field(default_factory=set)
    begun: dict[int, StepRef] = field(default_factory=dict)
    saved: list[tuple[str, int]] = field(default_factory=list)
    saved_at: list[int] = field(default_factory=list)
    parts: dict[Save, list[dict[str, str]]] = field(default_factory=dict)
    generators: dict[Save, dict[str, str]] = field(default_factory=dict)
    held: dict[Save, tuple[StepRef, ...]] = field(default_factory=dict)
    drawn: dict[tuple[int, StepRef], dict[str, str]] = field(default_factory=dict)
    loops: dict[tuple[int, StepRef], tuple[str, bool]] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)
    stepped: int = 0
    restored: list[tuple[str, int | None]] = field(default_factory=list)
    resumed: list[Save] = field(default_factory=list)
    saved_places: dict[tuple[str, int], list[StepRef]] = field(default_factory=dict)
    loaded: dict[int, StepRef] = field(default_factory=dict)
    saves: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    drafts: set[str] = field(default_factory=set)
    half: str = ""
    unplaced: list[str] = field(default_factory=list)
    unnamed: int = 0
    untrue: list[str] = field(default_factory=list)
    files: list[tuple[str, str]] = field(default_factory=list)
    weights: str | None = None
    wrapped: bool = False
    lost: bool = False
    trains: int | None = None
    points: list[str] = field(default_factory=list)
    loaders: dict[int, int] = field(default_factory=dict)
    fired: list[int] = field(default_factory=list)
    times: tuple[float, float] = (0.0, 0.0)
    went: dict[int, list[StepRef]] = field(default_factory=dict)
    agent: bool = False
    _asked: dict[int, Any] = field(default_factory=dict)

    def trained(self) -> dict[tuple[int, StepRef], Batch]:
        """Return the batches that were acknowledged."""
        nothing = StepRef(-1, 0)
        return {key: batch for key, batch in self.batches.items() if key[1] <= self.acked.get(key[0], nothing)}

    def unacknowledged(self) -> list[tuple[int, StepRef]]:
        """Return the batches that were delivered but not acknowledged; a resume repeats them by design."""
        trained = self.trained()
        return [key for key in self.batches if key not in trained]

    def add(self, event: dict[str, Any]) -> None:
        """Add an event of the ledger."""
        self.times = (self.times[0] or event["time"], event["time"])
        if "point" in event:
            self.points.append(event["point"])
            if "loader" in event:
                self.loaders[len(self.points)] = event["loader"]
        add = getattr(self, f"_add_{event['kind']}", None)
        if add is not None:
            add(event)

    def _add_start(self, event: dict[str, Any]) -> None:
        self.agent |= event.get("agent", False)

    def _add_wrapped(self, _: dict[str, Any]) -> None:
        self.wrapped = True

    def _add_batch(self, event: dict[str, Any]) -> None:
        loader, place = event["loader"], _place(event)
        self.begun.setdefault(loader, StepRef(place.epoch, place.step - 1))
        indices = None if event["indices"] is None else tuple(event["indices"])
        self.batches[loader, place] = Batch(indices, tuple(event["digests"]))
        self.drawn[loader, place] = event.get("generators", {})
        self.loops[loader, place] = event.get("line", ""), event.get("indexed", False)
        if event["acked"]:
            self.acked[loader] = place
        if event.get("evaluation"):  # missing in older records
            self.evaluating.add(loader)

    def _add_ack(self, event: dict[str, Any]) -> None:
        self.acked[event["loader"]] = _place(event)

    def _add_loaded(self, event: dict[str, Any]) -> None:
        loader, place = event["loader"], _place(event)
        self.begun[loader] = self.acked[loader] = self.loaded[loader] = place
        self.went.setdefault(loader, []).append(place)
        self._compare(event, self._asked.pop(loader, None), "was sent to {says}, but is at {stands}")

    def _add_load(self, event: dict[str, Any]) -> None:
        self._asked[event["loader"]] = event["says"]

    def _add_state(self, event: dict[str, Any]) -> None:
        self._compare(event, event["says"], "was at {stands}, but its state says {says}")

    def _compare(self, event: dict[str, Any], says: Any, words: str) -> None:
        if says is not None and any(says[name] != event[name] for name in ("epoch", "position")):
            told = words.format(says=_name(says), stands=_name(event))
            self.untrue.append(f"loader {event['loader']} {told}")

    def _add_saving(self, event: dict[str, Any]) -> None:
        self.lost |= event.get("lost", False)
        save = (event.get("store", event["root"]), event["step"])
        self.parts.setdefault(save, []).append(event["parts"])
        self.generators[save] = event.get("generators", {})
        self.held[save] = tuple(_place(place) for place in event["places"])
        places = self.saved_places.setdefault((event["root"], event["step"]), [])
        places += [_place(place) for place in event["places"]]  # a step may be saved several times

    def _add_half(self, event: dict[str, Any]) -> None:
        self.half = event["name"]

    def _add_wrote(self, event: dict[str, Any]) -> None:
        self.half = ""
        self.lost |= event["lost"]
        if event["name"].startswith("/"):  # a temporary file, unless it is renamed later
            self.drafts.add(event["store"])
        self.saves[event["name"]] = (event["store"], event["step"])
        if event["step"] is None:
            self.unplaced.append(event["name"])
            return
        save = (event["store"], event["step"])
        self.parts.setdefault(save, []).append(event["parts"])
        self.generators[save] = event["generators"]
        self.held[save] = tuple(_place(place) for place in event["places"])
        self.saved_places.setdefault(save, []).extend(self.held[save])

    def _add_renamed(self, event: dict[str, Any]) -> None:
        old, save = self.saves.pop(event["old"], None), (event["store"], event["step"])
        self.drafts.add(event["series"])
        self.moved.add(event["old"])
        self.saves[event["name"]] = save
        if old is None or old not in self.parts:
            return  # an earlier launch or another thread saved it
        contents = self.parts[old]
        self.parts.setdefault(save, []).append(contents.pop())
        self.saved_places.setdefault(save, []).extend(self.held[old])
        self.generators[save], self.held[save] = self.generators[old], self.held[old]
        if not contents:
            for kept in (self.parts, self.generators, self.held, self.saved_places):
                kept.pop(old, None)

    def _add_unnamed(self, _: dict[str, Any]) -> None:
        self.unnamed += 1

    def _add_saved(self, event: dict[str, Any]) -> None:
        self.saved.append((event["root"], event["step"]))
        self.saved_at.append(event["number"])

    def _add_save(self, event: dict[str, Any]) -> None:
        self.saved_at.append(event["number"])  # the Trainer writes it before its own failpoint

    def _add_restored(self, event: dict[str, Any]) -> None:
        self.restored.append((event["root"], event["step"]))
        if event["step"] is not None:
            self.resumed.append((event.get("store", event["root"]), event["step"]))

    def _add_file(self, event: dict[str, Any]) -> None:
        self.files.append((event["point"], event["path"]))
        if event["point"] == "store.renamed" and event["path"].endswith(".ckpt") and self.saved_at:
            self.saved_at[-1] = event["number"]  # the Trainer's latest checkpoint

    def _add_weights(self, event: dict[str, Any]) -> None:
        self.weights = event["digest"]
        self.lost |= event.get("lost", False)

    def _add_model(self, event: dict[str, Any]) -> None:
        self.trains = event["elements"]

    def _add_update(self, event: dict[str, Any]) -> None:
        save = (event["store"], event["step"])
        stands = tuple(_place(place) for place in event["stands"])
        parts = (event["weights"], event["optimizer_parts"])
        about = (event.get("backward", False), self.stepped - 1)  # missing in older records
        self.updates.append(Update(event["after"] == "restored", save, event["optimizer"], *parts, stands, *about))

    def _add_stepped(self, _: dict[str, Any]) -> None:
        self.stepped += 1

    def _add_fire(self, event: dict[str, Any]) -> None:
        self.fired.append(event["fault"])


def _place(values: dict[str, Any]) -> StepRef:
    return StepRef(values["epoch"], values["step"])


def _name(values: dict[str, Any]) -> str:
    return f"{_place(values)} (sample {values['position']})"


# Reads the ledgers of one launch: the actions of its ranks and workers, and the changes to its files.


class InPlace(NamedTuple):
    """A file that was written in place.

    Args:
        first: time of the first write.
        over: whether that write or a later one destroyed an older content.
    """

    first: float
    over: bool = False


class Left(NamedTuple):
    """The files at the end of a run.

    Args:
        files: from file name to parts.
        ignored: names of files that the user excluded.
        damaged: names of files that were damaged or removed on purpose, and not written again.
        unlike: names of files that only one of two baseline runs left, with `#` for every number.
        records: names of files that were opened to append and have no values, as logs; they are not compared.
        single: for each file that is written line by line, the values that the last launch wrote at most once.
    """

    files: dict[str, dict[str, str]]
    ignored: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    single: Mapping[str, list[str]] = {}  # read only


@dataclass
class Attempt:
    """One launch of the ranks. The command makes it, or an agent in it that restarts them, such as torchrun.

    Args:
        number: from 0.
        ranks: record of each rank, by rank.
        workers: names of the failpoints that each worker process passed.
        fired: whether its fault happened.
        status: exit status of the command, negative for a signal.
        killed: why the chaos run killed it, if it did.
        silence: seconds for which it made no progress, at most.
        orphans: processes that outlived it.
        unloadable: committed checkpoints that cannot be loaded after it, in words.
        output: the end of its output.
        read: files outside the directory that `torch.load` read.
        appended: files of the case that were opened to append, as logs are, with their size when the last process did.
        in_place: from path to file of the case that was written in place.
        read_in_place: time of the first read of each file that an earlier launch wrote in place.
        refused: why a process ended itself before causing damage.
        left: the files at the end of the last launch of a case.
        launch: number of the launch in its case; equal to `number` unless an agent restarts ranks.
        restarts: how often the agent had restarted its ranks before.
    """

    number: int
    ranks: dict[int, RankLog] = field(default_factory=dict)
    workers: list[list[str]] = field(default_factory=list)
    fired: bool = False
    status: int | None = None
    killed: str = ""
    silence: float = 0.0
    orphans: list[int] = field(default_factory=list)
    unloadable: list[str] = field(default_factory=list)
    output: str = ""
    read: set[str] = field(default_factory=set)
    appended: dict[str, int] = field(default_factory=dict)
    in_place: dict[str, InPlace] = field(default_factory=dict)
    read_in_place: dict[str, float] = field(default_factory=dict)
    refused: str = ""
    left: Left | None = None
    launch: int = -1
    restarts: int = 0

    def __post_init__(self) -> None:
        if self.launch < 0:
            self.launch = self.number

    @property
    def watched(self) -> bool:
        """Whether any of its processes imported resumable."""
        return bool(self.ranks)

    def trained(self) -> dict[tuple[int, StepRef], dict[int, Batch]]:
        """Return what each rank trained on, by loader and position.

        A step counts if one rank acknowledges it, for all ranks that received it: another rank may be killed before
        its own acknowledgement.
        """
        acked = {key for log in self.ranks.values() for key in log.trained()}
        steps: dict[tuple[int, StepRef], dict[int, Batch]] = {}
        for rank, log in sorted(self.ranks.items()):
            for key, batch in log.batches.items():
                if key in acked:
                    steps.setdefault(key, {})[rank] = batch
        return steps


def read_attempts(directory: Path, number: int, launch: int | None = None) -> list[Attempt]:
    """Read the ledgers of one launch of the command: one attempt for each start of its ranks.

    Args:
        directory: of the ledgers.
        number: of the first attempt.
        launch: number of the launch; None if equal to the number of the first attempt.
    """
    launch = number if launch is None else launch
    ledgers: dict[int, list[_Ledger]] = {}
    for path in [*directory.glob("worker-*.jsonl"), *directory.glob("events-*.jsonl")]:
        if events := read_events(path):
            ledgers.setdefault(events[0].get("restarts", 0), []).append(
                _Ledger(path.stat().st_mtime, path.name, events)
            )
    attempts = [
        _read_attempt(Attempt(one, launch=launch, restarts=restarts), sorted(ledgers[restarts]))
        for one, restarts in enumerate(sorted(ledgers), start=number)
    ] or [Attempt(number, launch=launch)]
    for path in directory.glob("files-*.jsonl"):
        _add_files(attempts[-1], path)
    return attempts


class _Ledger(NamedTuple):
    changed: float
    name: str
    events: list[dict[str, Any]]


def _read_attempt(attempt: Attempt, ledgers: list[_Ledger]) -> Attempt:
    for _, name, events in ledgers:
        if name.startswith("worker-"):
            attempt.workers.append([event["point"] for event in events if "point" in event])
            attempt.fired |= any(event["kind"] == "fire" for event in events)
            continue
        rank = events[-1].get("rank", 0)  # known once there is a process group
        log = attempt.ranks.setdefault(rank, RankLog(rank, events[-1].get("world", 1)))
        for event in events:
            log.add(event)
        attempt.fired |= bool(log.fired)
    return attempt


def _add_files(attempt: Attempt, path: Path) -> None:
    for event in read_events(path):
        if event["kind"] == "stopped":
            attempt.refused = attempt.refused or event["why"]
        elif event["kind"] == "in place":
            known = attempt.in_place.get(event["path"], InPlace(event["time"]))
            over = known.over or event["over"]
            attempt.in_place[event["path"]] = InPlace(min(known.first, event["time"]), over)
        elif event["kind"] == "read in place":
            first = attempt.read_in_place.get(event["path"], event["time"])
            attempt.read_in_place[event["path"]] = min(first, event["time"])
        elif event["kind"] == "appended":
            attempt.appended[event["path"]] = max(attempt.appended.get(event["path"], 0), event["size"])
        else:
            attempt.read.add(event["path"])
