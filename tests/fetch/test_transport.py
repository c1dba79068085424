"""How batches travel from workers: small storages by value, all else as torch sends it; plain torch is the measure."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.multiprocessing
import transport_data as data
from healing_data import state_of
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

import resumable
from resumable._fetch.transport import LARGEST, Answer, begin
from resumable._stats import Made

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    # What torch says of its own when it makes such tensors and takes them apart.
    pytest.mark.filterwarnings("ignore:.*(Sparse|nested tensors|TypedStorage)"),
]

WHOLE = pytest.mark.long
OPTIONS: dict[str, Any] = {"batch_size": None, "num_workers": 2, "collate_fn": data.unchanged}


def pairs(dataset: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each batch as torch sends it, and as the wrapped loader does."""
    options = {**OPTIONS, **options}
    plain, ours = DataLoader(dataset, **options), resumable.wrap(DataLoader(dataset, **options), seed=0)
    yield from zip(plain, ours, strict=True)


def sent(make: Any, length: int = 1, **options: Any) -> list[Any]:
    """Return what arrives of one worker."""
    return list(resumable.wrap(DataLoader(data.Batches(make, length), **{**OPTIONS, "num_workers": 1, **options})))


@contextmanager
def sharing(strategy: str) -> Iterator[None]:
    before = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    torch.multiprocessing.set_sharing_strategy(strategy)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.multiprocessing.set_sharing_strategy(before)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("strategy", ["file_descriptor", pytest.param("file_system", marks=WHOLE)])
@pytest.mark.parametrize(
    "options",
    [
        {"persistent_workers": True, "prefetch_factor": 5},
        pytest.param({"multiprocessing_context": "spawn"}, marks=WHOLE),
        pytest.param({"multiprocessing_context": "forkserver", "num_workers": 1}, marks=WHOLE),
    ],
    ids=["fork", "spawn", "forkserver"],
)
def test_each_kind_arrives_as_from_torch(options: dict[str, Any], strategy: str) -> None:
    with sharing(strategy):
        for (plain, ours), name in zip(
            pairs(data.Batches(data.kind, len(data.KINDS)), **options), data.KINDS, strict=True
        ):
            assert data.seen(ours) == data.seen(plain), name


@pytest.mark.parametrize("restarts", [False, pytest.param(True, marks=WHOLE)], ids=["", "heals"])
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=WHOLE) for first in range(60, 1500, 60))])
def test_any_batch_arrives_as_from_torch(first: int, *, restarts: bool) -> None:
    """Containers, classes, and the same tensors, views and storages in several places of them."""
    batches = data.Batches(lambda index: data.batch_of(first + index), 60)
    ours = resumable.wrap(DataLoader(batches, **OPTIONS), on_worker_death="restart" if restarts else "error")
    for index, (plain, own) in enumerate(zip(DataLoader(batches, **OPTIONS), ours, strict=True)):
        assert data.seen(own) == data.seen(plain), f"batch_of({first + index})"


def test_the_batches_of_the_sample_have_what_is_at_stake() -> None:
    told = [str(data.seen(data.batch_of(seed))) for seed in range(60)]
    for name in ("Pair", "Told", "Slotted", "OrderedDict", "Parameter", "Sub", "bfloat16", "sparse_coo"):
        assert any(name in one for one in told), name


SMALL = [name for name in data.KINDS if name not in {"empty", "meta", "shared"} and "large" not in name]


def tensors_of(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        parts = (batch._indices(), batch._values()) if batch.layout is torch.sparse_coo else (batch,)
        return list(parts) if batch.layout in {torch.strided, torch.sparse_coo} else []
    inner = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return [tensor for one in inner for tensor in tensors_of(one)]


def test_what_is_small_comes_by_value_and_can_be_written_to() -> None:
    """Into memory of its own: neither a warning of NumPy's, nor an error, nor a file of shared memory."""
    for name, batch in zip(SMALL, sent(lambda index: data.KINDS[SMALL[index]](), len(SMALL)), strict=True):
        for tensor in tensors_of(batch):
            assert not tensor.is_shared(), name  # type: ignore[no-untyped-call]
            if not tensor.is_nested:
                tensor.untyped_storage().fill_(1)  # type: ignore[attr-defined]
                assert set(tensor.untyped_storage().tolist()) == {1}, name  # type: ignore[no-untyped-call]


def test_one_tensor_given_twice() -> None:
    """Each batch is separate, even if the dataset gives one tensor twice.

    Torch moves it to shared memory, so that what the loop writes is in the next batch, too.
    """
    kept = data.numbers(4)
    batches = sent(lambda _: kept, 3)
    batches[0].fill_(7)
    assert [batch.tolist() for batch in batches[1:]] == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(("more", "shared"), [(0, False), (1, True)], ids=["at the border", "above"])
@pytest.mark.parametrize("collate", [data.unchanged, default_collate], ids=["sample", "collated"])
def test_what_is_large_is_shared_memory_as_ever(more: int, collate: Any, *, shared: bool) -> None:
    size = None if collate is data.unchanged else 1
    (batch,) = sent(lambda _: data.numbers(LARGEST + more, dtype=torch.uint8), batch_size=size, collate_fn=collate)
    assert batch.is_shared() is shared
    assert batch.numel() == LARGEST + more


def test_what_a_user_shares_stays_shared() -> None:
    """The worker, the training process and the dataset have one memory."""
    flag = torch.zeros(2).share_memory_()  # type: ignore[no-untyped-call]
    (batch,) = sent(lambda _: flag)
    batch.fill_(3)
    assert flag.tolist() == [3, 3]


class Tells:
    """Sends a tensor by a queue of the user's, before it is the batch."""

    def __init__(self) -> None:
        self.queue = torch.multiprocessing.Queue()  # type: ignore[var-annotated]

    def __call__(self, index: int) -> torch.Tensor:
        told = torch.full((3,), float(index))
        self.queue.put(told)
        return told


def test_a_users_own_queues_send_as_ever() -> None:
    tells = Tells()
    loader = iter(resumable.wrap(DataLoader(data.Batches(tells, 4), **{**OPTIONS, "num_workers": 1})))
    next(loader)
    next(loader)  # by now its worker has sent a batch
    told = [tells.queue.get(timeout=30) for _ in range(2)]
    assert [one.is_shared() for one in told] == [True, True]


def test_the_training_process_is_left_alone() -> None:
    reducers, collates = dict(ForkingPickler._extra_reducers), dict(default_collate_fn_map)  # type: ignore[attr-defined]
    sent(data.kind, 3)
    list(resumable.wrap(DataLoader(data.Stream(), num_workers=1, batch_size=None), shard=True))
    assert ForkingPickler._extra_reducers == reducers  # type: ignore[attr-defined]
    assert default_collate_fn_map == collates


def test_a_default_device_of_the_loop_makes_no_difference() -> None:
    loader = iter(resumable.wrap(DataLoader(data.Batches(lambda _: data.numbers(3), 4), **OPTIONS)))
    next(loader)
    with torch.device("meta"):
        assert next(loader).tolist() == [0, 1, 2]


def send(queue: Any) -> None:
    begin()
    queue.put(Answer(Made(data.numbers(3), 0.0, 0.0)))
    queue.close()
    queue.join_thread()


def test_what_was_sent_outlives_its_worker() -> None:
    context = torch.multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=send, args=(queue,))
    process.start()
    process.join()
    assert queue.get(timeout=30).batch.tolist() == [0, 1, 2]


def test_workers_do_not_outlive_a_loop_that_is_killed(tmp_path: Path) -> None:
    """torch looks every five seconds whether it is there, and not while a worker sends or is sent something."""
    script = str(Path(__file__).parent / "orphans_run.py")
    loops = []
    for kind in ("indexed", "stream", "half", "late"):
        with (tmp_path / kind).open("w") as out:
            loops.append(subprocess.Popen([sys.executable, script, kind], stdout=out))
    assert [loop.wait(300) for loop in loops] == [-signal.SIGKILL] * 4
    workers = {int(pid): path.name for path in tmp_path.iterdir() for pid in path.read_text().split()}
    assert len(workers) == 8
    until = time.monotonic() + 60
    while left := {kind for pid, kind in workers.items() if state_of(pid) not in {"Z", "X", ""}}:
        assert time.monotonic() < until, left
        time.sleep(0.1)


def test_streams_send_so_too() -> None:
    small, large = resumable.wrap(DataLoader(data.Stream(), num_workers=1, batch_size=None), shard=True)
    assert (small.is_shared(), large.is_shared()) == (False, True)
    assert small.tolist() == [0, 1, 2]


def mixed(index: int) -> torch.Tensor:
    return data.numbers(3, dtype=(torch.float32, torch.float64)[index % 2])


def integers_first(index: int) -> torch.Tensor:
    return data.numbers(3, dtype=(torch.int64, torch.float32)[index % 2])


def ragged(index: int) -> torch.Tensor:
    return data.numbers(3 + index)


def trained(_: int) -> torch.Tensor:
    return data.numbers(3).requires_grad_()


def of_kind(name: str) -> Any:
    return lambda _: data.KINDS[name]()


COLLATED = [
    *map(of_kind, ("float32", "bfloat16", "0-dim", "empty", "view", "expanded", "subclass", "array", "of numpy")),
    lambda index: {"a": index, "b": (data.numbers(2), 0.5, "text")},
    mixed,
]


def test_what_torch_collates_is_the_same() -> None:
    """Dtype, shape and strides are those of torch, which stacks into shared memory."""
    batches = data.Batches(lambda index: COLLATED[index // 4](index), 4 * len(COLLATED))
    for plain, ours in pairs(batches, batch_size=4, collate_fn=default_collate):
        assert data.seen(ours) == data.seen(plain)


@pytest.mark.parametrize(
    "make",
    [
        ragged,
        trained,
        integers_first,
        *(pytest.param(of_kind(name), marks=WHOLE) for name in ("conj", "sparse")),
    ],
)
def test_what_torch_cannot_collate_raises_as_there(make: Any) -> None:
    loader = DataLoader(data.Batches(make, 2), batch_size=2, num_workers=1)
    with pytest.raises((RuntimeError, TypeError)) as theirs:
        next(iter(loader))
    with pytest.raises(theirs.type):
        next(iter(resumable.wrap(loader, seed=0)))


def test_a_users_own_way_to_collate_tensors_stays() -> None:
    def own(batch: Any, *, collate_fn_map: Any = None) -> str:
        assert collate_fn_map is not None
        return f"{len(batch)} tensors"

    before = copy.copy(default_collate_fn_map)
    try:
        default_collate_fn_map[torch.Tensor] = own
        assert sent(lambda _: data.numbers(3), 4, batch_size=4, collate_fn=default_collate) == ["4 tensors"]
    finally:
        default_collate_fn_map.update(before)


def test_no_descriptors_are_kept_for_small_batches() -> None:
    """Where each tensor has one, a list of batches of an epoch comes to an end at `ulimit -n`."""
    folder = Path("/proc/self/fd")
    if not folder.exists():  # no Linux
        return
    loader = iter(resumable.wrap(DataLoader(data.Batches(lambda _: data.numbers(3), 64), **OPTIONS)))
    kept = [next(loader)]
    before = len(list(folder.iterdir()))
    kept += [next(loader) for _ in range(50)]
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert len(list(folder.iterdir())) <= before + 2
    assert sum("/torch_" in line for line in maps.splitlines()) < len(kept)
