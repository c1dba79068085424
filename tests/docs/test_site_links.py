"""`make docs` finds links of the built site that lead nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "site_links.py"


def check(site: Path) -> tuple[int, list[str]]:
    child = subprocess.run([sys.executable, str(SCRIPT), str(site)], capture_output=True, text=True, check=False)
    return child.returncode, child.stderr.splitlines()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "how-to").mkdir()
    (tmp_path / "how-to/other.html").write_text("<h1 id='there'></h1><a href='../index.html'></a>", encoding="utf-8")
    (tmp_path / "404.html").write_text("<a href='/style.css'></a>", encoding="utf-8")
    links = ("how-to/other.html", "how-to/other.html#there", "#here", ".", "https://pypi.org/nothing#nothing")
    body = "".join(f"<a href='{link}'></a>" for link in links)
    (tmp_path / "index.html").write_text(f"<h1 id='here'></h1>{body}", encoding="utf-8")
    return tmp_path


def test_a_site_is_accepted_if_all_links_lead_somewhere(site: Path) -> None:
    assert check(site) == (0, [])


@pytest.mark.parametrize(
    "tag",
    [
        "<a href='nothing.html'>",
        "<a href='#nothing'>",
        "<a href='how-to/other.html#nothing'>",
        "<a href='/index.html'>",
        "<img src='nothing.png'>",
    ],
)
def test_a_link_that_leads_nowhere_is_found(tag: str, site: Path) -> None:
    with (site / "index.html").open("a", encoding="utf-8") as page:
        page.write(tag)
    link = tag.split("'")[1]
    assert check(site) == (1, ["Links that lead nowhere:", f"index.html: {link}"])


def test_a_site_without_pages_fails(tmp_path: Path) -> None:
    status, lines = check(tmp_path)
    assert status == 1
    assert lines[1:] == [f"{tmp_path} has no page"]
