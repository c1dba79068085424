"""The trainer's global RNGs (dropout, initialization, sampling), to save and restore in a hand-written loop.

    >>> import resumable
    >>> saved = resumable.rng.state_dict()
    >>> resumable.rng.load_state_dict(saved)

Save it with the model and the loader. The loader does not need it: its randomness is a function of the position.
"""

from __future__ import annotations

import random
import sys
import warnings
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._randomness.keys import NUMPY, PYTHON
from resumable.errors import PromiseWarning, StateFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sized

__all__ = ["load_state_dict", "state_dict"]

_DEVICES = ("cuda", "xpu", "mps")  # torch modules of devices with separate RNGs


def state_dict() -> dict[str, Any]:
    """Capture the global RNGs of `random`, `numpy.random` and, if it is imported, PyTorch (CPU, CUDA, XPU, MPS).

    Returns:
        Lists, numbers and torch tensors, loadable with `torch.load(weights_only=True)`; per rank, about 20 kB.
    """
    return capture()()


def capture() -> Callable[[], dict[str, Any]]:
    """Capture the same in a few µs, and return a function that converts it to plain values; for integrations."""
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
    """Restore the global RNGs from a captured state.

    The RNGs of devices are restored by device number. If the number of devices differs, a `PromiseWarning` lists the
    devices that are not restored.

    Raises:
        StateFormatError: it is not such a state; nothing was changed.
    """
    restore(state)
    warn_of_devices(state)


def restore(state: Mapping[str, Any]) -> None:
    """Do the same without a warning; for integrations, which restore the same state several times.

    Raises:
        StateFormatError: it is not such a state; nothing was changed.
    """
    torch = sys.modules.get("torch")
    if not hasattr(state, "keys") or not {"python", "numpy"} <= set(state):
        keys = f" with the keys {', '.join(map(repr, state))}" if hasattr(state, "keys") else ""
        what = f"a {type(state).__name__}{keys}"
        raise StateFormatError(
            f"this is not a state of the global RNGs, but {what[:200]}.\n"
            "Nothing was changed. Pass the value that resumable.rng.state_dict() returned, not the whole checkpoint: "
            "load_state_dict(checkpoint['generators']), or whichever key it was saved under."
        )
    try:
        version, words, gauss = state["python"]
        name, keys, position, *rest = state["numpy"]
        numpy = (name, np.asarray(keys, dtype=np.uint32), _place_in(keys, position), *rest)
        python = (version, tuple(words), gauss)
        random.Random().setstate(python)  # raises on a bad state before anything is changed
        np.random.RandomState(0).set_state(numpy)  # the same
        devices = [] if torch is None else _try_on_torch(torch, state)  # the same
    except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise StateFormatError(
            f"this is not a state of the global RNGs: {error}.\n"
            "Nothing was changed. Pass the value that resumable.rng.state_dict() returned."
        ) from error
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002  # the global one is meant
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
    for kind, number, one in devices:
        getattr(torch, kind).set_rng_state(one, number)


def _place_in(words: Sized, position: Any) -> int:
    """Return the position of NumPy's next word. NumPy does not check it, and would read memory outside the array."""
    if type(position) is not int or not 0 <= position <= len(words):
        raise ValueError(f"the position of NumPy's next word is {position!r}, of {len(words)}")
    return position


def warn_of_devices(state: Mapping[str, Any]) -> None:
    """Warn about devices that exist only in the state, or only in this process."""
    torch = sys.modules.get("torch")
    for kind in _DEVICES if torch is not None else ():
        saved, present = len(state.get(kind) or ()), _count(torch, kind)
        if saved and saved != present:
            names = ", ".join(f"{kind}:{number}" for number in range(min(saved, present), max(saved, present)))
            warnings.warn(
                f"the state has the RNGs of {saved} {kind.upper()} devices, but this process sees {present}.\n"
                f"The RNGs of {names} are not restored, so dropout on these devices differs from the saved run. "
                "Everything else is restored. For identical results, run with as many devices as the saved run.",
                PromiseWarning,
                stacklevel=3,
            )


def digests() -> dict[str, str]:
    """Return a digest of each RNG of the CPU, which changes whenever the RNG is used; for checks and chaos runs."""
    states = {"python": repr(random.getstate()).encode(), "numpy": _of_numpy()}
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return {name: blake2b(state, digest_size=8).hexdigest() for name, state in states.items()}


def _of_numpy() -> bytes:
    _, keys, *rest = np.random.get_state()  # noqa: NPY002  # the global one is meant
    return np.asarray(keys).tobytes() + repr(rest).encode()


# ---------------------------------------------------------------------- devices


def _is_in_use(torch: Any, kind: str) -> bool:
    """Return whether devices of a kind exist and have been used; querying their RNGs would initialize them."""
    module = getattr(torch, kind, None)
    if module is None or (kind != "mps" and not module.is_initialized()):  # MPS has no is_initialized()
        return False
    return bool(module.device_count() > 0)


def _count(torch: Any, kind: str) -> int:
    module = getattr(torch, kind, None)
    return 0 if module is None else int(module.device_count())


def of_present_devices(state: Mapping[str, Any], count: Callable[[str], Any]) -> list[tuple[str, int, Any]]:
    """Return kind, number and RNG state of each device that is in the state and exists.

    Args:
        state: of the global RNGs.
        count: returns how many devices of a kind exist.
    """
    known = [(kind, list(state[kind])) for kind in _DEVICES if state.get(kind) is not None]
    return [(kind, number, one) for kind, states in known for number, one in enumerate(states[: count(kind)])]


def _try_on_torch(torch: Any, state: Mapping[str, Any]) -> list[tuple[str, int, Any]]:
    """Test the states on new torch generators, and return the states of the devices that exist."""
    if "torch" in state:
        torch.Generator("cpu").set_state(state["torch"])
    present = of_present_devices(state, lambda kind: _count(torch, kind))
    for kind, number, one in present:
        torch.Generator(f"{kind}:{number}").set_state(one)
    return present
