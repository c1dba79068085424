"""What an integration needs of the library that it is for: an instance of its class, and names that it has."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from resumable._distribution import UPGRADE, pip_install
from resumable.errors import MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_given", "check_names"]


def check_given(  # noqa: PLR0913  # what two integrations differ in
    given: Any, loader: Any, wanted: str, loaders: type | tuple[type, ...], *, usage: Sequence[str], advice: str
) -> None:
    """Refuse anything but an instance of a library's class, and a Loader.

    Args:
        given: in place of the instance.
        loader: in place of the Loader.
        wanted: the library and the class in it, as in `accelerate.Accelerator`.
        loaders: what is taken for a Loader.
        usage: how `prepare` is called.
        advice: what to do with anything but a Loader, as a sentence.

    Raises:
        MissingDependencyError: the library is not installed.
        UnsupportedError: they are something else, or the other way round.
    """
    library, _, name = wanted.partition(".")
    try:
        kind = getattr(import_module(library), name)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"{library} is not installed.\nInstall it: {pip_install(library)}") from error
    if not isinstance(given, kind):
        article = "an" if name[0] in "AEIOU" else "a"
        raise UnsupportedError(
            f"prepare() was given a {type(given).__qualname__} in place of {article} {name}.\n"
            f"Nothing was prepared. Use {', or '.join(usage)}."
        )
    if not isinstance(loader, loaders):
        wrapped = usage[-1].replace("loader", "resumable.wrap(...)")
        raise UnsupportedError(
            f"prepare() was given a {type(loader).__qualname__}, which is no Loader.\n"
            f"It has no place that could be saved. Wrap it before: {wrapped}; {advice}."
        )


def check_names(owner: Any, names: str, *, library: str, tried: str) -> None:
    """Refuse a version of a library that lacks a name on which this package relies.

    Args:
        owner: an object of the library.
        names: dotted paths from there, with spaces between them.
        library: its name.
        tried: the versions that have all of them.

    Raises:
        UnsupportedError: the message says which ones are missing.
    """
    if missing := [path for path in names.split() if not _has(owner, path)]:
        raise UnsupportedError(
            f"this version of {library} has no {', '.join(missing)} in its {type(owner).__name__}.\n"
            "It is unknown which batches are in the weights, so a checkpoint would not fit them. Use "
            f"{tried}, or a newer version of this package: {UPGRADE}"
        )


def _has(owner: Any, path: str) -> bool:
    try:
        attrgetter(path)(owner)
    except AttributeError:
        return False
    return True
