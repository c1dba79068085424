"""Copies to a GPU beside the training: a stream for the thread that makes batches, and who waits for whom."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from resumable._randomness.keys import isolated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = ["Cuda", "Host", "find_device", "seeded"]

_IN_FLIGHT = 2


class Host:
    """No GPU is there: nothing to wait for."""

    pinned = False

    def working(self) -> AbstractContextManager[Any]:
        """Return the context in which a batch is made."""
        return nullcontext()

    def made(self, results: dict[int, Any]) -> Any:  # noqa: ARG002  # the GPU's twin needs it
        """Note that a batch was made; return what `hand_over` needs."""
        return None

    def hand_over(self, made: Any, outputs: tuple[Any, ...]) -> None:
        """Let the consumer's work wait for the batch."""


class Cuda(Host):
    """Batches are made in a stream of their own.

    Memory on the GPU comes fresh from torch's allocator for every batch, which learns by `record_stream` that the
    consumer uses it. Pinned memory is held until the copies from it are over.
    """

    pinned = True

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own gap
        self._copying: deque[tuple[torch.cuda.Event, dict[int, Any]]] = deque()

    def working(self) -> AbstractContextManager[Any]:
        """Return the context in which a batch is made."""
        return torch.cuda.stream(self._stream)

    def made(self, results: dict[int, Any]) -> Any:
        """Note that a batch was made, and wait for the copies of the batches before the last one."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own gap
        event.record(self._stream)
        self._copying.append((event, dict(results)))
        while len(self._copying) > _IN_FLIGHT:
            self._copying.popleft()[0].synchronize()
        return event

    def hand_over(self, made: Any, outputs: tuple[Any, ...]) -> None:
        """Let the consumer's stream wait for the batch, and tell the allocator that it uses it."""
        stream = torch.cuda.current_stream()
        stream.wait_event(made)
        for output in outputs:
            if isinstance(output, torch.Tensor) and output.is_cuda:
                output.record_stream(stream)


def find_device() -> Host:
    """Return what there is."""
    return Cuda() if torch.cuda.is_available() else Host()


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the global generators, those of GPUs too, and put them back as they were at the end."""
    with isolated(key):
        if not torch.cuda.is_available():
            yield
            return
        with torch.random.fork_rng():
            torch.cuda.manual_seed_all(key)
            yield
