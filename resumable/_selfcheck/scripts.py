"""Finds a user's function, runs it as a training script would, and makes fresh loaders from its results."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import multiprocessing
import sys
import tempfile
import time
import traceback
import warnings
import weakref
import zlib
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from resumable.errors import ConfigurationError, ResumableError, UnsupportedError
from resumable.loader.iterators import twins_expected
from resumable.loader.loader import Loader
from resumable.loader.progress import Progress
from resumable.loader.registry import refuse_list
from resumable.loader.wrap import wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from resumable._selfcheck.streams import Generators

__all__ = [
    "Maker",
    "Makes",
    "T",
    "absolute",
    "call",
    "check_callable",
    "hearing",
    "living_workers",
    "loading",
    "raised",
    "spec_of",
    "unrecorded",
]


@contextmanager
def loading(spec: str, words: Sequence[str] = ()) -> Iterator[Callable[[], Any]]:
    """Yield the function of a spec, with `sys.path` and `sys.argv` set as for its script.

    Args:
        spec: of the function.
        words: arguments of the script's command line.

    Raises:
        ConfigurationError: the file, module or name does not exist, it raised, or it needs arguments.
    """
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise ConfigurationError(f"{spec!r} does not identify a function of a script.\n{FORM}")
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
    """Return a spec with an absolute path, because a script may change the working directory."""
    where, colon, name = spec.rpartition(":")
    return f"{Path(where).resolve()}:{name}" if colon and where.endswith(".py") else spec


def spec_of(make: Callable[..., Any]) -> str | None:
    """Return the spec of a function; None if another process cannot find it, for example a nested function."""
    name, module = getattr(make, "__qualname__", "<"), sys.modules.get(getattr(make, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if "<" in name or module is None or file is None or not Path(file).is_file():
        return None
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    in_package = "." in module.__name__ and module.__name__ != "__main__"
    return f"{module.__name__ if in_package else Path(file).resolve()}:{name}" if found == make else None


FORM = "Pass script.py:name or package.module:name, as in: resumable check train.py:make_loader"


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
            f"there is no module {error.name!r} in this folder or among the installed packages.\n"
            f"Nothing was loaded. {FORM}"
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
            listed = f"It has {', '.join(own[:8])}." if own else "It defines no functions."
            raise ConfigurationError(f"{where} has no attribute {name!r}.\nNothing was checked. {listed}")
        found = getattr(found, part)
    return found


_ARGUMENTS = "Pass a function without arguments that returns the loader; functools.partial can bind arguments."


def check_callable(make: Any, what: str) -> None:
    """Reject anything that cannot be called without arguments.

    Raises:
        ConfigurationError: it cannot.
    """
    if not callable(make):
        raise ConfigurationError(
            f"{what} is a {type(make).__name__}, not a function.\n"
            f"A check needs a fresh loader several times. {_ARGUMENTS}"
        )
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # some C functions have no signature
        return
    empty, by_itself = inspect.Parameter.empty, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [one.name for one in signature.parameters.values() if one.default is empty and one.kind not in by_itself]
    if needed:
        raise ConfigurationError(
            f"{what} needs the arguments {', '.join(needed)}, but a check passes none.\nNothing was checked. "
            f"{_ARGUMENTS}"
        )


_STAND_IN = """__file__ = {file!r}
with open(__file__, "rb") as script:
    exec(compile(script.read(), __file__, "exec"))
"""
_folders: list[tempfile.TemporaryDirectory[str]] = []  # with stand-in modules


def load_file(path: Path) -> ModuleType:
    """Load a script, and put its folder first in `sys.path`.

    Raises:
        ConfigurationError: it does not exist, it raised, or it exited.
    """
    if not path.is_file():
        raise ConfigurationError(f"the file {path} does not exist.\nNothing was loaded. {FORM}")
    path = path.resolve()
    name = _free_name(path)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ResumableError:
        raise
    except SystemExit as error:
        del sys.modules[name]
        raise ConfigurationError(ended(error)) from error
    except Exception as error:
        del sys.modules[name]
        raise ConfigurationError(f"{raised(f'loading {path.name}', error)}\n{_advice(path, error)}") from error
    return module


def remove_stand_ins() -> None:
    """Remove the modules through which workers imported scripts."""
    while _folders:
        _folders.pop().cleanup()


def _free_name(path: Path) -> str:
    """Return the script's name if no other module has it, else the name of a stand-in that workers can import."""
    name = path.stem
    if name.isidentifier() and not _is_taken(name, path):
        return name
    name = f"script_{zlib.crc32(str(path).encode()):08x}"
    folder = tempfile.TemporaryDirectory(prefix="resumable-script-")
    _folders.append(folder)
    Path(folder.name, f"{name}.py").write_text(_STAND_IN.format(file=str(path)), encoding="utf-8")
    sys.path.append(folder.name)
    return name


def _is_taken(name: str, path: Path) -> bool:
    known = sys.modules.get(name)
    if known is not None:
        return getattr(known, "__file__", None) != str(path)
    found = importlib.util.find_spec(name)
    return found is not None and (found.origin is None or Path(found.origin).resolve() != path)


def _advice(path: Path, error: Exception) -> str:
    if isinstance(error, ImportError) and "relative import" in str(error):
        folders = [one.name for one in path.parents if (one / "__init__.py").is_file()]
        dotted = ".".join([*reversed(folders), path.stem]) if folders else "package.module"
        return f"A script loaded from its path belongs to no package. Pass its module instead: {dotted}:make"
    return 'Put code that should run only in training below `if __name__ == "__main__":`.'


def call(make: Callable[[], Any], what: str = "") -> Any:
    """Call a user's function.

    Raises:
        ConfigurationError: it raised; the message contains its traceback.
    """
    try:
        return make()
    except ResumableError:
        raise
    except (Exception, SystemExit) as error:
        name = what or getattr(make, "__qualname__", repr(make))
        raise ConfigurationError(raised(f"{name}()", error)) from error


def raised(what: str, error: BaseException) -> str:
    """Report an error in a user's code, with the traceback from the user's first line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = str(Path(__file__).parents[1])
    first = next((number for number, frame in enumerate(frames) if not _is_ours(frame.filename, own)), 0)
    shown = "".join([*traceback.format_list(frames[first:]), *traceback.format_exception_only(error)])
    return f"{what} raised {type(error).__name__}, so nothing could be checked.\n{indent(shown.rstrip(), '  ')}"


def ended(error: SystemExit) -> str:
    """Report that a script exited while it was imported, as argparse does."""
    status = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
    reason = f": {error.code}" if isinstance(error.code, str) else ""
    return (
        f"the script exited while it was imported (status {status}){reason}.\n"
        "Nothing was checked. Pass its arguments after two dashes, as in: resumable check train.py:make -- -v. "
        'Or put code that should run only in training below `if __name__ == "__main__":`.'
    )


def _is_ours(file: str, own: str) -> bool:
    return file.startswith((own, "<frozen importlib")) or "importlib" in Path(file).parts


T = TypeVar("T")


class Makes(Protocol):
    """Makes fresh loaders, as often as needed.

    Attributes:
        is_limited: whether this process can read only once, so each run needs a separate process.
    """

    is_limited: bool

    def all(self) -> dict[str, Loader]:
        """Return all loaders, each with its key."""
        ...

    def loader(
        self, key: str, state: Any = None, seek: tuple[int, int] | None = None
    ) -> AbstractContextManager[Loader]:
        """Yield a fresh loader, after it loaded a state or went to an epoch and step."""
        ...

    def apart(self, run: Callable[[], T]) -> T:
        """Run a function that makes loaders and reads them, without an effect on later ones."""
        ...


class Maker:
    """Makes the loaders of a user's function.

    Args:
        make: the function.
        generators: restored before each call.
        what: the function, for messages.
    """

    is_limited = False

    def __init__(self, make: Callable[[], Any], generators: Generators, what: str = "") -> None:
        self._make, self._generators, self._what = make, generators, what
        self._seen: list[weakref.ref[Loader]] = []
        self.trained = tuple(key for key, loader in self.all().items() if not loader.evaluation)

    def all(self) -> dict[str, Loader]:
        """Return a dict from key to loader, with all loaders of one call.

        Raises:
            ConfigurationError: the function raised, or did not return a loader.
        """
        self._generators.put_back()
        found = dict(_loaders(call(self._make, self._what), ""))
        for loader in found.values():
            self._refuse_known(loader)
        if not found:
            raise ConfigurationError("the function returned an empty collection of loaders.\nNothing was checked.")
        return found

    def _refuse_known(self, loader: Loader) -> None:
        if any(one() is loader for one in self._seen):
            raise ConfigurationError(
                "the function returned the same loader twice.\nIt cannot be compared with itself. Create a new one on "
                "each call of the function."
            )
        self._seen.append(weakref.ref(loader))

    @contextmanager
    def loader(self, key: str, state: Any = None, seek: tuple[int, int] | None = None) -> Iterator[Loader]:
        """Yield a fresh loader; at the end, close it and all others from the same call.

        Args:
            key: of the loader.
            state: to load first; None for none.
            seek: epoch and step to seek to first.
        """
        loaders = self.all()
        try:
            if state is not None:
                loaders[key].load_state_dict(state)
            if seek is not None:
                loaders[key].seek(epoch=seek[0], step=seek[1])
            yield loaders[key]
        finally:
            for one in loaders.values():
                one.close()

    def apart(self, run: Callable[[], T]) -> T:
        """Run a function here: each call of the user's function starts from scratch."""
        return run()


def _loaders(made: Any, key: str) -> Iterator[tuple[str, Loader]]:
    if made is None:
        raise UnsupportedError("the function returned None instead of a loader.\nNothing was checked. Return a loader.")
    if isinstance(made, dict):
        for name, one in made.items():
            yield from _loaders(one, f"{key}[{name!r}]")
    elif isinstance(made, (list, tuple)) and made and _is_loader(made[0]):
        for number, one in enumerate(made):
            yield from _loaders(one, f"{key}[{number}]")
    elif not isinstance(made, Loader) and callable(getattr(made, "train_dataloader", None)):
        yield from _loaders(_of_module(made), key)
    else:
        yield key, unrecorded(made if isinstance(made, Loader) else wrap(made))


def _is_loader(one: Any) -> bool:
    """Return whether a list that starts with this is a list of loaders, not of samples."""
    if isinstance(one, Loader) or any(base.__name__ == "DataLoader" for base in type(one).__mro__):
        return True
    try:
        refuse_list([one])
    except UnsupportedError:
        return True
    return False


def _of_module(module: Any) -> Any:
    """Return the train loaders of a LightningDataModule, without a Trainer."""
    for name, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        if callable(getattr(module, name, None)):
            call(partial(getattr(module, name), *arguments), name)
    return call(module.train_dataloader)


def unrecorded(loader: Loader) -> Loader:
    """Remove the flight recorder, because its folder belongs to the real run."""
    options = loader._options  # noqa: SLF001  # not public
    if options.recorder is not None:
        loader.progress = Progress(loader._fetcher, options.unrecorded())  # noqa: SLF001  # the same
    return loader


_PATIENCE = 5.0  # seconds that workers may take to end after close()


def living_workers(before: set[int | None]) -> list[str]:
    """Return the child processes that did not exist before, after they had time to end."""
    end = time.monotonic() + _PATIENCE
    while True:
        living = [one for one in multiprocessing.active_children() if one.pid not in before]
        if not living or time.monotonic() > end:
            return [f"{one.name} (pid {one.pid})" for one in living]
        time.sleep(0.02)


@contextmanager
def hearing() -> Iterator[list[str]]:
    """Yield a list that collects each warning of this package once; they are not shown."""
    said: list[str] = []
    log, listener = logging.getLogger("resumable"), _Listener(said)
    passes_on = log.propagate
    with warnings.catch_warnings(), twins_expected():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: _note(said, str(message))
        log.addHandler(listener)
        log.propagate = False
        try:
            yield said
        finally:
            log.removeHandler(listener)
            log.propagate = passes_on


class _Listener(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        _note(self._said, record.getMessage())


def _note(said: list[str], text: str) -> None:
    if text not in said:
        said.append(text)
