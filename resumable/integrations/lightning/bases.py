"""Finds the base class of callbacks in the package that the user trains with, `lightning` or `pytorch_lightning`.

The two packages hold different classes of the same name, and importing both costs seconds. So the class is chosen when
a callback is made: by then the script has imported the package that it takes its Trainer from.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from resumable._distribution import pip_install
from resumable.errors import MissingDependencyError

__all__ = ["with_callback_bases"]

_PACKAGES = {"lightning.pytorch": "lightning.pytorch.callbacks", "pytorch_lightning": "pytorch_lightning.callbacks"}

_derived: dict[tuple[type[Any], tuple[type[Any], ...]], type[Any]] = {}


def with_callback_bases(own: type[Any]) -> type[Any]:
    """Return a subclass of `own` that is a callback for every Lightning package that is imported.

    Raises:
        MissingDependencyError: neither is installed.
    """
    packages = [package for package in _PACKAGES if sys.modules.get(package)] or [_import_one()]
    bases = [importlib.import_module(_PACKAGES[package]).Callback for package in packages]
    missing = tuple(base for base in bases if not issubclass(own, base))
    if not missing:
        return own
    if (own, missing) not in _derived:
        attributes = {"__module__": own.__module__, "__doc__": own.__doc__, "_own": own}
        _derived[own, missing] = type(own.__name__, (own, *missing), attributes)
    return _derived[own, missing]


def _import_one() -> str:
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            continue
        return package
    raise MissingDependencyError(
        f"the Lightning callback needs Lightning, which is not installed.\nInstall it: {pip_install('lightning')}"
    )
