"""The backends of `tf.data` pipelines: with TensorFlow's own state, and by replay."""

from __future__ import annotations

import logging
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from resumable.backends.tfdata.counters import Counters
from resumable.backends.tfdata.fingerprint import Fingerprint
from resumable.backends.tfdata.graph import Graph
from resumable.backends.tfdata.guards import check_pipeline
from resumable.backends.tfdata.passes import Stream, is_endless, with_symbolic_state
from resumable.backends.tfdata.snapshots import check, seal
from resumable.errors import PromiseWarning, StateMismatchError
from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable.backends.tfdata.passes import Datasets
    from resumable.backends.tfdata.snapshots import Identity

__all__ = ["NativeBackend", "ReplayBackend"]

_LARGE = 64 * 2**20
_HINTS = {
    **dict.fromkeys(
        ("elements", "operations", "parameters", "functions"), "Build the pipeline as in the run that saved the state."
    ),
    "tensorflow": "Use the TensorFlow of the run that saved the state.",
    "data": "The files, or the values that the pipeline was made of, are others. Give those of the run that saved the "
    "state; if only their names changed, give both runs the same wrap(..., identity=...).",
}
_log = logging.getLogger("resumable")


class ReplayBackend:
    """A pipeline that is opened again and skipped through.

    Args:
        datasets: gives the dataset of an epoch.
        identity: what tells the pipeline from others.
        strategy: "replay", or how the state is saved.
        convert: applied to each element that is delivered.
        length: elements per epoch; None where TensorFlow does not know it.
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
        self.traits = Traits(
            hints=_HINTS,
            length=length,
            needs_shard=True,
            snapshot_every=self.snapshot_every,
            reads_ahead=True,
        )

    def open(self, epoch: int) -> Iterator[Any]:
        """Begin a pass over the dataset of an epoch."""
        return Stream(self._checked(epoch), self._convert)

    def _checked(self, epoch: int) -> Any:
        dataset = self._datasets.of(epoch)
        if self._datasets.per_epoch:  # the first one was looked at when it was wrapped; this is another one
            check_pipeline(Graph(dataset))
        return dataset


class NativeBackend(ReplayBackend):
    """A pipeline with TensorFlow's own state.

    An epoch depends on the pipeline and its number only: what shuffles count their passes by is set when it begins. So
    there is nothing to save between two epochs.

    Args:
        given: what `ReplayBackend` takes.
        also: other strategies that were possible. A run that was started with one of them goes on with that.
        snapshot_every: steps between two states that are taken in advance.
    """

    snapshot_every = 100

    def __init__(self, *given: Any, also: tuple[str, ...] = (), snapshot_every: int | None = None) -> None:
        self.snapshot_every = snapshot_every or self.snapshot_every
        super().__init__(*given)
        self._possible = (self._strategy, *also)
        self._endless = not self._datasets.per_epoch and is_endless(self._datasets.of(0))
        self._dataset: Any = None  # of all epochs, looked at once
        self._counters: Counters | None = None
        self._sealed_with: Identity = {}
        self._stream: Stream | None = None
        self._warned = False

    @property
    def other_kinds(self) -> dict[str, Callable[[], None]]:
        """The strategies that were possible."""
        return {f"tf.data/{one}": partial(self._become, one) for one in self._possible}

    def _become(self, strategy: str) -> None:
        self.close()
        self.kind, self._strategy, self._dataset = f"tf.data/{strategy}", strategy, None
        _log.info("tf.data: resumes by %s: the run that saved the state did", strategy)

    def open(self, epoch: int) -> Iterator[Any]:
        """Begin a pass over the dataset of an epoch; an endless one goes on where it was left."""
        if self._endless and self._stream is not None:
            return self._stream
        return self._new(epoch)

    def snapshot(self) -> dict[str, Any]:
        """Return TensorFlow's state after the element that was given last; nothing between two epochs."""
        stream = self._stream
        if stream is None or stream.ended:
            return {"between": True}
        begin = time.perf_counter()
        sealed = seal(stream.save(), self._sealed_with)
        self._report(len(sealed["state"]), time.perf_counter() - begin)
        return sealed

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Make an iterator, compare the snapshot with the pipeline, and bring the iterator to it."""
        self.close()
        if snapshot == {"between": True}:
            return iter(())
        stream = self._new(epoch)
        state = check(snapshot, self._sealed_with)
        try:
            stream.restore(state)
        except tf.errors.OpError as error:
            self.close()
            raise StateMismatchError(
                f"TensorFlow could not restore its state of this tf.data pipeline: {error.message}\n"
                f"  in the checkpoint: a state of {len(state)} bytes\n  in this run:       {self.identity}\n"
                "Nothing was read. Build the pipeline as it was, or load another checkpoint."
            ) from error
        return stream

    def _new(self, epoch: int) -> Stream:
        self.close()
        dataset = self._looked_at(epoch)
        if self._counters is not None:
            self._counters.set_to(0 if self._endless else epoch)
        self._stream = Stream(dataset, self._convert)
        return self._stream

    def _looked_at(self, epoch: int) -> Any:
        """Return the dataset with the kind of state that its iterators are to have."""
        if self._dataset is None or self._datasets.per_epoch:
            dataset = self._checked(epoch)
            graph = Graph(dataset)
            self._sealed_with = {
                "tensorflow": tf.__version__,
                "strategy": self._strategy,
                "structure": Fingerprint(graph, dataset).structure,
            }
            self._counters = None if self._datasets.per_epoch else Counters(graph)
            self._dataset = with_symbolic_state(dataset, symbolic=self._strategy == "symbolic")
        return self._dataset

    def close(self) -> None:
        """End TensorFlow's threads."""
        if self._stream is not None:
            self._stream.stop()
            self._stream = None

    def _report(self, size: int, seconds: float) -> None:
        _log.debug("tf.data: a state of %d bytes in %.3f s", size, seconds)
        if size > _LARGE and not self._warned:
            self._warned = True
            warnings.warn(_too_large(size, self.kind, self.identity, self.snapshot_every), PromiseWarning, stacklevel=2)


def _too_large(size: int, kind: str, identity: dict[str, Any], every: int) -> str:
    other = (
        ""
        if kind.endswith("symbolic")
        else ("The state has the elements of every buffer, as one of its operations has no symbolic state; ")
    )
    return (
        f"the state of this tf.data pipeline has {size / 2**20:.0f} MB, and is written with each checkpoint: a state "
        f"is not small here.\nThe pipeline: {identity['operations']}. {other}shuffle() and cache() put their elements "
        "into it. Shuffle before images are decoded (file names, or bytes), use a smaller buffer, leave cache() out, "
        'or read by index: a TFDS builder or a data source has states below 1 kB. With ack="manual" (and with '
        f"Lightning) one is taken in advance every {every} steps: tfdata.source(..., snapshot_every=1000) takes fewer."
    )
