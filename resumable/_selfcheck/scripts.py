"""Finds a function by `script.py:name` or `package.module:name`, and runs it as a training script would."""

from __future__ import annotations

import importlib
import inspect
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable._selfcheck.calling import ended, raised
from resumable._selfcheck.files import FORM, load_file, remove_stand_ins
from resumable.errors import ConfigurationError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

__all__ = ["absolute", "check_callable", "loading", "spec_of"]

_ARGUMENTS = "Give a function without arguments that returns the loader; functools.partial fills arguments in."


@contextmanager
def loading(spec: str, words: Sequence[str] = ()) -> Iterator[Callable[[], Any]]:
    """Give the function of a spec, with `sys.path` and `sys.argv` as its script would have them.

    Args:
        spec: of the function.
        words: of the script's command line.

    Raises:
        ConfigurationError: there is no such file, module or name, it raised, or it cannot be called without arguments.
    """
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise ConfigurationError(f"{spec!r} names no function of a script.\n{FORM}")
    is_file = where.endswith(".py") or "/" in where
    before, arguments = list(sys.path), list(sys.argv)
    sys.argv = [where, *words]
    try:
        module = load_file(Path(where)) if is_file else _load_module(where)
        make = _attribute(module, where, name)
        check_callable(make, spec)
        yield make
    finally:
        sys.path[:], sys.argv[:] = before, arguments
        remove_stand_ins()


def absolute(spec: str) -> str:
    """Return a spec that names the same script from any folder: a script may go to another one."""
    where, colon, name = spec.rpartition(":")
    return f"{Path(where).resolve()}:{name}" if colon and where.endswith(".py") else spec


def spec_of(make: Callable[..., Any]) -> str | None:
    """Return the spec of a function; None where another process cannot find it, as one inside of another function."""
    name, module = getattr(make, "__qualname__", "<"), sys.modules.get(getattr(make, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if "<" in name or module is None or file is None or not Path(file).is_file():
        return None
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    in_package = "." in module.__name__ and module.__name__ != "__main__"
    return f"{module.__name__ if in_package else Path(file).resolve()}:{name}" if found == make else None


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ResumableError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(raised(f"importing {name}", error)) from error
        raise ConfigurationError(
            f"there is no module {error.name!r} here or in what is installed.\nNothing was loaded. {FORM}"
        ) from None
    except SystemExit as error:
        raise ConfigurationError(ended(error)) from error
    except Exception as error:
        raise ConfigurationError(raised(f"importing {name}", error)) from error


def _attribute(module: ModuleType, where: str, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            there = [one for one, value in vars(module).items() if inspect.isfunction(value) and one[0] != "_"]
            own = [one for one in there if getattr(module, one).__module__ == module.__name__]
            listed = f"It has {', '.join(own[:8])}." if own else "It has no function of its own."
            raise ConfigurationError(f"{where} has no name {name!r}.\nNothing was checked. {listed}")
        found = getattr(found, part)
    return found


def check_callable(make: Any, what: str) -> None:
    """Refuse what cannot be called without arguments.

    Raises:
        ConfigurationError: it is so.
    """
    if not callable(make):
        raise ConfigurationError(
            f"{what} is a {type(make).__name__} and no function.\n"
            f"A check needs a fresh loader several times. {_ARGUMENTS}"
        )
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # some functions made in C do not tell
        return
    empty, by_itself = inspect.Parameter.empty, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [one.name for one in signature.parameters.values() if one.default is empty and one.kind not in by_itself]
    if needed:
        raise ConfigurationError(
            f"{what} needs the arguments {', '.join(needed)}, and is called without any.\nNothing was checked. "
            f"{_ARGUMENTS}"
        )
