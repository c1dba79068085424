"""`fail_together`: one rank's error ends all of them by name, also out of a collective."""

from __future__ import annotations

import time
from typing import Any

import pytest
from forked import ranks, step_together
from torch import distributed

import resumable
from resumable.distributed import fail_together
from resumable.errors import RankFailedError

pytestmark = pytest.mark.slow  # ranks are processes


def fail() -> None:
    raise ValueError("out of memory")


def failing_run(rank: int, _size: int, who: int, where: str) -> Any:
    loader = resumable.wrap(list(range(40)), batch_size=2, shuffle=True)
    began = time.monotonic()
    try:
        with fail_together(every=0.2):
            for number, _ in enumerate(loader):
                if rank == who and number == 2:
                    fail()
                if where == "collective":
                    step_together()
                else:
                    time.sleep(0.5)
    except RankFailedError as error:
        return str(error), time.monotonic() - began
    except ValueError:
        time.sleep(1 if where == "collective" else 3)
        return "own", 0.0
    return "nothing", 0.0


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("where", ["collective", "loop"])
def test_the_others_name_rank_and_cause(who: int, where: str) -> None:
    results = ranks(2, failing_run, who, where, host_stays=False)
    assert results[who] == ("own", 0.0), results
    told, seconds = results[1 - who]
    assert f"rank {who}: ValueError: out of memory" in told
    assert seconds < 8


def hanging_run(rank: int, _size: int) -> Any:
    """The rank that has failed stays alive, so that no connection is closed and the collective goes on waiting."""
    try:
        with fail_together(every=0.2, patience=1, exit_code=42):
            step_together()
            if rank:
                fail()
            step_together()
    except ValueError:
        time.sleep(6)
        return "own"
    return "nothing"


def test_a_rank_that_hangs_in_a_collective_is_ended() -> None:
    assert ranks(2, hanging_run, collective=60, host_stays=False) == ["ended with 42", "own"]


def right_run(rank: int, _size: int) -> Any:
    with fail_together(every=0.2):
        for _ in range(3):
            step_together()
            time.sleep(0.1 * rank)
    distributed.barrier()
    with pytest.raises(SystemExit), fail_together():
        raise SystemExit(75)
    return "right"


def test_ranks_that_are_right_are_left_alone() -> None:
    assert ranks(2, right_run) == ["right", "right"]


def test_without_other_ranks_it_does_nothing() -> None:
    with pytest.raises(ValueError, match="own"), fail_together():
        raise ValueError("own")
