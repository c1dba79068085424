"""Samplers of one source: sequential, shuffled, uniform, weighted, of a subset, and over laps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._introspection import ask
from resumable._randomness.keyed import IntArray, Words, check_seed, derive, digest, random_u64, scale
from resumable.errors import ConfigurationError
from resumable.samplers.base import Bindable, check_length, check_range
from resumable.samplers.permutation import Permutation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from resumable.samplers.base import Sampler


__all__ = ["Laps", "Sequential", "Shuffle", "Subset", "Uniform", "Weighted", "check_data_length"]


_FINEST = 40
_SUM_BITS = 63
_LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Sequential:
    """Yields sample indices in ascending order, the same in every epoch.

    Args:
        length: number of samples.
    """

    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", check_length(self.length, "the length of the data"))

    @property
    def data_length(self) -> int:
        """Number of samples."""
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:  # noqa: ARG002  # part of the protocol
        """Return `start..stop-1`."""
        check_range(start, stop, self.length)
        return np.arange(start, stop, dtype=np.int64)

    def spec(self) -> dict[str, int | str]:
        """Return the name and the number of samples."""
        return {"name": "sequential-v1", "length": self.length}


class Shuffle:
    """A new pseudo-random permutation in every epoch.

    Args:
        length: number of samples `N`.
        seed: determines the order, together with the epoch.
        num_samples: positions per epoch; `N` by default. With fewer, an epoch is part of a permutation; with more, it
            continues with further permutations.

    Raises:
        ConfigurationError: a length is below 1, or the seed is negative or not an integer.
    """

    def __init__(self, length: int, *, seed: int = 0, num_samples: int | None = None) -> None:
        self.data_length = self._samples = check_length(length, "the length of the data")
        self._seed = check_seed(seed)
        self.length = self._samples if num_samples is None else check_length(num_samples, "num_samples")
        self._permutation = lru_cache(maxsize=2)(self._build)

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        check_range(start, stop, self.length)
        parts = []
        for lap in range(start // self._samples, -(-stop // self._samples)):
            offset = lap * self._samples
            first, last = max(start - offset, 0), min(stop - offset, self._samples)
            parts.append(self._permutation(epoch, lap).range(first, last))
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.int64)])

    def spec(self) -> dict[str, int | str]:
        """Return the name of the algorithm, seed, number of positions, and number of samples if that differs."""
        spec: dict[str, int | str] = {"name": "feistel8-v1", "length": self.length, "seed": self._seed}
        return spec if self.length == self._samples else {**spec, "samples": self._samples}

    def _build(self, epoch: int, lap: int) -> Permutation:
        key = (self._seed, epoch) if lap == 0 else (self._seed, epoch, lap)
        return Permutation(self._samples, *key)

    def __repr__(self) -> str:
        return f"Shuffle({self._samples}, seed={self._seed}, num_samples={self.length})"

    def __getstate__(self) -> dict[str, int]:
        return {"_samples": self._samples, "_seed": self._seed, "length": self.length}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__init__(state["_samples"], seed=state["_seed"], num_samples=state["length"])  # type: ignore[misc]


class Uniform:
    """Samples uniformly with replacement: any sample is equally likely at every position. Needs O(1) memory.

    Args:
        length: number of samples `N`.
        seed: determines the random numbers, together with the epoch.
        num_samples: positions per epoch; `N` by default.

    Raises:
        ConfigurationError: a length is below 1, or the seed is negative or not an integer.
    """

    def __init__(self, length: int, *, seed: int = 0, num_samples: int | None = None) -> None:
        self.data_length = self._samples = check_length(length, "the length of the data")
        self._seed = check_seed(seed)
        self.length = self._samples if num_samples is None else check_length(num_samples, "num_samples")

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        check_range(start, stop, self.length)
        key = derive(self._samples, self._seed, epoch, words=2, purpose=b"uniform")
        return scale(random_u64(key, np.arange(start, stop)), self._samples).view(np.int64)

    def spec(self) -> dict[str, int | str]:
        """Return the name of the algorithm, seed, number of positions, and number of samples."""
        return {"name": "uniform-v1", "length": self.length, "seed": self._seed, "samples": self._samples}

    def __repr__(self) -> str:
        return f"Uniform({self._samples}, seed={self._seed}, num_samples={self.length})"


class Weighted:
    """Samples with replacement: sample `i` has the probability `weights[i] / sum(weights)` at every position.

    The sample at a position depends only on (seed, epoch, position). The weights are rounded to multiples of `2**-40`
    of the largest weight and summed as integers, so the result does not depend on floating-point rounding. A weight
    below `2**-41` of the largest one therefore counts as 0, and its sample never appears. From `2**23` weights on, the
    unit doubles whenever their number doubles, which keeps the sum below `2**63`.

    Args:
        weights: shape `(n,)`, finite, 0 or more, at least one above 0; about 8 bytes are kept for each.
        seed: determines the random numbers, together with the epoch.
        num_samples: positions per epoch; `n` by default.

    Raises:
        ConfigurationError: the weights are not such numbers, or the seed or `num_samples` is invalid.
    """

    def __init__(self, weights: ArrayLike, *, seed: int = 0, num_samples: int | None = None) -> None:
        self._sums = _integer_sums(_check_weights(weights))
        self.data_length = len(self._sums)
        self._seed = check_seed(seed)
        self.length = len(self._sums) if num_samples is None else check_length(num_samples, "num_samples")

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        check_range(start, stop, self.length)
        key = derive(len(self._sums), self._seed, epoch, words=2, purpose=b"weighted")
        draws = scale(random_u64(key, np.arange(start, stop)), int(self._sums[-1]))
        return np.searchsorted(self._sums, draws, side="right").astype(np.int64)

    def spec(self) -> dict[str, int | str]:
        """Return the name of the algorithm, seed, number of positions, and a digest of the weights."""
        return {"name": "weighted-v1", "length": self.length, "seed": self._seed, "weights": digest(self._sums)}

    def __repr__(self) -> str:
        return f"Weighted(<{len(self._sums)} weights>, seed={self._seed}, num_samples={self.length})"


def _integer_sums(weights: NDArray[np.float64]) -> Words:
    """Return the running sums of the weights as integers, in units of 2**-40 of the largest (more for many weights).

    `n` weights of at most `2**bits` units, with `bits <= 63 - n.bit_length()`, have a sum below 2**63.
    """
    bits = min(_FINEST, _SUM_BITS - len(weights).bit_length())
    units = np.rint(weights / weights.max() * (1 << bits))
    return np.cumsum(units.astype(np.uint64), dtype=np.uint64)


def _check_weights(weights: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"weights must be numbers of 0 or more in one dimension, but they cannot be converted: {error}.\n"
            "No sample could be chosen. Pass one weight per sample."
        ) from error
    if array.ndim == 1 and array.size and np.isfinite(array).all() and array.min() >= 0 and array.any():
        return array
    raise ConfigurationError(
        f"weights must be finite numbers of 0 or more in one dimension, and not all 0, but they have shape "
        f"{array.shape}"
        + (f", minimum {array.min()} and maximum {array.max()}" if array.size else "")
        + ".\nNo sample could be chosen. Pass one weight per sample."
    )


class Subset:
    """A part of the data: maps the indices of a different sampler through a table of sample indices.

    Args:
        table: sample indices, shape `(n,)`; it is kept in memory.
        inner: sampler over `0..n-1`.

    Raises:
        ConfigurationError: the table is empty, or is not one-dimensional with integers in `0..2**63-1`.
    """

    def __init__(self, table: ArrayLike, inner: Sampler) -> None:
        array = np.asarray(table)
        check_length(array.size, "the number of indices of a subset")
        # int(): NumPy 1 compares uint64 with int64 as floats
        if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0 or int(array.max()) > _LARGEST:
            values = f", minimum {array.min()} and maximum {array.max()}" if array.dtype.kind in "biuf" else ""
            raise ConfigurationError(
                "the indices of a subset must be integers in 0..2**63-1 in one dimension, but they have dtype "
                f"{array.dtype}, shape {array.shape}{values}.\n"
                "They would select no samples. Pass a list of sample indices."
            )
        self._table = array.astype(np.int64)
        self._inner = inner
        self.length = inner.length

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`.

        Raises:
            ConfigurationError: the inner sampler returns an index that is not in the table.
        """
        rows = self._inner.indices(epoch, start, stop)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self._table):
            raise ConfigurationError(
                f"the subset has {len(self._table)} indices, numbered 0..{len(self._table) - 1}, but its inner sampler "
                f"{self._inner!r} requests numbers {rows.min()}..{rows.max()}.\n"
                f"These samples do not exist. Create the inner sampler for {len(self._table)} samples."
            )
        return self._table[rows]

    def spec(self) -> dict[str, int | str]:
        """Return the inner sampler's spec, and a digest of the table; digests of nested tables, the outermost first."""
        inner = self._inner.spec()
        tables = [digest(self._table), *([str(inner["subset"])] if "subset" in inner else [])]
        return {**inner, "subset": "/".join(tables)}

    def __repr__(self) -> str:
        return f"Subset(<{len(self._table)} indices>, {self._inner!r})"

    def check(self, length: int, what: str) -> None:
        """Check the number of samples of the data, and the inner sampler; see `check_data_length`."""
        if self._table.max() >= length:
            raise ConfigurationError(
                f"the largest index of the subset is {self._table.max()}, but {what} has {length} samples, numbered "
                f"0..{length - 1}.\nThis sample does not exist. Pass a list of existing indices."
            )
        check_data_length(self._inner, len(self._table), "the subset")


def check_data_length(sampler: Any, length: int, what: str = "the data") -> None:
    """Check that a sampler was made for data of this length. One without `data_length` is accepted.

    Raises:
        ConfigurationError: it was made for fewer or more samples.
    """
    if isinstance(sampler, Subset):
        sampler.check(length, what)
        return
    made = ask(sampler, "data_length")
    if type(made) is int and made != length:
        effect = "The remaining samples would never be read" if made < length else "It would request missing samples"
        raise ConfigurationError(
            f"{sampler!r} was made for {made} samples, but {what} has {length}.\n{effect}. Create it for {length} "
            "samples. To read only some of them, pass resumable.samplers.Subset(indices, inner)."
        )


class Laps:
    """A sampler that uses the index `e * samples + i` for sample `i` of epoch `e`.

    Args:
        inner: determines the order of the samples in each epoch.
        samples: number of samples per epoch of the source.
        what: the algorithm that makes the samples of an epoch, with its parameters.

    Attributes:
        length: positions per epoch.
    """

    def __init__(self, inner: Sampler, samples: int, what: str) -> None:
        self._inner, self._samples, self._what = inner, samples, what
        self.length = inner.length

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        return self._inner.indices(epoch, start, stop) + epoch * self._samples

    def bound_to(self, global_batch: int) -> Laps:
        """Return the sampler with the open parameters of the inner one set to fit a global batch."""
        return self._of(self._inner.bound_to(global_batch)) if isinstance(self._inner, Bindable) else self

    def bound_as(self, spec: Mapping[str, Any]) -> Laps:
        """Return the sampler with the open parameters of the inner one set from a state."""
        return self._of(self._inner.bound_as(spec)) if isinstance(self._inner, Bindable) else self

    def doubt(self, global_batch: int) -> str:
        """Return why the inner order does not fit a global batch; empty if it does."""
        return self._inner.doubt(global_batch) if isinstance(self._inner, Bindable) else ""

    def spec(self) -> dict[str, int | str]:
        """Return the inner sampler's spec, the number of samples, and how an epoch's samples are made."""
        return {**self._inner.spec(), "windows": self._samples, "packing": self._what}

    def _of(self, inner: Sampler) -> Laps:
        return self if inner is self._inner else Laps(inner, self._samples, self._what)

    def __repr__(self) -> str:
        return f"Laps({self._inner!r}, {self._samples}, {self._what!r})"
