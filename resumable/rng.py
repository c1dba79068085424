"""The trainer's own global generators (dropout, initialisation, sampling), to save and restore in a hand-written loop.

    >>> import resumable
    >>> saved = resumable.rng.state_dict()
    >>> resumable.rng.load_state_dict(saved)

Save it beside the model and the loader. The loader's randomness needs none of it: that is a function of the position.
"""

from __future__ import annotations

import random
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._randomness.keys import NUMPY, PYTHON
from resumable.errors import PromiseWarning, StateFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sized

__all__ = ["load_state_dict", "state_dict"]

_DEVICES = ("cuda", "xpu", "mps")  # torch's modules of devices with generators of their own


def state_dict() -> dict[str, Any]:
    """Capture the global generators of `random`, `numpy.random` and, where it is loaded, torch (CPU, CUDA, XPU, MPS).

    Returns:
        Lists, numbers and torch tensors, loadable with `torch.load(weights_only=True)`; per rank, about 20 kB.
    """
    return capture()()


def capture() -> Callable[[], dict[str, Any]]:
    """Capture the same in a few microseconds, and return a function that makes plain values of it; for integrations."""
    python, numpy = PYTHON.look(), NUMPY.look()
    torch, tensors = sys.modules.get("torch"), {}
    if torch is not None:
        tensors["torch"] = torch.get_rng_state()
        for kind in _DEVICES:
            if _is_in_use(torch, kind):
                module = getattr(torch, kind)
                tensors[kind] = [module.get_rng_state(number) for number in range(module.device_count())]

    def make() -> dict[str, Any]:
        version, words, gauss = PYTHON.state_of(python)
        name, keys, position, has_gauss, cached = NUMPY.state_of(numpy)
        return {
            "python": [version, list(words), gauss],
            "numpy": [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
            **tensors,
        }

    return make


def load_state_dict(state: Mapping[str, Any]) -> None:
    """Put the global generators back to a captured state.

    Generators of devices are restored by their number. Where the state has those of another number of devices, a
    PromiseWarning names the others.

    Raises:
        StateFormatError: it is no such state; nothing was changed.
    """
    restore(state)
    warn_of_devices(state)


def restore(state: Mapping[str, Any]) -> None:
    """Do the same without a warning; for integrations, which restore one state several times.

    Raises:
        StateFormatError: it is no such state; nothing was changed.
    """
    torch = sys.modules.get("torch")
    if not hasattr(state, "keys") or not {"python", "numpy"} <= set(state):
        keys = f" with the keys {', '.join(map(repr, state))}" if hasattr(state, "keys") else ""
        what = f"a {type(state).__name__}{keys}"
        raise StateFormatError(
            f"this is no state of the global generators, but {what[:200]}.\n"
            "Nothing was changed. Give what resumable.rng.state_dict() returned; of a whole checkpoint, that part: "
            "load_state_dict(checkpoint['generators']), or whatever name it was saved by."
        )
    try:
        version, words, gauss = state["python"]
        name, keys, position, *rest = state["numpy"]
        numpy = (name, np.asarray(keys, dtype=np.uint32), _place_in(keys, position), *rest)
        python = (version, tuple(words), gauss)
        random.Random().setstate(python)  # raises on a bad state before anything is changed
        np.random.RandomState(0).set_state(numpy)  # likewise
        devices = [] if torch is None else _try_on_torch(torch, state)  # likewise
    except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise StateFormatError(
            f"this is no state of the global generators: {error}.\n"
            "Nothing was changed. Give what resumable.rng.state_dict() returned."
        ) from error
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002  # the global one is meant
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
    for kind, number, one in devices:
        getattr(torch, kind).set_rng_state(one, number)


def _place_in(words: Sized, position: Any) -> int:
    """Return the place of NumPy's next word, which NumPy itself does not check: it would read other memory."""
    if type(position) is not int or not 0 <= position <= len(words):
        raise ValueError(f"the place of NumPy's next word is {position!r}, of {len(words)}")
    return position


def warn_of_devices(state: Mapping[str, Any]) -> None:
    """Name the devices whose generators a state has and this process does not, or the other way round."""
    torch = sys.modules.get("torch")
    for kind in _DEVICES if torch is not None else ():
        saved, present = len(state.get(kind) or ()), _count(torch, kind)
        if saved and saved != present:
            names = ", ".join(f"{kind}:{number}" for number in range(min(saved, present), max(saved, present)))
            warnings.warn(
                f"the state has the generators of {saved} {kind.upper()} devices, and this process sees {present}.\n"
                f"Those of {names} are not restored: dropout and the like on these devices draw other numbers than in "
                "the run that saved it. All else is restored. Run with as many devices for the same numbers.",
                PromiseWarning,
                stacklevel=3,
            )


# ---------------------------------------------------------------------- devices


def _is_in_use(torch: Any, kind: str) -> bool:
    """Return whether devices of a kind are there and have been used; asking their generators would start them."""
    module = getattr(torch, kind, None)
    if module is None or (kind != "mps" and not module.is_initialized()):  # there is no such question for MPS
        return False
    return bool(module.device_count() > 0)


def _count(torch: Any, kind: str) -> int:
    module = getattr(torch, kind, None)
    return 0 if module is None else int(module.device_count())


def of_present_devices(state: Mapping[str, Any], count: Callable[[str], Any]) -> list[tuple[str, int, Any]]:
    """Return the kind, the number and the state of each device that the state knows and that is there.

    Args:
        state: of the global generators.
        count: tells how many devices of a kind there are.
    """
    known = [(kind, list(state[kind])) for kind in _DEVICES if state.get(kind) is not None]
    return [(kind, number, one) for kind, states in known for number, one in enumerate(states[: count(kind)])]


def _try_on_torch(torch: Any, state: Mapping[str, Any]) -> list[tuple[str, int, Any]]:
    """Give fresh generators of torch what the global ones are to get, and return the states of the devices present."""
    if "torch" in state:
        torch.Generator("cpu").set_state(state["torch"])
    present = of_present_devices(state, lambda kind: _count(torch, kind))
    for kind, number, one in present:
        torch.Generator(f"{kind}:{number}").set_state(one)
    return present
