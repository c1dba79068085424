"""Loads a script from its file, under a name by which worker processes find it, too."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from resumable._selfcheck.calling import ended, raised
from resumable.errors import ConfigurationError, ResumableError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["FORM", "load_file", "remove_stand_ins"]

FORM = "Give script.py:name or package.module:name, as in: resumable check train.py:make_loader"
_STAND_IN = """__file__ = {file!r}
with open(__file__, "rb") as script:
    exec(compile(script.read(), __file__, "exec"))
"""
_folders: list[tempfile.TemporaryDirectory[str]] = []  # of stand-ins


def load_file(path: Path) -> ModuleType:
    """Load a script, and put its folder first in `sys.path`.

    Raises:
        ConfigurationError: there is none, it raised, or it ended itself.
    """
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}.\nNothing was loaded. {FORM}")
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
    """Remove what workers imported scripts by."""
    while _folders:
        _folders.pop().cleanup()


def _free_name(path: Path) -> str:
    """Return its own name, if no other module has that; else one that workers find by a stand-in."""
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
        return f"A script that is given by its path is in no package. Give its module: {dotted}:make"
    return 'What is to run in training only belongs below `if __name__ == "__main__":`.'
