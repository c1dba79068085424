"""Reading in this process: threads fetch and decode the samples of the coming batches."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._fetch.reader import Reader, indices_of
from resumable._fetch.stream import may_wait
from resumable._naming import identity_of
from resumable._randomness.seeding import Seeding
from resumable.errors import DataError
from resumable.failpoints import point
from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from resumable._options import Options
    from resumable.protocols import Request

    Decode = Callable[[bytes], dict[str, Any]]

__all__ = ["TfdsBackend", "batches_by_rows", "stack"]


_AHEAD = 3  # batches that are begun before they are asked for
_TOGETHER = 8  # samples that a thread reads at a time: passing on each by itself takes 50 microseconds


class TfdsBackend:
    """Batches of a source that is read by index.

    Only fetching and decoding, which draw no random numbers, are done by threads. The transform runs in the thread
    that iterates, one sample after the other, each under its own randomness.

    Args:
        source: has `source[index]`, `len(source)`, `threads` and `resumable_identity`.
        options: batch size, transform, collate, randomness and identity.
    """

    kind = "tfds"

    def __init__(self, source: Any, options: Options) -> None:
        self._source, self._transform = source, options.transform
        self._collate = None if options.batch_size is None else options.collate or stack
        self._plain = options.transform is None and self._collate is stack
        assert options.randomness is not None
        self._randomness = options.randomness
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
            ahead = max(_AHEAD, self._source.threads) if makes_whole else _AHEAD  # a thread makes a whole batch
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
        except Exception:  # noqa: BLE001  # which of the samples fails is seen where they are read one by one
            batch = self._read_samples(request)
            self._plain = False  # none fails alone, so the next epoch is read like this from the beginning
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
        reader = Reader(samples, self._collate, self._randomness, seeding=self._seeding)
        return reader.read_isolated(request)


class _Job(NamedTuple):
    """A sample that a thread reads: its index, and its place among those that are read together."""

    sample: int
    future: Future[list[tuple[Any, Exception | None]]]
    place: int

    def result(self) -> Any:
        """Wait for the sample, and return it or raise what reading it raised."""
        value, error = self.future.result()[self.place]
        if error is not None:
            raise error
        return value


def _read_some(source: Any, indices: list[int]) -> list[tuple[Any, Exception | None]]:
    read: list[tuple[Any, Exception | None]] = []
    for index in indices:
        try:
            read.append((source[index], None))
        except Exception as error:  # noqa: BLE001  # raised where that very sample is asked for
            read.append((None, error))
    return read


class _Ahead:
    """The samples of one batch, each of them taken from its thread once; asked for again, it is read again.

    A batch may be read twice, as `Seeding` does, and a transform may have changed the first sample in place.
    """

    def __init__(self, source: Any, jobs: deque[_Job], transform: Callable[[Any], Any] | None) -> None:
        self._source, self._jobs, self._transform = source, jobs, transform

    def __getitem__(self, index: int) -> Any:
        # By the object's kind, too: the same sample may stand in a batch as itself and as what fills it up.
        ready = self._jobs and self._jobs[0].sample == index and type(self._jobs[0].sample) is type(index)
        sample = self._jobs.popleft().result() if ready else self._source[index]
        return sample if self._transform is None else self._transform(sample)


# ------------------------------------------------------------------ rows
#
# Images of one shape, decoded by OpenCV straight into the rows of a batch.
#
# TensorFlow Datasets decodes an image, turns its channels into a new array, and a batch is then stacked of these.
# Turning
# the channels into the row of the batch gives the same bytes in two thirds of the time. What stands beside the images
# is
# parsed here as well where it is scalars and text; if the first record shows any difference, by TensorFlow Datasets.

_CHANNELS = 3


def batches_by_rows(features: Mapping[str, Any], kind: type, decode: Decode) -> Callable[[list[bytes]], Any] | None:
    """Make what decodes records together; None where no feature is an image whose shape is known.

    Args:
        features: of a record, by name; the decoders of images among them are replaced by ones that do as before
            wherever no row is lent.
        kind: the class of images.
        decode: decodes a record by these features.

    Returns:
        A function of records that returns what stacking their samples gives. Any number of threads may call it.
    """
    rows = {name: _Row(one) for name, one in features.items() if type(one) is kind and _is_fixed(one)}
    return _Batches(rows, features, decode) if rows else None


class _Batches:
    def __init__(self, rows: dict[str, _Row], features: Mapping[str, Any], decode: Decode) -> None:
        self._rows, self._slow, self._quick = rows, decode, _scalars_and_text(features)
        self._decode: Decode | None = None

    def __call__(self, records: list[bytes]) -> Any:
        decode = self._decode or self._choose(records[0])
        made = {name: np.empty((len(records), *row.shape), np.uint8) for name, row in self._rows.items()}
        samples = [self._decoded(decode, record, made, at) for at, record in enumerate(records)]
        names = [name for name in samples[0] if name not in made]
        return {**samples[0], **made, **{name: stack([one[name] for one in samples], name) for name in names}}

    def _choose(self, record: bytes) -> Decode:
        """Take the quick way if it gives the same for a record."""
        slow, self._decode = self._slow(record), self._slow
        if self._quick is not None:
            quick = self._quick(record)
            if list(slow) == list(quick) and all(_is_same(slow[name], quick[name]) for name in slow):
                self._decode = self._quick
        return self._decode

    def _decoded(self, decode: Decode, record: bytes, made: dict[str, Any], at: int) -> dict[str, Any]:
        lent = {name: array[at] for name, array in made.items()}
        for name, row in self._rows.items():
            row.lend(lent[name])
        try:
            sample = decode(record)
        finally:
            for row in self._rows.values():
                row.lend(None)
        for name, row in lent.items():
            if sample[name] is not row:  # decoded by something else
                _fill(row, sample[name])
        return sample


def _is_fixed(image: Any) -> bool:
    shape = image.shape
    return len(shape) == _CHANNELS and None not in shape and shape[-1] == _CHANNELS and image.np_dtype == np.uint8


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and np.array_equal(one, other)


def _scalars_and_text(features: Mapping[str, Any]) -> Decode | None:
    """Make what parses a record of nothing but single values; None where a feature is more than that."""
    from tensorflow_datasets.proto import tf_example_pb2  # noqa: PLC0415  # an extra, and only where it decodes

    specs = features.get_serialized_info()  # type: ignore[attr-defined]  # of a FeaturesDict
    if any(getattr(spec, "shape", None) != () for spec in specs.values()):
        return None
    parts = [(name, np.dtype(spec.np_dtype), features[name].decode_example_np) for name, spec in sorted(specs.items())]
    parse = tf_example_pb2.Example.FromString

    def decode(record: bytes) -> dict[str, Any]:
        found = parse(record).features.feature
        return {name: convert(_value(found[name], dtype)) for name, dtype, convert in parts}

    return decode


def _value(feature: Any, dtype: np.dtype[Any]) -> Any:
    """Return the only value of a feature.

    Raises:
        ValueError: it has none, or several.
    """
    (value,) = feature.bytes_list.value or feature.int64_list.value or feature.float_list.value
    return np.array([value], dtype).item()  # as TensorFlow Datasets makes it


class _Row:
    """The decoder of an image, which writes to the row that this thread lent it.

    Args:
        image: the feature.
    """

    def __init__(self, image: Any) -> None:
        import cv2  # noqa: PLC0415  # an extra, and only where it decodes

        self._cv2, self._decode, self.shape = cv2, image.decode_example_np, image.shape
        self._here = threading.local()
        image.decode_example_np = self

    def lend(self, row: Any) -> None:
        """Let this thread decode into a row; None: into a new array."""
        self._here.row = row

    def __call__(self, value: Any) -> Any:
        row = getattr(self._here, "row", None)
        if row is None:
            return self._decode(value)
        image: Any = self._cv2.imdecode(np.frombuffer(value, np.uint8), self._cv2.IMREAD_UNCHANGED)
        fits = image is not None and image.shape == row.shape and image.dtype == row.dtype  # unlike shades of grey
        if not fits or self._cv2.cvtColor(image, self._cv2.COLOR_BGR2RGB, dst=row) is not row:
            _fill(row, self._decode(value))
        return row


def _fill(row: Any, image: Any) -> None:
    """Copy an image of the same shape and type, as stacking would have no other, either.

    Raises:
        ValueError: it is of another one; whose sample it is is found out by reading them one by one.
    """
    if image.shape != row.shape or image.dtype != row.dtype:
        raise ValueError(f"an image is {image.dtype} of shape {image.shape} in a batch of shape {row.shape}")
    row[...] = image


# ------------------------------------------------------------------ stacking
#
# Samples made into a batch.


def stack(samples: list[Any], where: str = "") -> Any:
    """Stack samples along a new first axis.

    Args:
        samples: nested dicts and tuples of arrays and numbers, all alike. Strings and bytes
            give lists.
        where: name of the part, for messages.

    Raises:
        DataError: a part has another shape in some samples.
    """
    first = samples[0]
    if isinstance(first, dict):
        return {name: stack([sample[name] for sample in samples], f"{where}/{name}".strip("/")) for name in first}
    if isinstance(first, tuple):
        return tuple(
            stack(list(part), f"{where}/{number}".strip("/")) for number, part in enumerate(zip(*samples, strict=True))
        )
    if isinstance(first, (str, bytes)):
        return samples
    arrays = [np.asarray(sample) for sample in samples]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(
            f"the samples of a batch have different shapes in {where or 'their only part'}: "
            f"{', '.join(map(str, sorted(shapes)[:4]))}.\nThey fit into no array. Give wrap(..., transform=...) that "
            "makes them alike, or collate=list to get lists of samples."
        )
    return np.stack(arrays)
