"""Loops and calls that would lose or repeat batches in a resume: each is refused, warned of, or made right."""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from accelerate_state import alone  # noqa: F401  # a fixture of all tests here
from torch import nn

import resumable
from resumable.errors import ConfigurationError, LoopError, LoopWarning, UnsupportedError
from resumable.integrations.accelerate import PreparedLoader, last_whole_checkpoint, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def numbers(**options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(torch.arange(8.0)[:, None], batch_size=1, **options)


class Training:
    """A model, its optimizer and its Loader."""

    def __init__(self, accelerator: Accelerator | None = None, loader: Any = None, **options: Any) -> None:
        self.accelerator = Accelerator(cpu=True, **options) if accelerator is None else accelerator
        self.loader: PreparedLoader = prepare(self.accelerator, numbers() if loader is None else loader)
        self.add_model()
        self.seen: list[float] = []

    def add_model(self) -> None:
        net = nn.Linear(1, 1)
        self.model, self.optimizer = self.accelerator.prepare(net, torch.optim.SGD(net.parameters(), 1e-4))

    def on(self, batch: torch.Tensor) -> None:
        self.seen.append(batch.item())
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(batch).mean())
            self.optimizer.step()
            self.optimizer.zero_grad()


# ---------------------------------------------------------------------- fetched ahead


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_loop_that_fetches_a_batch_ahead_is_warned_of_once(accumulate: int) -> None:
    run = Training(gradient_accumulation_steps=accumulate)
    batches = iter(run.loader)
    following = next(batches)

    def go_on() -> None:
        nonlocal following
        for _ in range(2 * accumulate):
            batch, following = following, next(batches)
            run.on(batch)
            assert run.loader.cursor

    with pytest.warns(LoopWarning, match=rf"step: {accumulate + 1}\n.*: +{accumulate}\n.*fetches a batch") as told:
        go_on()
    assert len(told) == 1
    assert told[0].filename == __file__


def test_batches_with_several_passes() -> None:
    """A batch with several passes is no misuse, nor are several batches at once."""
    run = Training(gradient_accumulation_steps=2)
    batches = iter(run.loader)
    several = [next(batches) for _ in range(2)]
    for batch in several:
        run.on(batch)
    for batch in batches:
        run.accelerator.backward(run.model(batch).mean())
        run.on(batch)
    assert run.loader.global_step == len(run.loader)


# ---------------------------------------------------------------------- whose batches they are


FORMS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "loop": iter,
    "steps": lambda loader: loader.steps(99),
    "epochs": lambda loader: loader.epochs(99),
    "epoch": lambda loader: (batch for epoch in loader.epochs(99) for batch in epoch),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_loop_over_the_unprepared_loader(form: str, accumulate: int) -> None:
    """A loop over the Loader instead of the result of `prepare` is rejected.

    Anywhere in the training, which continues as if nothing had happened.
    """
    loader = numbers()
    loops = [FORMS[form](loader)]  # one from before it was prepared
    run = Training(loader=loader, gradient_accumulation_steps=accumulate)

    def look() -> None:
        loop = loops.pop() if loops else FORMS[form](loader)
        with pytest.raises(LoopError, match=r"accelerate.prepare\(\) delivers .*\n.*for_evaluation\(\)"):
            next(loop)

    for epoch in run.loader.epochs(2):
        look()
        for batch in epoch:
            look()
            run.on(batch)
            look()
        look()
    assert run.seen == [*range(8)] * 2


def test_a_loop_that_was_open_when_it_was_prepared_is_rejected() -> None:
    loader = numbers()
    epochs = loader.epochs(2)
    batches = iter(next(epochs))
    assert next(batches).item() == 0
    prepared = Training(loader=loader).loader
    for loop in (batches, epochs):
        with pytest.raises(LoopError, match=r"a newer loop (?s:.*)for_evaluation\(\)"):
            next(loop)
    assert [batch.item() for batch in prepared] == [*range(1, 8)]
    steps = (other := numbers()).steps(9)
    assert next(steps).item() == 0
    prepare(Accelerator(cpu=True), other)
    with pytest.raises(LoopError, match="a newer loop"):
        next(steps)


def test_evaluation_loaders_are_not_driven() -> None:
    test = numbers(evaluation=True)
    assert list(prepare(Accelerator(cpu=True), test)) == list(test)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_second_prepared_loop_at_an_epochs_end(accumulate: int) -> None:
    """A second loop over the result of `prepare` is rejected at an epoch's end."""
    run = Training(gradient_accumulation_steps=accumulate)
    for epoch in run.loader.epochs(2):
        for batch in epoch:
            run.on(batch)
        for loop in (iter(run.loader), iter(epoch)):
            with pytest.raises(LoopError, match=r"that epoch is over(?s:.*)for_evaluation\(\)"):
                next(loop)
    assert run.seen == [*range(8)] * 2


@pytest.mark.parametrize("accumulate", [1, 3])
def test_second_loop_within_steps(accumulate: int) -> None:
    """A second loop within steps is rejected and drops no gradients.

    At each micro-batch: what is delivered and waits for the optimizer's step is not delivered again.
    """
    run = Training(gradient_accumulation_steps=accumulate)
    for batch in run.loader.steps(20):
        run.on(batch)
        assert len(run.seen) <= 20
        with pytest.raises(LoopError, match=r"while steps\(\) is open(?s:.*)for_evaluation\(\)"):
            next(iter(run.loader))
    assert run.seen == ([*range(8)] * 3)[:20]


def test_second_loop_within_an_epoch() -> None:
    """A second loop within an epoch ends the first with an error.

    It reads the rest of the epoch, as people write it in a function of their own; no batch is lost.
    """
    run = Training()
    with pytest.raises(LoopError, match="a newer loop"):
        for epoch in run.loader.epochs(2):
            for batch in epoch:
                run.on(batch)
                if len(run.seen) == 3:
                    for rest in run.loader:
                        run.on(rest)
    assert run.seen == [*range(8)]
    assert run.loader.cursor.epoch == 1


# ---------------------------------------------------------------------- evaluation on the train data


def test_an_evaluation_is_prepared_like_the_loader() -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.state.device = torch.device("meta")
    on_device = prepare(accelerator, numbers()).for_evaluation()
    assert isinstance(on_device, PreparedLoader)
    assert next(iter(on_device)).device.type == "meta"
    as_it_is = prepare(accelerator, numbers(name="other"), device_placement=False).for_evaluation()
    assert [batch.item() for batch in as_it_is] == [*range(8)]
    source = resumable.wrap(iter(range(8)), batch_size=2)
    with pytest.raises(UnsupportedError, match=r"for_evaluation\(\) opens the source a second time"):
        prepare(accelerator, source).for_evaluation()


# ---------------------------------------------------------------------- sources that cannot go back


def once() -> resumable.Loader[Any]:
    """A generator object, which can be read once."""
    return resumable.wrap((torch.tensor([float(number)]) for number in range(8)), identity="numbers")


def test_a_source_that_cannot_go_back_is_trained_on_to_its_end() -> None:
    run = Training(loader=once(), gradient_accumulation_steps=3)
    for epoch in run.loader.epochs(1):
        for batch in epoch:
            run.on(batch)
    assert (run.seen, run.loader.global_step) == ([*range(8)], 8)


def test_new_loop_within_an_accumulation() -> None:
    """A new loop within an accumulation says that the source cannot go back.

    Nothing is changed by that: neither the gradients nor the accelerator's count.
    """
    run = Training(loader=once(), gradient_accumulation_steps=3)
    for batch in run.loader:
        run.on(batch)
        if len(run.seen) == 5:
            break
    gradient, step = run.model.weight.grad.clone(), run.accelerator.step
    with pytest.raises(UnsupportedError, match=r"its source cannot go back(?s:.*)wrap\(make\)"):
        next(iter(run.loader))
    assert (run.model.weight.grad.equal(gradient), run.accelerator.step) == (True, step)
    assert run.loader.global_step == 3


def test_a_new_loop_after_a_step_continues_without_going_back() -> None:
    run = Training(loader=once(), gradient_accumulation_steps=3)
    for _ in range(2):
        for batch in run.loader:
            run.on(batch)
            if len(run.seen) == 6:
                break
    assert (run.seen, run.loader.global_step) == ([*range(8)], 8)


# ---------------------------------------------------------------------- whose accelerator


def test_a_second_accelerator_is_refused() -> None:
    loader = numbers()
    run = Training(loader=loader)
    for given in (loader, run.loader):
        with pytest.raises(
            ConfigurationError, match=r"to two training runs\.\n  first:  .*accelerate.prepare\(\)\n  second: .*"
        ):
            prepare(Accelerator(cpu=True), given)
    assert prepare(run.accelerator, run.loader) is run.loader


# ---------------------------------------------------------------------- names


def test_three_restarts_with_a_limit_of_checkpoints(tmp_path: Path) -> None:
    """Each goes on after the one before, also where a kill within a save has left a folder."""
    starts, folder = [], tmp_path / "checkpoints"
    for attempt in range(4):
        settings = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True, total_limit=2)
        run = Training(project_config=settings)
        place = last_whole_checkpoint(folder)
        if place is not None:
            run.accelerator.load_state(place)
        starts.append(run.loader.global_step)
        for batch in run.loader:
            run.on(batch)
            run.accelerator.save_state()
            if len(run.seen) == 2:
                break
        if attempt == 1:
            (folder / "checkpoint_4").mkdir()
    assert starts == [0, 2, 4, 6]
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint_7", "checkpoint_8"]


def test_the_number_goes_on_where_the_folder_is_empty(tmp_path: Path) -> None:
    settings = ProjectConfiguration(str(tmp_path / "one"), automatic_checkpoint_naming=True)
    run = Training(project_config=settings)
    for _ in range(3):
        run.accelerator.save_state()
    other = ProjectConfiguration(str(tmp_path / "other"), automatic_checkpoint_naming=True)
    resumed = Training(project_config=other)
    resumed.accelerator.load_state(last_whole_checkpoint(tmp_path / "one" / "checkpoints"))
    assert resumed.accelerator.save_iteration == 3


def test_resumed_run_writes_the_same_number(tmp_path: Path) -> None:
    """A resumed run writes the number that the baseline writes.

    Also where the folders are named by the loop, and a save within an accumulation is repeated after a resume from it.
    """
    run = Training()
    for name in ("one", "two", "three"):
        run.accelerator.save_state(str(tmp_path / name))
    resumed = Training()
    resumed.accelerator.load_state(str(tmp_path / "two"))
    for name in ("two again", "three again"):
        resumed.accelerator.save_state(str(tmp_path / name))
    for name in ("two", "three"):
        written = [torch.load(tmp_path / one / "custom_checkpoint_0.pkl")["number"] for one in (name, f"{name} again")]
        assert written[0] == written[1]


def test_a_checkpoint_itself_may_be_named(tmp_path: Path) -> None:
    one = tmp_path / "one"
    Training().accelerator.save_state(str(one))
    assert last_whole_checkpoint(one) == last_whole_checkpoint(tmp_path) == str(one)
    (one / "custom_checkpoint_0.pkl").write_bytes(b"half")
    assert last_whole_checkpoint(one) is None


def test_checkpoints_without_a_prepared_loader_are_not_passed_over(tmp_path: Path) -> None:
    """A run that starts over without a word would lose them; an incomplete first save is not worth an error."""
    plain = Accelerator(cpu=True)
    plain.prepare(torch.nn.Linear(1, 1))
    plain.save_state(str(tmp_path / "1"))
    for folder in (tmp_path, tmp_path / "1"):
        with pytest.raises(ConfigurationError, match="none can be resumed: they were saved without a prepared Loader"):
            last_whole_checkpoint(folder)
    run = Training()
    run.accelerator.save_state(str(tmp_path / "2"))
    assert last_whole_checkpoint(tmp_path) == str(tmp_path / "2")
    (tmp_path / "2" / "custom_checkpoint_0.pkl").unlink()
    assert last_whole_checkpoint(tmp_path / "2") is None


# ---------------------------------------------------------------------- memory that was freed


@pytest.mark.slow
def test_what_was_prepared_before_free_memory_is_forgotten(tmp_path: Path) -> None:
    loader = numbers()
    run = Training(loader=loader)
    for batch in run.loader:
        run.accelerator.backward(run.model(batch).mean())
        break  # as if memory had run out
    run.accelerator.free_memory()
    old = run.loader
    later = Training(run.accelerator, numbers(name="later"))
    with pytest.raises(
        ConfigurationError, match=r"accelerator.free_memory\(\) was called after this Loader was prepared"
    ):
        next(iter(old))
    for batch in later.loader:
        later.on(batch)
        if len(later.seen) == 3:
            break
    later.accelerator.save_state(str(tmp_path))
    fresh = Training(loader=numbers(name="later"))
    fresh.accelerator.load_state(str(tmp_path))
    assert fresh.loader.global_step == 3
    del old, run, later
    gc.collect()


@pytest.mark.slow
def test_the_same_loader_is_prepared_again_after_free_memory() -> None:
    loader = numbers()
    run = Training(loader=loader)
    batches = iter(run.loader)
    run.on(next(batches))
    run.accelerator.backward(run.model(next(batches)).mean())
    run.accelerator.free_memory()
    again = Training(run.accelerator, loader)
    assert again.loader is not run.loader
    for batch in again.loader:
        again.on(batch)
    assert again.seen == list(range(1, 8))


# ---------------------------------------------------------------------- prepared within the loop


@pytest.mark.slow
def test_optimizer_prepared_in_the_first_batch(tmp_path: Path) -> None:
    """The save rejects an optimizer that was prepared in the first batch."""
    run = Training()
    run.accelerator.free_memory()
    run.loader = prepare(run.accelerator, numbers())
    for batch in run.loader:
        if not run.seen:
            run.add_model()
        run.on(batch)
        if len(run.seen) == 1:
            with pytest.raises(ConfigurationError, match="before: 0 models, 0 optim.*\n  now:    1 models, 1 optim"):
                run.accelerator.save_state(str(tmp_path / "1"))
        if len(run.seen) == 2:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                run.accelerator.save_state(str(tmp_path / "2"))
            break
    assert last_whole_checkpoint(tmp_path) == str(tmp_path / "2")
    fresh = Training()
    fresh.accelerator.load_state(str(tmp_path / "2"))
    assert next(iter(fresh.loader)).item() == 2
