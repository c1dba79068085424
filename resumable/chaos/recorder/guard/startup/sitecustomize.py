"""Python runs this before the first line of every program of an observed command: its directory is in PYTHONPATH.

It loads the guard from its parent directory, without the rest of the package: NumPy must not be imported before the
program has set its environment variables. Then it runs the `sitecustomize` that Python would have run otherwise.
"""

import importlib.util
import os
import sys
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
PLAN = os.environ.get("RESUMABLE_CHAOS", "")
GUARD = "resumable.chaos.recorder.guard"


def _load_guard() -> Any:
    """Load the guard from its path, under the name that the package uses later."""
    spec: Any = importlib.util.spec_from_file_location(GUARD, os.path.join(os.path.dirname(HERE), "__init__.py"))
    module = sys.modules[GUARD] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if sys.version_info >= (3, 11) and os.path.isfile(PLAN):
    _load_guard().start(PLAN)

sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]
del sys.modules["sitecustomize"]
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  # the original one, or none
except ImportError:
    sys.modules["sitecustomize"] = type(sys)("sitecustomize")
