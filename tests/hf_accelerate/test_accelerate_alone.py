"""What Accelerate does alone, by its guide to checkpoints, and with `prepare`: the page has the same rows."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import alone_run
import pytest
from killed_runs import Bench, lines, said

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs/reference/accelerate-alone.md"
MEASURED = "1.15.0"


class Row(NamedTuple):
    """A row of the page.

    Args:
        loader: what is prepared, for people.
        saved: after how many micro-batches of the run.
        alone: what comes of the resume, in words.
        options: of `alone_run.Run`.
        often: it is run by `make test`.
    """

    loader: str
    saved: int
    alone: str
    options: dict[str, Any]
    often: bool = False

    @property
    def place(self) -> str:
        """Where it is saved."""
        length = alone_run.SAMPLES // (alone_run.BATCH * self.options.get("world", 1))
        epoch, step = divmod(self.saved - 1, length)
        return f"{step + 1} of {length}, epoch {epoch}"


SHUFFLE: dict[str, Any] = {"shuffle": True}
SEEDABLE: dict[str, Any] = {"shuffle": True, "seedable": True}
STATEFUL: dict[str, Any] = {"stateful": True}
AUGMENT: dict[str, Any] = {"augment": True}
RANKS: dict[str, Any] = {"world": 2}
SECTIONS: dict[str, list[Row]] = {
    "The order": [
        Row("unshuffled", 6, "exact", {}),
        Row("`shuffle=True`", 6, "7 samples lost, 7 repeated", SHUFFLE, often=True),
        Row("`shuffle=True`", 10, "exact", SHUFFLE),
        Row("`shuffle=True`", 16, "3 samples lost, 3 repeated", SHUFFLE),
        Row("`use_seedable_sampler=True`", 6, "different order", SEEDABLE),
        Row("`use_seedable_sampler=True`", 16, "3 samples lost, 3 repeated", SEEDABLE),
        Row("the same with `set_epoch` in each epoch", 6, "exact", {**SEEDABLE, "set_epoch": True}),
        Row("the same with `set_epoch` in each epoch", 16, "exact", {**SEEDABLE, "set_epoch": True}, often=True),
        Row("`IterableDataset`", 6, "exact", {"stream": True}),
    ],
    "`use_stateful_dataloader=True`": [
        Row("unshuffled", 6, "exact", STATEFUL, often=True),
        Row("unshuffled, two workers", 6, "exact", {**STATEFUL, "workers": 2}),
        Row("unshuffled", 10, "exact", STATEFUL),
        Row("`shuffle=True`", 6, "7 samples lost, 7 repeated", {**STATEFUL, **SHUFFLE}, often=True),
        Row("`shuffle=True`", 10, "different order", {**STATEFUL, **SHUFFLE}),
        Row("`shuffle=True`", 16, "3 samples lost, 3 repeated", {**STATEFUL, **SHUFFLE}),
        Row("`shuffle=True, use_seedable_sampler=True`", 16, "3 samples lost, 3 repeated", {**STATEFUL, **SEEDABLE}),
        Row("the same with `set_epoch` in each epoch", 16, "exact", {**STATEFUL, **SEEDABLE, "set_epoch": True}),
        Row("stateless `IterableDataset`", 6, "exact", {**STATEFUL, "stream": True}),
    ],
    "Random numbers": [
        Row("dropout in the model", 6, "exact", {"dropout": True}),
        Row("augmentation", 6, "same samples, different augmentation", AUGMENT, often=True),
        Row(
            "augmentation, two workers",
            6,
            "same samples, different augmentation",
            {**AUGMENT, "workers": 2},
            often=True,
        ),
        Row(
            "augmentation, `use_stateful_dataloader=True`",
            6,
            "same samples, different augmentation",
            {**AUGMENT, **STATEFUL},
        ),
        Row(
            "augmentation, the same with two workers",
            6,
            "same samples, different augmentation",
            {**AUGMENT, **STATEFUL, "workers": 2},
        ),
        Row("augmentation, `IterableDataset`", 6, "same samples, different augmentation", {**AUGMENT, "stream": True}),
    ],
    "Gradient accumulation over 3 batches": [
        Row("unshuffled, saved at an optimizer step", 6, "exact", {"accumulate": 3}),
        Row(
            "unshuffled, saved in the middle of an accumulation",
            4,
            "same batches, different weights",
            {"accumulate": 3},
            often=True,
        ),
        Row(
            "unshuffled, saved before the incomplete accumulation at the end of an epoch", 9, "exact", {"accumulate": 3}
        ),
        Row("unshuffled, saved after it", 10, "exact", {"accumulate": 3}, often=True),
        Row(
            "unshuffled, saved after the first batch of the next epoch",
            11,
            "same batches, different weights",
            {"accumulate": 3},
        ),
    ],
    "Two ranks": [
        Row("unshuffled", 3, "exact", RANKS),
        Row("`shuffle=True`", 3, "exact", {**RANKS, **SHUFFLE}),
        Row("`shuffle=True`", 8, "4 samples lost, 4 repeated", {**RANKS, **SHUFFLE}, often=True),
        Row("`use_seedable_sampler=True` with `set_epoch`", 8, "exact", {**RANKS, **SEEDABLE, "set_epoch": True}),
        Row("augmentation", 3, "same samples, different augmentation", {**RANKS, **AUGMENT}),
        Row(
            "accumulation over 2, saved in the middle", 3, "same batches, different weights", {**RANKS, "accumulate": 2}
        ),
        Row("`IterableDataset`", 3, "exact", {**RANKS, "stream": True}),
        Row("`use_stateful_dataloader=True`, unshuffled", 3, "exact", {**RANKS, **STATEFUL}),
    ],
}
ROWS = [(title, number) for title, rows in SECTIONS.items() for number in range(len(rows))]
PARAMETERS = [
    pytest.param(title, number, marks=[] if SECTIONS[title][number].often else [pytest.mark.long])
    for title, number in ROWS
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(tmp_path_factory.mktemp("alone"), alone_run.__file__)
    yield found
    found.close()


def verdict(bench: Bench, row: Row, *, prepared: bool) -> str:
    """Say how a resumed run differs from the rest of the uninterrupted one."""
    options = {"save_at": row.saved, "prepared": prepared, **row.options}
    ranks = range(row.options.get("world", 1))
    whole, resumed = bench.new(), bench.new()
    for folder, more in ((whole, {}), (resumed, {"resume": str(whole)})):
        assert not any(bench.run(folder, **options, **more)), said(folder)
    runs = [(_trained(whole, rank), _trained(resumed, rank)) for rank in ranks]
    first = runs[0][1][0][0]
    assert first <= row.saved + 1, "it left out what was not saved"
    pairs = [([line for line in one if line[0] >= first], other) for one, other in runs]
    weights = all(lines(whole, rank)[-1] == lines(resumed, rank)[-1] for rank in ranks)
    return _difference(pairs) or ("exact" if weights else "same batches, different weights")


def _trained(folder: Path, rank: int) -> list[Any]:
    return [line[1:] for line in lines(folder, rank) if line[0] == "train"]


def _difference(pairs: list[tuple[list[Any], list[Any]]]) -> str:
    if all(expected == found for expected, found in pairs):
        return ""
    samples = [[_samples(run) for run in pair] for pair in pairs]
    if all(expected == found for expected, found in samples):
        return "same samples, different augmentation"
    expected, found = (sum((Counter(pair[side]) for pair in samples), Counter()) for side in range(2))
    lost, again = (expected - found).total(), (found - expected).total()
    return f"{lost} samples lost, {again} repeated" if lost or again else "different order"


def _samples(run: list[Any]) -> list[tuple[int, float]]:
    return [(epoch, number) for _, epoch, numbers, *_ in run for number in numbers]


@pytest.mark.slow
@pytest.mark.every_cell
@pytest.mark.parametrize(("title", "number"), PARAMETERS)
def test_accelerate_does_what_the_page_says(bench: Bench, title: str, number: int) -> None:
    row = SECTIONS[title][number]
    assert verdict(bench, row, prepared=False) == row.alone, f"update {PAGE}: Accelerate is {version('accelerate')}"
    assert verdict(bench, row, prepared=True) == "exact"


def table(rows: list[Row]) -> str:
    """Make the table of a section."""
    head = "| loader | saved after micro-batch | Accelerate alone |\n| --- | --- | --- |\n"
    return head + "".join(f"| {row.loader} | {row.place} | {row.alone} |\n" for row in rows)


@pytest.mark.parametrize("title", SECTIONS)
def test_the_page_has_the_tables_of_these_rows(title: str) -> None:
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert "".join(f"{line}\n" for line in section.splitlines() if line.startswith("|")) == table(SECTIONS[title])


def test_the_page_has_no_other_tables_and_names_the_version() -> None:
    text = PAGE.read_text(encoding="utf-8")
    tables = sum(line.startswith("|") for line in text.splitlines())
    assert tables == sum(len(rows) + 2 for rows in SECTIONS.values())
    assert f"Accelerate {MEASURED}" in text
