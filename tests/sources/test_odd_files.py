"""Files that other tools write, and storages that fail: read exactly, or refused with what is wrong and the way out."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from parquet_files import write as write_parquet
from tar_files import write

import resumable
from resumable.errors import ConfigurationError, DataError
from resumable.samplers import Mixture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GNU_TAR = shutil.which("tar") or "tar"


# ---------------------------------------------------------------------- tars


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_each_form_of_gnu_tar_is_read_to_the_byte(form: str, tmp_path: Path) -> None:
    """Members in folders with dots, names of 100 characters and more, and empty ones."""
    folder = tmp_path / "data" / "sub.dir"
    folder.mkdir(parents=True)
    long = "" if form == "v7" else "n" * 90  # what it cannot store is left out
    for number in range(5):
        (folder / f"{long}{number}.txt").write_bytes(b"x" * number)
        (folder / f"{long}{number}.Seg.PNG").write_bytes(os.urandom(600))
    subprocess.run(
        [GNU_TAR, f"--format={form}", "--sort=name", "-cf", "a.tar", "data"],
        cwd=tmp_path,
        check=True,
    )
    tars = resumable.Tars(tmp_path / "a.tar", decode=False)
    assert len(tars) == 5
    for number, sample in enumerate(tars):
        assert sample["__key__"] == f"data/sub.dir/{long}{number}"
        assert sample["txt"] == b"x" * number
        assert sample["seg.png"] == (folder / f"{long}{number}.Seg.PNG").read_bytes()


@pytest.mark.parametrize("how", [["--format=gnu"], ["--format=posix", "--sparse-version=1.0"]])
def test_a_sparse_member_is_told_once(how: list[str], tmp_path: Path) -> None:
    with (tmp_path / "0.bin").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 20)
        file.write(b"end")
    subprocess.run([GNU_TAR, *how, "--sparse", "-cf", "a.tar", "0.bin"], cwd=tmp_path, check=True)
    with pytest.raises(ConfigurationError, match=r"a.tar, byte 0: member 0.bin is a sparse file") as told:
        resumable.Tars(tmp_path / "a.tar")
    assert "truncated or damaged" not in str(told.value)


def test_a_later_volume_is_refused(tmp_path: Path) -> None:
    """GNU tar begins it with the rest of a member, which would be left out."""
    (tmp_path / "0.bin").write_bytes(os.urandom(30_000))
    (tmp_path / "1.bin").write_bytes(b"x")
    subprocess.run(
        [GNU_TAR, "-c", "-M", "-L", "20", "-f", "a.tar", "-f", "b.tar", "0.bin", "1.bin"],
        cwd=tmp_path,
        check=True,
    )
    with pytest.raises(
        ConfigurationError, match=r"b.tar, byte 0: the tar is one of several volumes, and continues 0.bin"
    ):
        resumable.Tars(tmp_path / "b.tar")
    with pytest.raises(ConfigurationError, match=r"a.tar, byte .* member 0.bin ends at byte") as told:
        resumable.Tars(tmp_path / "a.tar")
    assert str(told.value).count("truncated or damaged") == 1


def test_members_that_do_not_follow_one_another_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parted = write(tmp_path / "a.tar", [(name, b"1") for name in ("0.txt", "1.txt", "0.cls", "1.cls", "2.cls")])
    assert [sample["__key__"] for sample in resumable.Tars(parted)] == ["0", "1", "0", "1", "2"]
    assert "such as '0'. As in webdataset, this creates 2 additional, incomplete samples" in caplog.text
    caplog.clear()
    resumable.Tars(write(tmp_path / "b.tar", [(name, b"1") for name in ("0.txt", "0.cls", "1.txt")]))
    assert not caplog.text


def test_a_file_under_two_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.tar", [("0.txt", b"1")])
    write_parquet(tmp_path)
    for names in (["a.tar", "./a.tar"], ["a.tar", str(tmp_path / "a.tar")], ["a.tar", f"file://{tmp_path}/a.tar"]):
        with pytest.raises(ConfigurationError, match=r"is listed twice, the first time as a\.tar"):
            resumable.Tars(names)
    with pytest.raises(ConfigurationError, match="is listed twice, the first time as"):
        resumable.Parquet(["part-000.parquet", tmp_path / "part-000.parquet"])


# ---------------------------------------------------------------------- storages


class DeniedError(Exception):
    """What packages of object stores raise is no `OSError`."""


@pytest.mark.parametrize("method", ["info", "glob", "_open"])
def test_an_error_of_the_storage_is_told_with_the_file(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"memory://odd-{uuid4().hex}"
    content = write(tmp_path / "a.tar", [("0.txt", b"1")]).read_bytes()
    fsspec.filesystem("memory").pipe_file(f"{url.removeprefix('memory://')}/a.tar", content)

    def denied(*_: Any, **__: Any) -> Any:
        raise DeniedError("no credentials")

    monkeypatch.setattr(MemoryFileSystem, method, denied)
    for source in (resumable.Tars, resumable.Parquet, partial(resumable.Tokens, length=8, dtype="u1")):
        pattern = f"{url}/*.tar" if method == "glob" else f"{url}/a.tar"
        if method == "glob" and isinstance(source, partial):
            continue
        if method == "_open" and source is not resumable.Tars:
            continue
        with pytest.raises(
            ConfigurationError, match=rf"{url}/(a|\*).tar cannot be .*(\n.*)?DeniedError: no credentials"
        ):
            source(pattern)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder by HTTP, as Python does it: without ranges."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_server_without_ranges_or_absent(tmp_path: Path) -> None:
    """A server without ranges and an absent server are told apart."""
    paths = write_parquet(tmp_path)
    with served(tmp_path) as url:
        with pytest.raises(DataError, match=rf"{url}/{paths[0].name}, .* the server sent \d+ bytes instead of \d+"):
            resumable.Parquet(f"{url}/{paths[0].name}", columns=["id"])[0]
        with pytest.raises(ConfigurationError, match=f"the Parquet file {url}/none.parquet does not exist"):
            resumable.Parquet(f"{url}/none.parquet")
    with pytest.raises(ConfigurationError, match=rf"{url}/{paths[0].name} cannot be read: ClientConnectorError"):
        resumable.Parquet(f"{url}/{paths[0].name}")


# ---------------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("a.bin", lambda path: np.save(path.with_suffix(".npy"), np.arange(500, dtype="u2")), "is a .npy file"),
        ("a.npz", lambda path: np.savez(path, a=np.arange(500)), "is a zip archive, such as .npz"),
        ("a.txt", lambda path: path.write_bytes(b"a text " * 100), "has the extension '.txt', not .npy or .bin"),
        ("a", lambda path: path.write_bytes(bytes(1000)), "has the extension '', not .npy or .bin"),
        ("a.idx", lambda path: path.write_bytes(b"MMIDIDX\x00\x00" + bytes(1001)), "is a Megatron index"),
    ],
)
def test_another_format_is_not_read_as_tokens(name: str, make: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    make(path)
    if not path.exists():
        path.with_suffix(".npy").rename(path)
    with pytest.raises(ConfigurationError, match=f"{name} {message}"):
        resumable.Tokens(path, 8)
    if "extension" in message:
        assert len(resumable.Tokens(path, 8, dtype="u2")) > 1


@pytest.mark.parametrize("source", ["Tokens", "Packed"])
def test_file_cut_while_mapped(source: str, tmp_path: Path) -> None:
    """A file that is cut while it is mapped is rejected and ends no process.

    Reading the pages that are gone would be a SIGBUS.
    """
    script = f"""
import numpy, os, resumable
numpy.arange(100_000, dtype="u2").tofile("a.bin")
tokens = resumable.{source}("a.bin", 64)
tokens[0]
os.truncate("a.bin", 4096)
try:
    tokens[len(tokens) - 1]
except resumable.errors.DataError as error:
    assert "a.bin was rewritten since it was opened" in str(error), error
    print("refused")
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "refused\n"), ended.stderr


def test_file_written_in_place_while_mapped(tmp_path: Path) -> None:
    """A file that is written in place while it is mapped is rejected."""
    path = tmp_path / "a.bin"
    np.arange(10_000, dtype="u2").tofile(path)
    tokens = resumable.Tokens(path, 64)
    assert tokens[3][0][0] == 192
    with path.open("r+b") as file:
        file.write(b"\xff" * 8)
    os.utime(path, ns=(1, 1))  # also where the clock is coarse
    with pytest.raises(DataError, match=r"a\.bin was rewritten since it was opened"):
        tokens[0]


def test_file_replaced_while_mapped(tmp_path: Path) -> None:
    """A file that is replaced while it is mapped is read to its end.

    What is mapped stays the old file, so nothing is wrong before the next start.
    """
    path = tmp_path / "a.bin"
    np.arange(10_000, dtype="u2").tofile(path)
    tokens = resumable.Tokens(path, 64)
    before = [tokens[number][0].tolist() for number in range(len(tokens))]
    np.arange(10_000, dtype="u2")[::-1].tofile(tmp_path / "b.bin")
    (tmp_path / "b.bin").replace(path)
    assert [tokens[number][0].tolist() for number in range(len(tokens))] == before


def megatron(folder: Path, pointers: Any) -> Path:
    """Write Megatron's two files, of four documents."""
    lengths = np.array([5, 3, 8, 4], "<i4")
    np.arange(20, dtype="<i4").tofile(folder / "a.bin")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 4, 5)
    body = lengths.tobytes() + np.array(pointers, "<i8").tobytes() + np.arange(5, dtype="<i8").tobytes()
    (folder / "a.idx").write_bytes(head + body)
    return folder / "a.bin"


@pytest.mark.parametrize("source", ["Tokens", "Packed"])
def test_sequences_that_do_not_lie_in_turn_are_refused(source: str, tmp_path: Path) -> None:
    assert len(getattr(resumable, source)(megatron(tmp_path, [0, 20, 32, 64]), 4)) >= 4
    for pointers in ([0, 52, 20, 64], [4, 20, 32, 64], [0, 20, 33, 64]):
        with pytest.raises(
            ConfigurationError, match=r"the sequences in .*a\.idx are not stored one after the other in .*a\.bin"
        ):
            getattr(resumable, source)(megatron(tmp_path, pointers), 4)


@pytest.mark.parametrize("pad", ["x", 2**70, 1.5, None])
def test_what_fills_up_windows_is_an_integer(pad: Any) -> None:
    with pytest.raises(ConfigurationError, match="pad must be an integer of at most 63 bits"):
        resumable.Packed(np.arange(100), 8, pad=pad)


# ---------------------------------------------------------------------- mixtures


def test_weight_of_0_in_every_phase() -> None:
    """A weight of 0 in every phase leaves a source out as one weight does."""
    phases = [(0, {"a": 1, "b": 0, "c": 2}), (100, {"a": 2, "b": 0, "c": 1})]
    mixture = Mixture({"a": 10, "b": 10, "c": 10}, weights=phases)
    assert set(mixture.sources(0, 0, mixture.length).tolist()) == {0, 2}
    with pytest.raises(ConfigurationError, match="no weight was passed for 'b'"):
        Mixture({"a": 10, "b": 10}, weights=[(0, {"a": 1}), (5, {"a": 2})])
