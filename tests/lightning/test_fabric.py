"""Fabric saves a Loader like any other object that has a state, and brings it back; on several ranks, too."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from sources import MAKERS, indexed, validation
from torch import nn
from torch.utils.data import DataLoader
from trainer_runs import ids

import resumable
from resumable.errors import LoopError

EPOCHS, BATCHES = 2, 5
QUICK = {"indexed", "snapshot"}


class Run:
    """A training program as a fresh process would have it: its own Fabric, model with dropout, optimizer and loader."""

    def __init__(self, loader: resumable.Loader, **options: Any) -> None:
        self.fabric = Fabric(accelerator="cpu", devices=1, **options)
        self.fabric.launch()
        torch.manual_seed(5)
        net = nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1))
        self.model, self.optimizer = self.fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        self.loader = loader
        self.events: list[tuple[Any, ...]] = []

    @property
    def parts(self) -> dict[str, Any]:
        generators: Any = resumable.rng  # a module that has a state
        return {"model": self.model, "optimizer": self.optimizer, "loader": self.loader, "generators": generators}

    def train(self, folder: Path | None = None) -> Run:
        """Train up to the end, and save after each step where there is a folder."""
        for epoch in self.loader.epochs(EPOCHS):
            for batch in epoch:
                self.on(epoch.number, batch)
                if folder is not None:
                    self.fabric.save(folder / f"{len(self.events)}.ckpt", self.parts)
            self.events.append((epoch.number, "end"))
        return self

    def on(self, epoch: int, batch: torch.Tensor) -> None:
        """Train on a batch."""
        self.optimizer.zero_grad()
        loss = self.model(self.fabric.to_device(batch).reshape(-1, 1) * 0.01).pow(2).mean()
        self.fabric.backward(loss)
        self.optimizer.step()
        self.events.append((epoch, ids(batch), loss.item()))

    def outcome(self) -> list[torch.Tensor]:
        momenta = [state["momentum_buffer"] for state in self.optimizer.state.values()]
        return [*self.model.state_dict().values(), *momenta, torch.rand(3)]


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in MAKERS]
)
def test_saved_at_every_step_and_resumed_from_each(kind: str, tmp_path: Path) -> None:
    """The number of a checkpoint is that of the events before it; the end of an epoch is one, too."""
    whole = Run(MAKERS[kind]()).train(tmp_path)
    expected = whole.outcome()
    steps = [number for number, event in enumerate(whole.events, start=1) if event[1] != "end"]
    assert len(steps) == EPOCHS * BATCHES
    for number in steps:
        resumed = Run(MAKERS[kind]())
        assert not resumed.fabric.load(tmp_path / f"{number}.ckpt", resumed.parts)
        resumed.train()
        assert resumed.events == whole.events[number:]
        assert all(map(torch.equal, expected, resumed.outcome())), number


@pytest.mark.parametrize("kind", ["indexed", "replay"])
def test_an_evaluation_on_the_train_data_changes_nothing(kind: str, tmp_path: Path) -> None:
    """In the middle of an epoch and at its end; resumed from each step, too."""

    class Evaluates(Run):
        def train(self, folder: Path | None = None) -> Run:
            for epoch in self.loader.epochs(EPOCHS):
                for index, batch in epoch.enumerate():
                    self.on(epoch.number, batch)
                    if folder is not None:
                        self.fabric.save(folder / f"{self.loader.global_step}.ckpt", self.parts)
                    if index % 2:
                        self.evaluate()
                self.evaluate()
            return self

        def evaluate(self) -> None:
            averaged = copy.deepcopy(self.model.module)
            batches = self.loader.for_evaluation()
            with torch.random.fork_rng():  # the dropout of the copy
                torch.optim.swa_utils.update_bn((batch.reshape(-1, 1) for batch in batches), averaged)
            assert [ids(batch) for batch in batches] == first

    whole = Run(MAKERS[kind]()).train()
    expected, trained = whole.outcome(), [event for event in whole.events if event[1] != "end"]
    first = [batch for epoch, batch, _ in trained if epoch == 0]
    evaluated = Evaluates(MAKERS[kind]()).train(tmp_path)
    assert evaluated.events == trained
    assert all(map(torch.equal, expected, evaluated.outcome()))
    for step in range(1, EPOCHS * BATCHES):
        resumed = Evaluates(MAKERS[kind]())
        resumed.fabric.load(tmp_path / f"{step}.ckpt", resumed.parts)
        resumed.train()
        assert resumed.events == trained[step:]
        assert all(map(torch.equal, expected, resumed.outcome())), step


@pytest.mark.parametrize("kind", MAKERS)
def test_a_second_loop_takes_no_batch_of_the_next_epoch(kind: str) -> None:
    whole, run = Run(MAKERS[kind]()).train(), Run(MAKERS[kind]())
    for epoch in run.loader.epochs(EPOCHS):
        for batch in epoch:
            run.on(epoch.number, batch)
        for loop in (iter(run.loader), iter(epoch)):
            with pytest.raises(LoopError, match=r"that epoch is over(?s:.*)for_evaluation\(\)"):
                next(loop)
        run.events.append((epoch.number, "end"))
    assert run.events == whole.events


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    Run(indexed()).train(tmp_path)
    other = Run(indexed(BATCHES + 1))
    with pytest.raises(resumable.errors.StateMismatchError, match="length"):
        other.fabric.load(tmp_path / "3.ckpt", other.parts)


def test_setup_dataloaders_takes_dataloaders_only() -> None:
    """A Loader needs none of what it does: it finds its rank, and `to_device` moves its batches."""
    fabric = Run(indexed()).fabric
    with pytest.raises(TypeError, match="Only PyTorch DataLoader are currently supported"):
        fabric.setup_dataloaders(indexed())  # type: ignore[arg-type]  # that is what is asserted
    fabric.setup_dataloaders(validation())


# ---------------------------------------------------------------------- two ranks

_RANKS = """
import json, sys
from pathlib import Path
import torch
from lightning_fabric import Fabric
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset
import resumable

folder, first = Path(sys.argv[1]), sys.argv[2] == "first"
torch.set_num_threads(1)
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
rank = fabric.global_rank

def everyone(value):
    values = [None] * fabric.world_size
    distributed.all_gather_object(values, value)
    return values

def start(loader):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    torch.manual_seed(100 + rank)
    return {"model": model, "optimizer": optimizer, "loader": loader}

def train(parts, save=None):
    events, loader = [], parts["loader"]
    for epoch in loader.epochs(2):
        for batch in epoch:
            batch = batch[0] if isinstance(batch, list) else batch
            parts["optimizer"].zero_grad()
            loss = parts["model"](fabric.to_device(batch) * 0.01).pow(2).mean()
            fabric.backward(loss)
            parts["optimizer"].step()
            events.append([epoch.number, batch.flatten().tolist(), loss.item()])
            if save is not None:
                save(len(events))
    return events, [tensor.tolist() for tensor in parts["model"].state_dict().values()]

def indexed():
    data = TensorDataset(torch.arange(24.0).reshape(-1, 1))
    return resumable.wrap(DataLoader(data, batch_size=2, shuffle=True), seed=3)

def own():
    parts = torch.arange(12.0).reshape(-1, 2, 1) + 100 * rank
    return resumable.wrap(lambda: iter(parts), shard=False, identity="own")

def save_shared(step):
    fabric.save(folder / f"{step}.ckpt", {**parts, "generators": everyone(resumable.rng.state_dict())})

def load_shared(step):
    parts, remainder = start(indexed()), {}
    remainder = fabric.load(folder / f"{step}.ckpt", parts)
    resumable.rng.load_state_dict(remainder["generators"][rank])
    return parts

def save_own(step):
    shared = {name: part for name, part in parts.items() if name != "loader"}
    fabric.save(folder / f"own-{step}.ckpt", {**shared, "loaders": everyone(parts["loader"].state_dict())})
    fabric.save(folder / f"refused-{step}.ckpt", parts)

def load_own(step):
    parts = start(own())
    loader = parts.pop("loader")
    remainder = fabric.load(folder / f"own-{step}.ckpt", parts)
    loader.load_state_dict(remainder["loaders"][rank])
    return {**parts, "loader": loader}

found = {}
if first:
    parts = start(indexed())
    found["whole"] = train(parts, save_shared)
    parts = start(own())
    found["own"] = train(parts, save_own)[0]
else:
    found["rests"] = [train(load_shared(step)) for step in range(1, 13)]
    found["own rests"] = [train(load_own(step))[0] for step in (4, 6, 9)]
    try:
        fabric.load(folder / "refused-4.ckpt", start(own()))
    except resumable.errors.StateMismatchError as error:
        found["refusal"] = str(error)
        fabric.barrier()  # the one in which the other rank waits for this one
(folder / f"{sys.argv[2]}-{rank}.json").write_text(json.dumps(found))
"""


def launch(folder: Path, name: str) -> list[dict[str, Any]]:
    """Run the program on two ranks, which Fabric starts, and return what each of them found."""
    program = folder / "program.py"
    program.write_text(_RANKS, encoding="utf-8")
    output = subprocess.run(
        [sys.executable, str(program), str(folder), name], capture_output=True, text=True, check=False, timeout=120
    )
    assert output.returncode == 0, output.stderr
    return [json.loads((folder / f"{name}-{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("fabric")
    return folder, launch(folder, "first"), launch(folder, "second")


Launches = tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]


@pytest.mark.slow
def test_two_ranks_go_on_exactly_from_every_step(launches: Launches) -> None:
    _, first, second = launches
    for before, after in zip(first, second, strict=True):
        events, weights = before["whole"]
        assert len(events) == 12
        for step, (rest, end) in enumerate(after["rests"], start=1):
            assert rest == events[step:]
            assert end == weights
    together = [sample for rank in first for epoch, samples, _ in rank["whole"][0] if epoch == 0 for sample in samples]
    assert sorted(together) == list(range(24))


@pytest.mark.slow
def test_one_rank_goes_on_with_the_same_global_batches(launches: Launches) -> None:
    folder, first, _ = launches
    steps = zip(*(rank["whole"][0] for rank in first), strict=True)
    expected = [[sample for part in parts for sample in part[1]] for parts in steps]
    data = torch.arange(24.0).reshape(-1, 1)
    loader = resumable.wrap(DataLoader(torch.utils.data.TensorDataset(data), batch_size=2, shuffle=True), seed=3)
    Fabric(accelerator="cpu", devices=1).load(folder / "4.ckpt", {"loader": loader})
    assert [batch.flatten().tolist() for epoch in loader.epochs(2) for (batch,) in epoch] == expected[4:]


@pytest.mark.slow
def test_streams_of_the_ranks_own_have_to_be_gathered(launches: Launches) -> None:
    """The file is rank 0's: another rank refuses its state, and gets its own from a list of them."""
    _, first, second = launches
    assert "refusal" not in second[0]
    assert "rank differs" in second[1]["refusal"]
    for before, after in zip(first, second, strict=True):
        for step, rest in zip((4, 6, 9), after["own rests"], strict=True):
            assert [event[:2] for event in rest] == [event[:2] for event in before["own"]][step:]
