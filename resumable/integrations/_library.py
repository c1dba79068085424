"""What `prepare` of an integration is given: something of the library that it is for, and a Loader.

---

Names inside other packages, by their dotted paths.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from resumable.errors import MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_given", "missing_names"]


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
        raise MissingDependencyError(
            f'{library} is not installed.\nInstall it: pip install "resumable-data[{library}]"'
        ) from error
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


def missing_names(owner: Any, names: str) -> list[str]:
    """Return those of some dotted names, with spaces between them, that lead to nothing."""
    return [path for path in names.split() if not _has(owner, path)]


def _has(owner: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True
