"""One word for one thing, the one that the field uses: in the documentation, in messages, docstrings and comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pytest
from test_docs import ROOT, TEXTS, blocks, relative

if TYPE_CHECKING:
    from pathlib import Path

CODE = sorted(path for folder in ("resumable", "examples") for path in (ROOT / folder).rglob("*.py"))


class Refused(NamedTuple):
    """A word that is not ours; what it matches may be said where `unless` matches around it."""

    word: str
    say: str
    unless: str = r"(?!)"


REFUSED = {
    refused.word: refused
    for refused in [
        Refused(
            r"behind",
            "after (in time); below, outside, with",
            r"behind[ -]the[ -]scenes|behind-the-scenes|\b(leav\w*|left)\b[^.]{0,70} behind|idle behind full queues",
        ),
        Refused(r"anew", "again"),
        Refused(r"nobody", "who it is that does not; or: is unknown, cannot be seen"),
        Refused(r"(hand(s|ed|ing)?|given) over", "deliver, pass on"),
        Refused(
            r"feed(s|er|ing)?|fed",
            "fetcher; give, read",
            r"feed_input|(what|which|that|somebody|operations at the top that) feeds?\b|fed from outside|fed by `feed|"
            r", '\.join\(fed\)|\"Fed\"",
        ),
        Refused(r"remed(y|ies)", "hint, way out"),
        Refused(r"unharmed", "baseline"),
        Refused(r"fault[ -]points?", "failpoint"),
        Refused(r"kept (batch )?samplers?", "custom sampler"),
        Refused(r"guardians?", "reaper"),
        Refused(r"nurser(y|ies)", "fork server"),
        Refused(r"data sets?", "dataset"),
        Refused(r"facts", "fingerprint"),
        Refused(r"Return of|Return if", "Describe; Return whether"),
        Refused(r"in older text", "only the word that is used now"),
    ]
}
BEGINNINGS = {
    r"(Tell|Tells|Told) (whether|if|which|what|how)\b": "Return whether, Return which",
    r"Tells\b|Told\b": "what it is: The identity of ..., Distinguishes ...",
    r"Return (a|the) (source|dataset|Trainer) (a|the)\b": "Tell somebody something",
}


@cache
def texts_of(path: Path) -> list[str]:
    """Return what people read in a file, each part on a line: of a page all, of code its comments and strings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return [" ".join(text.split())]
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    strings = [token.string for token in tokens if token.type == tokenize.STRING]
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [" ".join(text.split()) for text in (*strings, " ".join(comments))]


def found(refused: Refused, line: str) -> list[str]:
    """Return what is said in the wrong word, with what stands around it."""
    allowed = [match.span() for match in re.finditer(refused.unless, line, re.IGNORECASE)]
    return [
        line[max(0, match.start() - 50) : match.end() + 30]
        for match in re.finditer(rf"\b({refused.word})\b", line, re.IGNORECASE)
        if not any(begin <= match.start() and match.end() <= end for begin, end in allowed)
    ]


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_word_that_is_not_ours_is_nowhere(refused: Refused) -> None:
    said = [
        f"{relative(path)}: ...{part}..."
        for path in [*TEXTS, *CODE]
        for text in texts_of(path)
        for part in found(refused, text)
    ]
    assert not said, f"say instead: {refused.say}"


def test_there_is_code_to_read() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in CODE} == {"resumable", "examples"}


@pytest.mark.slow
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_docstring_begins_with_what_is_returned_or_done(beginning: str) -> None:
    wrong = []
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                wrong += [f"{relative(path)}: {first}"] if re.match(beginning, first) else []
    assert not wrong, f"say instead: {BEGINNINGS[beginning]}"


@pytest.mark.parametrize(
    ("word", "right", "wrong"),
    [
        ("behind", "A fork leaves the threads of its parent\nbehind.", "the state behind the\nlast batch"),
        ("behind", "[how](behind-the-scenes.md)", "Behind every start"),
        (r"feed(s|er|ing)?|fed", "one that is fed by `feed_input`", "the feed of the loader"),
        ("anew", "any new one", "begin anew"),
        ("data sets?", "the dataset", "the data\nset"),
    ],
)
def test_a_wrong_word_would_be_found(word: str, right: str, wrong: str) -> None:
    assert not found(REFUSED[word], " ".join(right.split()))
    assert found(REFUSED[word], " ".join(wrong.split()))


LOADERS_OF_TORCH = {"docs/order/samplers.md", "examples/sampler_alone.py", "examples/adopt_job.py"}
INDEX = re.compile(r"^[^-\n]*\bin enumerate\((epoch|loader)\b(?!, start=loader\.)", re.MULTILINE)


def test_an_index_of_a_loop_continues_after_a_resume() -> None:
    pages = {relative(page): "\n".join(block.code for block in blocks(page)) for page in TEXTS}
    scripts = {
        relative(path): path.read_text(encoding="utf-8")
        for folder in ("examples", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    }
    found = {name for name, code in {**pages, **scripts}.items() if INDEX.search(code)}
    assert found == LOADERS_OF_TORCH, "say instead: epoch.enumerate(), or loader.global_step"


@pytest.mark.parametrize(
    ("code", "restarts"),
    [
        ("for i, batch in enumerate(epoch):", True),
        ("    for i, (x, y) in enumerate(loader, start=1):", True),
        ("-    for i, batch in enumerate(loader):", False),
        ("for i, batch in epoch.enumerate():", False),
        ("for i, batch in enumerate(loader, start=loader.cursor.step):", False),
        ("for rank, loader in enumerate(loaders):", False),
    ],
)
def test_an_index_that_restarts_would_be_found(code: str, restarts: bool) -> None:
    assert bool(INDEX.search(code)) == restarts


def test_every_decision_has_its_day_in_order() -> None:
    _, *sections = (ROOT / "docs/internals/decisions.md").read_text(encoding="utf-8").split("\n## ")
    days = [re.match(r"[^\n]+\n\n\*(\d{4}-\d\d-\d\d)\.\* ", section) for section in sections]
    assert len(days) > 10
    assert all(days), [section.partition("\n")[0] for section, day in zip(sections, days, strict=True) if not day]
    assert [day[1] for day in days if day] == sorted(day[1] for day in days if day)


def test_no_text_has_marks_of_a_merge() -> None:
    marked = [
        relative(path) for path in TEXTS if re.search(r"^(<{7}|>{7}) ", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert marked == []
