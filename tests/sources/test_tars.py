"""Shards of WebDataset: samples as webdataset itself reads them, patterns, indices, decoders, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import shutil
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tar_files import by_webdataset, image_of, png, write, write_images

import resumable
from resumable.errors import ConfigurationError, DataError, MissingDependencyError
from resumable.sources import _files, image

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
LONG = "d" * 90 + "/" + "k" * 60


def raw(shards: Any, **given: Any) -> list[dict[str, Any]]:
    """Return all samples of shards, as bytes."""
    return list(resumable.Tars(shards, **{"decode": False, "index": False, **given}))


# ---------------------------------------------------------------------- the same samples as webdataset's


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "names",
    [
        ["a.jpg", "a.json", "b.jpg", "b.json"],
        ["a.jpg", "a.seg.png", "a.SEG.tif", "b.JPG"],
        ["x/a.jpg", "y/a.jpg", "x/a.json"],  # another folder is another sample, and the first one comes again
        ["v1.0/a.jpg", "v1.0/a.json", "v1.0/b.c/d.jpg"],
        ["__meta__", "__meta__/a.jpg", "__m__a.jpg", "x/__meta__/a.jpg", "__m__.jpg", "a.jpg"],
        [".hidden", "a.jpg", "._a.jpg", "x/.hidden", "x/._a.jpg", "a.json", "README", "x/README", "a.cls"],
        ["a.jpg", "noise", "a.json"],  # what is left out does not part a sample
        ["a.", "b..jpg", "./a.jpg", "/a.jpg", "../a.jpg"],
        ["ü.jpg", "名前/日本.json", "a b.jpg"],
        [LONG + ".jpg", LONG + ".json", LONG + "2.jpg"],
    ],
)
def test_samples_are_those_of_webdataset(form: int, names: list[str], tmp_path: Path) -> None:
    members = [(name, f"{number}: {name}".encode()) for number, name in enumerate(names)]
    path = write(tmp_path / "a.tar", members, form)
    assert raw(path) == by_webdataset(path) != []


def test_folders_and_links_are_left_out(tmp_path: Path) -> None:
    members = [("a.jpg", b"one"), ("f.d", "folder"), ("a.json", b""), ("b.jpg", "link")]
    path = write(tmp_path / "a.tar", [*members, ("c.jpg", "hard link"), ("d.jpg", b"two")])
    assert raw(path) == by_webdataset(path)
    assert [sample["__key__"] for sample in raw(path)] == ["a", "d"]


names = st.lists(st.sampled_from([".", "/", "a", "B", "__", "_x", "é", "jpg", "n" * 70]), min_size=1, max_size=6).map(
    "".join
)
bodies = st.sampled_from([b"", b"12", b"x" * 511, b"y" * 512, b"z" * 513, "folder", "link"])


@pytest.mark.slow
@given(st.lists(st.tuples(names, bodies), max_size=12), st.sampled_from(FORMATS))
@settings(max_examples=150)
def test_any_tar_is_read_as_by_webdataset(tmp_path_factory: pytest.TempPathFactory, members: Any, form: int) -> None:
    path = tmp_path_factory.mktemp("any") / "a.tar"
    try:
        write(path, members, form)
    except ValueError:  # a name that is too long for this format
        return
    try:
        expected, message = by_webdataset(path), "has no samples"
    except ValueError:  # an extension twice
        expected, message = [], "already has the extension"
    if expected:
        assert raw(path) == expected
        return
    with pytest.raises(ConfigurationError, match=message):
        raw(path)


def test_decoded_samples_are_those_of_webdataset(tmp_path: Path) -> None:
    for shard in write_images(tmp_path, [5, 3]):
        pipeline = webdataset.DataPipeline(partial(by_webdataset, shard), webdataset.decode("rgb8"))
        for ours, theirs in zip(resumable.Tars(shard), pipeline, strict=True):
            assert ours.keys() == theirs.keys() == {"__key__", "__url__", "png", "json", "cls"}
            assert np.array_equal(ours.pop("png"), theirs.pop("png"))
            assert ours == theirs


# ---------------------------------------------------------------------- by index


def test_samples_are_read_by_index_alone_and_together(tmp_path: Path) -> None:
    tars = resumable.Tars(tmp_path / "*.tar" if write_images(tmp_path) else "")
    assert (len(tars), tars.sizes.tolist()) == (80, [40, 7, 33])
    for index in (0, 39, 40, 46, 47, 79):
        sample = tars[index]
        assert (sample["json"]["number"], sample["cls"], sample["__key__"]) == (index, index, f"img/{index:05}")
        assert sample["png"].tolist() == image_of(index).tolist()
    asked: list[Any] = [79, 3, 3, 4, 40, 39, np.int64(5)]
    assert [sample["cls"] for sample in tars.__getitems__(asked)] == asked
    assert tars.locate([0, 46]) == [
        (str(tmp_path / "train-000.tar"), "img/00000"),
        (str(tmp_path / "train-001.tar"), "img/00046"),
    ]
    for wrong in (80, -1):
        with pytest.raises(IndexError, match=r"does not exist: the samples are 0\.\.79"):
            tars[wrong]
    with pytest.raises(TypeError):
        tars["a"]  # type: ignore[index]  # that it fails is the point


def test_neighbours_are_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path)
    tars, read, pread = resumable.Tars(str(tmp_path / "*.tar")), list[int](), os.pread

    def noted(file: int, size: int, at: int) -> bytes:
        read.append(at)
        return pread(file, size, at)

    monkeypatch.setattr(os, "pread", noted)
    tars[5]
    assert len(read) == 1
    tars.__getitems__([12, 10, 11, 45, 46, 20])
    assert len(read) == 4


def test_a_copy_for_another_process_is_small_and_reads_the_same(tmp_path: Path) -> None:
    write_images(tmp_path)
    kept, taken = (resumable.Tars(str(tmp_path / "*.tar"), decode=False, index=index) for index in (None, False))
    kept[3]
    assert len(pickle.dumps(kept)) < 1500 < len(pickle.dumps(taken))
    for tars in (kept, taken):
        copy = pickle.loads(pickle.dumps(tars))  # noqa: S301  # our own
        assert list(copy) == list(tars)
        assert copy.fingerprint() == tars.fingerprint()


def test_threads_share_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "_OPEN", 1)
    write_images(tmp_path)
    before, interval = len(os.listdir("/proc/self/fd")), sys.getswitchinterval()  # noqa: PTH208  # names only
    tars = resumable.Tars(str(tmp_path / "*.tar"))
    asked = np.random.default_rng(0).integers(0, 80, 2000).tolist()
    sys.setswitchinterval(1e-6)  # else threads rarely meet
    try:
        with ThreadPoolExecutor(8) as pool:
            assert [sample["cls"] for sample in pool.map(tars.__getitem__, asked)] == asked
    finally:
        sys.setswitchinterval(interval)
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208


def test_many_shards_keep_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "_OPEN", 4)
    write_images(tmp_path, [1] * 30)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # names only
    for _ in range(2):  # as the indices are made, and as they are there
        tars = resumable.Tars(str(tmp_path / "*.tar"))
        assert [sample["cls"] for sample in tars] == list(range(30))
        assert len(os.listdir("/proc/self/fd")) <= before + 8  # noqa: PTH208


def test_a_fork_opens_its_own_files(tmp_path: Path) -> None:
    write_images(tmp_path)
    tars = resumable.Tars(str(tmp_path / "*.tar"))
    tars[0]
    ours = next(iter(tars._reading._files._open.values()))
    if not (child := os.fork()):
        right = tars[0]["cls"] == 0 and next(iter(tars._reading._files._open.values())) is not ours
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


# ---------------------------------------------------------------------- patterns


def test_patterns_are_those_of_webdataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path, [2] * 11)
    monkeypatch.chdir(tmp_path)

    def found(shards: Any) -> list[str]:
        return resumable.Tars(shards, index=False).shards

    numbered = [f"train-{number:03}.tar" for number in range(11)]
    assert found("train-{000..010}.tar") == webdataset.SimpleShardList("train-{000..010}.tar").urls == numbered
    assert found("train-00{1,3}.tar") == [numbered[1], numbered[3]]
    assert found("train-00[2-4].tar") == numbered[2:5]
    assert found(["train-010.tar", "train-00?.tar"]) == [numbered[10], *numbered[:10]]
    assert found(Path("train-{000..010}.tar")) == numbered
    assert found(f"file://{tmp_path}/train-{{000..001}}.tar") == [str(tmp_path / one) for one in numbered[:2]]
    os.rename("train-000.tar", "train-{0}[1].tar")  # noqa: PTH104  # names as they are
    assert found("train-{0}[1].tar") == ["train-{0}[1].tar"]
    resumable.Tars("*")  # keeps indices, which the next look at the folder leaves out
    assert len(found("*")) == 11


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ("none-*.tar", "no file matches 'none-"),
        ("train-{000..004}.tar", r"the shard .*train-003.tar does not exist"),
        ("train-{000..001.tar", "unbalanced braces"),
        (["train-000.tar", "train-*.tar"], r"train-000.tar is listed twice"),
        ([], "the list of shards is empty"),
        ([7], "one is 7"),
        ("", "one is ''"),
        ("pipe:cat train-000.tar", "a command, and its output can only be read sequentially"),
        (".", "the shard is empty or a folder"),
        ("nosuch://train-000.tar", "nosuch://train-000.tar cannot be opened"),
    ],
)
def test_what_are_no_shards_is_refused(
    shards: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path, [2, 2, 2])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        resumable.Tars(shards)


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path, [2])
    monkeypatch.setitem(sys.modules, "braceexpand", None)
    with pytest.raises(MissingDependencyError, match=r"braceexpand.\nInstall it: pip install .*\[tars\]"):
        resumable.Tars(str(tmp_path / "train-{000..000}.tar"))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match="decoding images needs Pillow"):
        resumable.Tars(tmp_path / "train-000.tar")[0]


# ---------------------------------------------------------------------- what is cut, compressed or damaged


def test_every_cut_is_refused_with_shard_and_byte(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.tar", [(f"{one:02}.{kind}", b"x" * 700) for one in range(6) for kind in ("a", "b")])
    content, path = whole.read_bytes(), tmp_path / "cut.tar"
    end = 12 * (512 + 1024)  # where the block that ends it begins
    for cut in sorted({*range(0, end + 512, 512), *range(1, end + 512, 777), end + 511}):
        path.write_bytes(content[:cut])
        with pytest.raises(ConfigurationError, match=rf"{path}, byte \d+: the (tar is truncated|shard is empty)"):
            resumable.Tars(path)
    path.write_bytes(content[: end + 512])
    assert raw(path) == [{**one, "__url__": str(path)} for one in by_webdataset(whole)]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["cut.tar", "whole.tar"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:1536] + b"\xff" + data[1537:], r"byte 1536: the tar is truncated or damaged"),
        (gzip.compress, r"byte 0: the tar is compressed \(gzip\)(.|\n)*gzip -d"),
        (bz2.compress, r"compressed \(bzip2\)"),
        (lzma.compress, r"compressed \(xz\)"),
        (lambda data: b"\x28\xb5\x2f\xfd" + data, r"compressed \(zstd\)"),
        (lambda data: data + data, r"byte 3072: the tar ends here, but the file has \d+ bytes"),
        (lambda _: b"no tar at all, but some text\n" * 100, "byte 0: the tar is truncated or damaged"),
        (lambda _: bytes(10_240), "has no samples"),
    ],
)
def test_what_is_damaged_is_refused_by_name(damage: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [("a.x", b"x" * 700), ("b.x", b"y" * 700)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigurationError, match=rf"a.tar.*{message}"):
        resumable.Tars(path)


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [("a.x", b"x" * 700)], tarfile.GNU_FORMAT)
    content = bytearray(path.read_bytes())
    content[156:157] = tarfile.GNUTYPE_SPARSE
    content[386:410] = b"%011o\0%011o\0" % (0, 700)
    content[483:495] = b"%011o\0" % 700
    content[148:156] = b"%06o\0 " % (sum(content[:148]) + 256 + sum(content[156:512]))
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"a.tar, byte 0: member a.x is a sparse file"):
        resumable.Tars(path)


@pytest.mark.parametrize("names", [["a.jpg", "a.jpg"], ["a.jpg", "a.JPG"], ["a.__key__"], ["a.x", "b.__url__"]])
def test_the_same_entry_twice_in_a_sample_is_refused(names: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [(name, b"12") for name in names])
    with pytest.raises(ValueError, match="duplicate file name"):
        by_webdataset(path)
    with pytest.raises(
        ConfigurationError, match=rf"a.tar, byte \d+: the sample of member {names[-1]} already has the extension"
    ):
        resumable.Tars(path)


# ---------------------------------------------------------------------- the index that is kept


def test_an_index_is_made_once_and_belongs_to_its_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_images(tmp_path, [4, 3])
    tars = resumable.Tars(paths)
    kept = {path.name for path in tmp_path.glob("*.resumable-index")}
    assert kept == {"train-000.tar.resumable-index", "train-001.tar.resumable-index"}
    assert len(list(tmp_path.iterdir())) == 4
    with monkeypatch.context() as patch:
        patch.setattr("resumable.sources._tar_index.scan", None)
        again = resumable.Tars(paths)
    assert [one["cls"] for one in again] == [one["cls"] for one in tars] == list(range(7))
    assert again.fingerprint() == tars.fingerprint()


def test_indices_in_a_folder_of_their_own(tmp_path: Path) -> None:
    shards, other, folder = tmp_path / "shards", tmp_path / "other", tmp_path / "indices"
    for one in (shards, other):
        one.mkdir()
    paths = [*write_images(shards, [4]), *write_images(other, [5], first=4)]
    for _ in range(2):
        assert [one["cls"] for one in resumable.Tars(paths, index=folder)] == list(range(9))
    assert len(list(folder.iterdir())) == 2
    assert len(list(shards.iterdir())) == len(list(other.iterdir())) == 1


def rewrite(path: Path, first: int, *, time: bool) -> None:
    """Write a shard of the same size again, at another time or at the same."""
    before = path.stat()
    write_images(path.parent, [4], first)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + time))


@pytest.mark.parametrize("time", [True, False])
def test_a_shard_that_was_written_again_gets_another_index(
    time: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = write_images(tmp_path, [4])
    before = resumable.Tars(path).fingerprint()
    rewrite(path, 100, time=time)
    tars = resumable.Tars(path)
    assert [sample["cls"] for sample in tars] == [100, 101, 102, 103]
    assert tars.locate([0]) == [(str(path), "img/00100")]
    assert "train-000.tar was rewritten since its index" in caplog.text
    assert tars.fingerprint() != before


def test_one_sample_that_was_written_again_is_read_as_it_is(tmp_path: Path) -> None:
    """In a shard of the same size, so that its time alone tells."""
    texts = [b"cat"] * 40
    path = write(tmp_path / "a.tar", [(f"{number}.txt", text) for number, text in enumerate(texts)])
    resumable.Tars(path)
    before, texts[13] = path.stat(), b"horse"
    write(path, [(f"{number}.txt", text) for number, text in enumerate(texts)])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert path.stat().st_size == before.st_size
    assert [sample["txt"].encode() for sample in resumable.Tars(path)] == texts


@pytest.mark.parametrize("damage", ["empty", "half", "byte", "text", "cut"])
def test_a_damaged_index_is_made_again(damage: str, tmp_path: Path) -> None:
    (path,) = write_images(tmp_path, [4])
    resumable.Tars(path)
    kept = tmp_path / "train-000.tar.resumable-index"
    whole = kept.read_bytes()
    flipped = whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:]
    cases = {"empty": b"", "half": whole[: len(whole) // 2], "byte": flipped, "text": b"{}\n", "cut": whole[:-1]}
    kept.write_bytes(cases[damage])
    assert [sample["__key__"] for sample in resumable.Tars(path)] == [f"img/{number:05}" for number in range(4)]
    assert kept.read_bytes() == whole


def test_a_place_that_cannot_be_written_to_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write_images(tmp_path, [4])

    def broken(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        tars = resumable.Tars(path)
    assert [one.name for one in tmp_path.iterdir()] == ["train-000.tar"]
    copy = pickle.loads(pickle.dumps(tars))  # noqa: S301  # our own
    assert [sample["cls"] for sample in copy] == list(range(4))
    assert [sample["cls"] for sample in resumable.Tars(path, index=path / "below-a-file")] == list(range(4))


def test_an_index_that_goes_while_it_is_used_is_missed_by_name(tmp_path: Path) -> None:
    (path,) = write_images(tmp_path, [4])
    pickled = pickle.dumps(resumable.Tars(path))
    rewrite(path, 100, time=True)
    assert resumable.Tars(path)[0]["cls"] == 100
    with pytest.raises(DataError, match=r"the index .* of .*train-000.tar was removed or rewritten"):
        pickle.loads(pickled)[0]  # noqa: S301  # our own
    (tmp_path / "train-000.tar.resumable-index").unlink()
    with pytest.raises(DataError, match="was removed or rewritten"):
        pickle.loads(pickled)[0]  # noqa: S301


# ---------------------------------------------------------------------- what changes in a run


def test_a_shard_that_changes_in_a_run_is_refused_by_name(tmp_path: Path) -> None:
    (path,) = write_images(tmp_path, [4])
    reading, later = resumable.Tars(path, index=False), resumable.Tars(path, index=False)
    assert reading[0]["cls"] == 0
    content, before = path.read_bytes(), os.stat(path)  # noqa: PTH116  # the time in nanoseconds
    with path.open("r+b") as file:
        file.truncate(len(content) // 2)
    with pytest.raises(DataError, match=rf"{path}, bytes \d+\.\.\d+ cannot be read: only \d+ of these"):
        reading[3]
    with pytest.raises(DataError, match=rf"{path} was rewritten since it was opened"):
        pickle.loads(pickle.dumps(later))[0]  # noqa: S301  # our own
    with path.open("r+b") as file:
        file.write(b"\0" * 512 + content[512:])
    with pytest.raises(DataError, match=rf"{path} was rewritten since it was opened"):
        reading[0]
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # then only the headers show it
    with pytest.raises(DataError, match=rf"{path}, byte 0: the shard was rewritten since its index was created"):
        reading[0]
    assert reading[1]["cls"] == 1
    second = content.index(b"img/00002.json")
    with path.open("r+b") as file:
        file.write(content)
        file.seek(second + 124)  # the size of a member in the middle of a sample
        file.write(b"%011o" % 5)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert reading[3]["cls"] == 3
    with pytest.raises(DataError, match="was rewritten since its index was created"):
        reading[2]
    path.unlink()
    with pytest.raises(DataError, match=rf"{path}, bytes \d+\.\.\d+ cannot be read: the file no longer exists"):
        pickle.loads(pickle.dumps(later))[0]  # noqa: S301  # our own


def test_the_fingerprint_goes_with_the_data(tmp_path: Path) -> None:
    for one in ("a", "b", "c"):
        (tmp_path / one).mkdir()
    paths, other = write_images(tmp_path / "a", [4, 3]), write_images(tmp_path / "b", [4, 3], first=1)
    said = resumable.Tars(paths).fingerprint()
    assert said.startswith(
        f"2 shards train-000.tar .. train-001.tar, {sum(one.stat().st_size for one in paths)} bytes, 7 "
    )
    moved = [shutil.copy(path, tmp_path / "c") for path in paths]
    assert resumable.Tars(moved).fingerprint() == resumable.Tars(paths, decode=False).fingerprint() == said
    assert len({said, *(resumable.Tars(one).fingerprint() for one in (other, paths[::-1], paths[:1]))}) == 4


# ---------------------------------------------------------------------- decoders


def members(**bodies: bytes) -> list[tuple[str, bytes]]:
    return [(f"a.{name.replace('_', '.')}", body) for name, body in bodies.items()]


def saved(values: Any, save: Any = np.save, **given: Any) -> bytes:
    file = io.BytesIO()
    save(file, values, **given)
    return file.getvalue()


def test_members_are_decoded_by_extension(tmp_path: Path) -> None:
    file = io.BytesIO()
    torch.save({"a": torch.arange(3)}, file)
    path = write(
        tmp_path / "a.tar",
        members(
            txt="grüß".encode(),
            cls=b"12 ",
            json=b'{"a": [1, 2]}',
            npy=saved(np.arange(4)),
            npz=saved(np.arange(2), np.savez),
            pt=file.getvalue(),
            png=png(5),
            mask_png=png(6),
            bin=b"\0\1",
        ),
    )
    (sample,) = resumable.Tars(path)
    assert (sample["txt"], sample["cls"], sample["json"], sample["bin"]) == ("grüß", 12, {"a": [1, 2]}, b"\0\1")
    assert sample["npy"].tolist() == [0, 1, 2, 3]
    assert sample["npz"]["arr_0"].tolist() == [0, 1]
    assert sample["pt"]["a"].tolist() == [0, 1, 2]
    assert (sample["png"].tolist(), sample["mask.png"].tolist()) == (image_of(5).tolist(), image_of(6).tolist())
    assert sample["png"].flags.writeable
    decode = {"png": image("L", pil=True), "mask.png": len, "json": None, "bin": bytes.hex}
    (sample,) = resumable.Tars(path, decode=decode)
    assert isinstance(sample["png"], Image.Image)
    assert (sample["png"].mode, sample["mask.png"], sample["bin"]) == ("L", len(png(6)), "0001")
    assert (sample["json"], sample["cls"]) == (b'{"a": [1, 2]}', 12)
    (sample,) = resumable.Tars(path, decode={".PNG": image("L")})
    assert sample["png"].shape == sample["mask.png"].shape == (8, 8)
    (sample,) = resumable.Tars(path, decode={"png": image(None)}, transform=lambda one: one["png"].shape)
    assert sample == (8, 8, 3)
    assert all(type(value) in {bytes, str} for value in raw(path)[0].values())


@pytest.mark.parametrize("kind", ["pkl", "pickle", "pyd", "x.pkl"])
def test_pickles_are_refused_unless_they_are_trusted(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [(f"a.{kind}", pickle.dumps([1, 2]))])
    with pytest.raises(ConfigurationError, match=rf"have .{kind} members, which are pickles(.|\n)*decode="):
        resumable.Tars(path)
    assert resumable.Tars(path, decode={kind: pickle.loads})[0][kind] == [1, 2]
    assert resumable.Tars(path, decode={"pkl": None, "pickle": None, "pyd": None})[0][kind] == pickle.dumps([1, 2])
    assert resumable.Tars(path, decode=False)[0][kind] == pickle.dumps([1, 2])


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("it-ran",)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("npy", saved(np.array([Evil()], dtype=object), allow_pickle=True)),
        ("npz", saved(np.array([Evil()], dtype=object), np.savez, allow_pickle=True)),
        ("pt", saved(Evil(), lambda file, value: torch.save(value, file))),
        ("json", b"{"),
        ("cls", b"cat"),
        ("png", b"\x89PNG cut"),
        ("txt", b"\xff\xfe\xfa"),
    ],
)
def test_a_member_that_cannot_be_decoded_is_named(
    name: str, body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "a.tar", [("x/a.ok", b"12"), (f"x/a.{name}", body)])
    with pytest.raises(DataError, match=rf"{path}, byte 1536: member x/a.{name} cannot be decoded: \w+"):
        resumable.Tars(path)[0]
    assert not Path("it-ran").exists()
    assert resumable.Tars(path, decode={name: None})[0][name] == body


@pytest.mark.parametrize("wrong", ["pil", 1, {"png": "L"}, {7: len}, None])
def test_what_is_no_decoder_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="decode must be True, False, or a dict from extensions to functions"):
        resumable.Tars(write_images(tmp_path, [1]), decode=wrong)


def test_what_is_no_place_for_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="index must be a folder, a URL, False or None, but it is 7"):
        resumable.Tars(write_images(tmp_path, [1]), index=7)  # type: ignore[arg-type]  # that it fails is the point


def test_json_is_decoded_as_json(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [("a.json", json.dumps({"ä": None}).encode())])
    assert resumable.Tars(path)[0]["json"] == {"ä": None}
