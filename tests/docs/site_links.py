"""Finds links of the built site that lead nowhere: mkdocs does not check HTML, nor anchors in docstrings.

python tests/docs/site_links.py site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors and the links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors = {""}
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what a tag names and what it links to."""
        for name, value in attrs:
            if name == "id" or (tag, name) == ("a", "name"):
                self.anchors.add(value or "")
            if name in {"href", "src"}:
                self.links.append(value or "")


def broken(site: Path) -> list[str]:
    """Return each link within the site that leads nowhere, with its page. Other sites are not asked."""
    site = site.resolve()
    pages = {path: Page(path) for path in site.rglob("*.html")}
    wrong = []
    for path, page in sorted(pages.items()):
        if path.name == "404.html":  # the server shows it at any address, so its links are absolute
            continue
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else {""}
            if url.path.startswith("/") or not target.is_file() or unquote(url.fragment) not in anchors:
                wrong.append(f"{path.relative_to(site).as_posix()}: {link}")
    return wrong if pages else [f"{site} has no page"]


if __name__ == "__main__":
    if links := broken(Path(sys.argv[1])):
        sys.exit("\n".join(["Links that lead nowhere:", *links]))
