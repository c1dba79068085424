"""The protocol of a sampler, and what its implementations share."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from resumable.errors import ConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resumable._randomness.keyed import IntArray

__all__ = ["LONGEST", "Bindable", "Sampler", "check_length", "check_range", "length_of"]

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
        """Describe the sampler by plain values: its algorithm under `name` (with a version) and what it depends on.

        Two samplers with the same spec give the same order; the spec is stored in the state and compared on load.
        """
        ...


@runtime_checkable
class Bindable(Sampler, Protocol):
    """A sampler that may leave something open, which the global batch says when a Loader first opens its stream.

    From then on it is in the spec, and so in the state, and stays, whatever the global batch becomes.
    """

    def bound_to(self, global_batch: int) -> Sampler:
        """Return the sampler with what fits a global batch, where something is open."""
        ...

    def bound_as(self, spec: Mapping[str, Any]) -> Sampler:
        """Return the sampler with what the spec of a state says; itself where nothing is open, or that says nothing."""
        ...

    def doubt(self, global_batch: int) -> str:
        """Return why it does not fit a global batch, for a warning; empty where it does."""
        ...


def check_length(length: object, what: str) -> int:
    """Return a length as a Python integer.

    Args:
        length: the length.
        what: its name in messages.

    Raises:
        ConfigurationError: it is no integer, below 1, or above 2**62, as positions are 64-bit integers.
    """
    try:
        value = operator.index(length)  # type: ignore[arg-type]  # what is no integer raises
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
            "There would be nothing to read. Check where the data comes from: an empty list, a wrong path or a filter?"
        )
    return value


def length_of(source: Any, name: str, instead: str = "Give something with at least one dimension and a len().") -> int:
    """Return `len(source)`.

    Args:
        source: has a length.
        name: of the source, for the message.
        instead: what to do if it has none.

    Raises:
        UnsupportedError: it has none.
        ConfigurationError: it is not a length that Python can count to. Its other errors are raised unchanged.
    """
    try:
        return len(source)
    except (TypeError, NotImplementedError) as error:
        raise UnsupportedError(
            f"{name} has no length: {error}.\nWhich samples there are could not be known. {instead}"
        ) from error
    except (OverflowError, ValueError) as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # the code of the source did, and not Python because of its answer
        raise ConfigurationError(
            f"the length of {name} is out of range: {error}.\n"
            "Positions are 64-bit integers and would overflow. Use a length from 0 to 2**62."
        ) from error


def check_range(start: int, stop: int, length: int) -> None:
    """Refuse positions outside of `0..length`.

    Raises:
        ConfigurationError: they are.
    """
    if not 0 <= start <= stop <= length:
        raise ConfigurationError(
            f"positions {start}..{stop} were asked for, but an epoch has the positions 0..{length}.\n"
            "No sample belongs to them. Ask for a range inside of the epoch."
        )
