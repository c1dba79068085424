"""in_turn: several DALI iterators as one source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from resumable.errors import ConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


__all__ = ["BatchSource", "InTurn", "Turns", "in_turn"]


Order = Literal["batch", "epoch"]


def in_turn(sources: Iterable[Any], *, order: Order = "batch") -> InTurn:
    """Combine several DALI iterators into one source for `resumable.wrap`, such as one iterator per GPU of a process.

    Args:
        sources: DALI iterators, or functions of `checkpoints` that make them.
        order: "batch" takes one batch from each in turn and skips iterators that have ended; "epoch" reads one after
            the other to its end. Either way, an epoch is over when all have ended.

    Raises:
        ConfigurationError: there are none, one is passed twice, or the order is invalid.
    """
    several = list(sources)
    if order not in get_args(Order):
        raise ConfigurationError(
            f"order must be one of {', '.join(get_args(Order))}, but it is {order!r}.\n"
            'Use "batch" to take one batch from each iterator in turn, or "epoch" to read one iterator after the '
            "other."
        )
    if not several or len(set(map(id, several))) < len(several):
        raise ConfigurationError(
            f"in_turn() takes one or more different DALI iterators, but got {len(several)}, of which "
            f"{len(set(map(id, several)))} are different.\n"
            "Epochs would have no end or no batches. Pass each iterator once."
        )
    for one in several:
        if not callable(one) and not hasattr(one, "__next__"):
            raise UnsupportedError(
                f"in_turn() takes DALI iterators, or functions that make them, but got a {type(one).__qualname__}.\n"
                "It does not yield batches. Pass the DALI iterators that hold the pipelines."
            )
    return InTurn(several, order)


@dataclass(frozen=True, slots=True)
class InTurn:
    """Several DALI iterators that are read in turn, made by `in_turn` for `resumable.wrap`.

    Args:
        sources: DALI iterators, or functions that make them at checkpoints.
        order: "batch" or "epoch", as for `in_turn`.
    """

    sources: list[Any]
    order: Order


class Turns:
    """The sources of `in_turn` as one source.

    Args:
        parts: the sources.
        order: "batch" or "epoch", as for `in_turn`.
    """

    def __init__(self, parts: Sequence[BatchSource], order: Order) -> None:
        self._parts, self._order = list(parts), order
        self._turn = 0
        self._done = [False] * len(self._parts)  # in this epoch

    def draw(self) -> Any:
        """Return the next batch of the source whose turn it is."""
        while not all(self._done):
            turn = self._turn
            if not self._done[turn]:
                try:
                    batch = self._parts[turn].draw()
                except StopIteration:
                    self._done[turn] = True
                else:
                    if self._order == "batch":
                        self._advance()
                    return batch
            self._advance()
        raise StopIteration

    def ended(self) -> bool:
        """Return whether all have ended."""
        if not all(self._done):
            self._done = [done or part.ended() for done, part in zip(self._done, self._parts, strict=True)]
        return all(self._done)

    def begin(self) -> None:
        """Continue with the next epoch of all sources, if all have ended."""
        if all(self._done):
            self._turn, self._done = 0, [False] * len(self._parts)
            for part in self._parts:
                part.begin()

    def snapshot(self) -> dict[str, Any]:
        """Return the snapshots of all sources, and whose turn it is."""
        whole = all(self._done)  # the snapshots are then at the start of the next epoch
        return {
            "turn": 0 if whole else self._turn,
            "done": [False if whole else done for done in self._done],
            "parts": [part.snapshot() for part in self._parts],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Restore every source, and the turn."""
        self._turn, self._done = snapshot["turn"], list(snapshot["done"])
        for part, its in zip(self._parts, snapshot["parts"], strict=True):
            part.restore(its)

    def _advance(self) -> None:
        self._turn = (self._turn + 1) % len(self._parts)


class BatchSource(Protocol):
    """Yields batches, epoch after epoch, and can be restored to an earlier position."""

    def draw(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: the epoch is over; the next batch is the first one of the next epoch.
        """
        ...

    def ended(self) -> bool:
        """Return whether no batch is left in this epoch; the source is then at the start of the next one."""
        ...

    def begin(self) -> None:
        """Continue with the next epoch, if this one is over."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return the position after the last returned batch."""
        ...

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go to the position of a snapshot."""
        ...
