"""Streams whose workers heal: where one dies, all begin again at the states that came with their last batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable._fetch.deaths import Died, Wanted
from resumable.backends.torch.worker_states import StreamPlan, WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from resumable._fetch.deaths import Healing, Lost
    from resumable.backends.torch.worker_stream import Item

__all__ = ["healed"]


def healed(
    plan: StreamPlan, begin: Callable[[StreamPlan, bool], Generator[Item]], healing: Healing, *, reuse: bool
) -> Generator[Item]:
    """Yield the items of an epoch, whichever workers die meanwhile.

    Args:
        plan: where the epoch is begun.
        begin: runs workers from a plan on: those that live on, or others.
        healing: decides whether to begin again.
        reuse: begin with those that live on.

    Raises:
        WorkerError: workers died too often.
    """
    states, turn = list(plan.states), plan.turn

    def named(lost: Lost) -> Lost:
        return lost._replace(number=(lost.number + plan.turn) % len(states))

    def wanted(lost: Lost) -> Wanted:
        done = states[lost.number].batches
        return Wanted((plan.epoch, lost.number, done), f"epoch {plan.epoch}, batch {done} of this worker")

    while True:
        running = begin(plan, reuse)
        try:
            for item in running:
                healing.delivered((plan.epoch, item.worker, states[item.worker].batches))
                states[item.worker] = WorkerState.from_dict(item.state)
                turn = (item.worker + 1) % len(states)
                yield item
        except Died as died:
            over = healing.after(Died([named(lost) for lost in died.lost], hangs=died.hangs), wanted)
            if over is not None:
                raise over[1] from None
            plan, reuse = StreamPlan(plan.epoch, turn, list(states)), False
        else:
            return
        finally:
            running.close()
