"""Loops of a user in hooks: over the train loader they raise and take no batch; `for_evaluation()` is what to use."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities import CombinedLoader
from sources import MAKERS, Samples, batch_of, indexed, replay, snapshot, validation
from torch.optim.swa_utils import update_bn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from trainer_runs import Model, Outcome, PlannedError, SaveOnce, check_rest, fit, ids, make_trainer

import resumable
from resumable import Loader
from resumable.errors import LoopError, UnsupportedError
from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

HOOKS = (
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_validation_epoch_end",
)
MODES: tuple[Any, ...] = ("max_size_cycle", "min_size", "max_size")


class Does(Callback):
    """Calls a function in a hook of the Trainer."""

    def __init__(self, hook: str, do: Callable[[Any, Any], None]) -> None:
        self.count = 0
        self._do = do
        setattr(self, hook, self._call)

    def _call(self, trainer: Any, module: Any, *_: Any, **__: Any) -> None:
        if not trainer.sanity_checking:
            self.count += 1
            self._do(trainer, module)


def same(one: Outcome, other: Outcome) -> None:
    assert one.events == other.events
    assert one.weights.keys() == other.weights.keys()
    assert all(torch.equal(tensor, other.weights[name]) for name, tensor in one.weights.items())
    assert all(torch.equal(*pair) for pair in zip(one.momenta, other.momenta, strict=True))
    assert one.draw == other.draw


# ---------------------------------------------------------------------- loops that raise


def plain() -> DataLoader[Any]:
    return DataLoader(Samples(10, 0), batch_size=2, shuffle=True)


def three() -> dict[str, Any]:
    """Loaders of different lengths, one of which is unknown."""
    return {"a": indexed(5), "b": [replay(3, 1000), snapshot(4, 2000)]}


def combined(mode: Any) -> CombinedLoader:
    return CombinedLoader(three(), mode)


GIVEN: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    **{kind: (make, {}) for kind, make in MAKERS.items()},
    "wrap=True": (plain, {"resume": True}),
    "accumulating": (indexed, {"accumulate_grad_batches": 2}),
    "accumulating without length": (replay, {"accumulate_grad_batches": 2}),
    "limited": (replay, {"limit_train_batches": 3}),
    "dict": (three, {}),
    # At the end of an epoch of unknown length, Lightning does not validate in the mode min_size.
    **{mode: (partial(combined, mode), {"val_check_interval": 2}) for mode in MODES},
    "accumulating collection": (partial(combined, "max_size_cycle"), {"accumulate_grad_batches": 2}),
    "sized collection": (lambda: CombinedLoader({"a": indexed(5), "b": indexed(2, 100)}, "max_size_cycle"), {}),
}


def second_loops(trainer: Any, given: Any) -> Iterator[Iterable[Any]]:
    """All that a hook could loop over to get training batches."""
    held = trainer.train_dataloader
    collections = [held, given]
    if isinstance(given, CombinedLoader):
        yield given
        collections = [held, given.iterables]
    for one in collections:
        leaves = tree_leaves(one)
        if isinstance(leaves[0], DataLoader):
            continue  # a user's plain one: who loops over that reads no batch of the Trainer's
        yield from leaves
        for mode in (*MODES, "sequential"):
            yield CombinedLoader(one, mode)
    for leaf in tree_leaves(given):
        if isinstance(leaf, Loader):
            yield from (leaf.steps(1_000), leaf.epochs(1_000))


def attempt(trainer: Any, given: Any) -> None:
    loops = list(second_loops(trainer, given))
    assert len(loops) >= 5
    for loop in loops:
        taken = []
        with pytest.raises(LoopError, match=r"(?s)Lightning's Trainer delivers.*loader\.for_evaluation\(\)"):
            for batch in loop:
                taken.append(batch)  # noqa: PERF402  # a list() would hide what was taken before the error
        assert not taken


def run(kind: str, hook: str | None = None) -> Outcome:
    make, options = GIVEN[kind]
    options = dict(options)
    resume = ResumableCallback(wrap={"seed": 3}) if options.pop("resume", False) else None
    given = make()
    does = Does(hook or "on_fit_start", lambda trainer, _: None if hook is None else attempt(trainer, given))
    outcome = fit(Model(), given, validation(), resume=resume, callbacks=[does], max_epochs=3, **options)
    assert does.count
    return outcome


@pytest.mark.parametrize("kind", GIVEN)
def test_a_second_loop_raises_in_each_hook_and_takes_no_batch(kind: str) -> None:
    whole = run(kind)
    for hook in HOOKS:
        same(whole, run(kind, hook))


def test_loop_open_before_the_training() -> None:
    """A loop that was open before the training raises at its next batch."""

    def run_after_a_batch(*, tries: bool) -> Outcome:
        loader = indexed()
        before = iter(loader)
        next(before)

        def attempt_again(*_: Any) -> None:
            with pytest.raises(LoopError, match=r"a newer loop.*(?s:.*)loader\.for_evaluation\(\)"):
                next(before)

        return fit(Model(), loader, callbacks=[Does("on_train_batch_end", attempt_again)] if tries else [])

    whole = run_after_a_batch(tries=False)
    assert sum(event[0] == "train" for event in whole.events) == 14
    same(whole, run_after_a_batch(tries=True))


# ---------------------------------------------------------------------- evaluation on the training data


def right(module: Any, batches: Iterable[Any]) -> list[float]:
    """The output of a copy of the model for each batch; it uses no random numbers."""
    net = copy.deepcopy(module.net).eval()
    with torch.no_grad():
        return [net(batch.reshape(-1, 1) * 0.01).mean().item() for batch in batches]


EVALUATING = {kind: MAKERS[kind] for kind in ("indexed", "replay")}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("kind", EVALUATING)
def test_the_accuracy_on_the_training_data_changes_nothing(kind: str, hook: str) -> None:
    for window in (1, 2):
        options: dict[str, Any] = {"accumulate_grad_batches": window}
        plain_run = fit(Model(), EVALUATING[kind](), validation(), **options)
        loader, passes = EVALUATING[kind](), list[Any]()

        def evaluate(_: Any, module: Any, loader: Any = loader, passes: Any = passes) -> None:
            passes.append(ids(list(loader.for_evaluation())))
            assert len(right(module, loader.for_evaluation())) == 5

        same(plain_run, fit(Model(), loader, validation(), callbacks=[Does(hook, evaluate)], **options))
        assert len(passes) >= 3
        assert passes == [passes[0]] * len(passes), "each pass is one over epoch 0"


def averaged(loader: Loader, hook: str) -> Does:
    """Computes the statistics of the normalisation anew: the weights of the next steps depend on it, by dropout too."""
    return Does(hook, lambda _, module: update_bn((one.reshape(-1, 1) for one in loader.for_evaluation()), module.net))


def after(trained: int) -> Callable[[Any, Any], bool]:
    return lambda _, module: module.trained == trained


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_train_epoch_end"])
@pytest.mark.parametrize("kind", EVALUATING)
def test_update_bn_in_a_hook_and_resumed(kind: str, hook: str, tmp_path: Path) -> None:
    make = EVALUATING[kind]
    plain_run = fit(Model(), make())

    def whole_run(*more: Any) -> Outcome:
        loader = make()
        return fit(Model(), loader, callbacks=[averaged(loader, hook), *more])

    whole = whole_run()
    assert not all(torch.equal(value, plain_run.weights[name]) for name, value in whole.weights.items())
    seen = [event[:5] for event in whole.events if event[0] == "train"]
    assert seen == [event[:5] for event in plain_run.events if event[0] == "train"]
    for save_hook, trained in (("on_train_batch_end", 7), ("on_train_epoch_end", 5), ("on_train_epoch_end", 10)):
        path = tmp_path / f"{save_hook}-{trained}.ckpt"
        saves = SaveOnce(path, save_hook, after(trained))
        same(whole, whole_run(saves))
        loader = make()
        rest = fit(Model(), loader, callbacks=[averaged(loader, hook)], checkpoint=path)
        check_rest(whole, rest, trained=trained, begins="epoch start" if save_hook == "on_train_epoch_end" else "train")


# ---------------------------------------------------------------------- after a fit


def rest_of(loader: Loader, epochs: int = 3) -> list[Any]:
    """The rest of the epochs, by plain loops."""
    rest = []
    with torch.random.fork_rng():
        while loader.epoch < epochs:
            rest += [ids(batch) for batch in loader]
    return rest


class Interrupts(Callback):
    """Is interrupted by Ctrl+C in a hook."""

    def __init__(self, hook: str, trained: int) -> None:
        setattr(self, hook, self._interrupt)
        self.trained = trained

    def _interrupt(self, _: Any, module: Any, *__: Any, **___: Any) -> None:
        if module.trained == self.trained:
            raise KeyboardInterrupt


ENDS: dict[str, tuple[int, dict[str, Any], Any]] = {
    "an epoch's end": (5, {"max_epochs": 1}, None),
    "max_steps": (7, {"max_steps": 7}, None),
    "an exception in a step": (7, {}, PlannedError),
    "Ctrl+C before a step": (7, {"callbacks": [("on_train_batch_start", 7)]}, SystemExit),
    "Ctrl+C after a step": (7, {"callbacks": [("on_train_batch_end", 7)]}, SystemExit),
    "Ctrl+C in the last step": (5, {"callbacks": [("on_train_batch_end", 5)]}, SystemExit),
    "Ctrl+C at an epoch's end": (10, {"callbacks": [("on_train_epoch_end", 10)]}, SystemExit),
    "Ctrl+C as an epoch starts": (10, {"callbacks": [("on_train_epoch_start", 10)]}, SystemExit),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", MAKERS)
def test_loops_continue_after_a_fit(kind: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fit, loops continue after the last batch in the weights."""
    monkeypatch.setattr("signal.signal", lambda *_: None)  # after Ctrl+C, the Trainer ignores any further one
    whole = rest_of(MAKERS[kind]())
    assert len(whole) == 15
    trained, options, error = ENDS[end]
    options = {**options, "callbacks": [Interrupts(*one) for one in options.get("callbacks", ())]}
    for then in ("loops", "fit"):
        loader, model = MAKERS[kind](), Model(fail_at=trained if error is PlannedError else None)
        if error is None:
            fit(model, loader, **options)
        else:
            with pytest.raises(error):
                fit(model, loader, **options)
        assert model.trained == trained
        assert loader.driver == ""
        assert loader.global_step == loader.state_dict()["global_step"] == trained
        if then == "loops":
            assert rest_of(loader) == whole[trained:]
        else:
            again = fit(Model(), loader, max_steps=15 - trained, max_epochs=-1)
            assert [event[4] for event in again.events if event[0] == "train"] == whole[trained:]


# ---------------------------------------------------------------------- sources that are read once


def once(batches: int = 6) -> Loader:
    return resumable.wrap((batch_of(0, number, 0) for number in range(batches)), identity="once", seed=0)


@pytest.mark.parametrize("end", ["max_steps", "limit", "an exception in a step", "Ctrl+C before a step"])
def test_a_generator_object_loses_no_batch_without_a_word(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer fetches one batch ahead, which nobody trains on."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    loader, model = once(), Model(fail_at=3 if end == "an exception in a step" else None)
    if end == "max_steps":
        fit(model, loader, max_steps=3)
    elif end == "limit":
        fit(model, loader, limit_train_batches=3, max_epochs=1)
    else:
        interrupts = [Interrupts("on_train_batch_start", 3)] if end == "Ctrl+C before a step" else []
        with pytest.raises((PlannedError, SystemExit)):
            fit(model, loader, callbacks=interrupts)
    assert model.trained == 3
    assert loader.driver == ""
    if end == "limit":
        return  # the epoch is over, and its rest with it
    assert loader.global_step == loader.state_dict()["global_step"] == 3
    for loop in (lambda: loader, lambda: loader.steps(9), lambda: next(loader.epochs(9))):
        with pytest.raises(UnsupportedError, match="would be lost silently"):
            next(iter(loop()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UnsupportedError, match="would be lost silently"):
            make_trainer([ResumableCallback()], max_epochs=1).fit(Model(), loader)
    assert loader.driver == ""


def test_a_generator_object_that_was_read_to_its_end() -> None:
    loader, model = once(), Model()
    fit(model, loader, max_epochs=1)
    assert model.trained == 6
    assert (loader.driver, loader.global_step, loader.epoch) == ("", 6, 1)
