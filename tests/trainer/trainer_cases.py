"""Tests that need transformers in their own process: `test_trainer_alone.py` runs them where it is installed."""

from __future__ import annotations

import inspect
import json
import shutil
import warnings
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

if TYPE_CHECKING:
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
        ({"ignore_data_skip": True}, "the Loader goes to its place"),
        ({"save_only_model": True}, "no optimizer and no generators"),
        ({"enable_jit_checkpoint": True}, "saves within an optimizer step"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches=True"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches=True"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        prepare(trainer_in(tmp_path, **options))


def test_what_is_given_is_checked(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    with pytest.raises(UnsupportedError, match="in place of a Trainer"):
        prepare(loader(), trainer)
    with pytest.raises(UnsupportedError, match="which is no Loader"):
        prepare(trainer, DataLoader(Numbers()))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="evaluation=True"):
        prepare(trainer, loader(evaluation=True))
    with pytest.raises(ConfigurationError, match="options seed, which are those of wrap"):
        prepare(trainer, loader(), seed=3)
    with pytest.raises(UnsupportedError, match="auto_find_batch_size=True"):
        prepare(trainer_in(tmp_path, auto_find_batch_size=True), loader())
    assert prepare(trainer) is trainer
    with pytest.raises(ConfigurationError, match="prepared before"):
        prepare(trainer)


def test_trainers_of_trl_that_were_not_tried_are_refused(tmp_path: Path) -> None:
    """Those that keep samples over steps, such as GRPO's, among them; a user's own class of a tried one is taken."""
    from trl import DPOTrainer, GRPOTrainer, SFTTrainer  # noqa: PLC0415  # it takes seconds, for this test alone

    class Own(SFTTrainer):  # type: ignore[misc]
        pass

    kinds: list[Any] = [DPOTrainer, GRPOTrainer, type("Mine", (GRPOTrainer,), {})]
    for kind in kinds:
        with pytest.raises(
            UnsupportedError, match=r"a (DPO|GRPO)Trainer of TRL, for which exact resumes have not been"
        ):
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


def test_a_loader_of_a_trainers_own_method_is_taken_like_a_given_one(tmp_path: Path) -> None:
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
    with pytest.raises(ConfigurationError, match="the options name, which are those of wrap"):
        prepare(of(tmp_path / "c"), name="text").train()
    with pytest.raises(UnsupportedError, match="auto_find_batch_size"):
        prepare(of(tmp_path / "d", auto_find_batch_size=True)).train()


def test_a_loop_over_the_loader_itself_is_refused(tmp_path: Path) -> None:
    own = loader()
    prepare(trainer_in(tmp_path), own).train()
    with pytest.raises(UnsupportedError, match=r"transformers\.prepare"):
        next(iter(own))


def test_a_loader_that_stands_elsewhere_is_refused(tmp_path: Path) -> None:
    own = loader()
    own.seek(epoch=1, step=2)
    with pytest.raises(ConfigurationError, match="the Trainer begins at epoch 0"):
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
    with pytest.raises(CheckpointNotFoundError, match="none of them is whole"):
        prepare(trainer_in(tmp_path)).train(resume_from_checkpoint=True)


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="there is no checkpoint"):
        prepare(trainer_in(tmp_path)).train(resume_from_checkpoint=tmp_path / "checkpoint-4")


def test_without_any_checkpoint_the_trainer_itself_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No valid checkpoint found"):
        prepare(trainer_in(tmp_path)).train(resume_from_checkpoint=True)


def test_a_checkpoint_of_a_trainer_that_was_not_prepared_is_refused(tmp_path: Path) -> None:
    trainer_in(tmp_path).train()
    with pytest.raises(CheckpointError, match="not prepared"):
        prepare(trainer_in(tmp_path)).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


def test_other_data_and_another_seed_are_refused(tmp_path: Path) -> None:
    trained(tmp_path)
    for other in ({"data": Numbers(14)}, {"data_seed": 9}, {"per_device_train_batch_size": 3}):
        with pytest.raises(StateMismatchError):
            prepare(trainer_in(tmp_path, **other)).train(resume_from_checkpoint=True)


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
    with pytest.raises(StateMismatchError, match="after 4 micro-batches of epoch 0"):
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
    with pytest.warns(PromiseWarning, match="EarlyStoppingCallback begins again"):
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
    with pytest.raises(UnsupportedError, match=r"transformers\.trainer\.skip_first_batches"):
        prepare(trainer_in(tmp_path))
