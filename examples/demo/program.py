"""Train from a source of the catalogue with a one-line command, for `resumable chaos run`.

    resumable chaos run -- python -m examples.demo.program list --directory {dir}

Run again with the same directory, it resumes from its last checkpoint.
"""

from __future__ import annotations

import sys
import uuid
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from .catalogue import SOURCES, find_source

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

IMAGES = 500  # to train on: seven full batches and a partial one
_HELD_OUT = 100


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with the options of the command line."""
    parser = ArgumentParser(prog="python -m examples.demo.program", description="Train from a source of the demo.")
    parser.add_argument("source", help=f"{', '.join(SOURCES)}; or module:function")
    parser.add_argument("--directory", required=True, type=Path, help="for checkpoints and everything else")
    parser.add_argument("--data", type=Path, help="file of the digits (default: created in the directory)")
    given = parser.parse_args(arguments)
    source, directory = find_source(given.source), given.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    paths = {
        "data": given.data or make_data(directory / "digits.npz"),
        "checkpoints": directory / "checkpoints",
        "ledger": directory / f"ledger-{uuid.uuid4().hex}.jsonl",  # a separate one per launch
    }
    options = [f"--make={source.make}", *(f"--{name}={path}" for name, path in paths.items())]
    import_module(source.program).main(options)


def make_data(path: Path) -> Path:
    """Write part of the digits to a file, unless it exists."""
    from .digits import Digits, load_digits, write_digits  # noqa: PLC0415  # a second of imports

    if not path.exists():
        count = IMAGES + _HELD_OUT
        digits = load_digits()
        part = path.with_suffix(f".{uuid.uuid4().hex}.npz")  # a kill during the write would leave an incomplete file
        write_digits(Digits(digits.images[:count], digits.labels[:count]), part, IMAGES)
        part.replace(path)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
