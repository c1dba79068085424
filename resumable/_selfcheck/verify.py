"""Verify that the states of a checkpoint fit the loaders of a script."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._inspect.reading import open_checkpoint
from resumable._inspect.states import find_states
from resumable._inspect.values import Name, Opaque, Tensor
from resumable._selfcheck.scripts import Maker, hearing, raised
from resumable._selfcheck.streams import Generators, take_apart
from resumable.checkpoint.saving import import_torch
from resumable.errors import ConfigurationError, DataError, ResumableError, StateError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from resumable.loader.loader import Loader

__all__ = ["Verdict", "Verified", "verify"]


def verify(checkpoint: str | os.PathLike[str], make: Callable[[], Any]) -> Verified:
    """Load each state of a checkpoint into its loader with `strict=True`, and read one batch.

    A state belongs to the loader with its key or name, else to the first one that accepts it.

    Args:
        checkpoint: path or URL of a checkpoint, as for `resumable.inspect`.
        make: as for `resumable.check`.

    Raises:
        ConfigurationError: the checkpoint contains no state, `make` or the data raised, or a loader has no position to
            save.
        CheckpointError: the checkpoint cannot be read.
    """
    states, generators = _states_in(checkpoint), Generators()
    try:
        with hearing() as notes, contextlib.redirect_stdout(sys.stderr):
            maker, verdicts, left = Maker(make, generators), list[Verdict](), dict(states)
            for key in maker.trained:
                verdict = _best(maker, key, left or states)
                left.pop(verdict.state, None)
                verdicts.append(verdict)
    finally:
        generators.put_back()
    return Verified(tuple(verdicts), tuple(left), tuple(notes))


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of `verify`.

    Args:
        verdicts: one per loader.
        unused: paths of the states that were not tried with any loader.
        notes: warnings, each once.
    """

    verdicts: tuple[Verdict, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every loader has a state that fits."""
        return all(one.fits for one in self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        unused = [f"WARNING state{place} was not tried with any loader" for place in self.unused]
        notes = [f"WARNING {note}" for note in self.notes]
        return "\n\n".join([*map(str, self.verdicts), *unused, *notes])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one loader.

    Args:
        loader: its key; empty if there is only one.
        state: path of its state in the checkpoint, as Python writes it.
        fits: whether the loader accepts the state and reads the next batch.
        place: the position of the next batch, in words; the saved position if it does not fit.
        batch: the parts of the next batch.
        why: the error, if it does not fit.
    """

    loader: str
    state: str
    fits: bool
    place: str
    batch: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        head = f"PASSED: state{self.state} fits" if self.fits else f"FAILED: state{self.state} does not fit"
        lines = [head + (f" loader {self.loader}" if self.loader else ""), f"  {self.place}"]
        return "\n".join([*lines, *(f"  {part}" for part in (*self.batch, *self.why.splitlines()))])


def _states_in(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a dict from path, as Python writes it, to each state in a checkpoint."""
    with open_checkpoint(path) as content:
        states = find_states(content.tree)
        if not states:
            raise ConfigurationError(
                f"{path} contains no state of a Loader.\nNothing was verified. Save loader.state_dict() with the model."
            )
        return {"".join(f"[{key!r}]" for key in one.path): _loaded(one.values) for one in states}


def _loaded(value: Any) -> Any:
    """Return a part of a state as `torch.load(weights_only=True)` returns it."""
    if isinstance(value, dict):
        return {key: _loaded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_loaded, value))
    if isinstance(value, Tensor):
        torch = import_torch()
        numbers = value.read()
        raw = numbers.astype(numbers.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)
        return torch.from_numpy(raw).view(getattr(torch, value.dtype)).reshape(value.shape)
    if isinstance(value, Opaque | Name):
        kind = value.kind if isinstance(value, Opaque) else value
        raise ConfigurationError(
            f"the state of a Loader contains {kind}, which is neither a tensor nor a plain value.\n"
            "Nothing was verified, because loading such objects could run any code. The source's state_dict() must "
            "return only plain values and tensors. `resumable inspect` shows the state."
        )
    return value


def _best(maker: Maker, key: str, states: dict[str, Any]) -> Verdict:
    with maker.loader(key) as loader:
        name = loader.name
    named = [
        where for where, state in states.items() if (key and where.endswith(key)) or (name and _name(state) == name)
    ]
    tried = []
    for where in named or list(states):
        tried.append(_try(maker, key, where, states[where]))
        if tried[-1].fits:
            return tried[-1]
    return tried[0]


def _try(maker: Maker, key: str, where: str, state: Any) -> Verdict:
    try:
        with maker.loader(key, state) as loader:
            place = _place_of(loader, state)
            return Verdict(key, where, True, place, _next_batch(loader), "")
    except (StateError, DataError, ConfigurationError) as error:
        return Verdict(key, where, False, f"saved at {state['cursor']}", (), f"{type(error).__name__}: {error}")
    except ResumableError:
        raise
    except Exception as error:
        raise ConfigurationError(raised("reading the next batch", error)) from error


_SHOWN = 4  # parts of a batch


def _next_batch(loader: Loader) -> tuple[str, ...]:
    batch = next(iter(loader))
    parts = take_apart(batch, loader.cursor.epoch, loader.cursor.step - 1).parts
    shown = [f"{path or 'batch'}: {text}" for path, text in parts[:_SHOWN]]
    return (*shown, f"... {len(parts) - _SHOWN} more parts") if len(parts) > _SHOWN else tuple(shown)


def _place_of(loader: Loader, state: Any) -> str:
    at, ranks = loader.cursor, state.get("world_size", 1)
    place = f"epoch {at.epoch}, {at.step} steps done; global step {loader.global_step}, {loader.samples_seen} samples"
    return f"{place}; saved on {ranks} ranks" if ranks != 1 else place


def _name(state: Any) -> Any:
    return state.get("name", "")
