"""Files of tokens: each format, windows and targets, and what was cut, written again or is something else."""

from __future__ import annotations

import os
import pickle
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import resumable
from resumable.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = [300, 0, 41, 659]
TOKENS = (np.arange(1000) * 7919 % 65_521).astype(np.uint16)


def write_megatron(folder: Path, borders: list[int] | None = None, code: int = 8) -> Path:
    """Write what Megatron's `IndexedDatasetBuilder` does: tokens, and an index of sequences and documents."""
    lengths = np.array(LENGTHS, "<i4")
    documents = np.array(borders or range(len(lengths) + 1), "<i8")
    pointers = ((np.cumsum(lengths) - lengths) * 2).astype("<i8")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(documents))
    (folder / "corpus.idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + documents.tobytes())
    TOKENS.tofile(folder / "corpus.bin")
    return folder / "corpus.bin"


def written(folder: Path, kind: str) -> Path:
    if kind == "megatron":
        return write_megatron(folder)
    path = folder / f"train.{kind}"
    if kind == "npy":
        np.save(path, TOKENS)
    else:
        TOKENS.tofile(path)
    return path


@pytest.mark.parametrize("kind", ["bin", "npy", "megatron"])
def test_a_file_is_cut_into_windows_with_their_targets(kind: str, tmp_path: Path) -> None:
    path = written(tmp_path, kind)
    tokens = resumable.Tokens(path, 64)
    copied = pickle.dumps(tokens)
    assert len(copied) < 1000
    for one in (tokens, resumable.Tokens(str(path), 64), pickle.loads(copied), resumable.Tokens(TOKENS, 64)):  # noqa: S301  # our own
        assert len(one) == len(list(one)) == 15
        for index in (0, 7, 14):
            first, then = one[index]
            assert first.tolist() == TOKENS[64 * index : 64 * index + 64].tolist()
            assert then.tolist() == TOKENS[64 * index + 1 : 64 * index + 65].tolist()
    with pytest.raises(IndexError, match=r"sample 15 does not exist: the samples are 0\.\.14"):
        tokens[15]
    with pytest.raises(IndexError):
        tokens[-1]


def test_nothing_overflows_in_16_bits(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    np.array([65_535, 0, 65_535, 1], np.uint16).tofile(path)
    first, then = resumable.Tokens(path, 3)[0]
    assert (first + 1).tolist() == [65_536, 1, 65_536]
    assert (then - 100).tolist() == [-100, 65_435, -99]
    assert first.dtype == then.dtype == np.int64
    packed = resumable.Packed(path, 2, documents=[2, 2])
    assert packed[0]["target"].tolist() == [0, -100]


def test_tokens_of_32_bits_are_not_read_as_16(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    TOKENS.astype(np.uint32).tofile(path)
    with pytest.raises(ConfigurationError, match=r"seems to have 32-bit tokens(.|\n)*Pass dtype=numpy.uint32"):
        resumable.Tokens(path, 64)
    assert resumable.Tokens(path, 64, dtype=np.uint32)[3][0].tolist() == TOKENS[192:256].tolist()
    assert len(resumable.Tokens(path, 64, dtype=np.uint16)) == 31


def test_megatron_documents_are_those_of_its_index(tmp_path: Path) -> None:
    packed = resumable.Packed(write_megatron(tmp_path), 50, how="fit")
    given = resumable.Packed(TOKENS, 50, how="fit", documents=LENGTHS)
    assert [sample["document"].tolist() for sample in packed] == [sample["document"].tolist() for sample in given]
    grouped = resumable.Packed(write_megatron(tmp_path, [0, 3, 4]), 50)
    assert sorted({int(number) for sample in grouped for number in sample["document"]}) == [0, 1]


@pytest.mark.parametrize(
    ("borders", "lengths"),
    [([0, 3, 4], [341, 659]), ([0, 2, 2, 3, 4], [300, 0, 41, 659]), ([0, 0, 2, 3, 4], [0, 300, 41, 659])],
)
def test_documents_of_several_sequences_or_none(borders: list[int], lengths: list[int], tmp_path: Path) -> None:
    found = resumable.Packed(write_megatron(tmp_path, borders), 50, how="fit")
    given = resumable.Packed(TOKENS, 50, how="fit", documents=lengths)
    assert [sample["document"].tolist() for sample in found] == [sample["document"].tolist() for sample in given]


def test_indices_of_several_files_are_joined(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_megatron(tmp_path / name)
    both = [tmp_path / name / "corpus.bin" for name in ("a", "b")]
    found = resumable.Packed(both, 50, how="fit")
    given = resumable.Packed(np.tile(TOKENS, 2), 50, how="fit", documents=LENGTHS * 2)
    assert [sample["document"].tolist() for sample in found] == [sample["document"].tolist() for sample in given]
    (tmp_path / "b" / "corpus.idx").unlink()
    with pytest.raises(ConfigurationError, match=r"b/corpus\.bin has no \.idx next to it, but some files"):
        resumable.Packed(both, 50)


@pytest.mark.parametrize("borders", [[0, 1, 2, 3], [1, 2, 4], [0, 3, 2, 4]])
def test_an_index_with_sequences_of_no_document_is_refused(borders: list[int], tmp_path: Path) -> None:
    path = write_megatron(tmp_path, borders)
    with pytest.raises(ConfigurationError, match=r"the documents in .*corpus.idx do not cover its 4 sequences"):
        resumable.Packed(path, 50)
    assert len(resumable.Tokens(path, 50)) == 19


@pytest.mark.parametrize(
    ("kind", "cut", "message"),
    [
        ("bin", -1, "1999 bytes, which is not a multiple of 2 bytes for dtype uint16"),
        ("npy", -2, "train.npy is truncated: it must have 2128 bytes, but has 2126"),
        ("npy", 60, "train.npy is not a .npy file, or its header is truncated"),
        ("npy", 0, "train.npy is not a .npy file"),
        ("bin", 0, "train.bin has no tokens"),
        ("megatron", -2, r"end of the tokens in the index: byte 2000\n  size of .*corpus.bin: 1998 bytes"),
    ],
)
def test_a_cut_file_is_refused_by_name(kind: str, cut: int, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, kind)
    content = path.read_bytes()
    path.write_bytes(content[:cut] if cut else b"")
    with pytest.raises(ConfigurationError, match=message):
        resumable.Tokens(path, 64)


@pytest.mark.parametrize(
    ("size", "message"), [(20, "is not a Megatron index"), (60, "is truncated"), (-1, "is truncated")]
)
def test_a_cut_index_is_refused_by_name(size: int, message: str, tmp_path: Path) -> None:
    path = write_megatron(tmp_path)
    index = tmp_path / "corpus.idx"
    index.write_bytes(index.read_bytes()[:size])
    with pytest.raises(ConfigurationError, match=rf"corpus.idx .*{message}"):
        resumable.Packed(path, 64)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: resumable.Tokens(path / "none.bin", 4), "the file .* does not exist"),
        (lambda path: resumable.Tokens(path, 4), "the file .* does not exist"),
        (lambda path: resumable.Tokens(write_megatron(path, code=6), 4), "of version 1 with integer tokens"),
        (lambda path: resumable.Tokens(written(path, "npy"), 4, dtype="u4"), "dtype=uint32 was passed, but .*uint16"),
        (lambda path: resumable.Tokens(write_megatron(path), 4, dtype="u4"), "dtype=uint32 was passed"),
        (lambda path: resumable.Tokens(TOKENS, 1000), "1000 tokens, but a sample needs 1001"),
        (lambda _: resumable.Tokens(TOKENS / 2, 4), "integer dtype of at most 63 bits, but it has float64"),
        (lambda _: resumable.Tokens(TOKENS.reshape(10, 100), 4), r"the shape is \(10, 100\)"),
        (
            lambda path: resumable.Tokens(written(path, "bin"), 4, dtype=float),
            "integer dtype of at most 63 bits, but it has float64",
        ),
    ],
)
def test_what_is_no_file_of_tokens_is_refused(make: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(tmp_path)


def test_a_file_that_is_written_again_is_refused_by_name(tmp_path: Path) -> None:
    """Also one of the same size, as only its time tells."""
    path = written(tmp_path, "bin")
    later = resumable.Tokens(path, 64)
    before = os.stat(path)  # noqa: PTH116  # the time in nanoseconds
    TOKENS[::-1].tofile(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    pickled = pickle.dumps(later)
    with pytest.raises(DataError, match=r"train.bin was rewritten since it was opened"):
        pickle.loads(pickled)[0]  # noqa: S301  # our own


def test_the_fingerprint_tells_content_and_size(tmp_path: Path) -> None:
    path = written(tmp_path, "npy")
    said = resumable.Tokens(path, 64).fingerprint()
    assert said.startswith("train.npy 1000 <u2 ")
    other = TOKENS.copy()
    other[500] += 1
    assert resumable.Tokens(other, 64).fingerprint() != resumable.Tokens(TOKENS, 64).fingerprint()
    assert resumable.Tokens(path, 32).fingerprint() != said
    whole = resumable.Packed(TOKENS, 64, documents=LENGTHS)
    assert whole.fingerprint() != resumable.Packed(TOKENS, 64, documents=LENGTHS, pad=1).fingerprint()
    assert whole.fingerprint() != resumable.Packed(TOKENS, 64, documents=[300, 1, 40, 659]).fingerprint()


# ---------------------------------------------------------------------- what is kept beside the lengths


def packed_of(folder: Path, lengths: list[int], **given: Any) -> list[list[int]]:
    path = folder / "lengths.npy"
    np.save(path, np.array(lengths))
    packed = resumable.Packed(TOKENS, 50, documents=path, block=2, **given)
    return [sample["document"].tolist() for sample in packed]


@pytest.mark.parametrize("how", ["concat", "fit"])
def test_sums_are_kept_and_belong_to_their_lengths(how: Any, tmp_path: Path) -> None:
    first = packed_of(tmp_path, LENGTHS, how=how)
    kept = sorted(path.name for path in tmp_path.iterdir())
    sidecars = ["lengths.npy.packed-2-fit-50.npz"] * (how == "fit") + ["lengths.npy.packed-2.npz"]
    assert kept == ["lengths.npy", *sidecars]
    again = resumable.Packed(TOKENS, 50, documents=tmp_path / "lengths.npy", block=2, how=how)
    assert [sample["document"].tolist() for sample in again] == first
    other = [100, 500, 241, 159]
    expected = [
        sample["document"].tolist() for sample in resumable.Packed(TOKENS, 50, documents=other, block=2, how=how)
    ]
    assert packed_of(tmp_path, other, how=how) == expected != first


def test_a_kept_file_is_what_is_read(tmp_path: Path) -> None:
    """Else it would be of no use; it is trusted where its mark fits."""
    packed_of(tmp_path, LENGTHS)
    path = tmp_path / "lengths.npy.packed-2.npz"
    with np.load(path) as file:
        np.savez(path, mark=file["mark"], values=file["values"] + 1)
    with pytest.raises(ConfigurationError, match="sum of the lengths: 1002"):
        resumable.Packed(TOKENS, 50, documents=tmp_path / "lengths.npy", block=2)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no archive", b"\x80\x04N."])
def test_a_damaged_kept_file_is_made_again(damage: bytes, tmp_path: Path) -> None:
    first = packed_of(tmp_path, LENGTHS)
    path = tmp_path / "lengths.npy.packed-2.npz"
    whole = path.read_bytes()
    for content in (damage, whole[: len(whole) // 2], whole[:-3]):
        path.write_bytes(content)
        packed = resumable.Packed(TOKENS, 50, documents=tmp_path / "lengths.npy", block=2)
        assert [sample["document"].tolist() for sample in packed] == first
        with np.load(path) as file:
            assert file["values"].tolist() == [300, 700]
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_kept_where_that_is_not_wanted(tmp_path: Path) -> None:
    packed_of(tmp_path, LENGTHS, sidecar=False)
    assert [path.name for path in tmp_path.iterdir()] == ["lengths.npy"]


def test_a_place_that_cannot_be_written_to_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "lengths.npy.packed-2.npz").mkdir()
    first = packed_of(tmp_path, LENGTHS)
    assert first == packed_of(tmp_path, LENGTHS, sidecar=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lengths.npy", "lengths.npy.packed-2.npz"]


def test_a_write_that_breaks_off_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    packed_of(tmp_path, LENGTHS)
    assert [path.name for path in tmp_path.iterdir()] == ["lengths.npy"]


@pytest.mark.parametrize("how", ["flat", "concat", "fit"])
@pytest.mark.parametrize("other", [[250, 100, 0, 650], [300, 0, 659, 41], [341, 0, 0, 659]])
def test_sums_of_other_lengths_are_not_used(how: Any, other: list[int], tmp_path: Path) -> None:
    """Lengths of the same size, time and sum: the sums and the windows of each block tell, when it is opened."""
    path = tmp_path / "lengths.npy"
    packed_of(tmp_path, LENGTHS, how=how)
    before = os.stat(path)  # noqa: PTH116  # the time in nanoseconds
    np.save(path, np.array(other))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    packed = resumable.Packed(TOKENS, 50, documents=path, block=2, how=how)
    right = resumable.Packed(TOKENS, 50, documents=other, block=2, how=how)
    read = 0
    for index in range(2 * len(packed)):
        message = ""
        try:
            sample = packed[index]
        except DataError as error:
            message = str(error)
        if message:
            assert "the lengths of the documents have changed: block" in message
            assert ".packed-*.npz" in message
        else:
            read += 1
            assert {name: value.tolist() for name, value in sample.items()} == {
                name: value.tolist() for name, value in right[index].items()
            }
    same = [sum(LENGTHS[:2]), sum(LENGTHS[2:])] == [sum(other[:2]), sum(other[2:])]
    assert (read == 2 * len(packed)) == (same and len(right) == len(packed))


def test_windows_of_other_lengths_are_not_used(tmp_path: Path) -> None:
    """The sum of the block is the same, but its documents fill another number of windows."""
    path, counts = tmp_path / "lengths.npy", []
    for lengths in ([50, 50, 50, 850], [26, 26, 26, 922], [50, 100, 50, 800]):
        np.save(path, np.array(lengths))
        os.utime(path, ns=(1, 1))
        packed = resumable.Packed(TOKENS, 50, documents=path, block=4, how="fit")
        counts.append(len(resumable.Packed(TOKENS, 50, documents=lengths, block=4, how="fit")))
        if counts[-1] == 20:
            assert packed[19]["input"].shape == (50,)
        else:
            with pytest.raises(DataError, match="have changed: block 0 had 20 windows, but has"):
                packed[19]
    assert counts == [20, 21, 20]
