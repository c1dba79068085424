"""Workers that heal: where one dies or hangs, all are started again, and read again what was not delivered."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from resumable._fetch.deaths import Died, Healing, Wanted
from resumable._fetch.stalls import shortened
from resumable._fetch.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from torch.utils.data import DataLoader

    from resumable.errors import WorkerError
    from resumable.protocols import Request

__all__ = ["HealingWorkers"]


class HealingWorkers(Workers):
    """Workers that are started again where one dies.

    A request says which samples it is of and under which keys, so reading it again gives the same batch. Of a stream,
    only what drives it knows how to begin again: it is told by `Died`.

    Args:
        dataset: what the processes run: a `RequestDataset`, or an iterable-style one.
        options: returns the options for a `DataLoader` that say how many processes there are and what they are like.
    """

    def __init__(self, dataset: Any, options: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__(dataset, options)
        self._healing = Healing(options()["num_workers"])

    def run(self, requests: Iterable[Request] | None, *, seed: int | None = None) -> Generator[Any]:
        """Yield what the processes return, in order.

        Args:
            requests: what to read, or None where the dataset is a stream.
            seed: of the workers' own seeds; None goes on where the last run was.

        Raises:
            WorkerError: processes died too often, or could not be started.
            Died: one died, of those that read a stream.
        """
        if requests is None:
            yield from self._run(None, seed, self._options())
        else:
            yield from self._healed(iter(requests), seed)

    def _healed(self, source: Iterator[Request], seed: int | None) -> Generator[Any]:
        asked: deque[Request] = deque()  # and not delivered
        over: tuple[int, WorkerError] | None = None
        while True:
            given = {**self._options(), "num_workers": self._healing.workers}
            feed = _asking(asked, source) if over is None else iter(list(asked)[: over[0]])
            answers = self._run(feed, seed, given)
            try:
                for answer in answers:
                    request = asked.popleft()
                    self._healing.delivered(_key(request))
                    over = over and (over[0] - 1, over[1])
                    yield answer
            except Died as died:
                found = self._healing.after(died, lambda lost: _wanted(asked[lost.asked[0]]) if lost.asked else None)
                over = found if over is None or found is None else min(over, found, key=lambda one: one[0])
                if over is None or over[0]:
                    continue
            finally:
                answers.close()
            if over is not None:
                raise over[1] from None
            return

    def _loader_type(self) -> type[DataLoader[Any]]:
        from resumable._fetch.pool import PoolLoader  # noqa: PLC0415  # torch comes with it

        return PoolLoader


def _asking(asked: deque[Request], source: Iterator[Request]) -> Iterator[Request]:
    """Yield what was asked for again, and what is asked for now."""
    yield from list(asked)
    for request in source:
        asked.append(request)
        yield request


def _key(request: Request) -> tuple[int, int]:
    return request.epoch, request.start


def _wanted(request: Request) -> Wanted:
    found = request.indices
    samples = shortened(found if isinstance(found, list) else found.tolist())
    return Wanted(_key(request), f"epoch {request.epoch}, step {request.step}, samples {samples}")
