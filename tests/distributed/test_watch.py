"""Ranks that disagree are told apart by name, within seconds, and ranks that do not are left alone."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from forked import HUNG, ranks, step_together
from torch import distributed
from torch._C._distributed_c10d import TCPStore
from torch.utils.data import DataLoader, Dataset

import resumable
from resumable._ranks.store import Posts
from resumable._ranks.watch import word_of_others
from resumable.errors import RankFailedError, RankMismatchError

pytestmark = pytest.mark.slow  # ranks are processes

SECONDS = 10  # within which a disagreement has to be told, on a machine that does other things, too


class Files(Dataset[str]):
    """Names of files, as a script lists them."""

    def __init__(self, files: list[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> str:
        return self.files[index]


def train(loader: resumable.Loader[Any], epochs: int = 1) -> list[list[Any]]:
    batches = []
    for epoch in loader.epochs(epochs):
        for batch in epoch:
            batches.append([*batch])
            step_together()
    return batches


DISAGREEMENTS = {
    "length": "the length of the data differs.\n  rank 0: 20\n  rank 1: 28",
    "seed": "the seed differs.\n  rank 0: 1\n  rank 1: 2",
    "file order": "sample 0 differs.\n  rank 0: digest ",
    "floats in another order": "sample 0 differs.\n  rank 0: digest ",
    "batch_size": "the batch size differs.\n  rank 0: 2\n  rank 1: 4",
    "place": (
        "the position in the stream differs.\n  rank 0: epoch 0, step 3, after 12 samples\n  rank 1: epoch 0, step 2"
    ),
    "tail": "tail differs.\n  rank 0: partial\n  rank 1: drop",
    "generator's order": "element differs.\n  rank 0: element 3 with the digest",
    "generator's length": "the stream that they divide ends at different positions.\n  rank 0: 20 elements in epoch 0",
    "another source": "backend.source differs.\n  rank 0: sequence\n  rank 1: array of int64",
}


def differing_run(rank: int, _size: int, what: str) -> Any:  # noqa: C901  # a table of cases
    other = rank == 1
    options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 1}
    data: Any = list(range(20))
    if what == "length":
        data = list(range(28 if other else 20))
    elif what == "seed":
        options["seed"] = 2 if other else 1
    elif what == "file order":
        names = [f"{number:03d}.jpg" for number in range(20)]
        data = DataLoader(Files(names[::-1] if other else names), batch_size=2, shuffle=True)
        options = {"seed": 1}
    elif what == "floats in another order":
        data = [number / 7 for number in range(20)]
        data = data[::-1] if other else data
    elif what == "batch_size":
        options["batch_size"] = 4 if other else 2
    elif what == "tail":
        options["tail"] = "drop" if other else "partial"
    elif what == "another source":
        data = np.arange(20) if other else data
    elif what.startswith("generator"):
        longer, backwards = what.endswith("length") and other, what.endswith("order") and other
        numbers = list(range(28 if longer else 20))
        options = {"batch_size": 2, "identity": "numbers", "tail": "drop", "shard": True}
        data = lambda: iter(numbers[::-1] if backwards else numbers)  # noqa: E731  # a function that makes the source
    loader = resumable.wrap(data, **options)
    if what == "place":
        loader.seek(epoch=0, step=2 if other else 3)
    try:
        return train(loader)
    except RankMismatchError as error:
        return str(error)
    except RuntimeError as error:
        return f"left alone: {error}"


@pytest.mark.parametrize("what", DISAGREEMENTS)
@pytest.mark.every_cell
def test_a_disagreement_is_told_by_name(what: str) -> None:
    began = time.monotonic()
    results = ranks(2, differing_run, what, seconds=30, host_stays=False)
    assert time.monotonic() - began < SECONDS
    told = [result for result in results if isinstance(result, str) and result.startswith("the ranks disagree: ")]
    assert told, results
    assert all(DISAGREEMENTS[what] in one for one in told)
    assert HUNG not in results
    assert not any(isinstance(result, list) for result in results), "a rank trained to its end"


def half_resumed_run(rank: int, _size: int, state: Any, odd: int) -> Any:
    """A rank finds no checkpoint: a file on a disk that is another host's, or a name by rank."""
    loader = resumable.wrap(list(range(80)), batch_size=2, shuffle=True, seed=1)
    if rank != odd:
        loader.load_state_dict(state)
    elif state["cursor"]["step"] == 0:
        loader.seek(epoch=0, step=0)
        loader.seek(epoch=0, step=0)
    seen = []
    try:
        for batch in loader.steps(30):
            seen.append(batch)
            step_together()
    except RankMismatchError as error:
        return len(seen), str(error)
    except RuntimeError as error:
        return len(seen), f"left alone: {error}"
    return seen


@pytest.mark.parametrize("odd", [0, 1])
def test_a_rank_that_alone_begins_at_the_beginning_is_told(odd: int) -> None:
    """It has as many batches as the others, so that it would not hang at any end."""
    loader = resumable.wrap(list(range(80)), batch_size=2, shuffle=True, seed=1, world=resumable.World(0, 2))
    first = loader.state_dict()
    next(iter(loader))
    results = ranks(2, half_resumed_run, loader.state_dict(), odd, seconds=30, host_stays=False)
    count, told = results[odd]
    assert count <= 4
    assert "the position in the stream differs" in told
    assert f"rank {odd}: epoch 0, step 0, after 0 samples\n" in told
    assert f"rank {1 - odd}: epoch 0, step 1, after 4 samples\n" in told
    assert "Load the same checkpoint on all ranks" in told
    assert not isinstance(results[1 - odd], list), "the other one trained to its end"
    results = ranks(2, half_resumed_run, first, odd)  # set more often, at the same place
    assert all(isinstance(result, list) for result in results), results


def looks_first_run(rank: int, _size: int, state: Any) -> int:
    """Rank 0 alone looks at some batches before all go on from a checkpoint."""
    loader = resumable.wrap(list(range(80)), batch_size=2, shuffle=True, seed=1)
    if rank == 0:
        for _, _ in zip(range(3), loader, strict=False):
            time.sleep(0.1)  # the others have loaded meanwhile
    loader.load_state_dict(state)
    count = 0
    for _ in loader:
        step_together()
        count += 1
    return count


def test_rank_that_looks_before_all_load() -> None:
    """A rank that looks at some batches before all load is left alone."""
    loader = resumable.wrap(list(range(80)), batch_size=2, shuffle=True, seed=1, world=resumable.World(0, 2))
    for _, _ in zip(range(5), loader, strict=False):
        pass
    assert ranks(2, looks_first_run, loader.state_dict()) == [15, 15]


def unwatched_run(rank: int, _size: int) -> Any:
    return train(resumable.wrap(list(range(20)), batch_size=2, shuffle=True, seed=rank, checks="data"))


def test_nothing_is_compared_where_that_is_turned_off() -> None:
    assert all(isinstance(result, list) for result in ranks(2, unwatched_run))


def own_run(rank: int, _size: int) -> Any:
    """Streams of their own may be of other data, options and seeds."""
    numbers = [*range(100 * rank, 100 * rank + 20)]
    train(resumable.wrap(lambda: iter(numbers), identity=f"part {rank}", batch_size=2 + rank, shard=False, seed=rank))
    return "right"


def test_streams_of_their_own_may_differ() -> None:
    assert ranks(2, own_run) == ["right", "right"]


def right_run(rank: int, size: int) -> Any:
    """A script that is right, and in which the ranks do other things beside training."""
    loader = resumable.wrap(list(range(40)), batch_size=2, shuffle=True, seed=1)
    named = resumable.wrap(list(range(24)), batch_size=2, shuffle=True, name="other")
    scores = []
    if rank == 0:
        next(iter(resumable.wrap(list(range(6)), batch_size=1, seed=9)))
        loader.peek()
    for epoch in loader.epochs(3):
        pairs = iter(named)
        for number, _ in enumerate(epoch):
            if number < 4:
                next(pairs)
            step_together()
        if rank == 0:
            evaluation = resumable.wrap(list(range(9)), batch_size=1, evaluation=True)
            scores.append(sum(len(batch) for batch in evaluation))
            scores.append(len(list(resumable.wrap(iter(range(6)), world=resumable.World(0, 1)))))
        if epoch == 1:
            state = loader.state_dict()
            loader.load_state_dict(state)
        if rank == size - 1:
            loader.close()
    return scores


def test_a_right_script_is_left_alone() -> None:
    results = ranks(3, right_run)
    assert results[1:] == [[], []], results
    assert len(results[0]) == 6


def other_group_run(rank: int, _size: int) -> Any:
    """Two halves of the ranks train on different data, as an actor and a critic do."""
    groups = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
    data = list(range(20)) if rank < 2 else list(range(100, 160))
    loader = resumable.wrap(data, batch_size=2, seed=rank // 2, world=groups[rank // 2])
    count = len([*loader])
    step_together()
    return count


def test_groups_that_read_different_data_are_left_alone() -> None:
    assert ranks(4, other_group_run) == [5, 5, 15, 15]


def posts_run(rank: int, _size: int, port: int, run: int) -> Any:
    posts = Posts(TCPStore("127.0.0.1", port, is_master=False), "resumable/")
    before = posts.get("trouble"), word_of_others(posts, 7)
    first = posts.agree("train/0/set", {"rank": rank, "run": run})
    time.sleep(0.5)  # all have posted
    posts.agree("trouble", {"rank": rank, "told": f"run {run}"})
    return before, first["run"], posts.agree("train/0/set", {"rank": rank, "run": -1})["run"]


def test_store_of_an_earlier_run_counts_nothing() -> None:
    """Entries of an earlier run in the same store count for nothing.

    As torchrun's agent keeps it, where its ranks are started again.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for run in range(3):
        results = ranks(2, posts_run, store.port, run, group=False)
        assert [(result[1], result[2]) for result in results] == [(run, run)] * 2
        assert all(result[0] == (None, None) for result in results)
        assert store.check(["resumable/trouble"])
        time.sleep(0.1)  # when a process was started is known to 10 ms, and torchrun takes longer


def failing_run(rank: int, _size: int) -> Any:
    def transform(sample: int) -> int:
        if sample == 13:
            time.sleep(0.3)
            raise ValueError("sample 13 is broken")
        return sample

    loader = resumable.wrap(list(range(40)), batch_size=2, transform=transform)
    try:
        for _ in range(200):
            for _ in loader:
                time.sleep(0.05)
    except RankFailedError as error:
        return str(error)
    except ValueError as error:
        time.sleep(3)
        return f"own: {error}"
    return "nothing"


def test_the_others_end_with_the_rank_and_the_cause() -> None:
    results = ranks(3, failing_run)
    assert sorted(result[:6] for result in results) == ["own: s", "rank 0", "rank 0"]
    assert all("ValueError: sample 13 is broken" in result for result in results if result.startswith("rank"))


def skipping_run(rank: int, _size: int) -> Any:
    """One rank leaves out what it cannot read, and goes on with the others."""

    def transform(sample: int) -> int:
        if sample == 13 and not failed:
            failed.append(rank)
            raise ValueError
        return sample

    failed: list[int] = []
    loader, count = resumable.wrap(list(range(40)), batch_size=2, transform=transform), 0
    while count < 10:
        try:
            for _ in loader:
                count += 1
                step_together()
        except ValueError:
            continue
    return count


def test_a_rank_that_goes_on_after_its_error_ends_no_other() -> None:
    assert ranks(2, skipping_run) == [10, 10]
