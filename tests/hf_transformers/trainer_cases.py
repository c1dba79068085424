"""Tests that need transformers in their own process: `test_trainer_alone.py` runs them where it is installed."""

from __future__ import annotations

import inspect
import json
import shutil
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers.trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

import resumable
from resumable.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    LoopError,
    PromiseWarning,
    StateFormatError,
    StateMismatchError,
    UnsupportedError,
)
from resumable.integrations.transformers import TrainLoader, last_whole_checkpoint, prepare
from resumable.integrations.transformers.refusals import check_types
from resumable.torch import StatefulDataLoader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

QUIET: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_steps": 2, "max_steps": 6}
QUIET |= {"per_device_train_batch_size": 2, "remove_unused_columns": False}


class Numbers(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= self.length:
            raise IndexError(index)
        return {"x": torch.tensor([float(index)])}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).pow(2).mean()}


class Noting(Trainer):  # type: ignore[misc]
    """A subclass of a user's, that notes its batches."""

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        self.seen = [*getattr(self, "seen", []), inputs["x"][:, 0].tolist()]
        return super().training_step(model, inputs, *rest)


def trainer_in(folder: Path, *, data: Any = None, callbacks: Any = (), eval_data: Any = None, **options: Any) -> Any:
    args = TrainingArguments(str(folder), **{**QUIET, **options})
    return Noting(Net(), args, train_dataset=data or Numbers(), eval_dataset=eval_data, callbacks=list(callbacks))


def loader(**options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(DataLoader(Numbers(), 2, shuffle=True), seed=0, **options)


def trained(folder: Path, **options: Any) -> Any:
    trainer = prepare(trainer_in(folder, **options))
    trainer.train()
    return trainer


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ignore_data_skip": True}, "the Loader goes to its position"),
        ({"save_only_model": True}, "no optimizer and no RNG states"),
        ({"enable_jit_checkpoint": True}, "save in the middle of an accumulation"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches=True"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches=True"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        prepare(trainer_in(tmp_path, **options))


def test_transformers_rejects_accelerates_loader_with_a_state(tmp_path: Path) -> None:
    """The page of `StatefulDataLoader` says so, and recommends `prepare`."""
    with pytest.raises(TypeError, match="use_stateful_dataloader"):
        TrainingArguments(str(tmp_path), accelerator_config={"use_stateful_dataloader": True})


def test_what_is_given_is_checked(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    with pytest.raises(UnsupportedError, match="expects a Trainer, but got an object of type Loader"):
        prepare(loader(), trainer)
    with pytest.raises(UnsupportedError, match="expects a Loader, but got an object of type DataLoader"):
        prepare(trainer, DataLoader(Numbers()))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="evaluation=True"):
        prepare(trainer, loader(evaluation=True))
    with pytest.raises(UnsupportedError, match=r"is a Loader\.\n.*Loader to prepare\(trainer, loader\)\."):
        prepare(trainer_in(tmp_path, data=loader()))
    with pytest.raises(ConfigurationError, match=r"options of wrap\(\): seed\."):
        prepare(trainer, loader(), seed=3)
    with pytest.raises(UnsupportedError, match="auto_find_batch_size=True"):
        prepare(trainer_in(tmp_path, auto_find_batch_size=True), loader())
    assert prepare(trainer) is trainer
    with pytest.raises(ConfigurationError, match=r"prepare\(\) was already called for this Trainer"):
        prepare(trainer)


def test_trainers_of_trl_that_were_not_tried_are_refused(tmp_path: Path) -> None:
    """Those that keep samples over steps, such as GRPO's, among them; a user's own class of a tried one is taken."""
    from trl import DPOTrainer, GRPOTrainer, SFTTrainer  # noqa: PLC0415  # it takes seconds, for this test alone

    class Own(SFTTrainer):  # type: ignore[misc]
        pass

    kinds: list[Any] = [DPOTrainer, GRPOTrainer, type("Mine", (GRPOTrainer,), {})]
    for kind in kinds:
        with pytest.raises(UnsupportedError, match=r"TRL's (DPO|GRPO)Trainer has not been tested for exact resumes"):
            check_types(kind.__new__(kind), None)
    tried: list[Any] = [SFTTrainer, Own]
    for kind in tried:
        check_types(kind.__new__(kind), None)


def test_options_are_those_of_wrap(tmp_path: Path) -> None:
    trainer = prepare(trainer_in(tmp_path, data_seed=4), name="text")
    found = trainer.get_train_dataloader()
    assert isinstance(found, TrainLoader)
    assert (found.loader.seed, found.loader.name) == (4, "text")
    with pytest.raises(UnsupportedError, match="Did you mean seed"):
        prepare(trainer_in(tmp_path), sed=3)


class OwnLoader(Noting):
    """Makes its Loader itself."""

    def get_train_dataloader(self) -> Any:
        return loader()


def test_loader_of_a_trainers_own_method(tmp_path: Path) -> None:
    """A loader from a trainer's method is taken like a given one."""

    def of(folder: Path, **options: Any) -> Any:
        return OwnLoader(Net(), TrainingArguments(str(folder), **{**QUIET, **options}), train_dataset=Numbers())

    expected = prepare(trainer_in(tmp_path / "a"), loader())
    expected.train()
    run = prepare(of(tmp_path / "b"))
    run.train()
    assert run.seen == expected.seen
    resumed = prepare(of(tmp_path / "b"))
    resumed.train(resume_from_checkpoint=str(tmp_path / "b/checkpoint-2"))
    assert resumed.seen == expected.seen[2:]
    with pytest.raises(ConfigurationError, match=r"options of wrap\(\): name\."):
        prepare(of(tmp_path / "c"), name="text").train()
    with pytest.raises(UnsupportedError, match="auto_find_batch_size"):
        prepare(of(tmp_path / "d", auto_find_batch_size=True)).train()


class WithState(Noting):
    """Makes a `StatefulDataLoader`, with an option of `wrap`."""

    def get_train_dataloader(self) -> Any:
        return StatefulDataLoader(Numbers(), 2, shuffle=True, tail="drop")


def test_a_stateful_loader_of_a_trainers_own_method(tmp_path: Path) -> None:
    """It is wrapped like the DataLoader that it was made of, with its options."""
    arguments = TrainingArguments(str(tmp_path), **QUIET)
    expected = prepare(trainer_in(tmp_path))
    found = prepare(WithState(Net(), arguments, train_dataset=Numbers()))
    expected.train()
    found.train()
    assert found.seen == expected.seen
    assert found.get_train_dataloader().loader.state_dict()["tail"] == "drop"


# ---------------------------------------------------------------------- loops of the user's


HOOKS = ["on_train_begin", "on_epoch_begin", "on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_step_end"]
HOOKS += ["on_log", "on_save", "on_epoch_end", "on_train_end"]


class Calls(transformers.TrainerCallback):  # type: ignore[misc]
    """Calls a function in every hook."""

    def __init__(self, function: Callable[[str], None]) -> None:
        self.function, self.called = function, set[str]()
        for hook in HOOKS:
            setattr(self, hook, partial(self.call, hook))

    def call(self, hook: str, *_: Any, **__: Any) -> None:
        self.called.add(hook)
        self.function(hook)


def by_epochs(own: Any) -> Any:
    return (batch for epoch in own.epochs(9) for batch in epoch)


MANY: dict[str, Any] = {"gradient_accumulation_steps": 2, "max_steps": -1, "num_train_epochs": 3, "logging_steps": 1}
OF_THE_LOADER = {"loader", "epochs", "epoch", "steps"}
FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "loader": lambda _, own: iter(own),
    "epochs": lambda _, own: own.epochs(9),
    "epoch": lambda _, own: by_epochs(own),
    "steps": lambda _, own: own.steps(99),
    "train dataloader": lambda trainer, _: iter(trainer.get_train_dataloader()),
    "what the callbacks get": lambda trainer, _: iter(trainer.callback_handler.train_dataloader),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_loop_in_a_callback_is_rejected_and_takes_nothing(tmp_path: Path, form: str) -> None:
    """Before, within and after an epoch, and within an accumulation; the training continues as if it had not been."""
    expected = trained(tmp_path / "a", **MANY).seen
    own = loader()

    def look(_: str) -> None:
        with pytest.raises(
            LoopError, match=r"transformers\.prepare\(\) delivers .*\n.*use `train_dataloader\.for_evaluation\(\)`"
        ):
            next(FORMS[form](trainer, own))

    calls = Calls(look)
    trainer = prepare(trainer_in(tmp_path / "b", callbacks=[calls], **MANY), own)
    trainer.train()
    assert calls.called == set(HOOKS)
    assert trainer.seen == [batch["x"][:, 0].tolist() for epoch in loader().epochs(3) for batch in epoch]
    if form not in OF_THE_LOADER:
        trainer = prepare(trainer_in(tmp_path / "c", callbacks=[calls], **MANY))
        trainer.train()
        assert trainer.seen == expected


def test_loops_started_before_the_run(tmp_path: Path) -> None:
    """Loops that were started before the run are rejected in it."""
    own = loader()
    open_before = own.epochs(9)
    next(open_before)
    trainer = prepare(trainer_in(tmp_path), own)
    held = trainer.get_train_dataloader()
    looks = [iter(held) for _ in range(2)]
    first = next(looks[0])["x"].tolist()
    seen: list[str] = []

    def look(hook: str) -> None:
        for one in (*looks, open_before):
            with pytest.raises((LoopError, StopIteration)):
                next(one)
        with pytest.raises(LoopError):
            iter(held)
        seen.append(hook)

    trainer.add_callback(Calls(look))
    trainer.train()
    assert seen
    assert trainer.seen[0] == [one for (one,) in first]
    other = prepare(trainer_in(tmp_path), loader())
    other.train()
    assert trainer.seen == other.seen


@pytest.mark.parametrize("options", [{}, {"max_steps": -1, "num_train_epochs": 2}, {"max_steps": 8}])
def test_after_a_run_loops_continue_where_it_ended(tmp_path: Path, options: dict[str, Any]) -> None:
    """Also after one that was stopped within an epoch, and one that was resumed."""
    plain = loader()
    whole = [batch["x"][:, 0].tolist() for epoch in plain.epochs(4) for batch in epoch]
    own = loader()
    trainer = prepare(trainer_in(tmp_path, **options), own)
    trainer.train()
    done = len(trainer.seen)
    assert trainer.seen == whole[:done]
    assert (own.driver, own.global_step, own.ack_mode) == ("", done, "auto")
    assert next(iter(trainer.get_train_dataloader()))["x"][:, 0].tolist() == whole[done]
    assert [batch["x"][:, 0].tolist() for epoch in own.epochs(4) for batch in epoch] == whole[done + 1 :]
    resumed = loader()
    trainer = prepare(trainer_in(tmp_path, **options), resumed)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert [batch["x"][:, 0].tolist() for batch in resumed] == whole[done : (done // 6 + 1) * 6]


def test_loops_continue_after_a_failed_run(tmp_path: Path) -> None:
    """After a run that failed, loops continue with the batch that failed."""

    class Fails(Noting):
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            if len(getattr(self, "seen", [])) == 5:
                raise KeyError(0)
            return super().training_step(model, inputs, *rest)

    whole = [batch["x"][:, 0].tolist() for epoch in loader().epochs(2) for batch in epoch]
    for accumulated, trained_on in ((1, 5), (2, 4)):
        own = loader()
        args = TrainingArguments(str(tmp_path), **{**QUIET, "gradient_accumulation_steps": accumulated})
        trainer = prepare(Fails(Net(), args, train_dataset=Numbers()), own)
        with pytest.raises(KeyError):
            trainer.train()
        assert (own.driver, own.global_step) == ("", trained_on)
        assert [batch["x"][:, 0].tolist() for epoch in own.epochs(2) for batch in epoch] == whole[trained_on:]


def test_a_loader_of_two_trainings_is_rejected(tmp_path: Path) -> None:
    own = loader()
    first = prepare(trainer_in(tmp_path), own)
    with pytest.raises(ConfigurationError, match=r"two training runs\.\n  first:  .*prepare\(\)\n  second: .*\n.*Wrap"):
        prepare(trainer_in(tmp_path), own)
    first.train()
    own.seek(epoch=0)
    second = prepare(trainer_in(tmp_path), own)
    with pytest.raises(ConfigurationError, match="two training runs"):
        first.train()
    second.train()
    assert second.seen == first.seen


@pytest.mark.parametrize("given", [True, False])
def test_an_evaluation_on_the_train_data_changes_nothing(tmp_path: Path, given: bool) -> None:
    """In a callback, at each step and at each epoch's end; each pass is that of epoch 0. Resumed at each step, too."""
    epoch: list[list[float]] = []

    def look(hook: str) -> None:
        if hook in {"on_step_end", "on_substep_end", "on_epoch_end"}:
            held = trainer.callback_handler.train_dataloader
            passes = [held.for_evaluation(), held.loader.for_evaluation(), *([own.for_evaluation()] if own else [])]
            for one in passes:
                assert [batch["x"][:, 0].tolist() for batch in one] == epoch
            torch.optim.swa_utils.update_bn((batch["x"] for batch in passes[0]), averaged)

    def run(folder: Path, callbacks: Any) -> Any:
        torch.manual_seed(0)
        return prepare(trainer_in(folder, callbacks=callbacks, **MANY, save_steps=1), own)

    own = loader() if given else None
    averaged = nn.Sequential(nn.BatchNorm1d(1))
    trainer = run(tmp_path / "a", [])
    trainer.train()
    whole = trainer
    epoch = whole.seen[:6]
    own = loader() if given else None
    trainer = run(tmp_path / "b", [Calls(look)])
    trainer.train()
    assert trainer.seen == whole.seen
    weights = [one.tolist() for one in whole.model.parameters()]
    assert [one.tolist() for one in trainer.model.parameters()] == weights
    for step in range(1, 9):
        own = loader() if given else None
        trainer = run(tmp_path / str(step), [Calls(look)])
        trainer.train(resume_from_checkpoint=str(tmp_path / f"b/checkpoint-{step}"))
        assert trainer.seen == whole.seen[2 * step :]
        assert [one.tolist() for one in trainer.model.parameters()] == weights


# ---------------------------------------------------------------------- sources that cannot go back


def once() -> resumable.Loader[Any]:
    """A generator object, which can be read once."""
    return resumable.wrap(({"x": torch.tensor([[float(number)]])} for number in range(12)), identity="numbers")


class Once:
    """An iterator of known length, which can be read once."""

    def __init__(self) -> None:
        self.numbers = iter(range(12))

    def __iter__(self) -> Once:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([[float(next(self.numbers))]])}

    def __len__(self) -> int:
        return 12


class Ends(transformers.TrainerCallback):  # type: ignore[misc]
    """Ends the epoch, or the training, within the accumulation of the fourth step."""

    def __init__(self, what: str) -> None:
        self.what = what

    def on_substep_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        setattr(control, self.what, state.global_step == 3)


def test_a_source_that_cannot_go_back_is_trained_on_and_left(tmp_path: Path) -> None:
    """A batch that was fetched for a step that did not come is lost if the epoch ends there, and else an error."""
    own = once()
    trainer = prepare(trainer_in(tmp_path, max_steps=6), own)
    trainer.train()
    assert trainer.seen == [[number] for number in range(6)]
    assert [batch["x"].item() for batch in own] == [*range(6, 12)]
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "max_steps": -1, "num_train_epochs": 1}
    own = resumable.wrap(Once(), identity="once")
    trainer = prepare(trainer_in(tmp_path, callbacks=[Ends("should_epoch_stop")], **options), own)
    trainer.train()
    assert (trainer.seen, own.epoch, own.global_step) == ([[number] for number in range(7)], 1, 6)
    own = once()
    stops = Ends("should_training_stop")
    trainer = prepare(trainer_in(tmp_path, max_steps=5, gradient_accumulation_steps=2, callbacks=[stops]), own)
    trainer.train()
    assert trainer.seen == [[number] for number in range(7)]
    with pytest.raises(UnsupportedError, match=r"its source cannot go back to .*step=6"):
        next(iter(own))


# ---------------------------------------------------------------------- what a run begins with


def test_a_loader_that_stands_elsewhere_is_refused(tmp_path: Path) -> None:
    own = loader()
    own.seek(epoch=1, step=2)
    with pytest.raises(ConfigurationError, match="the Loader is at .*, but the Trainer starts at epoch 0"):
        prepare(trainer_in(tmp_path), own).train()


def test_epochs_of_other_lengths_are_refused(tmp_path: Path) -> None:
    data = [Numbers()[index] for index in range(7)]
    own = resumable.wrap(data, batch_size=2, tail="carry", seed=0, collate=torch.utils.data.default_collate)
    with pytest.raises(UnsupportedError, match="epoch 0 has 4 batches and epoch 1 has 3"):
        prepare(trainer_in(tmp_path), own).train()


# ---------------------------------------------------------------------- checkpoints


def test_the_last_whole_checkpoint(tmp_path: Path) -> None:
    assert last_whole_checkpoint(tmp_path / "nothing") is None
    trained(tmp_path)
    assert last_whole_checkpoint(tmp_path) == str(tmp_path / "checkpoint-6")
    state = tmp_path / "checkpoint-6" / "trainer_state.json"
    whole = state.read_text(encoding="utf-8")
    for cut in (0, len(whole) // 2, len(whole) - 3):
        state.write_text(whole[:cut], encoding="utf-8")
        assert last_whole_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
        with pytest.raises(CheckpointError, match="last_whole_checkpoint"):
            prepare(trainer_in(tmp_path)).train(resume_from_checkpoint=tmp_path / "checkpoint-6")
    for folder in tmp_path.glob("checkpoint-*"):
        (folder / "trainer_state.json").unlink()
    with pytest.raises(CheckpointNotFoundError, match="none can be resumed"):
        prepare(trainer_in(tmp_path)).train(resume_from_checkpoint=True)
    assert last_whole_checkpoint(tmp_path) is None  # as after a kill in the first save: a restarted job trains


@pytest.mark.parametrize("every", [1, 2, 5, 100])
def test_the_train_loss_of_a_resumed_run_is_that_of_the_trainer_alone(tmp_path: Path, every: int) -> None:
    """It is the mean over the steps of this launch. At first, the sums of earlier steps were added to it."""
    options = {"save_steps": 1, "max_steps": 9, "logging_steps": every, "train_sampling_strategy": "sequential"}
    start = Net().state_dict()

    def train(kind: str, place: int | None = None) -> tuple[float, float]:
        trainer = trainer_in(tmp_path / kind, **options)
        trainer.model.load_state_dict(start)
        run = prepare(trainer) if kind == "prepared" else trainer
        checkpoint = None if place is None else str(tmp_path / kind / f"checkpoint-{place}")
        loss = run.train(resume_from_checkpoint=checkpoint).training_loss
        return loss, trainer.state.log_history[-1]["train_loss"]

    assert train("prepared") == pytest.approx(train("alone"))
    for place in (8, 7, 5, 6, 4, 3, 2, 1):  # 7 and 6 are from a resumed run
        assert train("prepared", place) == pytest.approx(train("alone", place)), place
    train("prepared")
    assert train("prepared", 9) == (0, 0)  # nothing was left to train


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="the checkpoint .*checkpoint-4 does not exist"):
        prepare(trainer_in(tmp_path)).train(resume_from_checkpoint=tmp_path / "checkpoint-4")


def test_without_any_checkpoint_the_trainer_itself_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No valid checkpoint found"):
        prepare(trainer_in(tmp_path)).train(resume_from_checkpoint=True)


def test_checkpoint_of_an_unprepared_trainer(tmp_path: Path) -> None:
    """A checkpoint of a Trainer that was not prepared is rejected."""
    trainer_in(tmp_path).train()
    with pytest.raises(CheckpointError, match=r"saved without prepare\(\)"):
        prepare(trainer_in(tmp_path)).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    with pytest.raises(ConfigurationError, match=r"none can be resumed: they were saved without prepare\(\)"):
        last_whole_checkpoint(tmp_path)
    (tmp_path / "checkpoint-6/trainer_state.json").unlink()  # killed in a save
    with pytest.raises(ConfigurationError, match="none can be resumed"):
        last_whole_checkpoint(tmp_path)
    (tmp_path / "another").mkdir()
    prepare(trainer_in(tmp_path, max_steps=8, save_steps=8)).train()
    assert last_whole_checkpoint(tmp_path) == str(tmp_path / "checkpoint-8")


def test_other_data_and_another_seed_are_refused(tmp_path: Path) -> None:
    trained(tmp_path)
    for other in ({"data": Numbers(14)}, {"data_seed": 9}, {"per_device_train_batch_size": 3}):
        with pytest.raises(StateMismatchError) as caught:
            prepare(trainer_in(tmp_path, **other)).train(resume_from_checkpoint=True)
        assert "in steps of one batch size" in caught.value.__notes__[0]


def test_a_damaged_or_newer_part_is_refused(tmp_path: Path) -> None:
    trained(tmp_path)
    path = tmp_path / "checkpoint-6/trainer_state.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    saved = values["stateful_callbacks"]["ResumableState"]["attributes"]["saved"]
    changes: list[dict[str, Any]] = [{"format": 99}, {"states": 3}, {"losses": None}, {"states": ["UEsDBAAA"]}]
    for change in [*changes, {"format": None}, {"counts": [1, 2]}]:
        values["stateful_callbacks"]["ResumableState"]["attributes"]["saved"] = {**saved, **change}
        path.write_text(json.dumps(values), encoding="utf-8")
        with pytest.raises(StateFormatError):
            prepare(trainer_in(tmp_path)).train(resume_from_checkpoint=True)


def test_accumulation_that_changes_within_an_epoch_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, gradient_accumulation_steps=2, max_steps=4, save_steps=1)
    shutil.rmtree(tmp_path / "checkpoint-4")
    shutil.rmtree(tmp_path / "checkpoint-3")
    with pytest.raises(
        StateMismatchError, match="gradient_accumulation_steps differs .* after 4 micro-batches of epoch 0"
    ):
        prepare(trainer_in(tmp_path, gradient_accumulation_steps=3)).train(resume_from_checkpoint=True)


# ---------------------------------------------------------------------- second loops


class Loops(transformers.TrainerCallback):  # type: ignore[misc]
    """Tries to loop over the training data in each hook, and evaluates on it."""

    own: Any = None
    trainer: Any = None

    def __init__(self) -> None:
        self.tried = 0
        self.passes: list[Any] = []

    def attempt(self, *_: Any, train_dataloader: Any = None, **__: Any) -> None:
        asked = self.trainer.get_train_dataloader()
        loops = [train_dataloader, asked, *([self.own, self.own.steps(99)] if self.own is not None else [])]
        for loop in loops:
            with pytest.raises(LoopError, match=r"loader\.for_evaluation\(\)"):
                next(iter(loop))
            self.tried += 1
        source = train_dataloader.loader.for_evaluation()
        self.passes.append([batch["x"][:, 0].tolist() for batch in source])

    on_train_begin = on_epoch_begin = on_step_begin = on_step_end = on_epoch_end = on_train_end = attempt


@pytest.mark.parametrize("given", [True, False])
def test_second_loops_in_callbacks_raise_and_take_no_batch(tmp_path: Path, given: bool) -> None:
    options: dict[str, Any] = {"max_steps": 11, "gradient_accumulation_steps": 2}
    torch.manual_seed(5)
    whole = prepare(trainer_in(tmp_path / "a", **options), loader() if given else None)
    whole.train()
    loops = Loops()
    torch.manual_seed(5)
    loops.trainer = trainer_in(tmp_path / "b", callbacks=[loops], **options)
    loops.own = loader() if given else None
    run = prepare(loops.trainer, loops.own)
    for checkpoint, done in ((None, 0), ("checkpoint-4", 4)):
        loops.tried, loops.passes, run.seen = 0, [], []
        run.train(resume_from_checkpoint=checkpoint and str(tmp_path / "b" / checkpoint))
        assert run.seen == whole.seen[len(whole.seen) - len(run.seen) :]
        assert done or run.seen == whole.seen
        assert loops.tried >= 2 * (11 - done)
        assert loops.passes == [loops.passes[0]] * len(loops.passes)
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(tensor, run.model.state_dict()[name])


# ---------------------------------------------------------------------- runs in one process


def test_each_run_begins_at_the_beginning(tmp_path: Path) -> None:
    for own in (None, loader()):
        trainer = prepare(trainer_in(tmp_path), own)
        trainer.train()
        trainer.train()
        assert trainer.seen[:6] == trainer.seen[6:]
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        assert trainer.seen[12:] == trainer.seen[4:6]


def test_a_look_at_a_batch_changes_nothing(tmp_path: Path) -> None:
    expected = trained(tmp_path / "a").seen
    for own in (None, loader()):
        trainer = prepare(trainer_in(tmp_path / "b"), own)
        first = next(iter(trainer.get_train_dataloader()))
        trainer.train()
        assert trainer.seen[0] == first["x"][:, 0].tolist()
        assert own is not None or trainer.seen == expected


def test_an_epoch_that_a_callback_ends_is_over(tmp_path: Path) -> None:
    class Ends(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
            control.should_epoch_stop = state.global_step in {3, 5}

    def run(folder: Path, **options: Any) -> Any:
        options |= {"max_steps": -1, "num_train_epochs": 4, "save_steps": 1}
        return prepare(trainer_in(folder, callbacks=[Ends()], **options))

    whole = run(tmp_path)
    whole.train()
    for step in range(1, len(whole.seen)):
        resumed = run(tmp_path / str(step))
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert getattr(resumed, "seen", []) == whole.seen[step:]


def test_a_count_that_begins_again_is_named(tmp_path: Path) -> None:
    def run(**options: Any) -> Any:
        options |= {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
        callbacks = [EarlyStoppingCallback(9)]
        options |= {"metric_for_best_model": "loss", "label_names": ["x"], "eval_data": Numbers(4)}
        return prepare(trainer_in(tmp_path, callbacks=callbacks, **options))

    run().train()
    with pytest.warns(PromiseWarning, match="does not restore the state of EarlyStoppingCallback"):
        run(max_steps=8).train(resume_from_checkpoint=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(max_steps=10, restore_callback_states_from_checkpoint=True).train(resume_from_checkpoint=True)


def test_auto_find_batch_size_makes_a_loader_of_each_size(tmp_path: Path) -> None:
    trainer = prepare(trainer_in(tmp_path, auto_find_batch_size=True, per_device_train_batch_size=4))
    step = trainer.training_step

    def full(model: Any, inputs: Any, *rest: Any) -> Any:
        if len(inputs["x"]) > 3:
            raise RuntimeError("CUDA out of memory.")
        return step(model, inputs, *rest)

    trainer.training_step = full
    trainer.train()
    assert {len(batch) for batch in trainer.seen} <= {1, 2, 3}
    assert len(trainer.seen) == 6


# ---------------------------------------------------------------------- what is not documented


def test_the_trainer_does_what_the_session_relies_on() -> None:
    """Lines of the Trainer's own source; where one is missing, the session has to be read again."""
    expected = {
        "_run_epoch": ["skip_first_batches(train_dataloader, steps_trained_in_current_epoch)", ".set_epoch(epoch)"],
        "_inner_training_loop": ["self.get_train_dataloader()", "self._init_training_state(", "on_train_begin("],
        "_save_checkpoint": ["self._save_rng_state(output_dir)", "cb_state = cb.state()", "save_to_json("],
        "_maybe_log_save_evaluate": ["self._globalstep_last_logged", "self._save_checkpoint(model, trial)"],
        "train": ["get_last_checkpoint(args.output_dir)", "self._inner_training_loop"],
        "_get_dataloader": ["self.accelerator.prepare(DataLoader(dataset"],
    }
    for name, parts in expected.items():
        source = inspect.getsource(getattr(Trainer, name))
        for part in parts:
            assert part in source, name
    save = inspect.getsource(Trainer._save_checkpoint)
    assert save.index("save_model(") < save.index("_save_rng_state(") < save.index("save_to_json(")
    assert save.index("save_to_json(") < save.index("rotate_checkpoints(")


def test_trl_does_what_the_session_relies_on() -> None:
    """It counts for the log in two attributes, of which its checkpoints have nothing."""
    from trl import SFTTrainer  # noqa: PLC0415  # likewise

    made, logs, loss = (inspect.getsource(getattr(SFTTrainer, name)) for name in ("__init__", "log", "compute_loss"))
    assert 'self._metrics = {"train": defaultdict(list)' in made
    assert "self._total_train_tokens = 0" in made
    assert "self._metrics[mode].clear()" in logs
    assert "self._total_train_tokens +=" in loss
    assert "_metrics" not in inspect.getsource(SFTTrainer._save_checkpoint)


def test_a_newer_trainer_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(transformers.trainer, "skip_first_batches")
    message = "this version of transformers is not supported: its module has no skip_first_batches"
    with pytest.raises(UnsupportedError, match=message):
        prepare(trainer_in(tmp_path))
