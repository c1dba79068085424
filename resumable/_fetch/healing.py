"""Workers that heal: where one dies or hangs, all are started again, and read again what was not delivered."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from resumable._fetch.deaths import Died
from resumable._fetch.stalls import shortened
from resumable._fetch.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from torch.utils.data import DataLoader

    from resumable._fetch.deaths import Healing, Lost
    from resumable._stats import Meter
    from resumable.protocols import Request

__all__ = ["HealingWorkers"]


class HealingWorkers(Workers):
    """Workers that are started again where one dies.

    A request says which samples it is of and under which keys, so reading it again gives the same batch. Of a stream,
    only what drives it knows how to begin again: it is told by `Died`.

    Args:
        dataset: what the processes run: a `RequestDataset`, or an iterable-style one.
        options: returns the options for a `DataLoader` that say how many processes there are and what they are like.
        healing: decides whether they are started again.
        meter: is told what the processes measure.
    """

    def __init__(
        self, dataset: Any, options: Callable[[], Mapping[str, Any]], healing: Healing, meter: Meter | None = None
    ) -> None:
        super().__init__(dataset, options, meter)
        self._healing = healing
        self._pool: Any = None

    def run(self, requests: Iterable[Request] | None, *, seed: int | None = None) -> Generator[Any]:
        """Yield what the processes return, in order.

        Args:
            requests: what to read, or None where the dataset is a stream.
            seed: of the workers' own seeds; None goes on where the last run was.

        Raises:
            WorkerError: processes died too often, or could not be started.
            Died: one died, of those that read a stream.
        """
        return self._pooled(None, seed) if requests is None else self._healed(iter(requests), seed)

    def _healed(self, source: Iterator[Request], seed: int | None) -> Generator[Any]:
        asked: deque[Request] = deque()  # and not delivered
        while True:
            answers = self._pooled(_asking(asked, source), seed)
            try:
                for answer in answers:
                    asked.popleft()
                    self._healing.delivered()
                    yield answer
            except Died as died:
                self._healing.after(died, lambda lost: self._work_of(lost, asked))
            else:
                return
            finally:
                answers.close()

    def _work_of(self, lost: Lost, asked: deque[Request]) -> str:
        return _batch(asked[lost.asked[0]]) if lost.asked else ""

    def _pooled(self, requests: Iterator[Request] | None, seed: int | None) -> Generator[Any]:
        """Run one pool, as carefully as has to be."""
        answers = self._run(requests, seed, {**self._options(), "num_workers": self._healing.workers})
        try:
            for answer in answers:
                if self._pool is not None and self._pool.careful and not self._healing.careful:
                    self._pool.hurry()
                yield answer
        finally:
            answers.close()
            self._pool = None

    def _start(self, loader: Any, requests: Iterable[Request] | None, seed: int | None) -> Iterator[Any]:
        loader.careful = self._healing.careful
        self._pool = answers = super()._start(loader, requests, seed)
        return answers

    def _loader_type(self) -> type[DataLoader[Any]]:
        from resumable._fetch.pool import PoolLoader  # noqa: PLC0415  # torch comes with it

        return PoolLoader


def _asking(asked: deque[Request], source: Iterator[Request]) -> Iterator[Request]:
    """Yield what was asked for again, and what is asked for now."""
    yield from list(asked)
    for request in source:
        asked.append(request)
        yield request


def _batch(request: Request) -> str:
    found = request.indices
    samples = shortened(found if isinstance(found, list) else found.tolist())
    return f"epoch {request.epoch}, step {request.step}, samples {samples}"
