"""Checks of the library that an integration is for: the class of an instance, and names that must exist."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from resumable._distribution import UPGRADE, pip_install
from resumable._requirements import check_version, tested_with
from resumable.errors import MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_given", "check_names"]


def check_given(  # noqa: PLR0913  # two integrations differ in all of these
    given: Any, loader: Any, wanted: str, loaders: type | tuple[type, ...], *, usage: Sequence[str], advice: str
) -> None:
    """Check the two arguments of `prepare`: an instance of a library's class, and a Loader.

    Args:
        given: the first argument.
        loader: the second argument.
        wanted: the library and its class, such as `accelerate.Accelerator`.
        loaders: valid types of `loader`.
        usage: valid calls of `prepare`.
        advice: for the message, what to do with an object that is not a Loader.

    Raises:
        MissingDependencyError: the library is not installed.
        UnsupportedError: an argument has a different type, or the two are swapped.
    """
    library, _, name = wanted.partition(".")
    try:
        kind = getattr(import_module(library), name)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"{library} is not installed.\nInstall it: {pip_install(library)}") from error
    if not isinstance(given, kind):
        article = "an" if name[0] in "AEIOU" else "a"
        raise UnsupportedError(
            f"prepare() expects {article} {name}, but got an object of type {type(given).__qualname__}.\n"
            f"Nothing was prepared. Use {', or '.join(usage)}."
        )
    if not isinstance(loader, loaders):
        wrapped = usage[-1].replace("loader", "resumable.wrap(...)")
        raise UnsupportedError(
            f"prepare() expects a Loader, but got an object of type {type(loader).__qualname__}.\n"
            f"It has no position to save. Wrap it first: {wrapped}; {advice}."
        )


def check_names(owner: Any, names: str, *, package: str) -> None:
    """Check that a library is not too old, and has the names that this package uses.

    Args:
        owner: an object of the library.
        names: dotted paths from that object, separated by spaces.
        package: name of the library on PyPI.

    Raises:
        MissingDependencyError: its version is too old.
        UnsupportedError: a name is missing. The message lists all missing names.
    """
    check_version(package)
    if missing := [path for path in names.split() if not _has(owner, path)]:
        raise UnsupportedError(
            f"this version of {package} is not supported: its {type(owner).__name__} has no {', '.join(missing)}.\n"
            "resumable could not track which batches are in the weights, so checkpoints would not match them. Use "
            f"{tested_with(package)}, or a newer version of resumable: {UPGRADE}"
        )


def _has(owner: Any, path: str) -> bool:
    try:
        attrgetter(path)(owner)
    except AttributeError:
        return False
    return True
