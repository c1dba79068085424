"""Parquet files of the same values in other types, which pass, and encrypted ones, which are rejected."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import resumable
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

STRUCT = pa.struct([("a", pa.string()), ("b", pa.int64())])


def two(folder: Path, one: Any, other: Any, values: list[Any]) -> list[Path]:
    for name, kind in (("one", one), ("other", other)):
        pq.write_table(pa.table({"x": pa.array(values).cast(kind)}), folder / f"{name}.parquet")
    return [folder / "one.parquet", folder / "other.parquet"]


@pytest.mark.parametrize(
    ("one", "other", "values"),
    [
        (pa.string(), pa.large_string(), ["a", None, "b"]),
        (pa.string(), pa.dictionary(pa.int32(), pa.string()), ["a", None, "a"]),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
        (pa.binary(), pa.large_binary(), [b"a", b"b"]),
        (pa.binary(), pa.binary(2), [b"ab", None]),
        (pa.date32(), pa.date64(), [date(2026, 1, 2), None]),
        (pa.list_(pa.string()), pa.large_list(pa.large_string()), [["a"], None, []]),
        (pa.list_(pa.int64()), pa.large_list(pa.int64()), [[1, 2], [3]]),
        (STRUCT, pa.struct([("a", pa.large_string()), ("b", pa.int64())]), [{"a": "x", "b": 1}, None]),
    ],
    ids=str,
)
def test_types_of_the_same_values_are_read_together(one: Any, other: Any, values: list[Any], tmp_path: Path) -> None:
    paths = two(tmp_path, one, other, values)
    rows = list(resumable.Parquet(paths))
    first, then = rows[: len(values)], rows[len(values) :]
    assert repr(first) == repr(then)
    assert [type(row["x"]) for row in first] == [type(row["x"]) for row in then]
    alone = resumable.Parquet(paths[0]).resumable_identity
    assert resumable.Parquet(paths).resumable_identity["columns"] == alone["columns"]


@pytest.mark.parametrize(
    ("one", "other", "values"),
    [
        (pa.int64(), pa.float64(), [1, 2]),
        (pa.int32(), pa.int64(), [1, 2]),
        (pa.dictionary(pa.int32(), pa.string()), pa.int64(), ["1", "2"]),
        (pa.int64(), pa.string(), [1, 2]),
        (pa.string(), pa.binary(), ["a"]),
        (pa.bool_(), pa.int64(), [True, False]),
        (pa.list_(pa.int64()), pa.list_(pa.int32()), [[1]]),  # arrays of another dtype
        (pa.timestamp("us"), pa.timestamp("ns"), [1, 2]),
        (pa.decimal128(30, 2), pa.decimal128(30, 3), [1, 2]),
    ],
    ids=str,
)
def test_types_of_other_values_are_rejected(one: Any, other: Any, values: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the column 'x' differs between the files"):
        resumable.Parquet(two(tmp_path, one, other, values))


ENCRYPTED = """
import base64, sys
import pyarrow as pa, pyarrow.parquet as pq, pyarrow.parquet.encryption as pe
import resumable

class Kms(pe.KmsClient):
    def __init__(self, config):
        super().__init__()
    def wrap_key(self, key, name):
        return base64.b64encode(key)
    def unwrap_key(self, key, name):
        return base64.b64decode(key)

table = pa.table({"id": range(10), "name": [str(number) for number in range(10)]})
for number, given in enumerate([
    {"column_keys": {"c": ["name"]}, "plaintext_footer": True},
    {"column_keys": {"c": ["id", "name"]}, "plaintext_footer": True, "encryption_algorithm": "AES_GCM_CTR_V1"},
    {"column_keys": {"c": ["name"]}},
    {"uniform_encryption": True},
]):
    config = pe.EncryptionConfiguration(footer_key="f", **given)
    keys = pe.CryptoFactory(Kms).file_encryption_properties(pe.KmsConnectionConfig(), config)
    path = f"{sys.argv[1]}/{number}.parquet"
    with pq.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
        writer.write_table(table)
    for columns in (None, ["id"]):
        try:
            resumable.Parquet(path, columns=columns)
        except resumable.errors.ConfigurationError as error:
            print("encrypted" in str(error) and path in str(error))
"""


def test_encrypted_files_are_rejected_and_the_process_goes_on(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", ENCRYPTED, str(tmp_path)], check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.split()) == (0, ["True"] * 8), ran.stderr[-2000:]
