"""The record of each failpoint: the fields of its event, as listed in `ledger.py`."""

from __future__ import annotations

import gc
import linecache
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from resumable import rng
from resumable._inspect.states import find_states
from resumable._order.world import World
from resumable.chaos.digests import digest_samples, digest_weights, is_lost, parts_of
from resumable.chaos.ledger import series_of
from resumable.chaos.recorder.guard import GUARD
from resumable.chaos.recorder.guard.files import find_line
from resumable.chaos.recorder.saves import is_in_order, name_of, plain, step_in, without_states

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["NOTES", "Updates", "count_trained", "note_point"]


_FOR, _ENUMERATE = re.compile(r"\bfor\b"), re.compile(r"(?<![.\w])enumerate\(")


class Numbers(Protocol):
    """Numbers the loaders of a process."""

    def number_of(self, loader: Any) -> int:
        """Return the number of a loader."""

    def steps(self) -> int | None:
        """Return the global step of the first loader that is trained on."""


def note_point(*_: Any) -> dict[str, Any]:
    """Record only that the failpoint was passed."""
    return {"kind": "point"}


def _note_fetch(numbers: Numbers, _: str, loader: Any) -> dict[str, Any]:
    return {"kind": "fetch", "loader": numbers.number_of(loader)}


def _note_batch(numbers: Numbers, _: str, loader: Any, batch: Any) -> dict[str, Any]:
    return {
        "kind": "batch",
        "loader": numbers.number_of(loader),
        **loader.cursor.as_dict(),
        "acked": loader.cursor == loader.acknowledged,
        "evaluation": loader.evaluation,
        "indices": _indices(loader),
        "digests": digest_samples(batch),
        **(_about_the_loop() if is_in_order() else {}),
    }


def _about_the_loop() -> dict[str, Any]:
    """Return digests of the RNGs, the line of the program's loop, and whether it counts with `enumerate`."""
    file, number = find_line()
    text = linecache.getline(file, number)
    line = f"{Path(file).name}, line {number}" if _FOR.search(text) else ""
    return {"generators": rng.digests(), "line": line, "indexed": _ENUMERATE.search(text) is not None}


def _indices(loader: Any) -> list[Any] | None:
    try:
        cursor = loader.cursor
        indices = loader.sample_indices(epoch=cursor.epoch, step=cursor.step - 1, rank=World.detect().rank)
        return [str(index) for index in indices]
    except Exception:  # noqa: BLE001  # sources without indices, and loaders resized in the middle of an epoch
        return None


def _note_ack(numbers: Numbers, _: str, loader: Any) -> dict[str, Any]:
    return {"kind": "ack", "loader": numbers.number_of(loader), **loader.acknowledged.as_dict()}


def _note_loaded(numbers: Numbers, _: str, loader: Any) -> dict[str, Any]:
    return {"kind": "loaded", "loader": numbers.number_of(loader), **loader.acknowledged.as_dict()}


def _note_state(numbers: Numbers, _: str, loader: Any, state: Any) -> dict[str, Any]:
    stands = loader.acknowledged.as_dict()
    return {"kind": "state", "loader": numbers.number_of(loader), **stands, "says": _said(state)}


def _note_load(numbers: Numbers, _: str, loader: Any, state: Any) -> dict[str, Any]:
    return {"kind": "load", "loader": numbers.number_of(loader), "says": _said(state)}


def _said(state: Any) -> Any:
    """Return the position in a state; None if it is not a state, which the loader rejects."""
    try:
        return {name: int(state["cursor"][name]) for name in ("epoch", "position", "step")}
    except (KeyError, TypeError, ValueError):
        return None


def _root(store: Any) -> str:
    return str(store.root) if "://" in store.root else os.path.realpath(store.root)


def _about(store: Any, step: int | None) -> dict[str, Any]:
    """Return the root of a store, and its name, which is the same in each case."""
    root = _root(store)
    return {"root": root, "store": root if "://" in root else GUARD.name(root), "step": step}


def _note_saved(_: Numbers, __: str, store: Any, step: int, content: Any) -> dict[str, Any]:
    return {"kind": "saving", **_about(store, step), **_in(content), "generators": rng.digests()}


def _note_committed(_: Numbers, __: str, store: Any, step: int) -> dict[str, Any]:
    return {"kind": "saved", **_about(store, step)}


def _note_restored(_: Numbers, __: str, store: Any, step: int | None, ___: Any) -> dict[str, Any]:
    return {"kind": "restored", **_about(store, step)}


def _note_half(_: Numbers, __: str, path: Any) -> dict[str, Any]:
    return {"kind": "half", "name": name_of(path)}


def _note_wrote(numbers: Numbers, _: str, path: Any, content: Any) -> dict[str, Any]:
    name, step = name_of(path), numbers.steps()
    about = {"name": name, "store": series_of(name), "step": step, "generators": rng.digests()}
    if step is None:  # another thread, which saves at any time; the content contains the loop's step
        about |= {"step": step_in(content), "generators": {}}
    return {"kind": "wrote", **about, "aside": step is None, **_in(content, plain)}


def _in(content: Any, opened: Callable[[Any], Any] = without_states) -> dict[str, Any]:
    """Return the compared content of a checkpoint.

    Args:
        content: of the checkpoint.
        opened: returns what is compared of each part.
    """
    return {"places": _places(content), "parts": parts_of(content, opened), "lost": is_lost(content)}


def _note_file(_: Numbers, __: str, path: str) -> dict[str, Any]:
    return {"kind": "file", "path": os.path.realpath(path)}


def _note_trainer_save(_: Numbers, __: str, trainer: Any, part: Any) -> dict[str, Any]:
    return {"kind": "save", "step": trainer.global_step, "places": _places(part)}


def _note_trainers_weights(_: Numbers, __: str, trainer: Any) -> dict[str, Any]:
    return _note_content(trainer.lightning_module.state_dict())


def _note_weights(_: Numbers, __: str, weights: Any) -> dict[str, Any]:
    return _note_content(weights.state_dict() if callable(getattr(weights, "state_dict", None)) else weights)


def _note_content(weights: Any) -> dict[str, Any]:
    return {"kind": "weights", "digest": digest_weights(weights), "lost": is_lost(weights, plain=True)}


def _places(content: Any) -> list[Any]:
    states = {id(state.values): state.values for state in find_states(content)}  # a repeated state counts once
    return [state["cursor"] for state in states.values()]


NOTES: dict[str, Any] = {
    "loader.fetch": _note_fetch,
    "loader.handed": _note_batch,
    "loader.acked": _note_ack,
    "loader.epoch_end": _note_ack,
    "loader.state": _note_state,
    "loader.load": _note_load,
    "loader.loaded": _note_loaded,
    "store.save": _note_saved,
    "store.saved": _note_committed,
    "store.loaded": _note_restored,
    "store.written": _note_file,
    "store.synced": _note_file,
    "store.rename": _note_file,
    "store.renamed": _note_file,
    "torch.save.half": _note_half,
    "torch.save.written": _note_wrote,
    "lightning.save": _note_trainer_save,
    "lightning.end": _note_trainers_weights,
    "chaos.weights": _note_weights,
}


# Other objects of an observed process: RNGs, optimizers and models.
#
# They are not compared themselves. They explain why a checkpoint or the weights differ, and tell whether there is a
# model at all.


def count_trained() -> int | None:
    """Count the parameters that PyTorch trains in this process, in models and optimizers.

    Returns:
        Their number, which is 0 if another process holds them all; None if nothing is trained.
    """
    torch = sys.modules.get("torch")
    optim, nn = getattr(torch, "optim", None), getattr(torch, "nn", None)
    if optim is None or nn is None:
        return None
    found: dict[int, int] = {}
    kinds = (optim.Optimizer, nn.Module)
    for one in [one for one in gc.get_objects() if issubclass(type(one), kinds)]:
        with suppress(Exception):  # parameters that do not exist yet, or are not tensors, are skipped
            found |= {id(weight): weight.numel() for weight in _weights_of(one) if weight.requires_grad}
    return sum(found.values()) if found else None


_CHECKPOINTS = {"saved", "restored", "wrote"}  # events


def _weights_of(one: Any) -> list[Any]:
    if groups := getattr(one, "param_groups", None):
        return [weight for group in groups for weight in group["params"]]
    return [weight for weight in vars(one).get("_parameters", {}).values() if weight is not None]


class Updates:
    """Records each step of the PyTorch optimizers; at the first one after a checkpoint, also weights and states.

    Args:
        write: records an event; called with its kind and fields.
        stands: returns the position of each loader.
    """

    def __init__(self, write: Callable[..., None], stands: Callable[[], list[dict[str, Any]]]) -> None:
        self._write, self._stands = write, stands
        self._hooked = self._begun = False
        self._after: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._known: list[Any] = []  # weak references, in the order of their numbers
        self._seen: set[int] = set()
        self._backward: set[int] = set()  # optimizers whose weights received gradients since the checkpoint
        self._hooks: list[Any] = []

    def come_by(self, kind: str, fields: dict[str, Any]) -> None:
        """Handle an event; after a checkpoint, the next steps of the optimizers are recorded."""
        if kind == "renamed":
            self._rename(fields["series"], fields["store"])
        self._begun |= kind == "batch"
        if not self._hooked and kind in {"batch", *_CHECKPOINTS} and "torch" in sys.modules:
            from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: PLC0415  # already imported

            register_optimizer_step_pre_hook(self._step)
            self._hooked = True
        if kind not in _CHECKPOINTS or fields["step"] is None or fields.get("aside"):
            return
        if self._seen:
            self._after, self._seen = [], set()
        if is_in_order():
            self._await_gradients()
        after = "restored" if kind == "restored" else "saved"
        self._after.append({"after": after, "store": fields["store"], "step": fields["step"]})

    def _rename(self, old: str, new: str) -> None:
        for after in self._after:
            if after["after"] == "saved" and after["store"] == old:
                after["store"] = new

    def _await_gradients(self) -> None:
        """Notice which optimizers' weights receive gradients after a checkpoint: a save may precede the step."""
        self._forget_gradients()
        for number, reference in enumerate(self._known):

            def note(_: Any, number: int = number) -> None:
                self._backward.add(number)

            optimizer = reference()
            for weight in _weights_of(optimizer) if optimizer is not None else ():
                with suppress(Exception):  # it receives none
                    self._hooks.append(weight.register_post_accumulate_grad_hook(note))

    def _forget_gradients(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._backward = [], set()

    def _step(self, optimizer: Any, *_: Any) -> None:
        number = self._numbers.setdefault(id(optimizer), len(self._numbers))
        if number == len(self._known):
            self._known.append(ref(optimizer))
        if self._begun:  # a program may warm up before its first batch
            self._write("stepped")
        if number in self._seen:
            return
        self._seen.add(number)
        if self._after and (found := _look(optimizer)):
            about = {"optimizer": number, "backward": number in self._backward, **found, "stands": self._stands()}
            for after in self._after:
                self._write("update", **after, **about)
        if len(self._seen) == len(self._known):
            self._forget_gradients()


def _look(optimizer: Any) -> dict[str, Any]:
    """Return the parts of its weights and its state; nothing if that could disturb training on many ranks."""
    from torch.optim import Optimizer  # noqa: PLC0415  # already imported

    if type(optimizer).state_dict is not Optimizer.state_dict:
        return {}
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    try:
        return {"weights": parts_of(weights), "optimizer_parts": parts_of(optimizer.state_dict())}
    except Exception:  # noqa: BLE001  # unusual tensors are skipped
        return {}
