"""Formats of token files: told by their structure, whatever the name and `dtype=` say; and lists of files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import resumable
from resumable.errors import ConfigurationError, StateMismatchError

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = (np.arange(1000) * 7919 % 65_521).astype(np.uint16)
LARGE = TOKENS.astype(np.uint32) + 70_000
CONTENT = TOKENS.tobytes()


def llm_c(date: int, version: int, tokens: Any) -> bytes:
    """Return a file as `dev/data/data_common.py` of llm.c writes it."""
    head = np.zeros(256, np.int32)
    head[:3] = date, version, len(tokens)
    return head.tobytes() + bytes(tokens.tobytes())


def lit_gpt(tokens: Any, code: int) -> bytes:
    """Return a file as `PackedDatasetBuilder` of lit-gpt writes it."""
    return b"LITPKDS" + struct.pack("<QBQ", 1, code, len(tokens)) + bytes(tokens.tobytes())


def archived(kind: str) -> bytes:
    file, info = io.BytesIO(), tarfile.TarInfo("a.bin")
    info.size = len(CONTENT)
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.bin", CONTENT)
    elif kind == "no members":
        zipfile.ZipFile(file, "w").close()
    else:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            tar.addfile(info, io.BytesIO(CONTENT))
    content = file.getvalue()
    if kind == "v7":  # without a magic: only the checksum tells
        head = content[:148] + b" " * 8 + content[156:257] + bytes(255)
        content = head[:148] + b"%06o\0 " % sum(head) + head[156:] + content[512:]
    return content


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        (llm_c(20240520, 1, TOKENS), TOKENS),
        (llm_c(20240801, 7, LARGE), LARGE),
        (llm_c(20260131, 9, LARGE), LARGE),  # of a later date
        (lit_gpt(TOKENS, 8), TOKENS),
        (lit_gpt(LARGE.astype(np.int32), 4), LARGE),
        (lit_gpt(TOKENS.astype(np.int64), 5), TOKENS),
    ],
)
def test_tokens_after_a_header_are_read(content: bytes, tokens: Any, tmp_path: Path) -> None:
    path = tmp_path / "shard_000001.bin"
    path.write_bytes(content)
    found = resumable.Tokens(path, 64)
    assert len(found) == 15
    assert [found[0][0].tolist(), found[14][1].tolist()] == [tokens[:64].tolist(), tokens[897:961].tolist()]
    assert pickle.loads(pickle.dumps(found))[0][0].tolist() == tokens[:64].tolist()  # noqa: S301  # our own
    with pytest.raises(ConfigurationError, match="dtype=uint8 was passed, but the dtype of"):
        resumable.Tokens(path, 64, dtype=np.uint8)
    for cut in (content[:-4], content + bytes(4)):
        path.write_bytes(cut)
        with pytest.raises(ConfigurationError, match=r"a header of (llm\.c|lit-gpt) .*truncated(.|\n)*in the header"):
            resumable.Tokens(path, 64, dtype=np.uint16)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (gzip.compress(CONTENT), "gzip"),
        (bz2.compress(CONTENT), "bzip2"),
        (lzma.compress(CONTENT), "xz"),
        (lzma.compress(CONTENT, lzma.FORMAT_ALONE), "lzma"),
        (b"\x28\xb5\x2f\xfd" + CONTENT, "zstd"),
        (b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd\x28\xb5\x2f\xfd" + CONTENT, "zstd"),
        (b"\x04\x22\x4d\x18" + CONTENT, "lz4"),
        (archived("zip"), "zip"),
        (archived("no members"), "zip"),
        (archived("tar"), "tar"),
        (archived("v7"), "tar"),
        (b"PAR1" + CONTENT + b"PAR1", "Parquet"),
        (llm_c(20240522, 1, TOKENS)[:-500], r"llm\.c"),  # questions of HellaSwag
        (lit_gpt(TOKENS.astype(np.float32), 6), "float32"),
    ],
)
@pytest.mark.parametrize("dtype", [None, "uint16", "uint8"])
def test_other_formats_are_refused_whatever_the_dtype(
    content: bytes, kind: str, dtype: str | None, tmp_path: Path
) -> None:
    for name in ("a.bin", "a.npy"):
        (tmp_path / name).write_bytes(content + bytes(len(content) % 2))
        with pytest.raises(ConfigurationError, match=r"not a \.npy file" if name == "a.npy" and not dtype else kind):
            resumable.Tokens(tmp_path / name, 8, dtype=dtype)


@pytest.mark.parametrize(
    "begin",
    [
        b"\x1f\x8b\x08\xe0",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff",
        b"BZh9zz",
        b"PK\x03\x04\xff\xff",
        b"\x5d\x00\x00\x80\x00\x01",
        b"\x50\x2a\x4d\x18\x00\x00\x00\x00",
        bytes(1024),
        np.array([20240520, 1, 5, *range(253)], np.int32).tobytes(),
    ],
)
def test_tokens_that_begin_like_a_magic_are_tokens(begin: bytes, tmp_path: Path) -> None:
    """The first two or three numbers may be anything; what follows tells a header from tokens."""
    path = tmp_path / "a.bin"
    path.write_bytes(begin + CONTENT)
    assert resumable.Tokens(path, 8, dtype=np.uint16)[0][0].tobytes() == (
        np.frombuffer(begin + CONTENT, np.uint16)[:8].astype(np.int64).tobytes()
    )


def test_a_raw_npy_is_read_with_its_dtype(tmp_path: Path) -> None:
    """As dolma writes it: only tokens, in spite of the name."""
    path = tmp_path / "part-00.npy"
    LARGE.tofile(path)
    with pytest.raises(ConfigurationError, match=r"If it has only tokens(.|\n)*pass dtype="):
        resumable.Tokens(path, 64)
    assert resumable.Tokens(path, 64, dtype=np.uint32)[1][0].tolist() == LARGE[64:128].tolist()
    np.save(path, LARGE)
    with pytest.raises(ConfigurationError, match="dtype=uint16 was passed, but the dtype of .*uint32"):
        resumable.Tokens(path, 64, dtype=np.uint16)


def parts(folder: Path) -> list[Path]:
    """Write the tokens in three files of different formats."""
    TOKENS[:300].tofile(folder / "part-0.bin")
    (folder / "part-1.bin").write_bytes(llm_c(20240520, 1, TOKENS[300:310]))
    (folder / "part-2.bin").write_bytes(lit_gpt(TOKENS[310:].astype(np.int64), 5))
    return sorted(folder.glob("part-*.bin"))


@pytest.mark.parametrize("how", ["list", "braces", "stars"])
def test_several_files_are_read_as_one(how: str, tmp_path: Path) -> None:
    listed = parts(tmp_path)
    given = {"list": listed, "braces": tmp_path / "part-{0..2}.bin", "stars": str(tmp_path / "part-*.bin")}[how]
    found, whole = resumable.Tokens(given, 64), resumable.Tokens(TOKENS, 64)
    for one in (found, pickle.loads(pickle.dumps(found))):  # noqa: S301  # our own
        assert [(a.tolist(), b.tolist()) for a, b in one] == [(a.tolist(), b.tolist()) for a, b in whole]
    places = [str(span) for span in found.locate([0, 4, 5])]
    assert places == [
        f"tokens 0..63 of {listed[0]}",
        f"tokens 256..319 of {listed[0]} + {listed[1]} + {listed[2]}",
        f"tokens 10..73 of {listed[2]}",
    ]
    np.save(tmp_path / "lengths-0.npy", [200, 100])
    np.save(tmp_path / "lengths-1.npy", [10, 690])
    lengths = [tmp_path / "lengths-0.npy", tmp_path / "lengths-1.npy"]
    own = resumable.Packed(given, 64, documents=lengths, how="fit")
    expected = resumable.Packed(TOKENS, 64, documents=[200, 100, 10, 690], how="fit")
    for epoch in range(2):
        for index in range(epoch * len(own), epoch * len(own) + len(own)):
            assert {name: value.tolist() for name, value in own[index].items()} == {
                name: value.tolist() for name, value in expected[index].items()
            }
    with pytest.raises(ConfigurationError, match="is listed twice"):
        resumable.Tokens([listed[0], listed[0]], 64)


def test_a_run_over_several_files_resumes_and_knows_their_order(tmp_path: Path) -> None:
    def made(files: Any) -> Any:
        tokens: Any = resumable.Tokens(files, 16)
        return resumable.wrap(DataLoader(tokens, batch_size=4, shuffle=True), seed=3)

    listed = parts(tmp_path)
    whole = [batch[0].tolist() for batch in made(listed).steps(40)]
    for step in (1, 15, 16, 31):
        loader = made(listed)
        list(loader.steps(step))
        again = made(listed)
        again.load_state_dict(loader.state_dict())
        assert [batch[0].tolist() for batch in again.steps(40)] == whole[step:]
    with pytest.raises(StateMismatchError):
        made(listed[::-1]).load_state_dict(loader.state_dict())
