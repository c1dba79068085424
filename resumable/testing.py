"""Conformance tests: the promises that every backend keeps."""

from __future__ import annotations

import hashlib
import inspect
import json
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from resumable._order.world import World
from resumable.errors import ConfigurationError, LoopError, StateMismatchError, UnsupportedError
from resumable.protocols import SnapshotBackend, SupportsEnded, SupportsStored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from resumable.loader.loader import Loader


__all__ = ["BackendTests", "Run", "digest", "draw_from_generators", "rest_of_run", "samples_of"]


_STATE_BYTES = 1024
_CHAIN = 8

# The script of a fresh process: it loads the test class from its file, resumes, and prints the digests of the rest.
_CHILD = """
import importlib.util, pickle, sys
path, name, state, epochs = sys.argv[1:]
spec = importlib.util.spec_from_file_location("conformance_case", path)
module = sys.modules["conformance_case"] = importlib.util.module_from_spec(spec)
if __name__ == "__main__":
    spec.loader.exec_module(module)
    from resumable.testing import rest_of_run
    loader = getattr(module, name).make()
    with open(state, "rb") as file:
        loader.load_state_dict(pickle.load(file))
    print("\\n".join(f"{epoch} {what}" for epoch, what in rest_of_run(loader, int(epochs))))
"""


class BackendTests:
    """The promises that every backend keeps, as tests.

    A subclass sets:

    Attributes:
        make: static method that returns a new loader over the same data each time; it passes its keyword arguments on
            to `wrap`. The file must be importable on its own, because a fresh process loads it.
        epochs: number of epochs in a run.
        native: whether states may contain a snapshot from the source; otherwise they must be JSON.
        others: from a word that the message must contain to a loader that must reject the states of `make()`. Include
            "length", "batch", "sampler" and "kind" if the source allows it.
        stride: restore at every step (1), or at every n-th if a restore is expensive.
        shared: whether the ranks share the global batches of one stream evenly.
    """

    make: ClassVar[Callable[..., Loader]]
    epochs: ClassVar[int] = 3
    native: ClassVar[bool] = False
    others: ClassVar[Mapping[str, Callable[[], Loader]]] = {}
    stride: ClassVar[int] = 1
    shared: ClassVar[bool] = False

    _reference: ClassVar[tuple[Run, list[dict[str, Any]]] | None] = None

    @classmethod
    def reference(cls) -> tuple[Run, list[dict[str, Any]]]:
        """Return the uninterrupted run, and the state before its first and after each of its batches."""
        if cls._reference is None or cls.__dict__.get("_reference") is None:
            loader = cls.make()
            run, states = [], [loader.state_dict()]
            for epoch in loader.epochs(cls.epochs):
                for batch in epoch:
                    run.append((epoch.number, digest(batch)))
                    states.append(loader.state_dict())
            cls._reference = run, states
        return cls._reference

    def resumed(self, state: dict[str, Any]) -> Loader:
        """Return a new loader at a state."""
        loader = type(self).make()
        loader.load_state_dict(state)
        assert loader.epoch >= state["cursor"]["epoch"], "read first, like a loop over range(loader.epoch, n) does"
        return loader

    def test_the_run_is_reproducible(self) -> None:
        """Two runs are the same, and every epoch has batches."""
        run, _ = self.reference()
        assert run, "the run has no batch"
        assert {epoch for epoch, _ in run} == set(range(self.epochs)), "an epoch has no batch"
        assert rest_of_run(type(self).make(), self.epochs) == run

    def test_restored_at_every_step_the_rest_is_the_same(self) -> None:
        """Resumed from any state, the rest of the run is the same as in the uninterrupted run."""
        run, states = self.reference()
        for step in range(0, len(states), self.stride):
            assert rest_of_run(self.resumed(states[step]), self.epochs) == run[step:], f"restored after {step} batches"

    def test_restored_at_every_step_a_plain_loop_reads_the_rest(self) -> None:
        """The same for `for batch in loader`, once per epoch."""
        run, states = self.reference()
        for step in range(0, len(states), self.stride):
            loader, rest = self.resumed(states[step]), [what for _, what in run[step:]]
            got = [digest(batch) for _ in range(loader.epoch, self.epochs) for batch in loader]
            assert got[: len(rest)] == rest, f"restored after {step} batches"

    def test_a_state_saved_right_after_a_load_is_the_same(self) -> None:
        """A run that is stopped again before its first batch loses nothing."""
        _, states = self.reference()
        for state in states:
            assert self._encoded(self.resumed(state).state_dict()) == self._encoded(state)

    def test_a_state_is_not_changed(self) -> None:
        """Neither loading a state nor continuing to train changes it."""
        _, states = self.reference()
        state = states[len(states) // 2]
        before = self._encoded(state)
        loader = self.resumed(state)
        rest_of_run(loader, self.epochs)
        assert self._encoded(state) == before

    def test_a_chain_of_resumes(self) -> None:
        """Eight resumes in a row lose and repeat nothing."""
        run, _ = self.reference()
        loader, got, hop = type(self).make(), [], max(1, len(run) // (_CHAIN + 1))
        for _ in range(_CHAIN):
            got += self._next_batches(loader, hop)
            loader = self.resumed(loader.state_dict())
        assert got + rest_of_run(loader, self.epochs) == run

    def test_after_the_last_batch_and_after_the_end_the_same_batch_is_next(self) -> None:
        """No epoch is empty or skipped at the boundary between two."""
        run, states = self.reference()
        first = sum(epoch == 0 for epoch, _ in run)
        loader = type(self).make()
        for _ in loader:
            pass
        for state in (states[first], loader.state_dict()):
            assert digest(next(iter(self.resumed(state)))) == run[first][1]

    def test_after_the_last_batch_the_epoch_returns_without_batches(self) -> None:
        """The code after the inner loop is not skipped."""
        run, states = self.reference()
        first = sum(epoch == 0 for epoch, _ in run)
        epochs = self.resumed(states[first]).epochs(self.epochs)
        epoch = next(epochs)
        assert (epoch.number, list(epoch)) == (0, [])
        loader = type(self).make()
        for _ in loader:
            pass
        assert next(self.resumed(loader.state_dict()).epochs(self.epochs)).number == 1

    def test_a_loop_after_break_continues(self) -> None:
        """After `break`, iteration continues with the next batch."""
        run, _ = self.reference()
        loader, got = type(self).make(), list[str]()
        while len(got) < len(run):
            for batch in loader:
                got.append(digest(batch))
                if len(got) % 2:
                    break
        assert got == [what for _, what in run]

    def test_iterators_that_are_thrown_away_change_nothing(self) -> None:
        """`iter()` alone reads nothing and does not move the loader."""
        run, _ = self.reference()
        loader = type(self).make()
        iter(loader)
        iter(loader)
        assert rest_of_run(loader, self.epochs) == run

    def test_peek_moves_nothing(self) -> None:
        """`peek()` returns the next batch, also across an epoch's end, and does not change cursor, state or stream."""
        run, states = self.reference()
        loader, got = type(self).make(), []
        for step in range(len(run)):
            before = loader.cursor, self._encoded(loader.state_dict())
            looked = loader.peek()
            assert digest(looked) == run[step][1], f"after {step} batches"
            assert (loader.cursor, self._encoded(loader.state_dict())) == before, f"after {step} batches"
            batch = next(iter(loader))
            assert batch is looked
            got.append(digest(batch))
            assert loader.state_dict()["cursor"] == states[step + 1]["cursor"], f"after {step + 1} batches"
        assert got == [what for _, what in run]
        loader.load_state_dict(states[1])
        loader.peek()
        assert rest_of_run(self.resumed(loader.state_dict()), self.epochs) == run[1:]
        assert rest_of_run(loader, self.epochs) == run[1:]

    def test_closed_at_every_step_it_continues(self) -> None:
        """`close()` does not change the state, and iteration continues with the rest of the run."""
        run, _ = self.reference()
        for step in range(0, len(run) + 1, self.stride):
            loader = type(self).make()
            assert (self._next_batches(loader, step) if step else []) == run[:step]
            before = self._encoded(loader.state_dict()) if step % 2 else None
            loader.close()
            closed = self._encoded(loader.state_dict())
            assert before in {None, closed}, f"close() after {step} batches changed the state"
            loader.close()
            assert self._encoded(loader.state_dict()) == closed, "the second close() changed something"
            assert rest_of_run(loader, self.epochs) == run[step:], f"closed after {step} batches"

    def test_each_pass_for_evaluation_starts_at_the_first_batch(self) -> None:
        """With `evaluation=True`, each loop yields epoch 0, regardless of earlier reads."""
        first = [what for epoch, what in self.reference()[0] if not epoch]
        loader = type(self).make(evaluation=True)
        assert [digest(batch) for batch in loader] == first
        assert [digest(batch) for batch in loader] == first, "the second pass differs"
        for batch in loader:
            assert digest(batch) == first[0]
            break
        assert [digest(batch) for batch in loader] == first, "the pass after `break` differs"

    def test_rolled_back_in_the_same_process(self) -> None:
        """A used loader goes back to any earlier state."""
        run, states = self.reference()
        loader = type(self).make()
        for step in range(len(states) - 1, -1, -max(self.stride, 3)):
            loader.load_state_dict(states[step])
            assert self._next_batches(loader, 3) == run[step : step + 3], f"rolled back to {step} batches"
        loader.load_state_dict(states[1])
        assert rest_of_run(loader, self.epochs) == run[1:]

    def test_rolled_back_in_the_middle_of_a_loop(self) -> None:
        """If a state is loaded inside a loop, the loop continues from that state."""
        run, states = self.reference()
        loader, got = type(self).make(), list[str]()
        for batch in loader:
            got.append(digest(batch))
            if len(got) == 2:  # noqa: PLR2004  # after the second batch
                loader.load_state_dict(states[1])
        first = [what for epoch, what in run if epoch == 0]
        assert got == [*first[:2], *first[1:]]

    def test_the_length_is_the_whole_epoch(self) -> None:
        """`len()` is never the number of remaining batches."""
        run, states = self.reference()
        loader = self.resumed(states[1])
        if loader.is_sized:
            assert len(loader) == sum(epoch == 0 for epoch, _ in run)

    def test_what_it_declares_is_true(self) -> None:
        """The backend's `Traits` and options match its behavior: hints, end, seeding, shard."""
        loader = type(self).make()
        backend, traits = loader._fetcher.backend, loader._fetcher.traits  # noqa: SLF001  # not public
        fingerprint = loader._fetcher.fingerprint()  # noqa: SLF001  # the same
        groups = {name.partition(".")[0] for name in fingerprint} - {"backend"}
        assert all(name.partition(".")[0] in groups for name in traits.hints if "." in name)
        assert traits.snapshot_every >= 0
        if isinstance(backend, SnapshotBackend) and isinstance(backend, SupportsEnded):
            self._check_ended(backend.open(0), backend.ended)
        if traits.keyed:
            seed_generators()
            draw_from_generators()
            assert rest_of_run(loader, 1) == [(epoch, what) for epoch, what in self.reference()[0] if not epoch]
        if isinstance(backend, SupportsStored) and backend.stored is not None:
            lengths = getattr(backend.stored, "lengths", [0])  # streams have a length only here
            self._check_stored(getattr(backend, "length", sum(lengths)), backend.stored)
        if traits.needs_shard and loader._options.shard is None:  # noqa: SLF001  # the same
            self._check_shard()

    def _check_stored(self, length: int, stored: Callable[[Sequence[int]], Mapping[str, Sequence[Any]]]) -> None:
        some = range(min(length, 16))
        first, again = dict(stored(some)), dict(stored(some))
        assert all(len(values) in {1, len(some)} for values in first.values()), "stored() has an entry for each index"
        assert digest(first) == digest(again), "stored() returns the same each time"

    def _check_ended(self, elements: Iterator[Any], ended: Callable[[], bool]) -> None:
        told = [ended() for _ in elements]
        assert told == [False] * (len(told) - 1) + [True], "ended() is True after the last element and only there"

    def _check_shard(self) -> None:
        try:
            next(iter(type(self).make(world=World(0, 2))))
        except ConfigurationError as error:
            assert "shard" in str(error)  # noqa: PT017  # this suite works without pytest
        except UnsupportedError:
            return  # the backend does not support several ranks
        else:
            raise AssertionError("several ranks were accepted, although shard= is not set")

    def test_only_acknowledged_batches_count(self) -> None:
        """With `ack="manual"`, a state is after the last acknowledged batch, and `rewind()` goes back to it."""
        run, _ = self.reference()
        loader = type(self).make(ack="manual")
        iterator = iter(loader)
        count = sum(epoch == 0 for epoch, _ in run)
        got = [digest(next(iterator)) for _ in range(count)]
        loader.ack(1)
        assert rest_of_run(self.resumed(loader.state_dict()), self.epochs) == run[1:]
        if self._rewinds(loader):
            assert digest(next(iter(loader))) == run[1][1], "unacknowledged batches are delivered again"
        assert got == [what for _, what in run[:count]]

    def test_a_prefetcher_crosses_the_ends_of_epochs(self) -> None:
        """With `ack="manual"` and a batch in flight, no batch repeats, and states contain the acknowledged batches."""
        run, _ = self.reference()
        loader = type(self).make(ack="manual")
        batches = self._over_and_over(loader)
        got, states = [digest(next(batches))], []
        while len(got) < len(run):
            got.append(digest(next(batches)))
            loader.ack()
            states.append(loader.state_dict())
        assert got == [what for _, what in run]
        for step in range(0, len(states), self.stride):
            rest = rest_of_run(self.resumed(states[step]), self.epochs)
            assert rest == run[step + 1 :], f"acknowledged {step + 1} batches"

    @staticmethod
    def _over_and_over(loader: Loader) -> Iterator[Any]:
        while True:
            yield from loader

    def test_rewind_delivers_the_last_batch_again(self) -> None:
        """At every step and every epoch's end, `rewind()` goes back one batch, and a second call changes nothing."""
        run, _ = self.reference()
        ends = {step for step in range(1, len(run) + 1) if run[step - 1][0] != (*run, (-1, ""))[step][0]}
        at_ends = [(step, True) for step in sorted(ends)]
        for step, ended in [*((step, False) for step in range(1, len(run) + 1, self.stride)), *at_ends]:
            loader = type(self).make()
            assert self._next_batches(loader, step, ended=ended) == run[:step]
            state = self._encoded(loader.state_dict())
            if not self._rewinds(loader):
                assert self._encoded(loader.state_dict()) == state, "a rejected rewind() changed the loader"
                continue
            loader.rewind()
            if step in ends:
                assert rest_of_run(self.resumed(loader.state_dict()), self.epochs) == run[step - 1 :]
            assert rest_of_run(loader, self.epochs) == run[step - 1 :], f"rewound after {step} batches"

    def _rewinds(self, loader: Loader) -> bool:
        """Go back, and return whether the source can."""
        try:
            loader.rewind()
        except UnsupportedError:
            assert loader._fetcher.traits.goes_on, "only sources without a way back may reject rewind()"  # noqa: SLF001
            return False
        return True

    def test_a_newer_loop_replaces_an_older_one(self) -> None:
        """Each batch is delivered once, and the older iterator raises."""
        run, _ = self.reference()
        loader = type(self).make()
        older, newer = iter(loader), iter(loader)
        assert digest(next(older)) == run[0][1]
        assert digest(next(newer)) == run[1][1]
        try:
            next(older)
        except LoopError as error:
            assert "newer loop" in str(error)  # noqa: PT017  # this suite works without pytest
        else:
            raise AssertionError("two loops took batches of one stream")
        assert [digest(batch) for batch in newer] == [what for epoch, what in run[2:] if epoch == 0]

    def test_evaluation_in_between_does_not_affect_training(self) -> None:
        """`for_evaluation()` reads epoch 0 after any batch and at an epoch's end, or raises."""
        run, _ = self.reference()
        first = [what for epoch, what in run if epoch == 0]
        loader, got = type(self).make(), []
        try:
            for epoch in loader.epochs(self.epochs):
                for batch in epoch:
                    got.append((epoch.number, digest(batch)))
                    if len(got) == 1:
                        assert [digest(one) for one in loader.for_evaluation()] == first
                assert [digest(one) for one in loader.for_evaluation()] == first
        except UnsupportedError as error:
            assert "for_evaluation()" in str(error)  # noqa: PT017  # this suite works without pytest
            return
        assert got == run

    def test_the_trainers_generators_do_not_move(self) -> None:
        """The trainer's random numbers are the same with and without a loader."""
        loader = type(self).make()
        seed_generators()
        draw_from_generators()
        without = [draw_from_generators() for _ in range(2)]
        seed_generators()
        draw_from_generators()
        assert [draw_from_generators() for _ in zip(range(2), loader, strict=False)] == without

    def test_states_are_plain_values(self) -> None:
        """A state is JSON below 1 kB, unless it contains a snapshot from the source."""
        _, states = self.reference()
        for state in states:
            if not self.native:
                assert state["source_state"] is None
                assert json.loads(json.dumps(state)) == state
                assert len(json.dumps(state)) < _STATE_BYTES

    def test_a_fresh_process_continues(self) -> None:
        """A new interpreter resumes from a state on disk."""
        run, states = self.reference()
        step = len(run) // 2
        with tempfile.TemporaryDirectory() as folder:
            script, state = Path(folder, "child.py"), Path(folder, "state.pickle")
            script.write_text(_CHILD)
            state.write_bytes(pickle.dumps(states[step]))
            arguments = [inspect.getfile(type(self)), type(self).__name__, str(state), str(self.epochs)]
            child = subprocess.run(  # noqa: S603  # our own script
                [sys.executable, str(script), *arguments], capture_output=True, text=True, check=False
            )
        assert child.returncode == 0, child.stderr
        assert child.stdout.split("\n")[:-1] == [f"{epoch} {what}" for epoch, what in run[step:]]

    def test_a_different_seed_is_rejected(self) -> None:
        """A state with a different seed is rejected, and the message says so."""
        self._refused(type(self).make(seed=12345), "seed")

    def test_a_different_randomness_is_rejected(self) -> None:
        """A state with a different randomness mode is rejected, and the message says so."""
        self._refused(type(self).make(randomness="off"), "randomness")

    def test_different_loaders_are_rejected(self) -> None:
        """The loaders in `others` reject the states."""
        for word, make in self.others.items():
            self._refused(make(), word)

    def test_ranks_share_every_global_batch(self) -> None:
        """With any number of ranks, also after a change mid-epoch, the ranks' parts make up the batch of one rank."""
        if not self.shared:
            return
        _, states = self.reference()
        middle = states[len(states) // 2]
        alone = [sample for batch in self.resumed(middle) for sample in samples_of(batch)]
        for size in (1, 2):
            ranks = [type(self).make(world=World(rank, size)) for rank in range(size)]
            for loader in ranks:
                loader.load_state_dict(middle)
                assert loader.epoch == ranks[0].epoch
            together = [
                sample for batches in zip(*ranks, strict=True) for batch in batches for sample in samples_of(batch)
            ]
            assert [digest(sample) for sample in together] == [digest(sample) for sample in alone]
            assert ranks[0].state_dict() == {**ranks[-1].state_dict()}, "every rank has the same state"

    def _next_batches(self, loader: Loader, count: int, *, ended: bool = False) -> Run:
        """Return the next batches; with `ended`, also reach the end of the epoch if these are its last."""
        got: Run = []
        for epoch in loader.epochs(self.epochs):
            batches = iter(epoch)
            for batch in batches:
                got.append((epoch.number, digest(batch)))
                if len(got) == count:
                    at_end = loader.is_sized and loader.cursor.step == len(epoch)
                    assert not (ended and at_end) or next(batches, None) is None
                    return got
        return got

    def _refused(self, loader: Loader, word: str) -> None:
        _, states = self.reference()
        untouched = self._encoded(loader.state_dict())
        try:
            loader.load_state_dict(states[1])
        except StateMismatchError as error:
            message = str(error)
            assert word in message, f"the message does not contain {word!r}: {message}"
            assert "in the checkpoint:" in message, f"the message does not contain the values: {message}"
            assert "in this run:" in message, f"the message does not contain the values: {message}"
        else:
            raise AssertionError(f"a state with a different {word} was accepted")
        assert self._encoded(loader.state_dict()) == untouched, "a rejected state changed the loader"

    @staticmethod
    def _encoded(state: Any) -> str:
        return digest(state)


# ------------------------------------------------------------------ comparing runs

Run = list[tuple[int, str]]


def digest(batch: Any) -> str:
    """Fingerprint the content of a batch: bytes of arrays and tensors, parts of containers, else `repr`."""
    state = hashlib.blake2b(digest_size=8)
    for part in _parts(batch):
        state.update(part)
    return state.hexdigest()


def rest_of_run(loader: Loader, epochs: int) -> Run:
    """Run a loader to its end, and return the epoch and the digest of every batch."""
    return [(epoch.number, digest(batch)) for epoch in loader.epochs(epochs) for batch in epoch]


def samples_of(batch: Any) -> list[Any]:
    """Split a batch into samples: along the first axis if it consists of arrays or tensors."""
    if isinstance(batch, dict):
        return list(zip(*batch.values(), strict=True))
    if isinstance(batch, (list, tuple)) and all(hasattr(part, "shape") for part in batch):
        return list(zip(*batch, strict=True))
    return list(batch)


def _parts(batch: Any) -> Iterator[bytes]:
    if hasattr(batch, "detach"):  # a tensor, without importing torch
        batch = batch.detach().cpu().numpy()
    if isinstance(batch, np.ndarray):
        yield f"{batch.dtype.str}{batch.shape}".encode()
        yield batch.tobytes()
    elif isinstance(batch, dict):
        for key, value in batch.items():
            yield repr(key).encode()
            yield from _parts(value)
    elif isinstance(batch, (list, tuple)):
        yield f"{type(batch).__name__}{len(batch)}".encode()
        for value in batch:
            yield from _parts(value)
    else:
        yield repr(batch).encode()


def seed_generators() -> None:
    """Seed the global RNGs."""
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002  # the global one is meant
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed((1 << 40) + 7)  # looks unset, so loaders without a seed do not use it


def draw_from_generators() -> list[float]:
    """Draw from each global RNG; an odd number of normal deviates, because they are generated in pairs."""
    drawn = [random.random(), float(np.random.rand()), float(np.random.randn())]  # noqa: NPY002  # the global one
    return [*drawn, sys.modules["torch"].rand(()).item()] if "torch" in sys.modules else drawn
