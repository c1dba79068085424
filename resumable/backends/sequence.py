"""Sequences: lists, tuples, ranges, arrays, tensors, and any object with `__getitem__` and `__len__`.

Without `batch_size`, the elements are the batches; with it, they are samples to collate.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._data import Columns
from resumable._fetch.frameworks import Inside
from resumable._fetch.hugging_face import draws_nothing
from resumable._fetch.own_state import own_state
from resumable._fetch.reader import Reader
from resumable._introspection import ask, is_a, module_of, mro_of, qualname_of
from resumable._naming import identity_of, name_of
from resumable._randomness.passed import passing, passing_on, refuse_without, takes_rng
from resumable._randomness.seeding import Seeding
from resumable.loader.registry import refuse_hidden_epochs, refuse_hidden_order
from resumable.samplers.base import length_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resumable._fetch.own_state import OwnState
    from resumable._options import Options
    from resumable._randomness.passed import SampleRNG
    from resumable.protocols import Request, Upcoming

__all__ = ["SequenceBackend", "adapt"]

_ARRAYS = {"numpy.ndarray", "torch.Tensor"}  # take any array of indices; other types want them sorted, or reject them


def adapt(source: Any, options: Options) -> tuple[SequenceBackend, Options]:
    """Adapt a sequence."""
    options.refuse("a sequence", shard="Samples are divided among the ranks by index, whatever the source is.")
    backend = SequenceBackend(source, options.with_defaults(), own_state(source, unless=None, stacklevel=5))
    refuse_hidden_order(source, "the source")
    refuse_hidden_epochs(source, "the source", evaluation=bool(options.evaluation))
    return backend, options.resolve_sampler(source, backend.length)


class SequenceBackend:
    """Reads the samples in this process.

    Args:
        source: has `source[index]` and `len(source)`.
        options: batch size, transform, collate, randomness and identity.
        remembers: gets and sets the state of the source.
    """

    kind = "sequence"

    def __init__(self, source: Any, options: Options, remembers: OwnState | None = None) -> None:
        self._source = source
        self.length = length_of(source, name_of(source, options.identity))
        self.identity = identity_of(source, options.identity or _describe(source))
        stored = None if ask(source, "resumable_identity") is not None else Columns(source, self.length)
        self.stored, self.own_state = stored, remembers
        self.inside = Inside(shows={"dataset": source}, passes_rng=True)
        plain = options.transform is None and options.collate is None and options.batch_size is not None
        self._gather = plain and _is_array(source)
        samples = source if options.transform is None else _Transformed(source, options.transform)
        collate: Callable[..., Any] | None = None if options.batch_size is None else options.collate or list
        passes = None
        if options.randomness == "passed":
            passes = _passing(source, options)
        assert options.randomness is not None
        together = collate is not None and passes is None and options.recorder is None and draws_nothing(samples)
        roots = {"dataset": source, "transform": options.transform, "collate": options.collate}
        seeding = Seeding(roots)
        if remembers is not None:
            seeding.own.forget("dataset")  # its own state restores its RNGs
        mixes = options.randomness == "passed" and takes_rng(options.collate)
        self._reader = Reader(samples, collate, options.randomness, together, seeding, options.recorder, passes, mixes)

    def read(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yield one batch per request."""
        for request in requests:
            if self._gather:
                yield self._source[np.array(request.indices)]  # a copy: tensors reject read-only arrays
            else:
                yield self._reader.read_isolated(request)


def _passing(source: Any, options: Options) -> Callable[[Any, SampleRNG], Any] | None:
    """Return a function of an index and its RNG that reads a sample; None if only `collate` takes an RNG.

    Raises:
        UnsupportedError: nothing takes one.
    """
    read, transform = passing_on(source), options.transform
    functions = {"__getitem__(index, rng)": read, "transform(sample, rng)": transform}
    refuse_without(name_of(source, options.identity), {**functions, "collate(samples, rng)": options.collate})
    if not any(takes_rng(one) for one in functions.values()):
        return None
    read = read or passing(source.__getitem__)
    return read if transform is None else partial(_transformed, read, passing(transform))


def _transformed(read: Any, transform: Any, index: Any, rng: SampleRNG) -> Any:
    return transform(read(index, rng), rng)


class _Transformed:
    def __init__(self, source: Any, transform: Any) -> None:
        self._source, self._transform = source, transform

    def __getitem__(self, index: int) -> Any:
        return self._transform(self._source[index])

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Upcoming | None]) -> None:
        """Pass on the upcoming indices; see `resumable.protocols.Prefetching`."""
        method = ask(type(self._source), "resumable_prefetch")
        if method is not None:
            method(self._source, indices, upcoming)


def _is_array(source: Any) -> bool:
    return any(f"{module_of(base)}.{qualname_of(base)}" in _ARRAYS for base in mro_of(type(source)))


def _describe(source: Any) -> str:
    if is_a(source, (list, tuple, range)):
        return "sequence"
    dtype, shape = ask(source, "dtype"), ask(source, "shape")
    if dtype is not None and issubclass(type(shape), tuple):
        return f"array of {dtype}, sample shape {tuple(shape[1:])}"
    return name_of(source, None)
