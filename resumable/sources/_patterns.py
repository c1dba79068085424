"""Patterns of files: braces as webdataset has them, then `*`, `?` and `[...]`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable._distribution import pip_install
from resumable.errors import ConfigurationError, MissingDependencyError
from resumable.sources._files import is_remote

if TYPE_CHECKING:
    from resumable.sources._files import Files

__all__ = ["base_of", "find_files"]


def find_files(  # noqa: PLR0913  # words of its messages
    patterns: Any, files: Files, *, what: str, suffix: str, extra: str, but: str = " "
) -> list[str]:
    """Return the files that patterns stand for, in their order; those of one pattern by their names.

    Args:
        patterns: path or URL, a pattern, or several of them.
        files: looks for them.
        what: the files, for messages, as in "the {what} x.tar".
        suffix: of such a file's name, for messages.
        extra: with which braces can be read.
        but: end of the names of files that are left out.

    Raises:
        ConfigurationError: a pattern stands for nothing, or a file comes twice.
        MissingDependencyError: braceexpand is not installed.
    """
    given = [patterns] if isinstance(patterns, (str, os.PathLike)) else _listed(patterns, what, suffix)
    found: list[str] = []
    for pattern in given:
        if not isinstance(pattern, (str, os.PathLike)) or not os.fspath(pattern):
            raise _no_path(pattern, what, suffix)
        text = str(os.fspath(pattern))
        some = [name for one in _expand(text, suffix, extra) for name in files.find(one) if not name.endswith(but)]
        if not some:
            raise ConfigurationError(
                f"there is no file for {text!r}.\nThere would be nothing to read. Look after the folder and the "
                "pattern: {000..009} counts, * stands for any characters."
            )
        found += [name.removeprefix("file://") for name in some]
    if not found:
        raise ConfigurationError(f"no {what}s were given.\nThere would be nothing to read. Give at least one.")
    _refuse_twice(found, what)
    return found


def _listed(patterns: Any, what: str, suffix: str) -> list[Any]:
    try:
        return list(patterns)
    except TypeError:
        raise _no_path(patterns, what, suffix) from None


def _no_path(given: Any, what: str, suffix: str) -> ConfigurationError:
    return ConfigurationError(
        f"each {what} must be a path, a URL or a pattern of them, but one is {given!r}.\n"
        f'Nothing could be read. Give for instance "train-{{000..099}}{suffix}" or a list of paths.'
    )


def _expand(pattern: str, suffix: str, extra: str) -> list[str]:
    if "{" not in pattern or (not is_remote(pattern) and Path(pattern).exists()):
        return [pattern]
    try:
        from braceexpand import braceexpand  # noqa: PLC0415  # for such patterns only
    except ImportError as error:
        raise MissingDependencyError(
            f"the pattern {pattern!r} needs the package braceexpand.\nInstall it: {pip_install(extra)}"
        ) from error
    try:
        return list(braceexpand(pattern))
    except ValueError as error:
        raise ConfigurationError(
            f"the pattern {pattern!r} has braces that do not close: {error}.\n"
            f"Which files are meant could not be known. Write for instance train-{{000..099}}{suffix}."
        ) from error


def _refuse_twice(names: list[str], what: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        place = name if is_remote(name) else os.path.abspath(name)  # noqa: PTH100  # a link may be there on purpose
        if place in seen:
            also = "" if seen[place] == name else f", also as {seen[place]}"
            raise ConfigurationError(
                f"the {what} {name} is named twice{also}.\nIts samples would come twice in every epoch. Name it once; "
                "to have it more often than others, give it a weight in resumable.mix."
            )
        seen[place] = name


def base_of(name: str) -> str:
    """Return the last part of a path or URL."""
    return name.replace("\\", "/").rstrip("/").rpartition("/")[2]
