"""Finds a function by `script.py:name` or `package.module:name`, and runs it as a training script would."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable.errors import ConfigurationError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

__all__ = ["absolute", "call", "check_callable", "loading", "raised", "spec_of"]

_FORM = "Give script.py:name or package.module:name, as in: resumable check train.py:make_loader"
_ARGUMENTS = "Give a function without arguments that returns the loader; functools.partial fills arguments in."


@contextmanager
def loading(spec: str) -> Iterator[Callable[[], Any]]:
    """Give the function of a spec, with `sys.path` and `sys.argv` as its script would have them.

    Raises:
        ConfigurationError: there is no such file, module or name, it raised, or it cannot be called without arguments.
    """
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise ConfigurationError(f"{spec!r} names no function of a script.\n{_FORM}")
    is_file = where.endswith(".py") or "/" in where
    before, arguments = list(sys.path), list(sys.argv)
    sys.argv = [where]
    try:
        module = _load_file(Path(where)) if is_file else _load_module(where)
        make = _attribute(module, where, name)
        check_callable(make, spec)
        yield make
    finally:
        sys.path[:], sys.argv[:] = before, arguments


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


def call(make: Callable[[], Any], what: str = "") -> Any:
    """Call a user's function.

    Raises:
        ConfigurationError: it raised; the message has its traceback.
    """
    try:
        return make()
    except ResumableError:
        raise
    except (Exception, SystemExit) as error:
        name = what or getattr(make, "__qualname__", repr(make))
        raise ConfigurationError(raised(f"{name}()", error)) from error


def raised(what: str, error: BaseException) -> str:
    """Say that a user's code raised, with the traceback from its own first line on."""
    frames = traceback.extract_tb(error.__traceback__)
    own = str(Path(__file__).parents[1])
    first = next((number for number, frame in enumerate(frames) if not _is_ours(frame.filename, own)), 0)
    shown = "".join([*traceback.format_list(frames[first:]), *traceback.format_exception_only(error)])
    return f"{what} raised {type(error).__name__}, so nothing could be checked.\n{shown.rstrip()}"


def _is_ours(file: str, own: str) -> bool:
    return file.startswith((own, "<frozen importlib")) or "importlib" in Path(file).parts


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}.\nNothing was loaded. {_FORM}")
    path = path.resolve()
    sys.path.insert(0, str(path.parent))
    name = path.stem
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) != str(path):
        name = f"{name}_of_{abs(hash(path)):x}"  # another module of this name is there, such as one of Python's own
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # for workers, which import it by its name
    try:
        spec.loader.exec_module(module)
    except ResumableError:
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        advice = '\nWhat is to run in training only belongs below `if __name__ == "__main__":`.'
        raise ConfigurationError(raised(f"loading {path.name}", error) + advice) from error
    return module


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
            f"there is no module {error.name!r} here or in what is installed.\nNothing was loaded. {_FORM}"
        ) from None
    except (Exception, SystemExit) as error:
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
