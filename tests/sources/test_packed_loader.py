"""Packed documents and token files in a Loader: resumed, resized, with workers, in mixtures, and refused by name."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import resumable
from resumable import World
from resumable.errors import StateMismatchError
from resumable.samplers import Blocks
from resumable.testing import BackendTests

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = np.random.default_rng(0).integers(1, 40, 70)
TOKENS = np.arange(LENGTHS.sum()).astype(np.uint32)
HOWS = ("flat", "concat", "fit")


def packed(how: Any = "fit", **given: Any) -> Any:
    return resumable.Packed(TOKENS, 32, **{"documents": LENGTHS, "how": how, "block": 20, **given})


def alone(how: str = "fit", batch_size: int = 12, **options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(packed(how), batch_size=batch_size, **{"seed": 3, "shuffle": True, **options})


def plain(steps: Any) -> list[Any]:
    """Inputs and documents of each step, as lists."""
    names = ("input", "document", "target")
    return [[[sample[name].tolist() for name in names] for sample in step] for step in steps]


def tensors(steps: Any) -> list[Any]:
    names = ("input", "document", "target")
    return [[list(sample) for sample in zip(*(step[name].tolist() for name in names), strict=True)] for step in steps]


class TestPacked(BackendTests):
    shared = True
    stride = 5

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(packed(), **{"batch_size": 12, "shuffle": True, "transform": inputs, **options})

    others = {
        "length": lambda: resumable.wrap(packed("flat"), batch_size=12, shuffle=True, transform=inputs),
        "batch": lambda: TestPacked.make(batch_size=6),
        "sampler": lambda: TestPacked.make(shuffle=False),
        "kind": lambda: resumable.wrap(lambda: iter(range(87)), batch_size=12),
    }


def inputs(sample: Any) -> list[int]:
    found: list[int] = sample["input"].tolist()
    return found


@pytest.mark.parametrize("how", HOWS)
def test_each_epoch_has_its_own_windows(how: str) -> None:
    source = packed(how)
    windows = len(source)
    for epoch, batches in enumerate(alone(how).epochs(3)):
        found = sorted(sample["input"].tolist() for batch in batches for sample in batch)
        assert found == sorted(source[epoch * windows + window]["input"].tolist() for window in range(windows))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("shuffle", [True, "blocks"])
def test_ranks_come_and_go_in_the_middle(how: str, shuffle: Any) -> None:
    """4 -> 3 -> 1 -> 2 ranks, by JSON, over several epochs."""
    expected = plain(alone(how, shuffle=shuffle, tail="carry").steps(20))
    state, found = None, []
    for ranks, until in ((4, 3), (3, 9), (1, 13), (2, 20)):
        parts, after = [], []
        for rank in range(ranks):
            loader = alone(how, 12 // ranks, shuffle=shuffle, world=World(rank, ranks), tail="carry")
            if state is not None:
                loader.load_state_dict(json.loads(state))
            parts.append(plain(loader.steps(until)))
            after.append(json.dumps(loader.state_dict()))
        found += [[sample for part in step for sample in part] for step in zip(*parts, strict=True)]
        state = after[-1]
        assert len(state) < 1024
    assert found == expected


def in_torch(how: str = "fit", workers: int = 0, **options: Any) -> resumable.Loader[Any]:
    loader: DataLoader[Any] = DataLoader(packed(how), batch_size=12, num_workers=workers, shuffle=True)
    return resumable.wrap(loader, **{"seed": 3, **options})


@pytest.mark.slow
def test_workers_read_the_same_and_resume_at_every_step() -> None:
    expected = plain(alone().steps(16))
    assert tensors(in_torch().steps(16)) == expected
    loader = in_torch(workers=2)
    found, states = [], []
    for batch in loader.steps(16):
        found.append(batch)
        states.append(json.dumps(loader.state_dict()))
    assert tensors(found) == expected
    for step, state in enumerate(states):
        resumed = in_torch(workers=2 * (step == 7))
        resumed.load_state_dict(json.loads(state))
        assert tensors(resumed.steps(16)) == expected[step + 1 :]


FRESH = """
import json, sys
from test_packed_loader import alone, plain
for how, state in json.load(sys.stdin).items():
    loader = alone(how)
    loader.load_state_dict(state)
    print(json.dumps(plain(loader.steps(16))))
"""


@pytest.mark.slow
def test_a_state_goes_on_in_a_fresh_process() -> None:
    states, rest = {}, []
    for how in HOWS:
        loader = alone(how)
        list(loader.steps(9))
        states[how] = loader.state_dict()
        rest.append(json.dumps(plain(loader.steps(16))))
    command = [sys.executable, "-c", FRESH]
    child = subprocess.run(command, input=json.dumps(states), capture_output=True, text=True, check=True)
    assert child.stdout.splitlines() == rest


KILLED = """
import json, os, signal, sys
from pathlib import Path
from torch.utils.data import DataLoader
import resumable
folder, crash = Path(sys.argv[1]), int(sys.argv[2])
packed = resumable.Packed(folder / "train.bin", 32, documents=folder / "lengths.npy", how="fit", block=20)
loader = resumable.wrap(DataLoader(packed, batch_size=12, shuffle=True, num_workers=2), seed=3)
place = folder / "state.json"
if place.exists():
    loader.load_state_dict(json.loads(place.read_text()))
for batch in loader.steps(16):
    with (folder / "read").open("a") as log:
        log.write(json.dumps(batch["input"].tolist()) + "\\n")
    (folder / "new").write_text(json.dumps(loader.state_dict()))
    (folder / "new").replace(place)
    if loader.global_step == crash:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_with_its_files(tmp_path: Path) -> None:
    (TOKENS.astype(np.uint16)).tofile(tmp_path / "train.bin")
    np.save(tmp_path / "lengths.npy", LENGTHS)
    command = [sys.executable, "-W", "error", "-c", KILLED, str(tmp_path)]
    assert subprocess.run([*command, "7"], check=False).returncode == -signal.SIGKILL
    subprocess.run([*command, "0"], check=True)
    read = [json.loads(line) for line in (tmp_path / "read").read_text().splitlines()]
    assert read == [[sample[0] for sample in step] for step in plain(alone().steps(16))]


def test_the_order_of_torch_has_the_epoch_too() -> None:
    def make() -> resumable.Loader[Any]:
        generator = torch.Generator().manual_seed(4)
        loader: DataLoader[Any] = DataLoader(packed(), batch_size=12, shuffle=True, generator=generator)
        return resumable.wrap(loader, order="torch")

    expected, loader = tensors(make().steps(12)), make()
    list(loader.steps(7))
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert tensors(resumed.steps(12)) == expected[7:]
    assert {index // len(packed()) for index in resumed.sample_indices(epoch=3, step=0)} == {3}


@pytest.mark.parametrize("shuffle", [True, False, "blocks"])
def test_the_windows_are_known_from_the_state_alone(shuffle: Any, tmp_path: Path) -> None:
    loader = alone(shuffle=shuffle)
    list(loader.steps(3))
    path = tmp_path / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    found = resumable.samples(path, epoch=2, step=1)
    indices = loader.sample_indices(epoch=2, step=1)
    assert list(found.indices) == indices
    assert all(index // len(packed()) == 2 for index in indices)


@pytest.mark.parametrize(
    "change",
    [
        {"how": "concat"},
        {"seed": 1},
        {"block": 19},
        {"pad": 5},
        {"documents": [*LENGTHS[1:], LENGTHS[0]]},
    ],
    ids=str,
)
def test_a_state_of_other_windows_is_refused(change: dict[str, Any]) -> None:
    loader = alone()
    list(loader.steps(2))
    state = loader.state_dict()
    other = resumable.wrap(packed(**change), batch_size=12, seed=3, shuffle=True)
    with pytest.raises(StateMismatchError):
        other.load_state_dict(state)
        next(iter(other))


def test_another_file_of_the_same_size_is_refused() -> None:
    loader = resumable.wrap(resumable.Tokens(TOKENS, 32), batch_size=4, shuffle=True)
    list(loader.steps(2))
    other = resumable.wrap(resumable.Tokens(TOKENS + 1, 32), batch_size=4, shuffle=True)
    with pytest.raises(StateMismatchError):
        other.load_state_dict(loader.state_dict())
        next(iter(other))


def test_whole_blocks_are_shuffled_by_a_sampler_of_ones_own() -> None:
    source = packed()
    loader = resumable.wrap(source, batch_size=8, sampler=Blocks(source.sizes, block=None, window=4, seed=1))
    for epoch, batches in enumerate(loader.epochs(2)):
        read = [index for step, _ in enumerate(batches) for index in loader.sample_indices(epoch=epoch, step=step)]
        assert sorted(read) == list(range(epoch * len(source), (epoch + 1) * len(source)))


def test_token_files_and_packed_documents_are_mixed() -> None:
    sources = {"a": packed("flat"), "b": packed("fit"), "c": packed("concat", seed=1)}

    def make() -> resumable.Loader[Any]:
        return resumable.wrap(resumable.mix(sources), batch_size=10, seed=0)

    expected = plain(make().steps(30))
    loader = make()
    list(loader.steps(11))
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert plain(resumed.steps(30)) == expected[11:]


def test_batches_are_tensors_in_torch() -> None:
    batch = next(iter(in_torch()))
    assert {name: (values.shape, values.dtype) for name, values in batch.items()} == {
        name: (torch.Size([12, 32]), torch.int64) for name in ("input", "target", "position", "document")
    }
