"""The backends of `tf.data` pipelines: one uses TensorFlow's own state, the other replays."""

from __future__ import annotations

import hashlib
import logging
import time
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.data.ops.dataset_ops import _VariantDataset

from resumable.backends.tfdata.fingerprint import Fingerprint
from resumable.backends.tfdata.graph import (
    Graph,
    buffers,
    check_pipeline,
    repeats,
    reshuffles,
)
from resumable.errors import (
    PromiseWarning,
    StateFormatError,
    StateMismatchError,
    UnsupportedError,
)
from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = ["Counters", "Datasets", "NativeBackend", "ReplayBackend", "Stream", "check_counts", "is_endless"]


_LARGE = 64 * 2**20
_SLOW = 0.5  # seconds for one state; from there on, it is compared with the time to read the elements again
_HINTS = {
    **dict.fromkeys(
        ("elements", "operations", "parameters", "functions"), "Build the same pipeline as in the original run."
    ),
    "tensorflow": "Use the TensorFlow version of the original run.",
    "data": "The files or values in the pipeline differ. Use the same ones as in the original run; if only their names "
    "changed, use the same wrap(..., identity=...) in both runs.",
}
# Names and values that must be the same in the run that saves a snapshot and the run that restores it.
_Identity = dict[str, str]
_SNAPSHOT_HINTS = {
    "tensorflow": "Use the TensorFlow version of the original run.",
    "structure": "Build the same pipeline: the same operations, batch sizes, buffer sizes and element types.",
    "strategy": "Pass tfdata.source(..., strategy=...) the strategy of the original run.",
}
_log = logging.getLogger("resumable")


class ReplayBackend:
    """A pipeline that is opened again and skipped through.

    Args:
        datasets: returns the dataset of an epoch.
        identity: identifies the pipeline.
        strategy: "replay", or how the state is saved.
        convert: applied to each delivered element.
        length: elements per epoch; None if TensorFlow does not know it.
    """

    snapshot_every = 1

    def __init__(
        self,
        datasets: Datasets,
        identity: dict[str, Any],
        strategy: str,
        convert: Callable[[Any], Any],
        length: int | None,
    ) -> None:
        self.kind = f"tf.data/{strategy}"
        self.identity = identity
        self._datasets, self._strategy, self._convert = datasets, strategy, convert
        self._dataset: Any = None  # of all epochs, checked once
        self._counters: Counters | None = None
        self._stream: Stream | None = None
        self.traits = Traits(
            hints=_HINTS,
            length=length,
            needs_shard=True,
            snapshot_every=self.snapshot_every,
            reads_ahead=True,
        )

    def open(self, epoch: int) -> Iterator[Any]:
        """Start a pass over the dataset of an epoch."""
        return self._new(epoch)

    def close(self) -> None:
        """Stop TensorFlow's threads."""
        if self._stream is not None:
            self._stream.stop()
            self._stream = None

    def _new(self, epoch: int) -> Stream:
        self.close()
        if self._dataset is None or self._datasets.per_epoch:
            self._dataset = self._prepared(self._datasets.of(epoch))
        if self._counters is not None:
            self._counters.set_to(epoch)
        self._stream = Stream(self._dataset, self._convert)
        return self._stream

    def _prepared(self, dataset: Any) -> Any:
        graph = Graph(dataset)
        if self._datasets.per_epoch:  # only the first dataset was checked by wrap
            check_pipeline(graph)
        self._counters = None if self._datasets.per_epoch else Counters(graph)
        return dataset


class NativeBackend(ReplayBackend):
    """A pipeline with TensorFlow's own state.

    An epoch depends only on the pipeline and the epoch's number, as the counters of shuffles are set when it starts. So
    there is nothing to save between two epochs.

    Args:
        given: the arguments of `ReplayBackend`.
        also: other strategies that were possible. A run that was started with one of them continues with it.
        snapshot_every: steps between two states that are taken in advance.
    """

    snapshot_every = 100

    def __init__(self, *given: Any, also: tuple[str, ...] = (), snapshot_every: int | None = None) -> None:
        self.snapshot_every = snapshot_every or self.snapshot_every
        super().__init__(*given)
        self._possible = (self._strategy, *also)
        self._endless = not self._datasets.per_epoch and is_endless(self._datasets.of(0))
        self._sealed_with: _Identity = {}
        self._warned: set[str] = set()
        self._took = 0.0  # seconds for the last state
        self._buffers = ""  # what makes states slow, for the message
        self._length: int | None = None  # elements of an epoch, if they were counted
        self._same_length = False  # whether all epochs have the same, as nothing differs between them

    @property
    def other_kinds(self) -> dict[str, Callable[[], None]]:
        """The possible strategies."""
        return {f"tf.data/{one}": partial(self._become, one) for one in self._possible}

    def _become(self, strategy: str) -> None:
        self.close()
        self.kind, self._strategy, self._dataset = f"tf.data/{strategy}", strategy, None
        _log.info("tf.data: resumes with %s, as in the run that saved the state", strategy)

    def open(self, epoch: int) -> Iterator[Any]:
        """Start a pass over the dataset of an epoch; an endless dataset continues where it was left."""
        if self._endless and self._stream is not None:
            return self._stream
        return self._new(epoch)

    def snapshot(self) -> dict[str, Any] | None:
        """Return TensorFlow's state after the last yielded element; an empty one between two epochs.

        None if states are slow, and reading up to this position took less time: then the epoch is read again.
        """
        stream = self._stream
        if stream is None or stream.ended:
            return {"between": True}
        if self._took > _SLOW and stream.seconds < self._took and not self._endless:
            return None
        wall, used = time.perf_counter(), time.process_time()
        sealed = _seal(stream.save(), self._sealed_with)
        # A busy machine makes it look slower, and other threads of this process make it look busier.
        self._took = min(time.perf_counter() - wall, time.process_time() - used)
        self._report(len(sealed["state"]), self._took)
        return sealed | {"read": stream.count, "seconds": stream.seconds, "length": self._length, "of": self._of()}

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Make an iterator, compare the snapshot with the pipeline, and restore the iterator."""
        self.close()
        if snapshot == {"between": True}:
            return iter(())
        stream = self._new(epoch)
        state = _unseal(snapshot, self._sealed_with)
        try:
            stream.restore(state)
        except tf.errors.OpError as error:
            self.close()
            raise StateMismatchError(
                f"TensorFlow could not restore its state of this tf.data pipeline: {error.message}\n"
                f"  in the checkpoint: a state of {len(state)} bytes\n  in this run:       {self.identity}\n"
                "Nothing was read. Build the same pipeline as in the original run, or load a different checkpoint."
            ) from error
        stream.count, stream.seconds = snapshot.get("read", 0), snapshot.get("seconds", 0.0)
        if not self._endless and "read" in snapshot:
            known = int(self._dataset.cardinality())  # negative if TensorFlow does not know it
            stream.length = known if known >= 0 else snapshot["length"] if snapshot["of"] == self._of() else None
        return stream

    def _new(self, epoch: int) -> Stream:
        stream = super()._new(0 if self._endless else epoch)
        stream.when_ended = self._count
        return stream

    def _count(self, elements: int) -> None:
        if self._same_length:
            self._length = elements

    def _of(self) -> str:
        """Return what a counted length belongs to."""
        return _checksum(repr(sorted(self.identity.items())).encode())

    def _prepared(self, dataset: Any) -> Any:
        """Return the dataset, set to the kind of state that its iterators use."""
        super()._prepared(dataset)
        graph = Graph(dataset)
        self._sealed_with = {
            "tensorflow": tf.__version__,
            "strategy": self._strategy,
            "structure": Fingerprint(graph, dataset).structure,
        }
        self._buffers = ", ".join(buffers(graph))
        self._same_length = not self._datasets.per_epoch and not any(reshuffles(graph, one) for one in graph.datasets)
        return _with_symbolic_state(dataset, symbolic=self._strategy == "symbolic")

    def _report(self, size: int, seconds: float) -> None:
        _log.debug("tf.data: a state of %d bytes in %.3f s", size, seconds)
        if size > _LARGE and "large" not in self._warned:
            self._warned.add("large")
            warnings.warn(_too_large(size, self.kind, self.identity, self.snapshot_every), PromiseWarning, stacklevel=2)
        if seconds > _SLOW and "slow" not in self._warned:
            self._warned.add("slow")
            warnings.warn(_too_slow(size, seconds, self._buffers), PromiseWarning, stacklevel=2)


def _too_large(size: int, kind: str, identity: dict[str, Any], every: int) -> str:
    other = (
        ""
        if kind.endswith("symbolic")
        else ("It contains the elements of every buffer, because one of the operations has no symbolic state. ")
    )
    return (
        f"the state of this tf.data pipeline has {size / 2**20:.0f} MB, which are written with each checkpoint.\n"
        f"The pipeline: {identity['operations']}. {other}The elements in shuffle() and cache() are part of the state. "
        "To make it smaller, shuffle before images are decoded (file names, or bytes), use a smaller buffer, or remove "
        "cache(). Or read by index: a TFDS builder or a data source has states below 1 kB. With "
        'ack="manual" (and with Lightning), a state is taken in advance every '
        f"{every} steps. Use tfdata.source(..., snapshot_every=1000) to take fewer."
    )


def _too_slow(size: int, seconds: float, buffers: str) -> str:
    return (
        f"TensorFlow took {seconds:.1f} s for one state of this tf.data pipeline, of {size / 1e6:.1f} MB: it writes "
        f"the places of every buffer individually, even empty ones{f' ({buffers})' if buffers else ''}.\n"
        "Training waits meanwhile. As long as reading the epoch up to a position takes less time than that, states "
        "contain only the position, and a resume reads the epoch again up to there. To make states faster, use a "
        "smaller buffer, or put batch() before shuffle() or cache(); or always read again: "
        'wrap(tfdata.source(dataset, strategy="replay")).'
    )


@dataclass(frozen=True, slots=True)
class Datasets:
    """Returns the dataset of an epoch.

    Args:
        of: takes the epoch, and returns the dataset.
        per_epoch: whether the dataset is rebuilt for each epoch, and so does not depend on earlier ones. Otherwise, it
            is one dataset, and TensorFlow counts its passes for shuffles that differ.
    """

    of: Callable[[int], Any]
    per_epoch: bool


class Stream:
    """One pass over a dataset.

    Args:
        dataset: a `tf.data.Dataset`.
        convert: applied to each element.
    """

    def __init__(self, dataset: Any, convert: Callable[[Any], Any]) -> None:
        self._inner = dataset.as_numpy_iterator()
        self._convert = convert
        self.ended = False
        self.count, self.seconds = 0, 0.0  # elements read in this epoch, and the time that they took
        self.length: int | None = None  # elements of the epoch, if a restored iterator must yield that many in all
        self.when_ended: Callable[[int], None] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.ended or self._inner is None:
            raise StopIteration
        begin = time.perf_counter()
        try:
            element = next(self._inner)
        except StopIteration:
            self.ended = True
            if self.length is not None and self.count != self.length:
                raise _other_length(f"it ended after {self.count}", self.length) from None
            if self.when_ended is not None:
                self.when_ended(self.count)
            raise
        self.seconds += time.perf_counter() - begin
        if self.count == self.length:
            raise _other_length("it continues after them", self.length)
        self.count += 1
        return self._convert(element)

    def save(self) -> bytes:
        """Return TensorFlow's state of the iterator, as base64 text."""
        state: bytes = self._inner.save().numpy()
        return state

    def restore(self, state: bytes) -> None:
        """Restore the iterator to a state, which must be from the same pipeline: TensorFlow does not check it."""
        self._inner.restore(tf.constant(state))

    def stop(self) -> None:
        """Stop TensorFlow's threads, which may otherwise continue to use resources that all passes share."""
        self._inner = None


def _other_length(found: str, length: int | None) -> StateMismatchError:
    return StateMismatchError(
        "the epoch of a tf.data pipeline that was resumed from TensorFlow's state has a different number of elements "
        f"than other epochs.\n  an epoch has:     {length} elements\n  the resumed epoch: {found}\n"
        "Elements were lost or repeated since the resume: an operation of the pipeline does not restore its state. "
        'Resume from the same checkpoint by reading again: wrap(..., resume="replay").'
    )


def _with_symbolic_state(dataset: Any, *, symbolic: bool) -> Any:
    """Return the dataset, set to the kind of native state that its iterators use."""
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = symbolic
    return dataset.with_options(options)


def is_endless(dataset: Any) -> bool:
    """Return whether a dataset repeats forever, so it has only one epoch."""
    return int(dataset.cardinality()) == int(tf.data.INFINITE_CARDINALITY)


def _seal(state: bytes, identity: _Identity) -> dict[str, Any]:
    """Return a snapshot: the state, its checksum, and the identity of its pipeline."""
    return {"state": state, "checksum": _checksum(state), **identity}


def _unseal(snapshot: Any, identity: _Identity) -> bytes:
    """Return TensorFlow's bytes of a snapshot that belongs to this pipeline.

    TensorFlow restores the state of one pipeline into a different one without an error, but with wrong samples or a
    crash of the process. So everything is compared first, even if the loader accepts differences.

    Raises:
        StateFormatError: the snapshot is damaged.
        StateMismatchError: the snapshot belongs to a different pipeline, version or strategy.
    """
    try:
        state, checksum = snapshot["state"], snapshot["checksum"]
        now = _checksum(state)
    except (KeyError, TypeError) as error:
        raise StateFormatError(
            f"the snapshot of the tf.data pipeline is damaged: {error}.\nNothing was restored. Load a different "
            "checkpoint."
        ) from error
    if now != checksum:
        raise StateFormatError(
            "the snapshot of the tf.data pipeline is damaged: its checksum does not match.\n"
            f"  in the checkpoint: {checksum}\n  in this run:       {now} of {len(state)} bytes\n"
            "TensorFlow could crash on it. Load a different checkpoint."
        )
    for name, own in identity.items():
        if snapshot.get(name) != own:
            raise StateMismatchError(
                f"the {name} of the tf.data pipeline differs from the checkpoint's. TensorFlow would restore it "
                "anyway, with wrong samples or a crash of this process.\n"
                f"  in the checkpoint: {snapshot.get(name)}\n  in this run:       {own}\n{_SNAPSHOT_HINTS[name]} "
                "strict=False does not skip this check."
            )
    return bytes(state)


def _checksum(state: bytes) -> str:
    return hashlib.blake2b(state, digest_size=16).hexdigest()


class Counters:
    """Sets the counters that tell a pipeline's shuffles how many passes were made, to the value for an epoch.

    A shuffle with a different order in each pass counts its passes in a resource of the process. An iterator's state
    contains that count only while the shuffle is being read, and TensorFlow has no function to set it. But a second
    dataset may use the same resource, and the state of *its* iterator is just the count.

    Args:
        graph: of the pipeline.
    """

    def __init__(self, graph: Graph) -> None:
        nodes = [one.node for one in graph.datasets if not one.function and reshuffles(graph, one)]
        counting = [one for one in (graph.counter(node) for node in nodes) if one is not None]
        self._counters = [_Counter(*tensors) for tensors in _tensors_of(graph, counting)]
        self._per_pass = 1
        for count in repeats(graph):
            self._per_pass *= max(count, 1)

    def set_to(self, epoch: int) -> None:
        """Set the counters, so the next pass is this epoch, whatever was read before."""
        for counter in self._counters:
            counter.set_to(1 + epoch * self._per_pass)

    @property
    def obey(self) -> bool:
        """Whether all of them can be set."""
        return all(counter.obeys for counter in self._counters)


def check_counts(dataset: Any, graph: Graph) -> None:
    """Check that the count of passes can be set wherever the order depends on it.

    Raises:
        UnsupportedError: it cannot; the message says where.
    """
    uncounted = [one for one in graph.datasets if not one.function and reshuffles(graph, one)]
    names = {one.node.op for one in uncounted if graph.counter(one.node) is None}
    for selector in _copied_selectors(dataset):
        inside = Graph(selector)
        counting = [one.node.op for one in inside.datasets if not one.function and reshuffles(inside, one)]
        names |= {f"{op} in the selector of choose_from_datasets" for op in counting}
    if names or not Counters(graph).obey:
        raise UnsupportedError(
            f"this tf.data pipeline cannot be resumed because of {', '.join(sorted(names)) or 'a shuffle'}: it has a "
            "different order in each epoch, and only TensorFlow can change the count of epochs that determines it.\n"
            "A run that was resumed between two epochs would count from zero. Use shuffle(..., "
            "reshuffle_each_iteration=False), or pass a function that builds the pipeline for an epoch: "
            "wrap(tfdata.source(build)) with def build(epoch): ... .shuffle(1000, seed=epoch + 1)."
        )


def _copied_selectors(dataset: Any) -> Iterator[Any]:
    """Yield the selectors that `choose_from_datasets` has copied: a copy's count is lost with the original."""
    selector = getattr(dataset, "_selector_input", None)
    if type(selector) is _VariantDataset:
        yield selector
    for one in getattr(dataset, "_inputs", list)():
        yield from _copied_selectors(one)


class _Counter:
    """One counter.

    Args:
        seed: first seed of the shuffle.
        seed2: second seed.
        resource: handle of the counter.
    """

    def __init__(self, seed: Any, seed2: Any, resource: Any) -> None:
        self._seeds, self._resource = (seed, seed2), resource
        self._model: Any = None  # a counter with the same seeds, incremented here
        self._count = 0

    def set_to(self, count: int) -> None:
        """Set it to a number of passes, at least 1: an iterator's state has the count after its own start."""
        if self._model is None or count < self._count:
            self._model = tf.raw_ops.AnonymousSeedGenerator(seed=self._seeds[0], seed2=self._seeds[1], reshuffle=True)
            self._count, self._state = 0, None
        while self._count < count:
            counted = self._iterator(self._model[0])
            self._count += 1
            self._state = counted.save() if self._count == count else None
        self._iterator(self._resource).restore(self._state)

    @property
    def obeys(self) -> bool:
        """Whether it can be set: not if the dataset that owns it is gone."""
        counts = []
        for count in (1, 2):
            self.set_to(count)
            counts.append(self._iterator(self._resource).save().numpy())
        return bool(counts[0] != counts[1])

    def _iterator(self, resource: Any) -> Any:
        shuffle = tf.raw_ops.ShuffleDatasetV3(
            input_dataset=tf.data.Dataset.range(1)._variant_tensor,  # noqa: SLF001  # the op needs it
            buffer_size=tf.constant(1, tf.int64),
            seed=self._seeds[0],
            seed2=self._seeds[1],
            seed_generator=resource,
            output_types=[tf.int64],
            output_shapes=[tf.TensorShape([])],
            reshuffle_each_iteration=True,
        )
        return _VariantDataset(shuffle, tf.TensorSpec((), tf.int64)).as_numpy_iterator()


def _tensors_of(graph: Graph, names: list[tuple[str, str, str]]) -> list[tuple[Any, Any, Any]]:
    """Return constants of the graph as tensors, which TensorFlow makes from their definitions."""
    if not names:
        return []
    definition = tf.compat.v1.GraphDef()
    flat = [name for three in names for name in three]
    for name in dict.fromkeys(flat):
        definition.node.add().CopyFrom(graph.top[name])

    def imported() -> list[Any]:
        tensors: list[Any] = tf.graph_util.import_graph_def(definition, return_elements=[f"{name}:0" for name in flat])
        return tensors

    # Calling the function itself would warn that it is traced again for each pipeline.
    tensors = iter(tf.function(imported).get_concrete_function()())
    return list(zip(tensors, tensors, tensors, strict=True))
