"""Parquet files by index: values as pyarrow reads them, row groups that are kept, and what is refused by name."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_files import GROUP, ROWS, plain, table, write

import resumable
from resumable.errors import ConfigurationError, DataError
from resumable.sources import Row
from resumable.sources._parquet_file import place_of

if TYPE_CHECKING:
    from pathlib import Path

TOTAL = sum(ROWS)


# ---------------------------------------------------------------------- values


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"use_dictionary": False, "compression": "none"}])
def test_values_are_those_of_pyarrow(options: dict[str, Any], tmp_path: Path) -> None:
    paths = write(tmp_path, **options, data_page_size=64, write_page_checksum=True)
    expected = pa.concat_tables(map(pq.read_table, paths)).to_pylist()
    source = resumable.Parquet(paths)
    assert len(source) == TOTAL == len(expected)
    assert source.sizes.tolist() == [8, 8, 8, 8, 5, 8, 8, 8, 8, 8, 8, 2, 1]
    assert [plain(sample) for sample in source] == expected
    some = [87, 3, 3, 0, 44, 36, 37, 86]
    assert [plain(sample) for sample in source.__getitems__(some)] == [expected[index] for index in some]
    for copied in (pickle.loads(pickle.dumps(source)), resumable.Parquet(str(tmp_path / "*.parquet"))):  # noqa: S301  # our own
        assert [plain(copied[index]) for index in some] == [expected[index] for index in some]
    for index in (TOTAL, -1):
        with pytest.raises(IndexError, match=rf"sample {index} does not exist: the samples are 0\.\.87"):
            source[index]


def test_lists_of_numbers_are_arrays_that_can_be_written_to(tmp_path: Path) -> None:
    source = resumable.Parquet(write(tmp_path))
    sample = source[4]
    assert (sample["tokens"].dtype, sample["tokens"].tolist()) == (np.int32, [0, 1, 2, 3])
    assert (sample["pair"].dtype, sample["pair"].shape) == (np.float32, (2,))
    assert isinstance(source[5]["gaps"], list)
    sample["tokens"][:] = 9
    assert source[4]["tokens"].tolist() == [0, 1, 2, 3]
    assert source.__getitems__([4, 4])[0]["tokens"] is not source.__getitems__([4, 4])[1]["tokens"]


def test_lists_and_tensors_may_be_missing_or_empty(tmp_path: Path) -> None:
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    storage = pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.float32(), 4))
    columns = {
        "list": pa.array([None, [True, False]], pa.list_(pa.bool_())),
        "large": pa.array([[], [1.5]], pa.large_list(pa.float64())),
        "fixed": pa.array([None, [1, 2]], pa.list_(pa.int8(), 2)),
        "tensor": pa.ExtensionArray.from_storage(tensor, storage),
        "labels": pa.array(["a", "b"]).dictionary_encode(),
        "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    first, second = resumable.Parquet(tmp_path / "a.parquet")
    assert (first["list"], first["fixed"]) == (None, None)
    assert (second["list"].dtype, second["list"].tolist(), second["fixed"].tolist()) == (bool, [True, False], [1, 2])
    assert (first["large"].dtype, first["large"].shape, second["large"].tolist()) == (np.float64, (0,), [1.5])
    assert first["tensor"].tolist() == [[1, 2], [3, 4]]
    assert (first["labels"], second["labels"], first["map"]) == ("a", "b", [("k", 1)])


@pytest.mark.parametrize(
    "columns",
    [["id"], ["text", "id"], ["point.x"], ["boxes", "point.name.de", "raw"], ["boxes.list.element.at"], ["point"]],
)
def test_columns_are_chosen_as_in_pyarrow(columns: list[str], tmp_path: Path) -> None:
    paths = write(tmp_path)
    expected = pa.concat_tables(pq.ParquetFile(path).read(columns=columns) for path in paths).to_pylist()
    source = resumable.Parquet(paths, columns=columns)
    assert [plain(sample) for sample in source] == expected
    assert list(source[0]) == list(dict.fromkeys(name.partition(".")[0] for name in columns))


def test_one_row_no_rows_and_no_row_groups(tmp_path: Path) -> None:
    empty = table(0, 0)
    pq.write_table(empty, tmp_path / "a.parquet")
    with pq.ParquetWriter(tmp_path / "b.parquet", empty.schema):
        pass
    pq.write_table(table(5, 1), tmp_path / "c.parquet")
    source = resumable.Parquet(tmp_path / "{a,b,c}.parquet")
    assert (source.sizes.tolist(), source[0]["id"]) == ([1], 5)
    for name in ("a", "b", "{a,b}"):
        with pytest.raises(ConfigurationError, match=r"has no rows, in \d+ row groups\.\nCheck the program"):
            resumable.Parquet(tmp_path / f"{name}.parquet")


# ---------------------------------------------------------------------- filters, by row groups


OPERATORS: dict[str, Any] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}


@pytest.mark.slow
@given(
    values=st.lists(st.none() | st.integers(-4, 4), min_size=1, max_size=40),
    operator=st.sampled_from(sorted(OPERATORS)),
    bound=st.integers(-5, 5),
)
@settings(max_examples=60)
def test_what_is_left_out_has_no_row_that_fits(
    values: list[int | None], operator: str, bound: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("filters") / "a.parquet"
    pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), path, row_group_size=4)
    asked = [bound, bound + 1] if "in" in operator else bound
    fits = [value is not None and OPERATORS[operator](value, asked) for value in values]
    groups = [range(first, min(first + 4, len(values))) for first in range(0, len(values), 4)]
    must = {number for number, rows in enumerate(groups) if any(fits[row] for row in rows)}
    try:
        source = resumable.Parquet(path, filters=[("x", operator, asked)])
    except ConfigurationError as error:
        assert "that may match filters=" in str(error)  # noqa: PT017  # with none it depends on the values
        assert not must
        return
    kept = list(dict.fromkeys(row.row_group for row in source.locate(range(len(source)))))
    assert must <= set(kept)
    assert [sample["x"] for sample in source] == [values[row] for number in kept for row in groups[number]]
    if operator in {"<", ">="} and None not in values:
        assert must == set(kept)


def test_filters_take_each_of_pyarrows_forms(tmp_path: Path) -> None:
    paths = write(tmp_path)
    either: Any = [[("id", "<", 4)], [("id", ">", 85), ("half", "<", 1000.0)]]
    for filters in (either, (pc.field("id") < 4) | (pc.field("id") > 85)):
        source = resumable.Parquet(paths, columns=["id"], filters=filters)
        assert [sample["id"] for sample in source] == [*range(8), 85, 86, 87]
        assert source.locate([0, 8, 10]) == [
            Row(str(paths[0]), 0, 0),
            Row(str(paths[1]), 6, 0),
            Row(str(paths[2]), 0, 0),
        ]


# ---------------------------------------------------------------------- which files


def test_files_come_in_the_order_of_the_list_and_of_their_names(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        pq.write_table(table(number, 1), tmp_path / f"{number:02d}.parquet")

    def read(files: Any) -> list[int]:
        return [sample["id"] for sample in resumable.Parquet(files, columns=["id"])]

    assert read(tmp_path / "*.parquet") == [1, 2, 10]
    assert read(f"{tmp_path}/{{10,01,02}}.parquet") == [10, 1, 2]
    assert read([tmp_path / "10.parquet", f"{tmp_path}/0[12].parquet"]) == [10, 1, 2]
    assert read(f"file://{tmp_path}/{{01..02}}.parquet") == [1, 2]


def test_files_in_memory_are_read_by_ranges(tmp_path: Path) -> None:
    paths, system = write(tmp_path), fsspec.filesystem("memory")
    for path in paths:
        system.pipe_file(f"/parquet/{path.name}", path.read_bytes())
    source = resumable.Parquet("memory://parquet/part-{000..002}.parquet")
    assert source.files == [f"memory://parquet/{path.name}" for path in paths]
    assert [plain(one) for one in source] == [plain(one) for one in resumable.Parquet(paths)]
    assert [plain(one) for one in resumable.Parquet("memory://parquet/*.parquet")] == [plain(one) for one in source]
    copied = pickle.loads(pickle.dumps(source))  # noqa: S301  # our own
    system.pipe_file("/parquet/part-001.parquet", paths[0].read_bytes())
    with pytest.raises(DataError, match=r"memory://.*part-001.parquet was rewritten since it was opened"):
        copied[40]
    system.rm("/parquet", recursive=True)


# ---------------------------------------------------------------------- what is kept, and how it is read


def test_memory_is_bounded_and_neighbours_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = os.pread

    def counted(number: int, size: int, offset: int) -> bytes:
        read.append(offset)
        return original(number, size, offset)

    paths = write(tmp_path, (80,))
    one = pq.ParquetFile(paths[0]).read_row_group(0).nbytes
    source = resumable.Parquet(paths, cache_bytes=3 * one)
    monkeypatch.setattr(os, "pread", counted)
    list(source)
    assert len(read) == 11, "a footer, and one range for each row group"
    assert source._kept.size <= 3 * one  # what it holds
    read.clear()
    source.__getitems__([0, 40, 1, 41, 2, 42])
    assert len(read) == 2
    small = resumable.Parquet(paths, cache_bytes=1)
    small.__getitems__([0, 1, 40])
    assert len(small._kept._tables) == 1  # likewise
    read.clear()
    source = resumable.Parquet(paths, columns=["id"])
    opened = len(read)
    source[0]
    assert len(read) == opened + 2


def test_a_window_of_blocks_has_room_for_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one window come from row groups that are kept, so that each is read once per window."""
    paths = write(tmp_path, (800,))
    source = resumable.Parquet(paths, cache_bytes=40_000)
    loader = resumable.wrap(source, batch_size=10, shuffle="blocks", seed=0)
    with pytest.warns(resumable.errors.ShuffleWarning, match=r"Use Parquet\(..., cache_bytes=\d+ \* 27\)"):
        next(iter(loader))
    spec = loader.state_dict()["sampler"]
    assert spec["block"] == GROUP
    window = spec["window"]
    assert 2 <= window < 50
    reads: list[int] = []
    put = source._kept.put  # what it reads

    def counted(number: int, read: Any) -> None:
        reads.append(number)
        put(number, read)

    monkeypatch.setattr(source._kept, "put", counted)  # likewise
    list(loader.steps(79))
    assert len(reads) <= 100 + window


def test_rows_are_read_in_a_process_that_was_spawned(tmp_path: Path) -> None:
    source = resumable.Parquet(write(tmp_path), columns=["id"])
    (tmp_path / "source.pickle").write_bytes(pickle.dumps(source))
    script = (
        f"import pickle; print([one['id'] for one in pickle.load(open({str(tmp_path / 'source.pickle')!r}, 'rb'))])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(list(range(TOTAL)))


def test_pyarrow_is_imported_when_a_source_is_made_only() -> None:
    script = "import sys, resumable.sources; resumable.Parquet; print('pyarrow' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


# ---------------------------------------------------------------------- refused by name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda data: b"", "part-001.parquet is truncated, damaged or not a Parquet file: it has only 0 bytes"),
        (lambda data: data[:-20], r"part-001.parquet .*it ends with .* instead of b'PAR1'"),
        (lambda data: data[: len(data) // 2], "part-001.parquet is truncated"),
        (lambda data: data[:-8] + b"\xff\xff\xff\x00PAR1", "its footer should have 16777215 bytes"),
        (lambda data: data[:-8] + b"\x20\x00\x00\x00PAR1", "its footer cannot be read"),
        (lambda data: data[:4] + data[3000:], r"column [\w.]+ of row group \d should be at bytes"),
        (lambda data: data[:-4] + b"PARE", "part-001.parquet has an encrypted footer, which is not supported"),
        (lambda data: b'{"id": 1}\n' * 100, "or not a Parquet file"),
    ],
)
def test_a_cut_file_is_refused_by_name(content: Any, message: str, tmp_path: Path) -> None:
    paths = write(tmp_path)
    paths[1].write_bytes(content(paths[1].read_bytes()))
    with pytest.raises(ConfigurationError, match=message):
        resumable.Parquet(paths)


def test_damage_is_told_with_file_and_row_group(tmp_path: Path) -> None:
    """At each byte of a row group: what was read is right, or it is refused."""
    (path,) = write(tmp_path, (16,), write_page_checksum=True)
    whole, metadata = path.read_bytes(), pq.read_metadata(path)
    columns = [metadata.row_group(1).column(number) for number in range(metadata.num_columns)]
    places = [place_of(column) for column in columns]
    first, stop = min(start for start, _ in places), max(stop for _, stop in places)
    expected, refused = [plain(one) for one in resumable.Parquet(path)], 0
    for at in range(first, stop, 13):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        source = resumable.Parquet(path)
        assert plain(source[7]) == expected[7]
        try:
            assert plain(source[9]) == expected[9]
        except DataError as error:
            assert "part-000.parquet, row group 1 cannot be decoded" in str(error)  # noqa: PT017  # or it is right
            refused += 1
    assert refused > (stop - first) // 13 * 0.8


@pytest.mark.parametrize("change", ["again", "same size", "gone", "cut"])
def test_file_replaced_while_read(change: str, tmp_path: Path) -> None:
    """A file that is replaced while it is read is rejected by name."""
    paths = write(tmp_path)
    source = resumable.Parquet(paths)
    sample = plain(source[0])
    copied = pickle.loads(pickle.dumps(source))  # noqa: S301  # our own
    before, content = paths[1].stat(), paths[1].read_bytes()
    if change == "gone":
        paths[1].unlink()
    elif change == "cut":
        paths[1].write_bytes(content[:500])
    elif change == "again":
        pq.write_table(table(0, 50), paths[1], row_group_size=25)
    else:
        paths[1].write_bytes(content[::-1])
        os.utime(paths[1], ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    for one in (source, copied)[change == "gone" :]:  # what is open is there
        assert plain(one[0]) == sample
        with pytest.raises(DataError, match=r"part-001.parquet.*(was rewritten|the file no longer exists)"):
            one[40]


def test_a_file_of_the_same_size_and_time_is_told_by_its_footer(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"

    def write_from(first: int) -> None:
        pq.write_table(pa.table({"id": range(first, first + 50)}), path, use_dictionary=False, compression="none")

    write_from(0)
    pickled, before = pickle.dumps(resumable.Parquet(path)), path.stat()
    write_from(50)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    with pytest.raises(DataError, match=r"a.parquet was rewritten since it was opened: its footer has changed"):
        pickle.loads(pickled)[0]  # noqa: S301  # our own


def test_columns_that_differ_between_files_are_refused_by_name(tmp_path: Path) -> None:
    paths = write(tmp_path)
    other = table(0, 9).set_column(0, "id", pa.array(range(9), pa.int32()))
    pq.write_table(other, paths[1])
    with pytest.raises(
        ConfigurationError, match=r"'id' differs between the files(.|\n)*000.parquet: int64\n(.)*001.parquet: int32"
    ):
        resumable.Parquet(paths)
    assert len(resumable.Parquet(paths, columns=["text"])) == 37 + 9 + 1
    pq.write_table(table(0, 9).drop_columns(["raw"]), paths[2])
    with pytest.raises(ConfigurationError, match=r"'raw' differs between the files(.|\n)*002.parquet: no such column"):
        resumable.Parquet([paths[0], paths[2]])
    with pytest.raises(ConfigurationError, match=r"002.parquet has no column 'raw'"):
        resumable.Parquet([paths[0], paths[2]], columns=["raw"])
    pq.write_table(table(0, 9).append_column("more", [[1] * 9]), paths[2])
    with pytest.raises(ConfigurationError, match=r"'more' differs between the files(.|\n)*000.parquet: no such column"):
        resumable.Parquet([paths[0], paths[2]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: resumable.Parquet(folder / "none.parquet"), "the Parquet file .*none.parquet does not exist"),
        (lambda folder: resumable.Parquet(folder / "none-*.parquet"), "no file matches '.*none-"),
        (lambda folder: resumable.Parquet(folder / "part-{000.parquet"), "unbalanced braces"),
        (resumable.Parquet, "is a folder, not a Parquet file"),
        (lambda folder: resumable.Parquet([]), "the list of Parquet files is empty"),
        (lambda folder: resumable.Parquet([folder / "part-000.parquet"] * 2), "is listed twice"),
        (lambda folder: resumable.Parquet(cast("Any", 3)), "must be a path, a URL or a pattern, but one is 3"),
        (lambda folder: resumable.Parquet("nofs://a.parquet"), "nofs://a.parquet cannot be opened"),
        (
            lambda folder: resumable.Parquet(folder / "*.parquet", columns=["nix"]),
            r"no column 'nix'.\n  its columns: id, ",
        ),
        (lambda folder: resumable.Parquet(folder / "*.parquet", columns=["point.z"]), "no column 'point.z'"),
        (lambda folder: resumable.Parquet(folder / "*.parquet", columns=[]), r"columns=\[\] selects no columns"),
        (lambda folder: resumable.Parquet(folder / "*.parquet", cache_bytes=0), "cache_bytes must be an integer"),
        (lambda folder: resumable.Parquet(folder / "*.parquet", filters="id"), "does not have pyarrow's format"),
        (
            lambda folder: resumable.Parquet(folder / "*.parquet", filters=[("id", "~", 3)]),
            "does not have pyarrow's format",
        ),
        (lambda folder: resumable.Parquet(folder / "*.parquet", filters=[("no", "<", 3)]), "does not fit the columns"),
        (
            lambda folder: resumable.Parquet(folder / "*.parquet", filters=[("id", "<", "a")]),
            "does not fit the columns",
        ),
        (lambda folder: resumable.Parquet(folder / "*.parquet", filters=[("id", "<", -3)]), "that may match filters="),
    ],
)
def test_what_cannot_be_read_is_refused(make: Any, message: str, tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        make(tmp_path)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(ConfigurationError, match="several columns with the name 'a'"):
        resumable.Parquet(tmp_path / "a.parquet")
