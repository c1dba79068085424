"""Write the main tables of `benchmarks/results.md` and a chart into the documentation: `python -m benchmarks.page`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["CHART", "MARKS", "PAGE", "RESULTS", "SOURCES", "chart", "filled", "main", "tables"]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results.md"
PAGE = ROOT / "docs/reference/benchmarks.md"
CHART = ROOT / "docs/assets/benchmarks.svg"
END = "<!-- end of table -->"
MARKS = re.compile(rf"(<!-- table: ([a-z-]+) -->\n\n).*?{END}", re.DOTALL)

Row = dict[str, str]


class Source(NamedTuple):
    """Which results a table of the page has.

    Args:
        title: of the table in the results.
        columns: heads on the page, and the columns of the results that they show.
        pivot: the columns whose values become heads, and the column with the cells; then `columns` is the key of a row.
        rows: which rows to show.
    """

    title: str
    columns: dict[str, str]
    pivot: tuple[tuple[str, ...], str] | None = None
    rows: Callable[[Row], bool] = lambda _: True


SOURCES = {
    "overhead": Source(
        "Throughput of wrap(DataLoader) against the DataLoader",
        {"workers": "workers", "µs per sample": "us per item"},
        (("randomness",), "ratio"),
    ),
    "transport": Source(
        "Batches from workers, by their size",
        {"batch": "batch", "µs per sample": "us per item"},
        (("randomness",), "ratio"),
    ),
    "state": Source(
        "State: time and bytes",
        {
            "samples": "samples",
            "µs `state_dict`": "us state_dict",
            "µs `load_state_dict`": "us load_state_dict",
            "bytes": "bytes",
        },
    ),
    "guards": Source(
        'Cost of checks="all"',
        {
            "source": "source",
            "workers": "workers",
            "µs per step": "us step",
            "step": "step ratio",
            "step with a state": "step with a state ratio",
            "epoch": "epoch ratio",
            "resume": "resume ratio",
        },
    ),
    "restart": Source(
        "A restart as a whole",
        {
            "source": "source",
            "s without resumable": "s alone, from its beginning",
            "s resumed": "s resumed",
            "s `import resumable`": "import resumable",
        },
    ),
    "peers": Source("Peers: throughput", {"loader": "loader"}, (("workers", "us per item"), "items/s")),
    "peers-resume": Source(
        "Peers: time to the first batch after a resume",
        {"loader": "loader"},
        (("workers",), "ms resumed"),
    ),
    "peers-size": Source("Peers: batches by their size", {"loader": "loader"}, (("batch",), "batches/s")),
    "formats": Source(
        "Formats: throughput",
        {"reader": "reader", "files": "files", "samples/s": "items/s"},
    ),
    "formats-resume": Source(
        "Formats: time to the first batch after a resume",
        {
            "reader": "reader",
            "files": "files",
            "ms at 1 %": "ms at 1 %",
            "ms at 50 %": "ms at 50 %",
            "ms at 90 %": "ms at 90 %",
        },
        rows=lambda row: row["ms at 1 %"] != "not measured",
    ),
    "index": Source(
        "Formats: building an index",
        {"index": "index", "data": "of", "seconds": "seconds", "bytes": "bytes"},
    ),
    "dali": Source("DALI's iterators: throughput", {"iterator": "iterator", "images": "images", "ratio": "of alone"}),
    "dali-elastic": Source(
        "DALI with our sampler against fn.readers.file",
        {"source": "source", "image": "image", "ratio": "ratio", "ratio of processor time": "ratio by processor time"},
    ),
    "ffcv": Source(
        "FFCV: throughput of keyed operations",
        {"file": "file", "pixels": "pixels", "workers": "workers", "ratio": "ratio"},
    ),
    "tfds": Source(
        "TensorFlow Datasets: throughput",
        {"reader": "reader", "samples/s": "samples/s", "ratio": "ratio to tf.data"},
    ),
    "tfdata": Source(
        "tf.data: throughput of wrap(dataset) against the dataset",
        {"pipeline": "pipeline", "strategy": "strategy", "ratio": "wrapped / alone"},
    ),
    "lightning": Source(
        "Lightning: the callback's part of a step",
        {"buffers": "buffers", "µs per step, plain": "us per step plain", "µs added": "us more"},
    ),
    "orders": Source(
        "Orders alone: items per second and memory",
        {"order": "order", "samples": "samples", "indices/s": "items/s", "MB": "MB"},
    ),
    "even": Source(
        "Orders alone: how even batches are",
        {"order": "order", "samples held": "samples held", "chi-square / dof": "chi-square / dof"},
        rows=lambda row: row["samples held"] in {"1,000", "4,096", "32,768", "512,000"},
    ),
}


def tables(results: str) -> dict[str, list[Row]]:
    """Return the rows of all tables by their titles."""
    found = {}
    for part in re.split(r"^### ", results, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        lines = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line.startswith("|")
        ]
        found[title] = [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]
    return found


def filled(page: str, results: str) -> str:
    """Return the page with the tables of the results."""
    found = tables(results)

    def fill(match: re.Match[str]) -> str:
        source = SOURCES[match[2]]
        return f"{match[1]}{_markdown(source, found[source.title])}\n\n{END}"

    return MARKS.sub(fill, page)


def _markdown(source: Source, rows: Sequence[Row]) -> str:
    rows = [row for row in rows if source.rows(row)]
    if source.pivot is None:
        heads = list(source.columns)
        body = [[_cell(row[column]) for column in source.columns.values()] for row in rows]
    else:
        over, value = source.pivot
        keys = dict.fromkeys(_key(row, source.columns.values()) for row in rows)
        across = dict.fromkeys(_key(row, over) for row in rows)
        cells = {(_key(row, source.columns.values()), _key(row, over)): row[value] for row in rows}
        heads = [*source.columns, *(_head(over, one) for one in across)]
        body = [[*key, *(_cell(cells.get((key, one), "")) for one in across)] for key in keys]
    rule = ["---" if _is_text(body, number) else "---:" for number in range(len(heads))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *body))


def _key(row: Row, columns: Iterable[str]) -> tuple[str, ...]:
    return tuple(row[column] for column in columns)


def _head(over: Sequence[str], values: Sequence[str]) -> str:
    units = {"workers": "{} workers", "us per item": "{} µs", "randomness": "`{}`", "batch": "{}"}
    return ", ".join(units[column].format(value) for column, value in zip(over, values, strict=True))


def _cell(text: str) -> str:
    """Return a cell without the spread: that is in the results."""
    text = re.sub(r" \([\d.]+-[\d.]+\)$", "", text).replace(" x ", " × ")  # noqa: RUF001  # the sign of pixels
    power = re.fullmatch(r"1e\+(\d\d)", text)
    return f"10{str(int(power[1])).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}" if power else text


def _is_text(body: Sequence[Sequence[str]], column: int) -> bool:
    return any(re.search(r"[A-Za-z]{2}", line[column]) and line[column] not in {"none", "ours"} for line in body)


# ---------------------------------------------------------------------- the chart

# All lengths are pixels of a picture that is 400 wide, so the text is as large as it says on a narrow screen.
WIDTH, NAMES, LINE, TOP = 400, 196, 22, 44
STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.page { fill: #ffffff }
.title { font-weight: 600 }
.bar { fill: #8c959f }
.ours { fill: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .page { fill: #0d1117 }
  .bar { fill: #656c76 }
  .ours { fill: #4493f8 }
}"""


def chart(results: str) -> str:
    """Return a bar chart of the throughput with two workers and 20 µs per sample."""
    rows = tables(results)["Peers: throughput"]
    speeds = {
        row["loader"]: int(row["items/s"].replace(",", ""))
        for row in rows
        if (row["workers"], row["us per item"]) == ("2", "20")
    }
    height = TOP + len(speeds) * LINE + 4
    size = f'width="{WIDTH}" height="{height}"'
    lines = [
        f'<rect class="page" {size} rx="6"/>',
        '<text class="title" x="10" y="16">Samples per second</text>',
        '<text x="10" y="33">two workers, 20 µs of work per sample</text>',
    ]
    for number, (name, speed) in enumerate(sorted(speeds.items(), key=lambda item: -item[1])):
        top = TOP + number * LINE
        wide = (WIDTH - NAMES - 56) * speed / max(speeds.values())
        kind = "bar ours" if name.startswith("resumable ") else "bar"
        lines.append(f'<text x="{NAMES - 8}" y="{top + 14}" text-anchor="end">{name}</text>')
        lines.append(f'<rect class="{kind}" x="{NAMES}" y="{top}" width="{wide:.0f}" height="{LINE - 7}" rx="2"/>')
        lines.append(f'<text x="{NAMES + wide + 6:.0f}" y="{top + 14}">{speed:,}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size} role="img">'
    return "\n".join([head, f"<style>\n{STYLE}\n</style>", *lines, "</svg>\n"])


def main() -> None:
    """Write the tables and the chart."""
    results = RESULTS.read_text(encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    CHART.write_text(chart(results), encoding="utf-8")


if __name__ == "__main__":
    main()
