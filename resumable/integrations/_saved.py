"""The part of a trainer's checkpoint that holds the knowledge of each rank. One rank writes it for all ranks.

A trainer saves weights and counters once. The position of a Loader, the global generators and the buffers of a module
may differ between ranks. So each rank sends its own, and gets them back on resume.
"""

from __future__ import annotations

from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from torch import distributed

from resumable._distribution import UPGRADE
from resumable._state.fields import check_fields
from resumable._state.schema import describe
from resumable.errors import StateFormatError, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable.integrations._buffers import KeptBuffers

__all__ = ["RankedState", "gather", "gather_at_step"]

T = TypeVar("T")
# Missing entries, other types, or bytes that torch cannot read.
_DAMAGE = (AttributeError, LookupError, TypeError, ValueError, RuntimeError, EOFError, OSError, UnpicklingError)


class RankedState:
    """The knowledge of all ranks. The schema of each trainer inherits from it.

    Attributes:
        part: its name, for messages.
        newest: the format that is written; this one and older ones load.
        hint: advice for a part of an unknown format.
        former: fields of older formats that are no longer needed.
        ranks: the knowledge of each rank; `loaders` are the states of its train loaders.
    """

    part: ClassVar[str]
    newest: ClassVar[int] = 1
    hint: ClassVar[str] = ""
    former: ClassVar[tuple[str, ...]] = ()
    ranks: Sequence[Mapping[str, Any]]

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Read the part of a checkpoint.

        Raises:
            StateFormatError: it is something else, damaged, or of a newer version.
        """
        version = values.get("format") if isinstance(values, dict) else None
        if type(version) is not int or version > cls.newest:
            raise StateFormatError(
                f"{cls.part} has format {version!r}, but this version of resumable reads formats up to {cls.newest}: "
                f"{describe(values)}.\n"
                "Nothing was loaded. The data would start at a different batch than the weights. "
                f"{cls.hint}If a newer version of resumable wrote it, upgrade: {UPGRADE}"
            )
        try:
            saved = cls._read(values)
        except _DAMAGE as error:
            raise StateFormatError(
                f"{cls.part} is damaged: {error!r}.\nNothing was loaded. Resume from a different checkpoint."
            ) from error
        check_fields(values, {*saved.as_dict(), *cls.former}, cls.part)
        return saved

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        raise NotImplementedError

    @classmethod
    def _read(cls, values: Mapping[str, Any]) -> Self:
        raise NotImplementedError

    @property
    def states(self) -> Sequence[Mapping[str, Any]]:
        """The states of the Loaders of rank 0."""
        states: Sequence[Mapping[str, Any]] = self.ranks[0]["loaders"]
        return states

    def of_rank(self, rank: int, size: int, loaders: int = 1, *, strict: bool = True) -> Mapping[str, Any]:
        """Return what a rank continues from.

        On a different number of ranks, the Loaders continue from the states of rank 0, and divide their data again.
        Each rank takes the generators of one rank, and keeps the buffers that it has.

        Args:
            rank: of this process.
            size: number of ranks now.
            loaders: number of train loaders of this run.
            strict: raise if the ranks have streams that cannot be divided.

        Raises:
            StateMismatchError: the run has more or fewer loaders, or streams that this number of ranks cannot share.
        """
        if len(self.states) != loaders:
            raise StateMismatchError(
                f"{self.part} has states of {len(self.states)} train loaders, and this run has {loaders}.\n"
                "Some loaders could not be resumed. Use the same loaders as the original run, in the same order."
            )
        own = self.ranks[rank % len(self.ranks)]
        if len(self.ranks) == size:
            return own
        for number, state in enumerate(self.states):
            if strict and state.get("rank") is not None:
                raise StateMismatchError(
                    f"each rank has a separate stream in train loader {number}, which a different number of ranks "
                    "cannot divide.\n"
                    f"  in the checkpoint: {len(self.ranks)} ranks\n  in this run:       {size} ranks\n"
                    f"Restart with {len(self.ranks)} ranks."
                )
        return {**own, "loaders": self.ranks[0]["loaders"], "buffers": None}


def gather(own: T, size: int) -> list[T]:
    """Return the knowledge of all ranks, in their order. All ranks must call it."""
    everyone = [own]
    if size > 1:
        everyone *= size
        distributed.all_gather_object(everyone, own)
    return everyone


def gather_at_step(
    own: dict[str, Any], buffers: Sequence[KeptBuffers], size: int
) -> tuple[list[dict[str, Any]], list[bool]]:
    """Return the knowledge of all ranks, and on which ranks the buffers differ from rank 0. All ranks must call it.

    Under DDP the running means of a normalisation differ. Trainers save the means of rank 0, but each rank evaluates
    with its own. Digests are compared first, because buffers may be large, and are mostly equal.

    Args:
        own: the knowledge of this rank; `loaders` are the states of its train loaders.
        buffers: of this rank's modules.
        size: number of ranks.

    Raises:
        StateMismatchError: the ranks are at different batches. All ranks raise it.
    """
    everyone = gather((own, [kept.digest() for kept in buffers] if size > 1 else []), size)
    steps = [_step(known) for known, _ in everyone]
    for rank, step in enumerate(steps):
        if step != steps[0]:
            raise StateMismatchError(
                f"the ranks save at different batches.\n  rank 0: {steps[0]}\n  rank {rank}: {step}\n"
                "A checkpoint could not restore both. Save on all ranks after the same optimizer step."
            )
    return [known for known, _ in everyone], [digests != everyone[0][1] for _, digests in everyone]


def _step(known: Mapping[str, Any]) -> str:
    cursors = [state["cursor"] for state in known["loaders"]]
    return ", ".join(f"epoch {cursor['epoch']}, step {cursor['step']}" for cursor in cursors)
