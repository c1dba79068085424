"""Output of the commands: text and tables for people, one JSON document for programs."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn


__all__ = [
    "Page",
    "Parser",
    "as_error",
    "clean",
    "columns",
    "cut",
    "in_bytes",
    "print_json",
    "wrapped",
]

_UNITS = ("B", "kB", "MB", "GB", "TB")
_THOUSAND = 1000


class Page:
    """Prints text, pairs and tables. Control characters are escaped, and no cell of a table is folded."""

    def text(self, *lines: str) -> None:
        """Print lines of text."""
        for line in lines:
            _write(f"{wrapped(clean(line))}\n")

    def table(self, head: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: Sequence[str] = ()) -> None:
        """Print a table.

        Args:
            head: names of the columns.
            rows: their cells.
            numbers: names of the right-aligned columns.
        """
        cells = [head, *([clean(str(cell)) for cell in row] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if name in numbers else cell.ljust(width)
                for cell, width, name in zip(row, widths, head, strict=True)
            ).rstrip()
            for row in cells
        ]
        _write("\n".join([lines[0], "-" * (sum(widths) + 2 * (len(widths) - 1)), *lines[1:]]) + "\n")

    def pairs(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Print names and values, one pair per line."""
        cleaned = [(name, clean(str(value))) for name, value in pairs]
        width = max(len(name) for name, _ in cleaned)
        for name, value in cleaned:
            lines = wrapped(value, max(columns() - width - 4, _LEAST)).split("\n")
            _write("".join(f"  {key:<{width}}  {line}\n" for key, line in zip_longest([name], lines, fillvalue="")))


def print_json(document: Any) -> None:
    """Print one JSON document; numbers that JSON lacks become text."""
    _write(json.dumps(_finite(document), indent=2, default=str) + "\n")


def clean(text: str) -> str:
    """Escape control characters, so a name in a file cannot move the cursor of a terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def cut(rows: Sequence[Any], most: int, *, whole: bool) -> tuple[Sequence[Any], str]:
    """Return the first rows, and a line with the number of hidden rows; empty if there are none."""
    if whole or len(rows) <= most:
        return rows, ""
    return rows[:most], f"... and {len(rows) - most} more; --all shows them."


def in_bytes(size: int) -> str:
    """Format a number of bytes with at most four digits and a unit."""
    number, unit = float(size), 0
    while number >= _THOUSAND and unit < len(_UNITS) - 1:
        number, unit = number / _THOUSAND, unit + 1
    return f"{size} B" if unit == 0 else f"{number:.3g} {_UNITS[unit]}" if number < _THOUSAND else f"{number:.0f} TB"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _write(text: str) -> None:
    """Print; if the reader closed the pipe, as `head` does, discard the rest."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_PIPED = 80  # columns, without a terminal
_LEAST = 20  # columns; anything narrower would be unreadable


def wrapped(text: str, width: int | None = None, *, spared: bool = False) -> str:
    """Fold long lines of a text, and indent the continuation of indented lines. Words are not broken.

    Args:
        text: lines, with their indentation.
        width: number of columns; by default `columns()`.
        spared: do not fold lines that start with a space, such as a command to be copied.
    """
    most = width or columns()
    return "\n".join(_fold(line, most) if line[:1] != " " or not spared else line for line in text.split("\n"))


def _fold(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    text = line.lstrip()
    indent = min(len(line) - len(text), width // 2)
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2 * bool(indent)),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def as_error(message: str) -> str:
    """Return a message as printed: `error:` before its first line, and `hint:` before its last.

    The last line is not a hint if it is indented, or belongs to the output of a program, which follows a colon.
    """
    first, *others = lines = message.rstrip().split("\n")
    quotes = any(line.endswith(":") and after[:1] != " " for line, after in pairwise(lines))
    last = [others.pop()] if others and others[-1][:1] != " " and not quotes else []
    lines = [_labeled("error", first), *(wrapped(line, spared=True) for line in others)]
    return "\n".join([*lines, *(_labeled("hint", line) for line in last)])


def _labeled(label: str, text: str) -> str:
    """Fold a line after a label, which is never alone on its line."""
    return f"{label}: {wrapped(text, columns() - len(label) - 2)}"


def columns() -> int:
    """Return the output width: `COLUMNS`, or the width of the terminal, or 80 in a pipe or a file."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given):
        return max(int(given), _LEAST)
    for stream in (sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None and (width := os.get_terminal_size(stream.fileno()).columns):
                return max(width, _LEAST)
        except (OSError, ValueError):  # not a terminal, or closed
            continue
    return _PIPED


class Help(RawDescriptionHelpFormatter):
    """Formats `--help` in the width of all output; lines of an epilog keep their indentation."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_LEAST, width=columns())

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002  # the base class's
        return wrapped(text)


class Parser(ArgumentParser):
    """A parser whose help and errors have the width of all output.

    Args:
        options: of `ArgumentParser`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Help, **options)

    def error(self, message: str) -> NoReturn:
        """Report an error in the arguments, and exit with status 2."""
        hint = "" if "\n" in message else f"\nSee {self.prog} --help."
        self.exit(2, as_error(message + hint) + "\n")
