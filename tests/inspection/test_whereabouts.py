"""What the samples of a batch are, told by the words of their source: of rows, tokens, documents and mixtures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import resumable
from resumable.cli import main
from resumable.errors import ConfigurationError, StateMismatchError
from resumable.sources import Piece, Row, Span

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = [300, 0, 41, 659]
TOKENS = (np.arange(1000) * 7919 % 65_521).astype(np.uint16)


def rows(folder: Path, add: int = 0) -> Any:
    for part in range(2):
        numbers = [add + 20 * part + number for number in range(20)]
        pq.write_table(pa.table({"id": numbers}), folder / f"part-{part}.parquet", row_group_size=8)
    return resumable.Parquet(folder / "part-{0,1}.parquet")


def tokens(folder: Path) -> Any:
    np.save(folder / "train.npy", TOKENS)
    return resumable.Tokens(folder / "train.npy", 64)


def packed(_: Path) -> Any:
    return resumable.Packed(TOKENS, 50, documents=LENGTHS, how="fit")


def mixture(folder: Path) -> Any:
    sources = {"rows": rows(folder), "text": packed(folder), "list": list(range(30))}
    return resumable.mix(sources, weights={"rows": 0.5, "text": 0.25, "list": 0.25})


def saved(source: Any, folder: Path) -> tuple[resumable.Loader[Any], Path]:
    options: Any = {} if isinstance(source, resumable.sources.Mix) else {"shuffle": True}
    loader = resumable.wrap(source, batch_size=4, **options)
    list(loader.steps(3))
    path = folder / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    return loader, path


def asked(source: Any, path: Path, epoch: int = 1, step: int = 2) -> Any:
    return resumable.samples(path, epoch=epoch, step=step, source=source)


def test_rows_are_told_by_file_row_group_and_row(tmp_path: Path) -> None:
    source = rows(tmp_path)
    loader, path = saved(source, tmp_path)
    found = asked(source, path)
    assert list(found.indices) == loader.sample_indices(epoch=1, step=2)
    for index, place, words in zip(found.indices, found.places, found.words, strict=True):
        assert isinstance(place, Row)
        group = pq.ParquetFile(place.file).read_row_group(place.row_group)
        assert group["id"][place.row].as_py() == index == source[index]["id"]
        assert words == f"row {place.row} of row group {place.row_group} of {place.file}"


def test_tokens_are_told_by_their_span(tmp_path: Path) -> None:
    source = tokens(tmp_path)
    _, path = saved(source, tmp_path)
    found = asked(source, path)
    for index, place in zip(found.indices, found.places, strict=True):
        assert place == Span(str(tmp_path / "train.npy"), 64 * index, 64 * index + 64)
        assert source[index][0].tolist() == TOKENS[place.start : place.stop].tolist()
    assert found.words[0] == f"tokens {found.places[0].start}..{found.places[0].stop - 1} of {tmp_path / 'train.npy'}"


def test_windows_of_each_epoch_are_told_by_their_documents(tmp_path: Path) -> None:
    source = packed(tmp_path)
    _, path = saved(source, tmp_path)
    begins = np.cumsum(LENGTHS) - LENGTHS
    for epoch in (0, 2):
        found = asked(source, path, epoch)
        assert all(index // len(source) == epoch for index in found.indices)
        for index, place in zip(found.indices, found.places, strict=True):
            assert all(isinstance(piece, Piece) for piece in place)
            firsts = [(begins[one.document] + one.first, one.length) for one in place]
            read = [token for first, length in firsts for token in TOKENS[first : first + length].tolist()]
            filled = source[index]["input"][: sum(piece.length for piece in place)].tolist()
            assert read == filled
        first = found.places[0][0]
        assert found.words[0].startswith(
            f"document {first.document}, tokens {first.first}..{first.first + first.length - 1}"
        )


def test_a_mixture_is_told_by_its_source_and_what_that_says(tmp_path: Path) -> None:
    source = mixture(tmp_path)
    _, path = saved(source, tmp_path)
    found = [asked(source, path, 0, step) for step in range(8)]
    places = [place for one in found for place in one.places]
    located = source.locate([index for one in found for index in one.indices])
    kinds = {"rows": Row, "text": tuple, "list": int}
    assert {name for name, _ in places} == set(kinds)
    for (name, place), (own, index) in zip(places, located, strict=True):
        assert name == own
        assert type(place) is kinds[name]
        assert place == (index if name == "list" else source.sources[name].locate([index])[0])
    words = [text for one in found for text in one.words]
    for name, begin in (("rows", "rows: row "), ("text", "text: document "), ("list", "list: sample ")):
        assert any(text.startswith(begin) for text in words), name


def test_another_source_is_refused(tmp_path: Path) -> None:
    _, path = saved(rows(tmp_path), tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(StateMismatchError, match=r"its footers differ(.|\n)*Pass the source"):
        asked(rows(tmp_path / "other", 1), path)
    with pytest.raises(ConfigurationError, match=r"method locate\(indices\)"):
        asked(list(range(40)), path)
    _, path = saved(packed(tmp_path), tmp_path)
    with pytest.raises(StateMismatchError):
        asked(resumable.Packed(TOKENS, 50, documents=[*LENGTHS[1:], LENGTHS[0]], how="fit"), path)


SCRIPT = """
import resumable
from pathlib import Path
def make_source():
    return resumable.Parquet(Path(__file__).parent / "part-{0,1}.parquet")
def make_loader():
    print("this is no JSON")
    return resumable.wrap(make_source(), batch_size=4, shuffle=True)
def fails():
    raise RuntimeError("no such disk")
"""


@pytest.mark.parametrize("name", ["make_source", "make_loader"])
def test_the_command_takes_a_script(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = rows(tmp_path)
    _, path = saved(source, tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["samples", str(path), "--epoch", "1", "--step", "2", "--source", f"{tmp_path / 'train.py'}:{name}"]
    assert main(command) == 0
    found = asked(source, path)
    shown = "".join(capsys.readouterr().out.split())  # lines are broken by their width
    for index, words in zip(found.indices, found.words, strict=True):
        assert "".join(f"{index}: {words}".split()) in shown
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["places"] == [list(place) for place in found.places]


def test_a_script_that_raises_is_told_in_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path = saved(rows(tmp_path), tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["samples", str(path), "--epoch", "0", "--step", "0", "--json", "--source"]
    assert main([*command, f"{tmp_path / 'train.py'}:fails"]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "fails() raised RuntimeError" in " ".join(told.err.split())


def test_shards_and_a_script_are_not_both_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["samples", str(tmp_path), "--epoch", "0", "--step", "0"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--tars", "a.tar", "--source", "train.py:make_source"])
    assert ended.value.code == 2
    assert "not allowed with argument --tars" in " ".join(capsys.readouterr().err.split())
