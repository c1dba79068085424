"""No file gets more phrases that read as translated; what is fixed stays fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from english import PHRASES, ROOT, Hit, files, hits, recorded

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST_READ = ("README.md", "docs/index.md", "docs/get-started/")  # nothing is allowed where people start


def above(found: Mapping[str, list[Hit]], allowed: Mapping[str, int]) -> list[str]:
    """Return the hits of each file that has more than it may have."""
    return [str(hit) for name, some in found.items() if len(some) > allowed.get(name, 0) for hit in some]


@pytest.fixture(scope="module")
def found() -> dict[str, list[Hit]]:
    return {path.relative_to(ROOT).as_posix(): hits(path) for path in files()}


def test_no_file_gains_phrases(found: dict[str, list[Hit]]) -> None:
    assert not above(found, recorded())


def test_the_record_is_lowered(found: dict[str, list[Hit]]) -> None:
    loose = {name: (number, len(found.get(name, []))) for name, number in recorded().items()}
    assert not {name: pair for name, pair in loose.items() if pair[0] > pair[1]}, (
        "run `python tests/docs/english.py --record`"
    )


def test_pages_for_the_first_read_have_none() -> None:
    assert not [name for name in recorded() if name.startswith(FIRST_READ)]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("docs/page.md", "Another seed is refused by name."),
        ("docs/page.md", "It is a paragraph in which it goes\non in the next line."),
        ("resumable/code.py", 'raise ValueError("the place of the state")'),
        ("resumable/code.py", "# It is asked\n# at once.\n"),
        ("resumable/code.py", 'f"a seed of its own: {seed}"'),
        ("tests/test_code.py", "def test_a_state_of_its_own() -> None: ..."),
    ],
)
def test_a_planted_sentence_is_found(file: str, text: str) -> None:
    planted = hits(ROOT / file, text)
    assert planted
    assert above({file: planted}, {file: len(planted) - 1}) == list(map(str, planted))
    assert not above({file: planted}, {file: len(planted)})


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("docs/page.md", "Raises `StateMismatchError` if the seed differs."),
        ("docs/page.md", "```python\n# at once, of its own\n```\n\n<!-- at once -->\n[here](at-once.md)"),
        ("docs/page.md", "Call `go on` first."),
        ("resumable/code.py", "begin = place.of_its_own"),
    ],
)
def test_other_text_passes(file: str, text: str) -> None:
    assert not hits(ROOT / file, text)


def test_a_line_number_leads_to_the_paragraph() -> None:
    assert [hit.line for hit in hits(ROOT / "docs/page.md", "Text.\n\nMore.\n\n\nRun it at once.\n")] == [6]


def test_each_phrase_has_a_name_of_one_thing() -> None:
    names = [name for name, _, _ in PHRASES]
    assert len(set(names)) == len(names) >= 40
