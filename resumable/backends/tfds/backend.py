"""Reading in this process: threads fetch and decode the samples of the next batches."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._fetch.frameworks import Inside
from resumable._fetch.reader import Reader, indices_of
from resumable._fetch.stream import may_wait
from resumable._naming import identity_of
from resumable._randomness.passed import passing, refuse_without, takes_rng
from resumable._randomness.seeding import Seeding
from resumable.backends.tfds.decoding import stack
from resumable.failpoints import point
from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from resumable._options import Options
    from resumable._randomness.passed import SampleRNG
    from resumable.protocols import Request


__all__ = ["TfdsBackend"]


_AHEAD = 3  # batches that are started before they are requested
_TOGETHER = 8  # samples that a thread reads at a time: passing on a single one takes 50 µs


class TfdsBackend:
    """Batches of a source that is read by index.

    Only fetching and decoding run in threads, as they use no random numbers. The transform runs in the thread that
    iterates, one sample after another, each with its own random numbers.

    Args:
        source: has `source[index]`, `len(source)`, `threads` and `resumable_identity`.
        options: batch size, transform, collate, randomness and identity.
    """

    kind = "tfds"

    def __init__(self, source: Any, options: Options) -> None:
        self._source = source
        self._transform: Callable[..., Any] | None = options.transform
        self._collate: Callable[..., Any] | None = None if options.batch_size is None else options.collate or stack
        self._plain = options.transform is None and self._collate is stack
        assert options.randomness is not None
        self._randomness, self._passes = options.randomness, options.randomness == "passed"
        self._mixes = self._passes and takes_rng(options.collate)
        if self._passes:
            functions = {"transform(sample, rng)": options.transform, "collate(samples, rng)": options.collate}
            refuse_without("the source of TensorFlow Datasets", functions)
            self._transform = passing(options.transform or _unchanged)
        self.inside = Inside(passes_rng=True)
        self._seeding = Seeding({"transform": options.transform, "collate": options.collate})
        self.length = len(source)
        self.identity = identity_of(source, options.identity)
        self.traits = Traits(hints=source.resumable_hints, reads_ahead=bool(source.threads))

    def read(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yield one batch per request."""
        self._source.prepare()
        makes_whole = self._plain and bool(self._source.makes_batches)
        if not self._source.threads:
            for request in requests:
                whole = partial(self._source.batch, indices_of(request))
                yield self._take_whole(request, whole) if makes_whole else self._read_samples(request)
            return
        pool = ThreadPoolExecutor(self._source.threads, "resumable-tfds")
        begin, take = (self._begin_whole, self._take_whole) if makes_whole else (self._begin, self._batch)
        wait = True
        try:
            ahead = max(_AHEAD, self._source.threads) if makes_whole else _AHEAD  # one thread makes a complete batch
            yield from self._read_ahead(iter(requests), pool, ahead, begin, take)
        except GeneratorExit:
            wait = may_wait()
            raise
        finally:
            pool.shutdown(wait=wait, cancel_futures=True)

    def _read_ahead(
        self,
        requests: Iterator[Request],
        pool: ThreadPoolExecutor,
        ahead: int,
        begin: Callable[[Request, ThreadPoolExecutor], Any],
        take: Callable[[Request, Any], Any],
    ) -> Iterator[Any]:
        begun: deque[tuple[Request, Any]] = deque()
        for request in islice(requests, ahead):
            begun.append((request, begin(request, pool)))
        while begun:
            batch = take(*begun.popleft())
            begun.extend((request, begin(request, pool)) for request in islice(requests, 1))
            yield batch

    def _begin_whole(self, request: Request, pool: ThreadPoolExecutor) -> Callable[[], Any]:
        return pool.submit(self._source.batch, indices_of(request)).result

    def _take_whole(self, request: Request, read: Callable[[], Any]) -> Any:
        point("worker.read", request)
        try:
            return read()
        except Exception:  # noqa: BLE001  # reading each sample separately shows which of them fails
            batch = self._read_samples(request)
            self._plain = False  # none fails on its own, so from the next epoch on all batches are read like this
            return batch

    def _read_samples(self, request: Request) -> Any:
        return self._batch(request, _Ahead(self._source, deque(), self._transform))

    def _begin(self, request: Request, pool: ThreadPoolExecutor) -> _Ahead:
        indices, jobs = indices_of(request), deque[_Job]()
        for start in range(0, len(indices), _TOGETHER):
            some = indices[start : start + _TOGETHER]
            future = pool.submit(_read_some, self._source, some)
            jobs.extend(_Job(index, future, place) for place, index in enumerate(some))
        return _Ahead(self._source, jobs, self._transform)

    def _batch(self, request: Request, samples: _Ahead) -> Any:
        passes = samples.read if self._passes else None
        reader = Reader(
            samples, self._collate, self._randomness, seeding=self._seeding, passes=passes, mixes=self._mixes
        )
        return reader.read_isolated(request)


class _Job(NamedTuple):
    """A sample that a thread reads: its index, and its position among those that are read together."""

    sample: int
    future: Future[list[tuple[Any, Exception | None]]]
    place: int

    def result(self) -> Any:
        """Wait for the sample, and return it or raise the error from reading it."""
        value, error = self.future.result()[self.place]
        if error is not None:
            raise error
        return value


def _read_some(source: Any, indices: list[int]) -> list[tuple[Any, Exception | None]]:
    read: list[tuple[Any, Exception | None]] = []
    for index in indices:
        try:
            read.append((source[index], None))
        except Exception as error:  # noqa: BLE001  # raised when this sample is requested
            read.append((None, error))
    return read


class _Ahead:
    """The samples of one batch, each taken from its thread once. If requested again, a sample is read again.

    `Seeding` may read a batch twice, and a transform may have changed the first sample in place.
    """

    def __init__(self, source: Any, jobs: deque[_Job], transform: Callable[..., Any] | None) -> None:
        self._source, self._jobs, self._transform = source, jobs, transform

    def __getitem__(self, index: int) -> Any:
        sample = self._sample(index)
        return sample if self._transform is None else self._transform(sample)

    def read(self, index: int, rng: SampleRNG) -> Any:
        """Return a sample, whose transform gets the RNG."""
        assert self._transform is not None
        return self._transform(self._sample(index), rng)

    def _sample(self, index: int) -> Any:
        # The type of the index counts too: the same sample may appear in a batch as itself and as padding.
        ready = self._jobs and self._jobs[0].sample == index and type(self._jobs[0].sample) is type(index)
        return self._jobs.popleft().result() if ready else self._source[index]


def _unchanged(sample: Any) -> Any:
    return sample
