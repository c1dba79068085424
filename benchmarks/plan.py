"""How much is measured: a full run takes minutes, a quick one only shows that everything works."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run.

    Args:
        length: samples of the dataset in the comparisons of loaders.
        large: samples of the dataset for orders that can seek.
        rounds: rounds per contender.
        batches: maximum number of batches per turn.
        seconds: maximum time per turn.
        lead: batches before each turn that are read but not counted, because they may have been prefetched.
        pause: seconds after each turn, in which the contender's workers fill their queues and become idle.
        calls: calls per measurement of operations that take microseconds.
        costs: µs that the samples take.
        memory: samples of the dataset in the measurements of memory, for the plain loader.
        every: measure every case, even if each must be compiled separately; otherwise only the first.
    """

    length: int = 1_000_000
    large: int = 1_000_000_000
    rounds: int = 15
    batches: int = 500
    seconds: float = 0.4
    lead: int = 40
    pause: float = 0.1
    calls: int = 2000
    costs: tuple[int, ...] = (0, 20)
    memory: int = 10_000_000
    every: bool = True


FULL = Plan()
QUICK = Plan(
    length=20_000,
    rounds=2,
    batches=20,
    seconds=0.1,
    lead=2,
    pause=0.0,
    calls=20,
    costs=(20,),
    memory=100_000,
    every=False,
)
