"""Overrides the global variables of a script: python train_gpt.py config/small.py --max_iters=12."""

from __future__ import annotations

import sys
from ast import literal_eval
from pathlib import Path
from typing import Any


def override(known: dict[str, Any]) -> None:
    for arg in sys.argv[1:]:
        if "=" not in arg:
            print(f"Overriding config with {arg}:")
            exec(Path(arg).read_text(encoding="utf-8"), known)
            continue
        key, _, text = arg.removeprefix("--").partition("=")
        try:
            value = literal_eval(text)
        except (SyntaxError, ValueError):
            value = text
        assert key in known, f"Unknown config key: {key}"
        assert type(value) is type(known[key])
        print(f"Overriding: {key} = {value}")
        known[key] = value
