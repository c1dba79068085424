"""Bugs, each planted into this process by its name: what the chaos harness has to catch.

    python train_plain.py --bug epoch_lost

A bug replaces one function of the library that has to be there, and leaves a mark when it is run, so that a change of
the library cannot make a bug void in silence. The bugs of a user are in the training scripts; only names are here.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable import World
from resumable._durable import HashingFile
from resumable._randomness.keys import reseed
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Callable

MARKS = "PLANTED_MARKS"  # names the directory that gets an empty file of the bug's name when it is run
LIBRARY: dict[str, Callable[[], None]] = {}
USER: dict[str, str] = {
    "epoch_not_told": "the order depends on an epoch that the script counts from 0 in each process",
    "seed_of_the_time": "the seed of the order is the time",
    "saved_before_step": "the checkpoint has the weights before the optimizer's step, and the loader's state after it",
    "optimizer_forgotten": "the momentum of the optimizer is not put back",
}


def library(plant: Callable[[], None]) -> Callable[[], None]:
    LIBRARY[plant.__name__] = plant
    return plant


def plant(name: str | None) -> None:
    """Plant a bug of the library; a user's is planted by the script itself."""
    if name in LIBRARY:
        LIBRARY[name]()
    elif name not in {None, *USER}:
        raise SystemExit(f"there is no bug {name}")


def mark(name: str) -> None:
    """Leave the mark that a bug was run."""
    (Path(os.environ[MARKS]) / name).touch()


def swap(place: str, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function, which has to be there.

    Args:
        place: module, or module and class, with a colon between.
        name: of the function.
        make: makes the function that stands in for the one that it is given.
    """
    module, _, kind = place.partition(":")
    owner = import_module(module)
    owner = vars(owner)[kind] if kind else owner
    bug = sys._getframe(1).f_code.co_name
    other = make(vars(owner)[name])

    def marked(*args: Any, **named: Any) -> Any:
        mark(bug)
        return other(*args, **named)

    setattr(owner, name, marked)


# ---------------------------------------------------------------------- the place


@library
def epoch_lost() -> None:
    """A loaded state goes on in epoch 0, at the step that it has."""
    swap("resumable.loader.progress:Progress", "_move", lambda real: lambda self, to: real(
        self, to._replace(cursor=replace(to.cursor, epoch=0))))  # fmt: skip


@library
def last_batch_repeated() -> None:
    """A state after the last batch of an epoch goes on before that batch."""

    def make(real: Any) -> Any:
        def _move(self: Any, to: Any) -> None:
            size, cursor = self.global_batch, to.cursor
            if cursor.position and self._fetcher.finished(cursor, size):
                cursor = replace(cursor, position=(cursor.position - 1) // size * size, step=cursor.step - 1)
            real(self, to._replace(cursor=cursor))

        return _move

    swap("resumable.loader.progress:Progress", "_move", make)


@library
def last_batch_lost() -> None:
    """A state before the last batch of an epoch goes on in the next epoch."""

    def make(real: Any) -> Any:
        def _move(self: Any, to: Any) -> None:
            size = self.global_batch
            over = self._fetcher.finished(replace(to.cursor, position=to.cursor.position + size), size)
            real(self, to._replace(cursor=self._fetcher.following(to.cursor, size)) if over else to)

        return _move

    swap("resumable.loader.progress:Progress", "_move", make)


@library
def handed_twice() -> None:
    """The first batch after a resume in the middle of an epoch is delivered twice."""

    def twice(stream: Any) -> Any:
        first = next(stream)
        yield first
        yield first
        yield from stream

    def make(real: Any) -> Any:
        def _open(self: Any) -> None:
            real(self)
            if self.moves and self.delivered.step:
                self._stream = twice(self._stream)

        return _open

    swap("resumable.loader.progress:Progress", "_open", make)


@library
def position_rounded_up() -> None:
    """A loaded state goes on one batch later than it says, as where the batch in flight counts as trained on."""

    def make(real: Any) -> Any:
        def _move(self: Any, to: Any) -> None:
            ahead = self._fetcher.plan(self.global_batch).advance(to.cursor)
            real(self, to._replace(cursor=ahead))

        return _move

    swap("resumable.loader.progress:Progress", "_move", make)


@library
def acked_when_handed() -> None:
    """With `ack="manual"`, a batch counts as trained on when it is delivered, and `ack()` does nothing."""

    def make(real: Any) -> Any:
        def _deliver(self: Any, cursor: Any) -> None:
            real(self, cursor)
            self._acknowledged = self._delivered
            self._in_flight.clear()

        return _deliver

    swap("resumable.loader.progress:Progress", "_deliver", make)
    import_module("resumable.loader.loader").Loader.ack = lambda self, batches=1: None


@library
def requested_counted() -> None:
    """A batch that workers were asked for ahead counts as delivered: the cursor runs ahead."""

    class Hasty(deque[Any]):
        def popleft(self) -> Any:
            last = self[-1]
            super().popleft()
            return last

    swap("resumable._fetch.indexed", "deque", lambda real: Hasty)


@library
def requested_saved() -> None:
    """The state, and nothing else, counts what workers were asked for ahead."""
    asked: list[Any] = []

    class Noting(deque[Any]):
        def append(self, cursor: Any) -> None:
            asked[:] = [cursor]
            super().append(cursor)

    import_module("resumable._fetch.indexed").deque = Noting  # type: ignore[attr-defined]  # it imports the name
    swap("resumable.loader.progress:Progress", "_state_of", lambda real: lambda self, at, *others: real(
        self, at._replace(cursor=asked[0] if asked else at.cursor), *others))  # fmt: skip


# ---------------------------------------------------------------------- randomness


@library
def keyed_by_count() -> None:
    """The randomness of a sample comes from the number of samples that this process has read before it."""
    begun: list[int] = []

    def make(real: Any) -> Any:
        def keys(self: Any, request: Any) -> Any:
            begun.append(request.size)
            before = sum(begun[:-1])
            return real(self, request._replace(epoch=0, start=before, stop=before + request.size))

        return keys

    swap("resumable._fetch.order:Order", "keys", make)


@library
def seeded_by_worker() -> None:
    """Each worker is seeded by its number when it starts, as torch does it, and not by the sample."""

    def make(real: Any) -> Any:
        def setup(self: Any, worker: int) -> None:
            real(self, worker)
            reseed(worker)

        return setup

    swap("resumable.backends.torch.engine:WorkerSetup", "__call__", make)
    swap("resumable._fetch.workers:RequestDataset", "__getitem__", lambda real: lambda self, message: replace(
        self._reader, randomness="off").read(self.request_of(message)))  # fmt: skip


@library
def generators_forgotten() -> None:
    """`resumable.rng.load_state_dict` puts nothing back."""
    swap("resumable.rng", "load_state_dict", lambda real: lambda state: None)


# ---------------------------------------------------------------------- streams


@library
def skipped_twice() -> None:
    """A source that is replayed skips twice as many elements as were read of it."""
    swap("resumable._fetch.element_reader:SeededReader", "skip", lambda real: lambda self, position, count: (
        self.take(position, count), real(self, position, count))[1])  # fmt: skip


@library
def not_skipped() -> None:
    """A source that is replayed begins again."""
    swap("resumable._fetch.element_reader:SeededReader", "skip", lambda real: lambda self, position, count: count)


@library
def looked_ahead_lost() -> None:
    """The element that was drawn ahead to look for the end, while a state was taken, is never delivered."""

    def make(real: Any) -> Any:
        def take(self: Any, position: int, count: int, *, keep: bool = True) -> Any:
            self._ahead = []
            return real(self, position, count, keep=keep)

        return take

    swap("resumable._fetch.element_reader:SeededReader", "take", make)


@library
def first_worker_begins() -> None:
    """A resumed stream of two workers goes on with the first one, whose turn it may not be."""
    swap("resumable.backends.torch.stream:TorchStreamBackend", "restore", lambda real: lambda self, epoch, snapshot:
         real(self, epoch, {**snapshot, "next": 0}))  # fmt: skip


@library
def helper_left_alive() -> None:
    """A process that reads for the loader lives on when the one that started it is killed."""

    def make(real: Any) -> Any:
        def _open(self: Any) -> None:
            helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            atexit.register(helper.kill)
            real(self)

        return _open

    swap("resumable.loader.progress:Progress", "_open", make)


# ---------------------------------------------------------------------- checkpoints


@library
def written_in_place() -> None:
    """There is one file, which each save truncates and writes again."""

    def save(self: Any, step: int, content: Any) -> None:
        point("store.save", self, step, content)
        with Path(self.root, "only.pt").open("wb") as file:
            HashingFile(file).fill(lambda sink: import_module("torch").save([step, content], sink))
        point("store.saved", self, step)

    def latest(self: Any) -> Any:
        file = Path(self.root, "only.pt")
        file.parent.mkdir(exist_ok=True)
        step, content = import_module("torch").load(file) if file.exists() else (None, None)
        point("store.loaded", self, step, content)
        return content

    swap("resumable.checkpoint.store:CheckpointStore", "save", lambda real: save)
    swap("resumable.checkpoint.store:CheckpointStore", "latest", lambda real: latest)


@library
def removed_first() -> None:
    """The older checkpoints are removed before the new one is written."""

    def make(real: Any) -> Any:
        def save(self: Any, step: int, content: Any) -> None:
            for old in self.steps():
                self.delete(old)
            real(self, step, content)

        return save

    swap("resumable.checkpoint.store:CheckpointStore", "save", make)


@library
def not_compared() -> None:
    """The data of a checkpoint is not compared with its checksum, nor by torch with that of the archive."""
    swap("resumable.checkpoint.marker:Marker", "compare", lambda real: lambda self, file: None)


@library
def oldest_resumed() -> None:
    """`latest()` gives the oldest checkpoint."""
    swap("resumable.checkpoint.steps:Steps", "listed", lambda real: lambda self: real(self)[::-1])


@library
def not_synced() -> None:
    """The data of a checkpoint is not made durable before its marker is written."""

    @contextlib.contextmanager
    def create(self: Any, path: str) -> Any:
        with Path(path).open("xb") as file:
            yield file
        point("store.written", path)

    swap("resumable._storage:LocalStorage", "create", lambda real: create)


# ---------------------------------------------------------------------- ranks, Lightning


@library
def old_ranks() -> None:
    """A resumed run divides its batches among as many ranks as the checkpoint was written by."""
    sizes: list[int] = []

    def load(real: Any) -> Any:
        def load_state_dict(self: Any, state: Any, **options: Any) -> None:
            real(self, state, **options)
            sizes[:] = [state["world_size"]]

        return load_state_dict

    swap("resumable.loader.loader:Loader", "load_state_dict", load)
    swap("resumable._options:Options", "find_world", lambda real: lambda self: (
        World(real(self).rank % sizes[0], sizes[0]) if sizes else real(self)))  # fmt: skip


@library
def acked_when_fetched() -> None:
    """The Lightning callback counts a batch as trained on when the Trainer fetches it, which it does ahead."""

    def make(real: Any) -> Any:
        def next_batch(self: Any, reading: Any, epoch: int) -> Any:
            batch = real(self, reading, epoch)
            self.loader.ack()
            return batch

        return next_batch

    swap("resumable.integrations.lightning.loaders:TrainStream", "next_batch", make)
    import_module("resumable.integrations.lightning.loaders").TrainStream.ack = lambda self: None


def seed_of_the_time() -> int:
    mark("seed_of_the_time")
    return time.time_ns() % (1 << 60)
