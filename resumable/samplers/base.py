"""The protocol of a sampler, and helpers that its implementations share."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from resumable.errors import ConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable._randomness.keyed import IntArray

__all__ = ["LONGEST", "Bindable", "Continuable", "Continuation", "Sampler", "check_length", "check_range", "length_of"]

LONGEST = 1 << 62


@runtime_checkable
class Sampler(Protocol):
    """A pure function from position to sample index."""

    @property
    def length(self) -> int:
        """Number of positions in an epoch."""
        ...

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1` of an epoch; shape `(stop - start,)`."""
        ...

    def spec(self) -> dict[str, int | str]:
        """Describe the sampler with plain values: its algorithm as `name` (with a version), and its parameters.

        Two samplers with the same spec have the same order. The spec is stored in the state and compared on load.
        """
        ...


@runtime_checkable
class Bindable(Sampler, Protocol):
    """A sampler with optional parameters that the global batch determines when a Loader first opens its stream.

    From then on, they are part of the spec and the state, and do not change with the global batch.
    """

    def bound_to(self, global_batch: int) -> Sampler:
        """Return the sampler with its open parameters set to fit a global batch."""
        ...

    def bound_as(self, spec: Mapping[str, Any]) -> Sampler:
        """Return the sampler with its open parameters set from a state's spec; unchanged if the spec has none."""
        ...

    def doubt(self, global_batch: int) -> str:
        """Return why the sampler does not fit a global batch, for a warning; empty if it does."""
        ...


class Continuation(NamedTuple):
    """How a sampler differs from the one of a state, in samples that were not read yet.

    Args:
        told: what differs, in words.
        sizes: number of samples of each source in the state.
        firsts: the present index of each source's first sample; None if the source is missing or has different samples.
    """

    told: str
    sizes: Sequence[int]
    firsts: Sequence[int | None]


class Continuable(Sampler, Protocol):
    """A sampler whose future may change without a change of its past, such as the phases of a mixture."""

    def continuation(self, spec: Mapping[str, Any], epoch: int, position: int) -> Continuation | None:
        """Return what differs from the sampler of a state; None if samples before the position would differ.

        Args:
            spec: of the state.
            epoch: of the state.
            position: in that epoch.
        """
        ...


def check_length(length: object, what: str) -> int:
    """Return a length as a Python integer.

    Args:
        length: the length.
        what: its name in messages.

    Raises:
        ConfigurationError: it is not an integer, or is below 1 or above 2**62, as positions are 64-bit integers.
    """
    try:
        value = operator.index(length)  # type: ignore[arg-type]  # raises for other types
    except TypeError:
        value = 0
    if value > LONGEST:
        raise ConfigurationError(
            f"{what} must be at most 2**62 = {LONGEST}, but it is {length!r}.\n"
            "Positions are 64-bit integers and would overflow. Use a smaller length."
        )
    if value < 1:
        raise ConfigurationError(
            f"{what} must be an integer of 1 or more, but it is {length!r}.\n"
            "There would be nothing to read. Check the data source for an empty list, a wrong path or a filter."
        )
    return value


def length_of(source: Any, name: str, instead: str = "Pass something with at least one dimension and a len().") -> int:
    """Return `len(source)`.

    Args:
        source: an object with a length.
        name: of the source, for the message.
        instead: advice for the message if it has none.

    Raises:
        UnsupportedError: it has none.
        ConfigurationError: the length is larger than Python can handle. Other errors are raised unchanged.
    """
    try:
        return len(source)
    except (TypeError, NotImplementedError) as error:
        raise UnsupportedError(
            f"{name} has no length: {error}.\nThe number of samples is needed, but unknown. {instead}"
        ) from error
    except (OverflowError, ValueError) as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # the source's own code raised it, not Python because of the returned value
        raise ConfigurationError(
            f"the length of {name} is out of range: {error}.\n"
            "Positions are 64-bit integers and would overflow. Use a length from 0 to 2**62."
        ) from error


def check_range(start: int, stop: int, length: int) -> None:
    """Check that positions are in `0..length`.

    Raises:
        ConfigurationError: they are not.
    """
    if not 0 <= start <= stop <= length:
        raise ConfigurationError(
            f"positions {start}..{stop} were requested, but an epoch has the positions 0..{length}.\n"
            "Other positions have no samples. Request a range inside the epoch."
        )
