"""Shards of WebDataset in a Loader: each order, with workers, in mixtures, killed, resized, inspected, and refused."""

from __future__ import annotations

import json
import multiprocessing
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tar_files import COUNTS, alone, classes, in_an_order, tars, write_images
from torch.utils.data import DataLoader

import resumable
from resumable import World
from resumable.cli import main
from resumable.errors import ConfigurationError, StateMismatchError


def augmented(sample: dict[str, Any]) -> dict[str, Any]:
    return {"cls": sample["cls"], "image": sample["png"], "noise": np.random.random()}  # as augmentations draw


def in_torch(workers: int = 0, context: str | None = None, shuffle: Any = "blocks") -> resumable.Loader[Any]:
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": context, "shuffle": shuffle is True}
    loader: DataLoader[Any] = DataLoader(tars(transform=augmented), batch_size=8, **options)
    return resumable.wrap(loader, shuffle=None if shuffle is True else shuffle, seed=3)


def plain(batch: Any) -> list[Any]:
    return [batch["cls"].tolist(), batch["noise"].tolist(), batch["image"].sum((1, 2, 3)).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [True, "blocks"])
def test_workers_read_the_same_and_resume_at_every_step(shuffle: Any) -> None:
    """Samples and their augmentations; without a warning, as those belong to the sample."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = [plain(batch) for batch in in_torch(shuffle=shuffle).steps(15)]
    loader = in_torch(2, shuffle=shuffle)
    found, states = [], []
    for batch in loader.steps(15):
        found.append(plain(batch))
        states.append(json.dumps(loader.state_dict()))
    assert found == expected
    assert len({noise for step in found for noise in step[1]}) > 100
    for step, state in enumerate(states):
        assert len(state) < 1024
        resumed = in_torch(2 * (step == 7), shuffle=shuffle)
        resumed.load_state_dict(json.loads(state))
        assert [plain(batch) for batch in resumed.steps(15)] == expected[step + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", pytest.param("forkserver", marks=pytest.mark.long)])
def test_workers_that_are_started_afresh_read_the_same(context: str) -> None:
    assert context in multiprocessing.get_all_start_methods()
    expected = [plain(batch) for batch in in_torch().steps(4)]
    assert [plain(batch) for batch in in_torch(1, context).steps(4)] == expected


@pytest.mark.parametrize("shuffle", [False, True, "blocks"])
def test_ranks_come_and_go_in_the_middle(shuffle: Any) -> None:
    """4 -> 3 -> 1 -> 2 ranks, by JSON, over several epochs."""
    expected = list(alone(batch_size=12, shuffle=shuffle).steps(14))
    state, found = None, []
    for ranks, until in ((4, 3), (3, 6), (1, 10), (2, 14)):
        parts, after = [], []
        for rank in range(ranks):
            loader = alone(batch_size=12 // ranks, shuffle=shuffle, world=World(rank, ranks))
            if state is not None:
                loader.load_state_dict(json.loads(state))
            parts.append(list(loader.steps(until)))
            after.append(json.dumps(loader.state_dict()))
        found += [[sample for part in step for sample in part] for step in zip(*parts, strict=True)]
        state = after[-1]
    assert found == expected


KILLED = """
import json, os, signal, sys
from pathlib import Path
from torch.utils.data import DataLoader
import resumable
from tar_files import classes, in_an_order
folder, crash = Path(sys.argv[1]), int(sys.argv[2])
source, order = in_an_order(sys.argv[3], folder, cache=folder / "cache")
loader = resumable.wrap(DataLoader(source, batch_size=8, num_workers=2, collate_fn=classes), seed=3, **order)
place = folder / "state.json"
if place.exists():
    loader.load_state_dict(json.loads(place.read_text()))
for batch in loader.steps(16):
    with (folder / "read").open("a") as log:
        log.write(json.dumps(batch) + "\\n")
    (folder / "new").write_text(json.dumps(loader.state_dict()))
    (folder / "new").replace(place)
    if loader.global_step == crash:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["blocks", pytest.param("mix", marks=pytest.mark.long)])
def test_a_run_that_was_killed_goes_on(order: str, tmp_path: Path) -> None:
    """With blocks that are read ahead by its workers, which are killed with it."""
    write_images(tmp_path, COUNTS)
    command = [sys.executable, "-W", "error", "-c", KILLED, str(tmp_path)]
    for crash in ("2", "9"):
        assert subprocess.run([*command, crash, order], check=False).returncode == -signal.SIGKILL
    subprocess.run([*command, "0", order], check=True)
    read = [json.loads(line) for line in (tmp_path / "read").read_text().splitlines()]
    source, options = in_an_order(order, tmp_path)
    assert read == [classes(step) for step in resumable.wrap(source, batch_size=8, seed=3, **options).steps(16)]
    assert len(list((tmp_path / "cache").glob("*.piece"))) == (13 if order == "blocks" else 0)


def test_a_state_of_other_shards_is_refused(tmp_path: Path) -> None:
    loader = alone(shuffle=True)
    list(loader.steps(2))
    state = loader.state_dict()
    paths = write_images(tmp_path, COUNTS)
    moved = resumable.wrap(resumable.Tars(paths), batch_size=8, shuffle=True, seed=3)
    moved.load_state_dict(state)
    for other in (write_images(tmp_path, COUNTS, first=1), paths[::-1]):
        refusing = resumable.wrap(resumable.Tars(other), batch_size=8, shuffle=True, seed=3)
        with pytest.raises(StateMismatchError, match=r"in this run: .*: '?\"?3 shards train-00\d.tar \.\. train-00"):
            refusing.load_state_dict(state)
    fewer = resumable.wrap(resumable.Tars(paths[:2]), batch_size=8, shuffle=True, seed=3)
    with pytest.raises(StateMismatchError, match="length"):
        fewer.load_state_dict(state)


@pytest.mark.parametrize("shuffle", [True, False, "blocks"])
def test_the_samples_of_a_state_have_a_shard_and_a_key(shuffle: Any, tmp_path: Path) -> None:
    loader = alone(shuffle=shuffle)
    list(loader.steps(3))
    path = tmp_path / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    found = resumable.samples(path, epoch=1, step=2)
    source = tars()
    expected = [(sample[0], source.locate([sample[0]])[0][1]) for sample in list(loader.steps(9))[-1]]
    assert [
        (index, key) for index, (_, key) in zip(found.indices, source.locate(found.indices), strict=True)
    ] == expected


def test_a_plain_dataloader_has_tensors_of_the_images() -> None:
    loader: DataLoader[Any] = DataLoader(tars(), batch_size=8)
    batch = next(iter(loader))
    assert (batch["png"].shape, batch["png"].dtype) == (torch.Size([8, 8, 8, 3]), torch.uint8)
    assert batch["cls"].tolist() == list(range(8))


@pytest.mark.parametrize("rank", [None, 1])
def test_the_command_names_shard_and_key(
    rank: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # in a pipe there are 60, and paths have more
    loader = alone(shuffle="blocks", batch_size=4, world=World(0, 2))
    path = tmp_path / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    pattern = str(Path(tars().shards[0]).parent / "train-{000..002}.tar")
    command = ["samples", str(path), "--epoch", "2", "--step", "3", "--tars", pattern, "--json"]
    assert main([*command, *([] if rank is None else ["--rank", str(rank)])]) == 0
    found = json.loads(capsys.readouterr().out)
    indices = loader.sample_indices(epoch=2, step=3, rank=rank)
    assert found["indices"] == indices
    assert found["places"] == [list(place) for place in tars().locate(indices)]
    assert main(command[:-1]) == 0
    assert f"{found['indices'][0]}: {found['places'][0][1]} in {found['places'][0][0]}" in capsys.readouterr().out


def test_samples_of_other_shards_are_not_named(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(alone(shuffle=True).state_dict()))
    paths = write_images(tmp_path, COUNTS, first=1)
    for wrong in (resumable.Tars(paths), resumable.Tars(paths[:1])):
        with pytest.raises(StateMismatchError, match="the dataset has changed"):
            resumable.samples(path, epoch=0, step=0, source=wrong)
    with pytest.raises(ConfigurationError, match="source must have a method locate"):
        resumable.samples(path, epoch=0, step=0, source=[1])
    mixed = resumable.mix({"a": tars(), "b": list(range(30))})
    path.write_text(json.dumps(resumable.wrap(mixed, batch_size=6).state_dict()))
    found = resumable.samples(path, epoch=0, step=0, source=mixed)
    located = mixed.locate(found.indices)
    assert list(found.places) == [(name, tars().locate([own])[0] if name == "a" else own) for name, own in located]
