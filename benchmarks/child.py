"""The process of a contender: creates a task and calls its methods, according to JSON on standard input."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Answer requests until the input ends. Other output goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "call" in request:
                answer = {"value": getattr(task, request["call"])(**request["options"])}
            else:
                task, answer = None, {"value": None}
                gc.collect()
                task = _find(request["make"])(**request["options"]) if "make" in request else None
        except ModuleNotFoundError as error:
            ours = (error.name or "").partition(".")[0] in {"benchmarks", "resumable"}
            answer = {"error": traceback.format_exc()} if ours else {"missing": error.name}
        except Exception:  # noqa: BLE001  # whatever it is, the other side says what was being measured
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


def _find(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    main()
