"""Loops of Accelerate over a prepared Loader: what they see of it, and which batches count as trained on."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from accelerate_state import alone  # noqa: F401  # a fixture of all tests here
from torch import nn
from torch.utils.data import DataLoader

import resumable
from resumable.errors import ConfigurationError, LoopError, LoopWarning, StateFormatError, StateMismatchError
from resumable.integrations.accelerate import PreparedLoader, last_whole_checkpoint, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BATCHES = 10


def indexed() -> resumable.Loader[Any]:
    return resumable.wrap(torch.arange(2.0 * BATCHES), batch_size=2, shuffle=True, seed=3)


def stream() -> resumable.Loader[Any]:
    """It tells no length."""
    return resumable.wrap(lambda: iter(torch.arange(2.0 * BATCHES)), batch_size=2, collate=torch.stack, identity="s")


MAKERS: dict[str, Callable[[], resumable.Loader[Any]]] = {"indexed": indexed, "stream": stream}


class Training:
    """A model with dropout and a normalisation, its optimizer and its Loader, as a fresh process has them."""

    def __init__(self, loader: resumable.Loader[Any] | None = None, **options: Any) -> None:
        self.accelerator = Accelerator(cpu=True, **options)
        torch.manual_seed(5)
        random.seed(5)
        net = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        adam = torch.optim.Adam(net.parameters(), 0.05)
        rates = torch.optim.lr_scheduler.StepLR(adam, 2, 0.8)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(net, adam, rates)
        self.loader: PreparedLoader = prepare(self.accelerator, indexed() if loader is None else loader)
        self.seen: list[list[float]] = []
        self.stepped: list[int] = []

    def on(self, batch: torch.Tensor, *, step: bool = True) -> None:
        """Train on a batch."""
        self.seen.append(batch.tolist())
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(batch[:, None]).pow(2).mean())
            if step:
                self.step()
        if step and self.accelerator.sync_gradients:
            self.stepped.append(len(self.seen))

    def step(self) -> None:
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def outcome(self) -> list[Any]:
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        tensors = [*self.model.state_dict().values(), *moments, torch.rand(3)]
        return [*(tensor.tolist() for tensor in tensors), self.accelerator.step, str(self.scheduler.state_dict())]


def trained(epochs: int = 2, **options: Any) -> Training:
    run = Training(**options)
    for epoch in run.loader.epochs(epochs):
        for batch in epoch:
            run.on(batch)
    return run


# ---------------------------------------------------------------------- what Accelerate sees


@pytest.mark.parametrize("kind", ["indexed", "stream", "DataLoader"])
@pytest.mark.parametrize("across", [False, True])
def test_the_optimizer_steps_where_a_dataloader_lets_it(kind: str, across: bool) -> None:
    """At the end of an epoch, too; unless the accumulation is to go on over it."""
    plugin = GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=not across)
    run = Training(gradient_accumulation_plugin=plugin)
    loader: Any = DataLoader(torch.arange(2.0 * BATCHES), batch_size=2)  # type: ignore[arg-type]  # it has what it takes
    prepared = run.accelerator.prepare(loader) if kind == "DataLoader" else prepare(run.accelerator, MAKERS[kind]())
    for _ in range(2):
        for batch in prepared:
            run.on(batch)
    assert run.stepped == ([4, 8, 12, 16, 20] if across else [4, 8, 10, 14, 18, 20])
    assert len({tuple(batch) for batch in run.seen[:BATCHES]}) == BATCHES
    if kind != "DataLoader":
        assert prepared.global_step == 2 * BATCHES


@pytest.mark.parametrize("kind", MAKERS)
def test_end_is_told_to_the_accelerator(kind: str) -> None:
    """The accelerator is told of the end, and then again of the loop around."""
    accelerator = Accelerator(cpu=True)
    train, test = (prepare(accelerator, make()) for make in (MAKERS[kind], evaluation))
    told = []
    for _ in train:
        told.append(accelerator.gradient_state.end_of_dataloader)
        inner = [accelerator.gradient_state.end_of_dataloader for _ in test]
        assert inner == [False, False, True]
        assert accelerator.gradient_state.active_dataloader is train
    assert told == [False] * (BATCHES - 1) + [True]
    assert not accelerator.gradient_state.in_dataloader
    next(iter(train))
    assert not accelerator.gradient_state.in_dataloader, "a loop that was left tells no longer"


def evaluation(**options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(torch.arange(5.0), batch_size=2, evaluation=True, **options)


@pytest.mark.parametrize("tail", ["partial", "pad"])
def test_gather_for_metrics_leaves_padding_out(tail: Any) -> None:
    accelerator = Accelerator(cpu=True)
    test = prepare(accelerator, evaluation(tail=tail))
    assert not accelerator._custom_objects, "there is nothing to save"
    with pytest.raises(resumable.errors.UnsupportedError, match="evaluation=True"):
        list(test.epochs(2))
    assert (len(test), test.evaluation) == (3, True)
    for _ in range(2):
        gathered = [accelerator.gather_for_metrics(batch).tolist() for batch in test]
        assert gathered == [[0, 1], [2, 3], [4]]


def test_batches_go_to_the_device() -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.state.device = torch.device("meta")
    assert next(iter(prepare(accelerator, indexed()))).device.type == "meta"
    assert next(iter(prepare(accelerator, evaluation()))).device.type == "meta"
    assert next(iter(prepare(accelerator, indexed(), device_placement=False))).device.type == "cpu"
    accelerator.device_placement = False
    assert next(iter(prepare(accelerator, indexed()))).device.type == "cpu"


def test_it_shows_what_the_loader_has() -> None:
    accelerator = Accelerator(cpu=True)
    loader = indexed()
    prepared = prepare(accelerator, loader)
    assert prepare(accelerator, prepared) is prepare(accelerator, loader) is accelerator.prepare(prepared) is prepared
    assert (len(prepared), prepared.batch_size, prepared.total_batch_size, prepared.seed) == (BATCHES, 2, 2, 3)
    assert prepared.loader is loader
    assert "PreparedLoader of <Loader" in repr(prepared)
    for name, advice in {
        "ack": "when the optimizer steps",
        "state_dict": "save_state",
        "sampler": "remove that call",
    }.items():
        with pytest.raises(AttributeError, match=advice):
            getattr(prepared, name)
    with pytest.raises(AttributeError, match="load_state\\(\\) has already moved the Loader"):
        accelerator.skip_first_batches(prepared, 3)
    with pytest.raises(resumable.errors.UnsupportedError, match="that is already prepared for a loop"):
        resumable.wrap(prepared)


# ---------------------------------------------------------------------- what counts


def test_a_batch_counts_at_the_optimizers_step(tmp_path: Path) -> None:
    """And not where gradients are to be synchronised: a save between the two has neither weights nor place of it."""
    run = Training()
    batches = iter(run.loader)
    run.on(next(batches))
    assert run.loader.global_step == 1
    run.on(next(batches), step=False)
    assert run.loader.global_step == 1
    run.accelerator.save_state(str(tmp_path / "1"))
    run.step()
    assert run.loader.global_step == 2
    expected = run.seen[1]
    run.accelerator.load_state(str(tmp_path / "1"))
    assert next(iter(run.loader)).tolist() == expected


def test_synchronised_gradients_count() -> None:
    """Without a prepared optimizer, the synchronised gradients count."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader, counted = prepare(accelerator, indexed()), []
    for _ in loader:
        with accelerator.accumulate():
            counted.append(loader.global_step)
    assert counted == [0, 2, 2, 4, 4, 6, 6, 8, 8, 10]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("left", [4, 5, 6])
def test_a_new_loop_goes_on_after_the_last_step(kind: str, left: int) -> None:
    """The gradients of what was delivered since are dropped, and all that it changed goes back."""
    options: dict[str, Any] = {"gradient_accumulation_steps": 3}
    whole = trained(epochs=1, loader=MAKERS[kind](), **options)
    expected = whole.outcome()
    run = Training(loader=MAKERS[kind](), **options)
    for number, batch in enumerate(run.loader, 1):
        run.on(batch)
        if number == left:
            break
    torch.rand(7)
    for batch in run.loader:
        run.on(batch)
    assert run.seen == whole.seen[:left] + whole.seen[left // 3 * 3 :] if left % 3 else whole.seen
    if left % 3:
        assert run.outcome() == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler:UserWarning")  # and it is
@pytest.mark.parametrize("with_optimizer", [True, False])
def test_loaded_in_the_middle_of_a_loop_it_goes_on_from_there(with_optimizer: bool, tmp_path: Path) -> None:
    """Also where the scheduler steps at each micro-batch, and has set the learning rate since the last step."""
    options: dict[str, Any] = {"gradient_accumulation_steps": 3, "step_scheduler_with_optimizer": with_optimizer}
    whole = trained(**options)
    expected = whole.outcome()
    run = Training(**options)
    back = True
    for epoch in run.loader.epochs(2):
        for batch in epoch:
            run.on(batch)
            if len(run.seen) == 8:
                run.accelerator.save_state(str(tmp_path / "8"))
            if len(run.seen) == 12 and back:
                back = False
                run.accelerator.load_state(str(tmp_path / "8"))
    assert run.seen == whole.seen[:12] + whole.seen[6:]
    assert run.outcome() == expected


def test_saved_after_an_epochs_last_batch_or_after_its_loop(tmp_path: Path) -> None:
    """The first gives the epoch again, with no batch left, so that what stands after the inner loop is done once."""
    run, name = Training(gradient_accumulation_steps=4), str(tmp_path / "in")
    for epoch in run.loader.epochs(2):
        for batch in epoch:
            run.on(batch)
            if len(run.seen) == BATCHES:
                run.accelerator.save_state(name)
        run.accelerator.save_state(str(tmp_path / f"after-{epoch.number}"))
    for folder, expected in {"in": [0, BATCHES], "after-0": [BATCHES], "after-1": []}.items():
        run.accelerator.load_state(str(tmp_path / folder))
        assert [len(list(epoch)) for epoch in run.loader.epochs(2)] == expected


def test_two_loaders_are_at_one_step(tmp_path: Path) -> None:
    """Whichever was prepared first: generators and count are those of the last step of both."""

    def begin() -> tuple[Training, PreparedLoader]:
        run = Training(gradient_accumulation_steps=3)
        return run, prepare(run.accelerator, stream())

    def go_on(run: Training, other: PreparedLoader, count: int) -> Iterator[int]:
        first, second = iter(run.loader), iter(other)
        for number in range(count):
            run.on(next(first) + next(second) if number % 2 else next(second))
            yield number

    run, other = begin()
    for number in go_on(run, other, 9):
        if number == 4:
            run.accelerator.save_state(str(tmp_path))
    expected = run.outcome()
    resumed, other = begin()
    resumed.accelerator.load_state(str(tmp_path))
    assert (resumed.loader.global_step, other.global_step, resumed.accelerator.step) == (1, 3, 3)
    second, first = iter(other), iter(resumed.loader)
    for number in range(3, 9):
        resumed.on(next(first) + next(second) if number % 2 else next(second))
    assert resumed.outcome() == expected


def test_steps_goes_through_epochs_up_to_a_number(tmp_path: Path) -> None:
    whole = trained(epochs=3, gradient_accumulation_steps=3)
    run = Training(gradient_accumulation_steps=3)
    for batch in run.loader.steps(25):
        run.on(batch)
        if len(run.seen) == 13:
            run.accelerator.save_state(str(tmp_path))
    assert run.seen == whole.seen[:25]
    expected = run.outcome()
    resumed = Training(gradient_accumulation_steps=3)
    resumed.accelerator.load_state(str(tmp_path))
    for batch in resumed.loader.steps(25):
        resumed.on(batch)
    assert resumed.seen == whole.seen[13:25]
    assert resumed.outcome() == expected


def test_own_epoch_counter_after_a_resume(tmp_path: Path) -> None:
    """A warning tells a loop that counts its epochs after a resume."""
    run = trained(epochs=1)
    run.accelerator.save_state(str(tmp_path))
    run.accelerator.load_state(str(tmp_path))
    for _ in range(1):
        with pytest.warns(LoopWarning, match="starts in epoch 1, but this loop did not use") as told:
            list(run.loader)
        assert [one.filename for one in told] == [__file__]
    run.accelerator.load_state(str(tmp_path))
    for _ in range(run.loader.epoch, 2):
        list(run.loader)  # the warnings are errors
    run.accelerator.load_state(str(tmp_path))
    for _ in run.loader.epochs(3):
        pass
    with pytest.warns(LoopWarning, match=r"epochs\(3\) has no epoch left"):
        list(run.loader.epochs(3))


def test_an_epoch_is_not_left_within_an_accumulation() -> None:
    run = Training(gradient_accumulation_steps=3)
    with pytest.raises(
        ConfigurationError, match="epoch 0 in the middle of an accumulation: 2 batches are not in the weights"
    ):
        for epoch in run.loader.epochs(2):
            for batch in epoch:
                run.on(batch)
                if len(run.seen) == 5:
                    break


# ---------------------------------------------------------------------- second loops


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("at", [1, 3, 4, 5, 10, 14])
def test_a_loop_over_the_inner_loader_raises_and_takes_no_batch(kind: str, at: int) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 3}
    whole = trained(loader=MAKERS[kind](), **options)
    expected = whole.outcome()
    run = Training(loader=MAKERS[kind](), **options)
    inner = run.loader.loader
    first = []
    for epoch in run.loader.epochs(2):
        for batch in epoch:
            run.on(batch)
            if len(run.seen) == at:
                for loop in (inner, inner.epochs(9), inner.steps(99)):
                    with pytest.raises(LoopError, match=r"loader\.for_evaluation\(\)"):
                        next(iter(loop))
            first.append([one.tolist() for one in inner.for_evaluation()])
            assert first[-1] == first[0]
        assert len(list(run.loader.for_evaluation())) == BATCHES
    assert run.seen == whole.seen
    assert run.outcome() == expected


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("left", [4, 5, 6])
@pytest.mark.parametrize("second", ["plain", "epochs", "steps"])
def test_newest_prepared_loop_wins(kind: str, left: int, second: str) -> None:
    """The newest prepared loop wins and starts after the last step."""
    options: dict[str, Any] = {"gradient_accumulation_steps": 3}
    whole = trained(epochs=1, loader=MAKERS[kind](), **options)
    expected = whole.outcome()
    run = Training(loader=MAKERS[kind](), **options)
    old, kept = iter(run.loader), left // 3 * 3
    for _ in range(left):
        run.on(next(old))
    run.seen[kept:] = []
    torch.rand(7 if left % 3 else 0)
    forms: dict[str, Callable[[], Any]] = {
        "plain": lambda: iter(run.loader),
        "epochs": lambda: (batch for epoch in run.loader.epochs(1) for batch in epoch),
        "steps": lambda: run.loader.steps(BATCHES),
    }
    new = forms[second]()
    run.on(next(new))
    with pytest.raises(LoopError, match=r"a newer loop.*(?s:.*)loader\.for_evaluation\(\)"):
        next(old)
    del old
    for batch in new:
        run.on(batch)
    assert run.seen == whole.seen
    assert run.outcome() == expected


def test_plain_loop_while_another_is_open() -> None:
    """A loop over the Loader is rejected while one over epochs or steps is open."""
    run = Training()
    epochs = run.loader.epochs(3)
    epoch = next(epochs)
    for batch in epoch:
        run.on(batch)
    for loop in (run.loader, epoch):
        with pytest.raises(LoopError, match=r"epoch 0 was started, but that epoch is over"):
            next(iter(loop))
    epochs.close()
    run.on(next(iter(run.loader)))
    steps = run.loader.steps(99)
    run.on(next(steps))
    with pytest.raises(LoopError, match=r"while steps\(\) is open"):
        next(iter(run.loader))
    run.on(next(steps))
    steps.close()
    for batch in run.loader:
        run.on(batch)
    whole = trained(epochs=2)
    assert run.seen == whole.seen


@pytest.mark.parametrize("kind", MAKERS)
def test_a_loop_that_was_closed_lets_another_one_start(kind: str) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 2}
    whole = trained(loader=MAKERS[kind](), **options)
    expected = whole.outcome()
    run = Training(loader=MAKERS[kind](), **options)
    steps = run.loader.steps(99)
    for _ in range(4):
        run.on(next(steps))
    steps.close()
    assert list(steps) == []
    assert not run.accelerator.gradient_state.in_dataloader
    epochs = run.loader.epochs(2)
    for batch in next(epochs):
        run.on(batch)
    epochs.close()
    assert list(epochs) == []
    for batch in run.loader:
        run.on(batch)
    assert run.seen == whole.seen
    assert run.outcome() == expected


# ---------------------------------------------------------------------- the file


def test_what_is_no_state_of_prepared_loaders_is_refused(tmp_path: Path) -> None:
    run = Training()
    run.accelerator.save_state(str(tmp_path))
    file = tmp_path / "custom_checkpoint_0.pkl"
    state = torch.load(file, weights_only=True)
    for wrong, message in (
        (run.loader.loader.state_dict(), r"has format \d, but this version .* up to 1: a dict with the keys"),
        ([1], r"has format None, .*: \[1\]"),
        (
            {**state, "format": 99},
            r"has format 99, (?s:.*) upgrade: pip install",
        ),
        ({**state, "ranks": [{}]}, "is damaged: KeyError"),
    ):
        torch.save(wrong, file)
        with pytest.raises(StateFormatError, match=message):
            run.accelerator.load_state(str(tmp_path))
    torch.save(state, file)
    run.accelerator.load_state(str(tmp_path))
    prepare(run.accelerator, stream())
    with pytest.raises(StateMismatchError, match="states of 1 train loaders, and this run has 2"):
        run.accelerator.load_state(str(tmp_path))


def test_a_state_of_other_data_is_refused(tmp_path: Path) -> None:
    Training().accelerator.save_state(str(tmp_path))
    other = Training(loader=resumable.wrap(torch.arange(8.0), batch_size=2, shuffle=True, seed=3))
    with pytest.raises(StateMismatchError, match="length"):
        other.accelerator.load_state(str(tmp_path))


@pytest.mark.parametrize("saved_at", [2, 3])
def test_another_accumulation(saved_at: int, tmp_path: Path) -> None:
    """A different accumulation counts from the place of the checkpoint.

    Accelerate's own count would let the first step cover one batch, at a third of its weight.
    """
    run = Training(gradient_accumulation_steps=2)
    batches = iter(run.loader)
    for _ in range(saved_at):
        run.on(next(batches))
    run.accelerator.save_state(str(tmp_path))
    other = Training(gradient_accumulation_steps=3)
    other.accelerator.load_state(str(tmp_path))
    for batch in other.loader:
        other.on(batch)
    assert other.stepped == [3, 6, 8]


def test_another_number_of_ranks(tmp_path: Path) -> None:
    """What two ranks of one order saved goes on with one; streams of their own do not."""
    run = Training()
    batches = iter(run.loader)
    for _ in range(4):
        run.on(next(batches))
    run.accelerator.save_state(str(tmp_path))
    file = tmp_path / "custom_checkpoint_0.pkl"
    state = torch.load(file, weights_only=True)
    state["ranks"] = [state["ranks"][0], {**state["ranks"][0], "loaders": None}]
    torch.save(state, file)
    (tmp_path / "random_states_0.pkl").unlink()  # as on a rank that is new
    run.accelerator.step = 77
    run.accelerator.load_state(str(tmp_path))
    assert (run.loader.global_step, run.accelerator.step) == (4, 4)
    state["ranks"][0]["loaders"][0]["rank"] = 0
    torch.save(state, file)
    with pytest.raises(StateMismatchError, match="2 ranks\n.* 1 ranks"):
        run.accelerator.load_state(str(tmp_path))


def test_the_last_whole_checkpoint_is_that_of_the_highest_number(tmp_path: Path) -> None:
    assert last_whole_checkpoint(tmp_path / "nothing") is None
    assert last_whole_checkpoint(tmp_path) is None
    run = Training()
    for number in (2, 9, 10):
        run.accelerator.save_state(str(tmp_path / f"checkpoint_{number}"))
    (tmp_path / "checkpoint_11").mkdir()
    (tmp_path / "notes").mkdir()
    assert last_whole_checkpoint(tmp_path) == str(tmp_path / "checkpoint_10")
    files = [sorted(path.name for path in (tmp_path / f"checkpoint_{number}").iterdir()) for number in (2, 9, 10)]
    assert all(one == other for one, other in pairwise(files))
    run.accelerator.register_for_checkpointing(run.scheduler)
    run.accelerator.save_state(str(tmp_path / "checkpoint_12"))
    (tmp_path / "checkpoint_12" / "custom_checkpoint_1.pkl").write_bytes(b"half")
    assert last_whole_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint_10")
