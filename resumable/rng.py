"""The trainer's own global generators (dropout, initialisation, sampling), to save and restore in a hand-written loop.

    >>> import resumable
    >>> saved = resumable.rng.state_dict()
    >>> resumable.rng.load_state_dict(saved)

Save it beside the model and the loader. The loader's randomness needs none of it: that is a function of the position.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.errors import StateFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["load_state_dict", "state_dict"]


def state_dict() -> dict[str, Any]:
    """Capture the global generators of `random`, `numpy.random` and, where it is loaded, torch (CPU and CUDA).

    Returns:
        Lists, numbers and torch tensors, loadable with `torch.load(weights_only=True)`; per rank, about 20 kB.
    """
    return capture()()


def capture() -> Callable[[], dict[str, Any]]:
    """Capture the same in a few microseconds, and return a function that makes plain values of it; for integrations."""
    python, numpy = random.getstate(), np.random.get_state(legacy=True)  # noqa: NPY002  # the global one is meant
    torch, tensors = sys.modules.get("torch"), {}
    if torch is not None:
        tensors["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            tensors["cuda"] = torch.cuda.get_rng_state_all()

    def make() -> dict[str, Any]:
        version, words, gauss = python
        name, keys, position, has_gauss, cached = numpy
        return {
            "python": [version, list(words), gauss],
            "numpy": [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
            **tensors,
        }

    return make


def load_state_dict(state: Mapping[str, Any]) -> None:
    """Put the global generators back to a captured state.

    Raises:
        StateFormatError: it is no such state, or of another number of CUDA devices; nothing was changed.
    """
    torch = sys.modules.get("torch")
    try:
        version, words, gauss = state["python"]
        name, keys, *rest = state["numpy"]
        numpy = (name, np.asarray(keys, dtype=np.uint32), *rest)
        python = (version, tuple(words), gauss)
        random.Random().setstate(python)  # raises on a bad state before anything is changed
        np.random.RandomState(0).set_state(numpy)  # likewise
        cuda = _try_on_torch(torch, state)  # likewise
    except StateFormatError:
        raise
    except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise StateFormatError(
            f"this is no state of the global generators: {error}.\n"
            "Nothing was changed. Give what resumable.rng.state_dict() returned."
        ) from error
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002  # the global one is meant
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
    if torch is not None and cuda:
        torch.cuda.set_rng_state_all(cuda)


def _try_on_torch(torch: Any, state: Mapping[str, Any]) -> list[Any]:
    """Give fresh generators of torch what the global ones are to get, and return the states of the CUDA devices."""
    if torch is None:
        return []
    if "torch" in state:
        torch.Generator("cpu").set_state(state["torch"])
    if state.get("cuda") is None:
        return []
    cuda, devices = list(state["cuda"]), torch.cuda.device_count()
    if len(cuda) != devices:
        raise StateFormatError(
            f"the state has the generators of {len(cuda)} CUDA devices, and this process sees {devices}.\n"
            "Nothing was changed. Run with as many devices, or drop the key 'cuda' from the state."
        )
    for number, one in enumerate(cuda):
        torch.Generator(f"cuda:{number}").set_state(one)
    return cuda
