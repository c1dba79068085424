"""What runs in the workers of an iterable-style `DataLoader`."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info
from tqdm import tqdm

from resumable.backends.torch.epochs import EpochTeller, keep_own_epochs
from resumable.backends.torch.parts import Part
from resumable.errors import SampleError, StateMismatchError
from resumable.faults import point
from resumable.keyed import BlockCache
from resumable.randomness import SampleKeys, isolated, reseed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch.utils.data import DataLoader

    from resumable.backends.torch.parts import StreamPlan
    from resumable.randomness import Randomness

__all__ = ["WorkerStream", "has_state"]

_STREAM = 2
_OPENING = (1 << 62) - 1  # the counter whose batch key opens an epoch, wherever in it a run begins


class WorkerStream(IterableDataset[Any]):
    """Yields `(worker, part, [batch])` for every batch; the part that has ended may come without a batch.

    Args:
        loader: the user's; its dataset, batch size, `collate_fn` and `drop_last` are used.
        plan: where the first epoch is begun.
        randomness: how often the global generators are seeded.
        seed: the loader's.
        stream: integers that set this rank's keys apart, where ranks have streams of their own.
    """

    def __init__(
        self, loader: DataLoader[Any], plan: StreamPlan, randomness: Randomness, seed: int, stream: tuple[int, ...]
    ) -> None:
        self.user_dataset: Any = loader.dataset
        self._batch_size, self._drop_last, self._collate = loader.batch_size, loader.drop_last, loader.collate_fn
        self._plan, self._randomness, self._seed, self._stream = plan, randomness, seed, stream
        self._teller = EpochTeller(loader)
        self._passes = 0
        self._border = Part()  # where the next epoch begins, if not where the dataset stands by itself

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any], list[Any]]]:
        """Begin an epoch: the planned one, later the ones after it."""
        info = get_worker_info()
        worker, epoch = (0 if info is None else info.id), self._plan.epoch + self._passes
        part = self._plan.parts[worker] if self._passes == 0 else self._border
        if info is not None and self._passes == 0:
            keep_own_epochs()
        self._passes, self._border = self._passes + 1, Part()
        if part.ended:
            self._border = Part(state=part.state)
            return iter(())
        return _WorkerEpoch(self, worker, epoch, part, in_worker=info is not None).run()

    def tell_epoch(self, epoch: int) -> None:
        """Tell the dataset the epoch, if it wants to be told."""
        self._teller.tell(self.user_dataset, epoch)

    def size(self) -> int:
        """Samples of a full batch."""
        return self._batch_size or 1

    def batch(self, samples: list[Any]) -> Any:
        """Make a batch; None where it is incomplete and incomplete ones are dropped."""
        if self._drop_last and len(samples) < self.size():
            return None
        return [self._collate(samples if self._batch_size is not None else samples[0])]

    def keys(self, epoch: int, worker: int) -> SampleKeys:
        """Return the keys of a worker's samples."""
        return SampleKeys(self._seed, epoch, _STREAM, worker, *self._stream)

    @property
    def randomness(self) -> Randomness:
        """How often the global generators are seeded."""
        return self._randomness


class _WorkerEpoch:
    """One worker's way through one epoch."""

    def __init__(self, stream: WorkerStream, worker: int, epoch: int, part: Part, *, in_worker: bool) -> None:
        self._stream, self._worker, self._epoch, self._part = stream, worker, epoch, part
        self._dataset, self._stateful = stream.user_dataset, has_state(stream.user_dataset)
        keys = stream.keys(epoch, worker)
        self._batch_key, self._keys = keys.batch, BlockCache(keys.samples, 1 << 62)
        self._isolates = not in_worker and stream.randomness != "off"
        self._position = part.batches * stream.size()
        self._ended = False

    def run(self) -> Iterator[tuple[int, dict[str, Any], list[Any]]]:
        with self._guard():
            samples = self._start()
        batches = self._part.batches
        while True:
            point("worker.read")
            with self._guard():
                batch = self._next_batch(samples)
                state = copy.deepcopy(self._dataset.state_dict()) if self._stateful else None
            batches += batch is not None
            yield self._worker, Part(batches, self._ended, state).as_dict(), batch or []
            if self._ended:
                return

    def _start(self) -> Iterator[Any]:
        self._tell_epoch()
        if self._part.state is None:
            samples = self._open()
            self._skip(samples)
            return samples
        self._dataset.load_state_dict(copy.deepcopy(self._part.state))
        if self._part.batches:
            return self._open()
        self._tell_epoch()  # again, as the state of the old epoch's end may have brought its number back
        return self._not_empty(self._open())

    def _open(self) -> Iterator[Any]:
        if self._stream.randomness != "off":
            reseed(self._batch_key(_OPENING))
        return iter(self._dataset)

    def _tell_epoch(self) -> None:
        self._stream.tell_epoch(self._epoch)

    def _not_empty(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Between epochs, some datasets come back at the end of the old epoch, not the beginning of the new one.

        A generator, so that the first sample is drawn under the randomness that the others of its batch go on from.
        """
        empty = True
        for sample in samples:
            empty = False
            yield sample
        if empty:
            self._tell_epoch()
            samples = self._open()
            self._seed_batch()
            self._seed_sample(0)
            yield from samples

    def _skip(self, samples: Iterator[Any]) -> None:
        count = self._position
        for position in tqdm(
            range(count), desc="resuming", unit="sample", delay=1.0, leave=False, disable=self._worker > 0
        ):
            self._seed_sample(position)
            try:
                next(samples)
            except StopIteration:
                raise self._too_few(position) from None

    def _next_batch(self, samples: Iterator[Any]) -> list[Any] | None:
        drawn: list[Any] = []
        self._seed_batch()
        try:
            for _ in range(self._stream.size()):
                self._seed_sample(self._position + len(drawn))
                drawn.append(next(samples))
        except StopIteration:
            self._ended = True
        except Exception as error:
            raise self._failure(len(drawn), error) from error
        if not drawn:
            return None
        if self._stream.randomness == "sample":
            self._seed_batch()
        batch: list[Any] | None = self._stream.batch(drawn)
        self._position += len(drawn)
        return batch

    def _seed_sample(self, position: int) -> None:
        mode, size = self._stream.randomness, self._stream.size()
        if mode == "sample":
            reseed(int(self._keys.take(position, position + 1)[0]))
        elif mode == "batch" and position % size == 0:
            reseed(self._batch_key(position))

    def _seed_batch(self) -> None:
        if self._stream.randomness != "off":
            reseed(self._batch_key(self._position))

    def _guard(self) -> AbstractContextManager[None]:
        return isolated() if self._isolates else nullcontext()

    def _too_few(self, drawn: int) -> StateMismatchError:
        return StateMismatchError(
            f"worker {self._worker} gave fewer samples than the run that saved the state had read of it.\n"
            f"  in the checkpoint: {self._position}\n  in this run:       {drawn}\n"
            "The data changed. Give the data that the run was started with, or start a new run."
        )

    def _failure(self, drawn: int, error: Exception) -> SampleError:
        return SampleError(
            f"reading sample {self._position + drawn} of worker {self._worker} failed: "
            f"{type(error).__name__}: {error}\n"
            f"It belongs to epoch {self._epoch}, step {self._position // self._stream.size()} of that worker. The "
            "loader's state is that before this batch: mend the sample and go on from it."
        )


def has_state(dataset: Any) -> bool:
    """Tell whether a dataset has a state of its own."""
    return callable(getattr(dataset, "state_dict", None)) and callable(getattr(dataset, "load_state_dict", None))
