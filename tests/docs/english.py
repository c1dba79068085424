"""Find phrases that read as translated: `python tests/docs/english.py [PATHS]`; `--record` lowers the ratchet.

english.toml has the phrases, english_hits.toml how many of them each file may still have: a number that only goes down.
The lint reads pages without code, links and text in backticks; in Python, comments, strings and the names of tests.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
HITS = Path(__file__).with_name("english_hits.toml")
FOLDERS = ("docs", "resumable", "examples", "benchmarks", "tests")
PHRASES = [
    (phrase["name"], re.compile(phrase["find"], re.MULTILINE), phrase["say"])
    for phrase in tomllib.loads(Path(__file__).with_name("english.toml").read_text(encoding="utf-8"))["phrase"]
]
TEST_NAME = re.compile(r"def (test_\w+)")
NOT_PROSE = [
    re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"\]\([^)]*\)"),
]


class Hit(NamedTuple):
    """A phrase in a file; `line` counts from 1."""

    path: Path
    line: int
    name: str
    text: str
    say: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.name}: {self.text!r} -> {self.say}"


def files() -> list[Path]:
    """Return every file that people read, except the lint's own."""
    found = [path for folder in FOLDERS for suffix in ("md", "py") for path in (ROOT / folder).rglob(f"*.{suffix}")]
    return sorted(path for path in [*ROOT.glob("*.md"), *found] if path.name not in {"english.py", "test_english.py"})


def paragraphs(text: str, *, python: bool) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file, each paragraph on one line, with the number of its first line."""
    for first, part in _strings(text) if python else [(1, _blank(text, NOT_PROSE))]:
        line = first
        for paragraph in re.split(r"(\n\s*\n)", part):
            words = re.sub(r"`[^`]*`", "`X`", " ".join(paragraph.split()))
            yield line + (len(paragraph) - len(paragraph.lstrip("\n"))), re.sub(r"[\[\"*]", "", words).strip(" '#-|")
            line += paragraph.count("\n")


def _blank(text: str, patterns: list[re.Pattern[str]]) -> str:
    for pattern in patterns:
        text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    return text


def _strings(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments, those of consecutive lines together, strings, and the names of tests as sentences."""
    comment, last = "", 0
    parts = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT and line == last + 1:
            comment, last = f"{comment}\n{token.string.lstrip('# ')}", line
        elif token.type == tokenize.COMMENT:
            yield last - comment.count("\n"), comment
            comment, last = token.string.lstrip("# "), line
        elif token.type in parts:
            yield line, token.string
    yield last - comment.count("\n"), comment
    for number, code in enumerate(text.split("\n"), 1):
        for name in TEST_NAME.findall(code):
            yield number, name.removeprefix("test_").replace("_", " ")


def hits(path: Path, text: str | None = None) -> list[Hit]:
    """Return the phrases in a file, or in a text as if it were that file's."""
    text = path.read_text(encoding="utf-8") if text is None else text
    return [
        Hit(path, line, name, found[0].strip(), say)
        for line, prose in paragraphs(text, python=path.suffix == ".py")
        for name, pattern, say in PHRASES
        for found in pattern.finditer(prose)
    ]


def recorded() -> dict[str, int]:
    """Return how many phrases each file may have; one that is not listed, none."""
    return {name: int(number) for name, number in tomllib.loads(HITS.read_text(encoding="utf-8"))["hits"].items()}


def record() -> None:
    """Lower each file's number to what it has. Nothing raises one, except by hand."""
    before = recorded() if HITS.exists() else {}
    now = {path.relative_to(ROOT).as_posix(): len(hits(path)) for path in files()}
    lines = [f'"{name}" = {min(number, before.get(name, number))}' for name, number in now.items() if number]
    HITS.write_text("\n".join(["[hits]", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        record()
    else:
        wanted = tuple(str(Path(one).resolve()) for one in sys.argv[1:])
        for one in files():
            for hit in hits(one) if str(one).startswith(wanted or "/") else []:
                sys.stdout.write(f"{hit}\n")
