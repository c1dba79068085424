"""The base of callbacks, of the package that the user trains with: `lightning.pytorch`, `pytorch_lightning`, or both.

The two packages hold different classes of the same name, and importing both costs seconds. So the base derives from
theirs once they are imported: when a callback is looked up in this package, as LightningCLI does, and when one is made.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Self

from resumable._distribution import pip_install
from resumable.errors import MissingDependencyError

__all__ = ["LightningCallback", "derive_from_imported"]

_PACKAGES = {"lightning.pytorch": "lightning.pytorch.callbacks", "pytorch_lightning": "pytorch_lightning.callbacks"}


if TYPE_CHECKING:
    _Unknown = Any  # a callback of whichever package, to type checkers
else:

    class _Unknown:
        """Stands for Lightning's class until it is known; Python does not let the base `object` be replaced."""


class LightningCallback(_Unknown):  # type: ignore[misc]  # the class is known when Lightning is imported
    """A callback for every Lightning package that is imported."""

    def __new__(cls, *_: Any, **__: Any) -> Self:  # LightningCLI takes one in a callback itself for its signature
        """Derive from the Lightning packages in use.

        Raises:
            MissingDependencyError: none is installed.
        """
        if not any(sys.modules.get(package) for package in _PACKAGES):
            _import_one()
        derive_from_imported()
        made: Self = object.__new__(cls)
        return made


def derive_from_imported() -> None:
    """Let `LightningCallback` derive from the callbacks of every Lightning package that is imported by now."""
    for package, module in _PACKAGES.items():
        if sys.modules.get(package):
            base = getattr(importlib.import_module(module), "Callback", None)  # none: it is being imported just now
            if base is not None and not issubclass(LightningCallback, base):
                known = (one for one in LightningCallback.__bases__ if one is not _Unknown)
                LightningCallback.__bases__ = (*known, base)


def _import_one() -> None:
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            continue
        return
    raise MissingDependencyError(
        f"the Lightning callback needs Lightning, which is not installed.\nInstall it: {pip_install('lightning')}"
    )


derive_from_imported()
