"""torchdata's `StatefulDataLoader` and ours in the same situations, as a table for the documentation.

`python tests/stateful_dataloader/differences.py docs/frameworks/stateful-dataloader.md` runs all situations with both
classes and writes the table between the page's markers.
"""

from __future__ import annotations

import io
import logging
import pickle
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from framework_loops import Noisy, through_a_file
from torch.utils.data import DistributedSampler, IterableDataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader as Theirs
from torchdata.stateful_dataloader.sampler import RandomSampler

from resumable.torch import StatefulDataLoader as Ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BEGIN, END = "<!-- differences -->\n", "<!-- end of differences -->\n"
SAME, DIFFERENT = "the same batches", "**different batches**"


class Numbers(IterableDataset[Any]):
    """A stream without a state."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, 20, step)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def numbers(batches: Any) -> list[Any]:
    return [(batch[0] if isinstance(batch, list) else batch).tolist() for batch in batches]


def some(loader: Any, count: int) -> list[Any]:
    loop = iter(loader)
    return [next(loop) for _ in range(count)]


def rest(make: Callable[[], Any], count: int) -> tuple[list[Any], list[Any]]:
    """Return the batches of two epochs after a resume at batch `count`, and of a run without a resume."""
    torch.manual_seed(1)
    whole = make()
    expected = [numbers(whole), numbers(whole)]
    torch.manual_seed(1)
    first = make()
    some(first, count)
    state = through_a_file(first.state_dict(), weights_only=False)
    torch.manual_seed(2)
    resumed = make()
    resumed.load_state_dict(state)
    return [numbers(resumed), numbers(resumed)], [expected[0][count:], expected[1]]


def raised(action: Callable[[], Any]) -> str:
    try:
        action()
    except Exception as error:  # noqa: BLE001  # any error belongs into the table
        return f"`{type(error).__name__}`"
    return ""


# ------------------------------------------------------------------ situations: what happens with a class


def in_the_middle(kind: Any) -> str:
    """Resume in the middle of an epoch: the rest of the epoch"""
    found, expected = rest(lambda: kind(Noisy(), 3, shuffle=True, generator=seeded()), 2)
    return SAME if found[0] == expected[0] else DIFFERENT


def later_epochs(kind: Any) -> str:
    """The epochs after that one"""
    found, expected = rest(lambda: kind(Noisy(), 3, shuffle=True, generator=seeded()), 2)
    return SAME if found[1] == expected[1] else DIFFERENT


def augmentations(kind: Any) -> str:
    """Random augmentation after a resume"""
    torch.manual_seed(1)
    first = kind(Noisy(), 3)
    loop = iter(first)
    next(loop)
    state, expected = first.state_dict(), next(loop)[1].tolist()
    torch.manual_seed(2)
    resumed = kind(Noisy(), 3)
    resumed.load_state_dict(state)
    return "the same" if next(iter(resumed))[1].tolist() == expected else "**different**"


def without_set_epoch(kind: Any) -> str:
    """Resume in epoch 1 of a `DistributedSampler`, with no call of `set_epoch`"""

    def make() -> Any:
        return kind(Noisy(), 3, sampler=DistributedSampler(Noisy(), 1, 0))

    first = make()
    numbers(first)
    first.sampler.set_epoch(1)
    loop = iter(first)
    next(loop)
    state, expected = first.state_dict(), numbers(loop)
    resumed = make()
    resumed.load_state_dict(state)
    return SAME if numbers(resumed) == expected else DIFFERENT


def after_the_last_batch(kind: Any) -> str:
    """Save after an epoch's last batch: the first loop after the resume"""
    first = kind(Noisy(), 4)
    some(first, 5)
    resumed = kind(Noisy(), 4)
    resumed.load_state_dict(first.state_dict())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        batches = numbers(resumed)
    return f"{len(batches)} batches" + (', a `LoopWarning`; with `after_last="next"` the next epoch' if told else "")


def other_workers(kind: Any) -> str:
    """Another `num_workers`"""
    first = kind(Noisy(), 3, num_workers=2)
    loop = iter(first)
    batches = [next(loop), next(loop)]
    state, expected = first.state_dict(), numbers(loop)
    resumed = kind(Noisy(), 3)
    assert len(batches) == 2

    def load() -> None:
        resumed.load_state_dict(state)
        assert numbers(resumed) == expected

    return raised(load) or SAME


def other_ranks(kind: Any) -> str:
    """Two ranks become one, in the middle of an epoch"""

    def make(ranks: int, rank: int) -> Any:
        return kind(Noisy(), 4 // ranks, sampler=DistributedSampler(Noisy(), ranks, rank))

    first = [make(2, rank) for rank in range(2)]
    done = [number for loader in first for batch in some(loader, 2) for number in batch[0].tolist()]
    resumed = make(1, 0)
    resumed.load_state_dict(first[0].state_dict())
    left = [number for batch in resumed for number in batch[0].tolist()]
    return "each sample once" if sorted(done + left) == list(range(20)) else "**samples lost and repeated**"


def other_data(kind: Any) -> str:
    """Different data"""
    first = kind(TensorDataset(torch.arange(20)), 3)
    some(first, 2)
    resumed = kind(TensorDataset(torch.arange(20) + 100), 3)

    def load() -> None:
        resumed.load_state_dict(first.state_dict())
        numbers(resumed)

    return raised(load) or "**continues without a word**"


def other_order(kind: Any) -> str:
    """The state of a loader without `shuffle`, loaded into one with it"""
    first = kind(Noisy(), 3)
    some(first, 2)
    resumed = kind(Noisy(), 3, shuffle=True, generator=seeded())

    def load() -> None:
        resumed.load_state_dict(first.state_dict())
        numbers(resumed)

    return raised(load) or "**continues without a word**"


def a_stream_saved_after_a_load(kind: Any) -> str:
    """A stream with two workers: load, `iter()`, save, load again"""
    first, second, third = (kind(Numbers(), 2, num_workers=2) for _ in range(3))
    loop = iter(first)
    done = [next(loop), next(loop)]
    state, expected = first.state_dict(), numbers(loop)
    assert len(done) == 2
    second.load_state_dict(state)
    iter(second)
    third.load_state_dict(second.state_dict())
    found = numbers(third)
    return SAME if found == expected else f"**{len(expected) - len(found)} batches lost**"


def saved_by_a_thread(kind: Any) -> str:
    """A thread saves while the loop waits for a batch"""
    reading, asked = threading.Event(), threading.Event()

    class Slow(Noisy):
        def __getitem__(self, index: int) -> tuple[int, float]:
            if index == 3 and not reading.is_set():
                reading.set()
                asked.wait(1)
            return super().__getitem__(index)

    loader = kind(Slow(), 3)
    loop, got, states = iter(loader), list[Any](), list[Any]()
    got.append(next(loop))
    reader = threading.Thread(target=lambda: got.append(next(loop)))
    reader.start()
    reading.wait(10)
    asker = threading.Thread(target=lambda: states.append((loader.state_dict(), len(got))))
    asker.start()
    asker.join(0.5)
    asked.set()
    reader.join(10)
    asker.join(10)
    state, received = states[0]
    resumed = kind(Slow(), 3)
    resumed.load_state_dict(state)
    return "exact" if numbers(resumed)[0][0] == 3 * received else "**the batch is lost**"


def two_loops(kind: Any) -> str:
    """A second loop while the first one is open"""
    loader = kind(Noisy(), 3)
    older, newer = iter(loader), iter(loader)
    next(newer)
    return raised(lambda: next(older)) or "both continue; the state is the newer one's"


def out_of_order(kind: Any) -> str:
    """`in_order=False`"""
    return raised(lambda: kind(Noisy(), 3, in_order=False)) or "accepted"


def pickled(kind: Any) -> str:
    """Pickled in the middle of an epoch"""
    loader = kind(Noisy(), 3)
    some(loader, 2)
    loop = iter(loader)
    next(loop)

    def send() -> None:
        pickle.loads(pickle.dumps(loader))  # noqa: S301  # made above

    return raised(send) or "continues there"


def size(kind: Any) -> str:
    """A saved state, shuffled"""
    loader = kind(Noisy(), 3, sampler=RandomSampler(Noisy())) if kind is Theirs else kind(Noisy(), 3, shuffle=True)
    some(loader, 2)
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    return f"{len(file.getvalue()) / 1000:.1f} kB"


SITUATIONS: list[Callable[[Any], str]] = [
    in_the_middle,
    later_epochs,
    augmentations,
    without_set_epoch,
    after_the_last_batch,
    other_workers,
    other_ranks,
    other_data,
    other_order,
    a_stream_saved_after_a_load,
    saved_by_a_thread,
    two_loops,
    out_of_order,
    pickled,
    size,
]


def table() -> str:
    """Return the table, in Markdown."""
    lines = ["| situation | torchdata | `resumable.torch` |", "| --- | --- | --- |"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for situation in SITUATIONS:
            cells = [(situation.__doc__ or "").strip(), situation(Theirs), situation(Ours)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """Return a page with a new table."""
    before, _, after = page.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{after.partition(END)[2]}"


if __name__ == "__main__":
    logging.disable()
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
