"""Output of the commands: text and tables for people, one JSON document for programs."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import sys
import textwrap
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any, TextIO

from resumable._distribution import pip_install
from resumable._selfcheck.scripts import loading, raised
from resumable.errors import ConfigurationError, MissingDependencyError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import NoReturn


__all__ = [
    "Help",
    "Page",
    "Parser",
    "clean",
    "columns",
    "cut",
    "in_bytes",
    "print_json",
    "undiverted",
    "users_function",
    "wrapped",
]

_UNITS = ("B", "kB", "MB", "GB", "TB")
_THOUSAND = 1000


class Page:
    """Prints text and tables in the width of `columns`, without colors in a pipe.

    Cells are folded, not truncated, and their control characters are escaped.

    Raises:
        MissingDependencyError: rich is not installed.
    """

    def __init__(self) -> None:
        console = _rich("console")
        self._console = console.Console(file=sys.stdout, width=columns(), highlight=False, markup=False, emoji=False)

    def text(self, *lines: str) -> None:
        """Print lines of text."""
        for line in lines:
            self._print(_rich("text").Text(clean(line)))

    def table(self, head: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: Sequence[str] = ()) -> None:
        """Print a table.

        Args:
            head: names of the columns.
            rows: their cells.
            numbers: names of the right-aligned columns.
        """
        table = _rich("table").Table(box=_rich("box").SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for name in head:
            table.add_column(name, overflow="fold", justify="right" if name in numbers else "left")
        for row in rows:
            table.add_row(*(_rich("text").Text(clean(str(cell))) for cell in row))
        self._print(table)

    def facts(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Print names and values, one pair per line."""
        table = _rich("table").Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=False)
        table.add_column(overflow="fold")
        for name, value in pairs:
            table.add_row(f"  {name}", _rich("text").Text(clean(str(value))))
        self._print(table)

    def _print(self, what: Any) -> None:
        with self._console.capture() as captured:
            self._console.print(what)
        lines = [line.rstrip() for line in captured.get().splitlines()]
        _write("\n".join(lines).strip("\n") + "\n")


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


def _rich(module: str) -> Any:
    try:
        return importlib.import_module(f"rich.{module}")
    except ImportError as error:
        raise MissingDependencyError(
            f"printing tables needs rich, which is not installed. --json works without it.\n"
            f"Install it: {pip_install('cli')}"
        ) from error


_NARROW = 60  # columns, if there is no terminal
_LEAST = 20  # columns; anything narrower would be unreadable


def wrapped(text: str, *, spared: bool = False) -> str:
    """Fold long lines of a text, and indent the continuation of indented lines. Words are not broken.

    Args:
        text: lines, with their indentation.
        spared: do not fold lines that start with a space, such as a command to be copied.
    """
    return "\n".join(_fold(line) if line[:1] != " " or not spared else line for line in text.split("\n"))


def _fold(line: str) -> str:
    if len(line) <= columns():
        return line
    text = line.lstrip()
    indent = min(len(line) - len(text), columns() // 2)
    lines = textwrap.wrap(
        text,
        columns(),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2 * bool(indent)),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def columns() -> int:
    """Return the output width: `COLUMNS`, or the width of the terminal, or 60 in a pipe or a file."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given):
        return max(int(given), _LEAST)
    for stream in (sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None and (width := os.get_terminal_size(stream.fileno()).columns):
                return max(width, _LEAST)
        except (OSError, ValueError):  # not a terminal, or closed
            continue
    return _NARROW


class Help(RawDescriptionHelpFormatter):
    """Formats `--help` in the width of all output; lines of an epilog keep their indentation."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_LEAST, width=columns())

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002  # the base class's
        return wrapped(text)


class Parser(ArgumentParser):
    """A parser whose errors have the width of all output."""

    def error(self, message: str) -> NoReturn:
        """Report an error in the arguments, and exit with status 2."""
        self.print_usage(sys.stderr)
        self.exit(2, wrapped(f"{self.prog}: error: {message}") + "\n")


# Runs a user's code for a command: its output goes to standard error, and its exceptions become one message.


@contextlib.contextmanager
def users_function(spec: str, words: Sequence[str]) -> Iterator[Callable[[], Any]]:
    """Yield the function of a spec.

    Args:
        spec: such as "train.py:make_loader".
        words: for the `sys.argv` of its script.

    Raises:
        ConfigurationError: anything raised that is not an error of this package.
    """
    try:
        with _diverted(), contextlib.redirect_stdout(sys.stderr), loading(spec, words) as make:
            yield make
    except ResumableError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(raised("the command", error)) from error


@contextlib.contextmanager
def undiverted() -> Iterator[TextIO]:
    """Yield standard output as it is now, which stays that while a user's code runs."""
    try:
        number = os.dup(sys.stdout.fileno())
    except (OSError, ValueError):  # it is no file
        yield sys.stdout
        return
    stream = os.fdopen(number, "w", encoding="utf-8")
    try:
        yield stream
    finally:
        with contextlib.suppress(BrokenPipeError):
            stream.close()


@contextlib.contextmanager
def _diverted() -> Iterator[None]:
    """Redirect file descriptor 1 to 2, for output that bypasses `sys.stdout`, such as from child processes."""
    streams = [stream for stream in (sys.stdout, sys.__stdout__) if stream is not None and not stream.closed]
    try:
        saved = os.dup(1)
    except OSError:  # closed
        yield
        return
    try:
        for stream in streams:
            stream.flush()
        os.dup2(2, 1)
        yield
    finally:
        for stream in streams:
            stream.flush()
        os.dup2(saved, 1)
        os.close(saved)
