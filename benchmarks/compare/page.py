"""Write the tables and the picture of the comparison from `results.json`: `python -m benchmarks.compare.page`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.compare.peers import PEERS
from benchmarks.compare.situations import SITUATIONS

__all__ = ["PAGE", "PICTURE", "README", "README_ROWS", "RESULTS", "filled", "main", "picture", "readme_cells"]

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs/reference/comparison.md"
README = (ROOT / "README.md", ROOT / "docs/get-started/stateful-dataloader.md")
PICTURE = ROOT / "docs/assets/comparison.svg"
MARKS = re.compile(r"(<!-- comparison: ([a-z-]+) -->\n\n).*?(\n\n<!-- end of comparison -->)", re.DOTALL)

Results = dict[str, Any]
PYTORCH = ("wrap", "drop-in", "plain", "stateful", "accelerate")
FORMATS = ("grain", "streaming", "litdata", "lancedb", "datasets", "webdataset")
GROUPS = {
    "crashes": (
        "first-epoch",
        "later-epoch",
        "chain",
        "save-loaded",
        "last-batch",
        "epoch-end",
        "break",
        "used-loader",
    ),
    "random": ("augmentations", "own-generator"),
    "resized": ("workers", "stream-workers", "fewer-ranks", "more-ranks", "batch-size"),
    "mistakes": ("seed", "shuffle", "other-data", "more-data"),
    "loops": ("after-break",),
}
SUMMARY = {
    "Exact after each kill and save, with unchanged settings": (GROUPS["crashes"], ("error", "silent")),
    "Exact or an error": (GROUPS["crashes"], ("silent",)),
    "The same augmentations, with `random`, NumPy and PyTorch": ((*GROUPS["crashes"], "augmentations"), ("silent",)),
    "Exact with a different number of workers": (("workers",), ("error", "silent")),
    "Exact with a different number of ranks": (("fewer-ranks", "more-ranks"), ("error", "silent")),
    "Changed data is rejected": (("other-data", "more-data"), ("error", "silent")),
}
GRADED = tuple(row for name, rows in GROUPS.items() if name != "loops" for row in rows)
README_PEERS = ("plain", "stateful", "wrap")
README_ROWS = {
    "continues mid-epoch with the same sample order": "later-epoch",
    "repeats the `random`, NumPy and PyTorch augmentations": "augmentations",
    "resumes with a different `num_workers`": "workers",
    "the same for an `IterableDataset`": "stream-workers",
    "resumes on a different number of ranks": "fewer-ranks",
    "detects a changed dataset": "other-data",
    "detects a missing `shuffle=True`": "shuffle",
}
WORST = ("none", "good", "error", "silent")


def cell(results: Results, peer: str, row: str) -> tuple[str, str]:
    """Return the text of a cell and its grade: of both numbers of workers, if they differ."""
    made = {workers: cells[row] for workers, cells in sorted(results["peers"][peer]["cells"].items())}
    grade = max((grade for _, grade in made.values()), key=WORST.index)
    texts = {text for text, _ in made.values()}
    if len(texts) == 1:
        return texts.pop(), grade
    return "<br>".join(f"{workers} workers: {text}" for workers, (text, _) in made.items()), grade


def _table(results: Results, peers: tuple[str, ...], rows: tuple[str, ...]) -> str:
    lines = [f"|  | {' | '.join(PEERS[peer].label for peer in peers)} |", f"| --- {'| --- ' * len(peers)}|"]
    for row in rows:
        texts = [(cell(results, peer, row)) for peer in peers]
        cells = [f"**{text}**" if grade == "silent" else text for text, grade in texts]
        lines.append(f"| {SITUATIONS[row].name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _sizes(results: Results) -> str:
    lines = ["| library | bytes |", "| --- | ---: |"]
    for peer, found in results["peers"].items():
        size = found["bytes"]["0"]
        lines.append(f"| {PEERS[peer].label} | {f'{size:,}' if size else 'none'} |")
    return "\n".join(lines)


def _versions(results: Results) -> str:
    versions = {name: one for found in results["peers"].values() for name, one in found["versions"].items()}
    listed = ", ".join(f"{name} {versions[name]}" for name in sorted(versions, key=str.lower))
    return f"Run on {results['measured']}: {results['machine']}; {listed}. All ran with 0 and with 2 workers."


def _summary(results: Results) -> str:
    """Return which libraries have no bad cell in a group of situations."""
    lines = []
    for head, (rows, bad) in SUMMARY.items():
        peers = [peer for peer in (*PYTORCH, *FORMATS) if all(cell(results, peer, row)[1] not in bad for row in rows)]
        lines.append(f"- **{head}:** {', '.join(PEERS[peer].label for peer in peers)}")
    return "\n".join(lines)


def readme_cells(cells: dict[str, list[str]]) -> list[str]:
    """Return a column of the README's table from the outcomes with two workers."""
    texts = {"good": "yes", "silent": "no", "none": "no"}
    found = [cells[row] for row in README_ROWS.values()]
    return [texts.get(grade) or re.sub(r"^.*(`\w+`)$", r"\1", text) for text, grade in found]


def _readme(results: Results) -> str:
    peers = [results["peers"][peer] for peer in README_PEERS]
    columns = [readme_cells(peer["cells"]["2"]) for peer in peers]
    sizes = [f"{peer['bytes']['2'] / 1000:.1f} kB" if peer["bytes"]["2"] else "none" for peer in peers]
    heads = ["`DataLoader`", "torchdata `StatefulDataLoader`", "`resumable`"]
    lines = [f"|  | {' | '.join(heads)} |", "| --- | :---: | :---: | :---: |"]
    for number, head in enumerate(README_ROWS):
        lines.append(f"| {head} | {' | '.join(column[number] for column in columns)} |")
    return "\n".join([*lines, f"| size of the state, with 2 workers | {' | '.join(sizes)} |"])


def filled(text: str, results: Results) -> str:
    """Return a page with the tables of the results."""

    def fill(match: re.Match[str]) -> str:
        name = match[2]
        if name == "readme":
            made = _readme(results)
        elif name == "sizes":
            made = _sizes(results)
        elif name == "versions":
            made = _versions(results)
        elif name == "summary":
            made = _summary(results)
        else:
            group, _, of = name.partition("-")
            made = _table(results, PYTORCH if of == "pytorch" else FORMATS, GROUPS[group])
        return f"{match[1]}{made}{match[3]}"

    return MARKS.sub(fill, text)


# ---------------------------------------------------------------------- the picture

# All lengths are pixels of a picture that is 400 wide, so the text is as large as it says on a narrow screen.
WIDTH, NAMES, TOP, LINE, COLUMN = 400, 174, 128, 19, 20
SIGNS = {"good": "✓", "error": "!", "silent": "✗", "none": "–"}  # noqa: RUF001  # a dash: no such thing
STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.page { fill: #ffffff }
.sign { font-weight: 700; text-anchor: middle; fill: #ffffff }
.good { fill: #1a7f37 }
.error { fill: #9a6700 }
.silent { fill: #cf222e }
.none { fill: #8c959f }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .page { fill: #0d1117 }
  .good { fill: #238636 }
  .silent { fill: #da3633 }
  .none { fill: #656c76 }
}"""
SHORT = {
    "wrap": "resumable.wrap",
    "drop-in": "resumable.torch",
    "plain": "DataLoader",
    "stateful": "StatefulDataLoader",
    "accelerate": "Accelerate",
    "grain": "Grain",
    "streaming": "Streaming",
    "litdata": "LitData",
    "lancedb": "LanceDB",
    "datasets": "datasets",
    "webdataset": "WebDataset",
}
ROWS = {
    "first-epoch": "killed in the first epoch",
    "later-epoch": "killed in a later epoch",
    "chain": "killed eight times",
    "save-loaded": "saved right after the load",
    "last-batch": "saved after the last batch",
    "epoch-end": "saved after an epoch",
    "break": "killed after a break",
    "used-loader": "loaded into a used loader",
    "augmentations": "augmentations",
    "own-generator": "library's own generator",
    "workers": "new number of workers",
    "stream-workers": "same, IterableDataset",
    "fewer-ranks": "2 ranks, then 1",
    "more-ranks": "1 rank, then 2",
    "batch-size": "twice the batch size",
    "seed": "new seed",
    "shuffle": "shuffle=True is missing",
    "other-data": "files in a different order",
    "more-data": "more files",
}


def picture(results: Results) -> str:
    """Return the picture: a square per cell."""
    peers = [peer for peer in (*PYTORCH, *FORMATS) if peer in results["peers"]]
    bottom = TOP + LINE * len(GRADED)
    height = bottom + 52
    size = f'width="{WIDTH}" height="{height}"'
    shapes = [f'<rect class="page" {size} rx="6"/>']
    for number, peer in enumerate(peers):
        x = NAMES + COLUMN * number + 13
        shapes.append(f'<text transform="translate({x} {TOP - 6}) rotate(-90)">{SHORT[peer]}</text>')
    for line, row in enumerate(GRADED):
        y = TOP + LINE * line
        shapes.append(f'<text x="{NAMES - 6}" y="{y + 13}" text-anchor="end">{escape(ROWS[row])}</text>')
        shapes += [_square(NAMES + COLUMN * n, y, cell(results, peer, row)[1]) for n, peer in enumerate(peers)]
    told = {"good": "exact, or a mistake rejected", "silent": "different data, silently", "error": "an error, or hangs"}
    for number, (grade, text) in enumerate([*told.items(), ("none", "does not apply")]):
        x, y = 10 + 210 * (number % 2), bottom + 8 + 22 * (number // 2)
        shapes += [_square(x, y, grade), f'<text x="{x + 24}" y="{y + 13}">{text}</text>']
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>'
    return "\n".join([head, f"<style>\n{STYLE}\n</style>", *shapes, "</svg>\n"])


def _square(x: int, y: int, grade: str) -> str:
    sign = f'<text class="sign" x="{x + 9}" y="{y + 13}">{SIGNS[grade]}</text>'
    return f'<rect class="{grade}" x="{x}" y="{y}" width="18" height="17" rx="3"/>{sign}'


def main() -> None:
    """Write the tables and the picture."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for page in (PAGE, *README):
        page.write_text(filled(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    PICTURE.write_text(picture(results), encoding="utf-8")


if __name__ == "__main__":
    main()
