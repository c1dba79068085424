"""What a type checker sees of `wrap`: mypy reads this file with all the others, and nobody runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import resumable
from resumable import Epoch, Loader

if TYPE_CHECKING:
    from collections.abc import Iterator


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index**2


class Reader:
    def __iter__(self) -> Iterator[bytes]:
        yield b""


def lines() -> Iterator[str]:
    yield "a"


def of_epoch(epoch: int) -> Iterator[float]:
    yield 0.5 * epoch


def stacked(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers)


def noisy(number: int, rng: np.random.Generator) -> str:
    return str(number + rng.normal())


def mixed(numbers: list[str], rng: resumable.SampleRNG) -> Tensor:
    return torch.rand(len(numbers), generator=rng.torch)


def unknown() -> Any: ...


assert_type(resumable.wrap(DataLoader(Squares(), batch_size=2)), Loader[int])
assert_type(resumable.wrap(DataLoader(Squares()), seed=1, ack="manual"), Loader[int])
assert_type(resumable.wrap(Squares()), Loader[int])
assert_type(resumable.wrap([1, 2, 3]), Loader[int])
assert_type(resumable.wrap(range(3), shuffle=True), Loader[int])
assert_type(resumable.wrap([1, 2, 3], batch_size=2), Loader[list[int]])
assert_type(resumable.wrap([1, 2, 3], transform=str), Loader[str])
assert_type(resumable.wrap([1, 2, 3], transform=str, batch_size=2), Loader[list[str]])
assert_type(resumable.wrap([1, 2, 3], collate=stacked, batch_size=2), Loader[Tensor])
assert_type(resumable.wrap(["1"], transform=int, collate=stacked, batch_size=2), Loader[Tensor])
assert_type(resumable.wrap([1], transform=noisy, batch_size=2, randomness="passed"), Loader[list[str]])
assert_type(resumable.wrap([1], transform=noisy, collate=mixed, batch_size=2, randomness="passed"), Loader[Tensor])
assert_type(resumable.wrap(["1"], collate=mixed, batch_size=2, randomness="passed"), Loader[Tensor])
assert_type(resumable.wrap(torch.zeros(9, 2), batch_size=2), Loader[Tensor])
assert_type(
    resumable.wrap(np.zeros((9, 2), np.float32), batch_size=2),
    Loader[np.ndarray[tuple[int, int], np.dtype[np.float32]]],
)
assert_type(resumable.wrap(lines), Loader[str])
assert_type(resumable.wrap(lines, batch_size=2), Loader[list[str]])
assert_type(resumable.wrap(of_epoch), Loader[float])
assert_type(resumable.wrap(Reader()), Loader[bytes])
assert_type(resumable.wrap(unknown(), batch_size=2), Loader[Any])

loader: Loader[str] = resumable.wrap(lines)
assert_type(next(iter(loader)), str)
for epoch in loader.epochs(3):
    assert_type(epoch, Epoch[str])
    for index, batch in epoch.enumerate():
        assert_type((index, batch), tuple[int, str])
    for batch in epoch:
        assert_type(batch, str)
for batch in loader.steps(3):
    assert_type(batch, str)
assert_type(loader.global_step, int)
assert_type(loader.for_evaluation(), Loader[str])
loader.epochs(3).close()
loader.steps(3).close()

undecided: Loader = loader  # as code has it that was written before a Loader had a parameter
assert_type(loader.state_dict(), dict[str, Any])
assert_type(loader.dcp(no_dist=True).state_dict(), dict[str, Any])
resumable.wrap(lines, sed=1)  # type: ignore[call-overload]  # no such option
resumable.wrap(lines, tail="rest")  # type: ignore[call-overload]  # no such tail
