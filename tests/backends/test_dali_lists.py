"""Readers of DALI that take their samples from lists: another list, or another order in it, is other data."""

from __future__ import annotations

import json
import shutil
import struct
import tarfile
import wave
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import nvidia.dali.backend as dali_backend
import pytest
from dali_pipelines import write_images
from nvidia.dali import fn, pipeline_def, tfrecord
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

import resumable
from resumable.backends.dali import identity as listing
from resumable.backends.dali.identity import look_at
from resumable.backends.dali.private import texts_of
from resumable.errors import PromiseWarning, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAMPLES = 4


def of(read: Callable[[], Any], **options: Any) -> resumable.Loader:
    @pipeline_def(num_threads=1, device_id=None, batch_size=2, seed=3)  # type: ignore[untyped-decorator]  # DALI's
    def graph() -> Any:
        return read()

    made = DALIGenericIterator(
        graph(), ["data"], reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, prepare_first_batch=False
    )
    return resumable.wrap(made, **options)


def read_sounds(root: Path) -> Any:
    return fn.readers.nemo_asr(name="Reader", manifest_filepaths=[str(root / "list.json")], pad_last_batch=True)[0]


def write_sounds(root: Path) -> Path:
    lines = []
    for number in range(SAMPLES):
        with wave.open(str(root / f"{number}.wav"), "wb") as sound:
            sound.setparams((1, 2, 8000, 80, "NONE", ""))
            sound.writeframes(bytes([number, 0]) * 80)
        lines.append(json.dumps({"audio_filepath": f"{root}/{number}.wav", "duration": 0.01, "text": "a"}))
    (root / "list.json").write_text("\n".join(lines))
    return root / "list.json"


def read_records(root: Path) -> Any:
    features = {"x": tfrecord.FixedLenFeature([1], tfrecord.int64, -1)}
    return fn.readers.tfrecord(
        name="Reader", path=str(root / "a.tfrecord"), index_path=str(root / "a.idx"), features=features,
        pad_last_batch=True,
    )["x"]  # fmt: skip


def write_records(root: Path) -> Path:
    (root / "a.tfrecord").write_bytes(bytes(40 * SAMPLES))
    (root / "a.idx").write_text("\n".join(f"{number * 40:03} 40" for number in range(SAMPLES)))
    return root / "a.idx"


def read_mxnet(root: Path) -> Any:
    path, index = [str(root / "a.rec")], [str(root / "a.idx")]
    return fn.readers.mxnet(name="Reader", path=path, index_path=index, pad_last_batch=True)[0]


def write_mxnet(root: Path) -> Path:
    record = struct.pack("<II", 0xCED7230A, 32) + bytes(32)
    (root / "a.rec").write_bytes(record * SAMPLES)
    (root / "a.idx").write_text("\n".join(f"{number}\t{number * 40:03}" for number in range(SAMPLES)))
    return root / "a.idx"


def read_tars(root: Path) -> Any:
    paths, indices = [str(root / "a.tar")], [str(root / "a.idx")]
    return fn.readers.webdataset(name="Reader", paths=paths, index_paths=indices, ext=["bin"], pad_last_batch=True)


def write_tars(root: Path) -> Path:
    lines = []
    with tarfile.open(root / "a.tar", "w") as tar:
        for number in range(SAMPLES):
            entry = tarfile.TarInfo(f"{number}.bin")
            entry.size = 4
            lines.append(f"bin {tar.offset + 512} 4 {number}.bin")
            tar.addfile(entry, BytesIO(bytes([number] * 4)))
    (root / "a.idx").write_text(f"v1.2 {SAMPLES}\n" + "\n".join(lines))
    return root / "a.idx"


def read_coco(root: Path) -> Any:
    return fn.readers.coco(
        name="Reader", file_root=str(root / "even"), annotations_file=str(root / "a.json"), pad_last_batch=True
    )[0]


def write_coco(root: Path) -> Path:
    write_images(root, 2 * SAMPLES)
    names = sorted(path.name for path in (root / "even").iterdir())
    images = [{"id": i, "file_name": name, "width": 8, "height": 8} for i, name in enumerate(names)]
    boxes = [{"id": i, "image_id": i, "category_id": 1, "bbox": [0, 0, 4, 4], "iscrowd": 0} for i in range(SAMPLES)]
    whole = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "a"}]}
    (root / "a.json").write_text(json.dumps(whole, indent=0))
    return root / "a.json"


def read_arrays(root: Path) -> Any:
    return fn.readers.numpy(
        name="Reader", file_root=str(root), file_list=str(root / "list.txt"), pad_last_batch=True, device="cpu"
    )


def write_arrays(root: Path) -> Path:
    for number in range(SAMPLES):
        np.save(root / f"{number}.npy", np.full(3, number))
    (root / "list.txt").write_text("\n".join(f"{number}.npy" for number in range(SAMPLES)))
    return root / "list.txt"


def swap_lines(listed: Path) -> None:
    """Put the samples into another order, in a file of the same size."""
    lines = listed.read_text().split("\n")
    if listed.suffix == ".json" and lines[0] == "{":
        whole = json.loads(listed.read_text())
        whole["images"].reverse()
        listed.write_text(json.dumps(whole, indent=0))
        return
    listed.write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]))


READERS = {
    "nemo_asr": (write_sounds, read_sounds),
    "tfrecord": (write_records, read_records),
    "mxnet": (write_mxnet, read_mxnet),
    "webdataset": (write_tars, read_tars),
    "coco": (write_coco, read_coco),
    "numpy": (write_arrays, read_arrays),
}


@pytest.mark.parametrize("reader", READERS)
def test_another_order_in_a_list_of_the_same_size_is_refused(reader: str, tmp_path: Path) -> None:
    write, read = READERS[reader]
    listed = write(tmp_path)
    state, size = of(lambda: read(tmp_path)).state_dict(), listed.stat().st_size
    of(lambda: read(tmp_path)).load_state_dict(state)
    if reader != "nemo_asr":  # a manifest has the whole paths
        shutil.copytree(tmp_path, tmp_path / "moved")
        of(lambda: read(tmp_path / "moved")).load_state_dict(state)
    swap_lines(listed)
    assert listed.stat().st_size == size
    with pytest.raises(StateMismatchError, match=r"backend\.files differs"):
        of(lambda: read(tmp_path)).load_state_dict(state)


def test_another_order_in_an_argument_is_refused(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    names = [str(tmp_path / f"{number}.npy") for number in range(SAMPLES)]

    def loader(files: list[str]) -> resumable.Loader:
        return of(lambda: fn.readers.numpy(name="Reader", files=files, pad_last_batch=True))

    loader(names).load_state_dict(loader(names).state_dict())
    with pytest.raises(StateMismatchError, match=r"backend\.files differs"):
        loader(names[::-1]).load_state_dict(loader(names).state_dict())


@pytest.mark.parametrize("key", ["path", "paths", "filenames", "files", "images", "manifest_filepaths", "index_paths"])
def test_the_order_of_files_counts_and_their_directory_does_not(key: str, tmp_path: Path) -> None:
    for name in ("here/a/0", "here/b/0", "here/c/1"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(name.encode())
    shutil.copytree(tmp_path / "here", tmp_path / "there")

    def digest(*names: str) -> Any:
        return look_at({key: [str(tmp_path / name) for name in names]}, ()).digest

    one = digest("here/a/0", "here/b/0", "here/c/1")
    assert one == digest("there/a/0", "there/b/0", "there/c/1") is not None
    assert one != digest("here/b/0", "here/a/0", "here/c/1")
    assert one != digest("here/a/0", "here/b/0")


def test_the_databases_of_caffe_are_told_by_their_files(tmp_path: Path) -> None:
    root = tmp_path / "db"
    root.mkdir()
    (root / "data.mdb").write_bytes(bytes(10))
    before = look_at({"path": str(root)}, ())
    (root / "lock.mdb").write_bytes(bytes(10))
    assert look_at({"path": [str(root)]}, ()) == before
    (root / "data.mdb").write_bytes(bytes(11))
    assert look_at({"path": str(root)}, ()).digest != before.digest


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look_at({"file_root": "s3://bucket/train"}, ()).unread == ["file_root='s3://bucket/train'"]
    assert look_at({"index_path": ["s3://bucket/a.idx"], "path": ["s3://bucket/a"]}, ()).unread == [
        "index_path='s3://bucket/a.idx'"
    ]
    assert not look_at({"files": ["s3://bucket/a.npy"], "file_root": "s3://bucket"}, ()).unread
    write_arrays(tmp_path)
    monkeypatch.setattr(listing, "_KNOWN", set())
    monkeypatch.setattr(listing, "OPTIONS", {"files"})
    with pytest.warns(PromiseWarning, match=r"Reader \(readers__Numpy\): no argument names files") as told:
        of(lambda: fn.readers.numpy(name="Reader", files=[str(tmp_path / "0.npy")], pad_last_batch=True))
    assert told[0].filename.endswith("test_dali_lists.py")
    of(lambda: fn.readers.numpy(name="Reader", files=[str(tmp_path / "0.npy")], pad_last_batch=True), identity="a")


def test_a_text_of_a_reader_to_come_is_read_where_it_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = tmp_path / "new.lst"
    new.write_text("1 2")
    before = look_at({"shards_of": str(new), "mode": str(new)}, {"shards_of", "mode"})
    new.write_text("2 1")
    after = look_at({"shards_of": str(new), "mode": "other"}, {"shards_of", "mode"})
    assert before.digest != after.digest
    assert look_at({"device": str(new)}, {"shards_of"}).digest is None, "no text of this reader"
    monkeypatch.setattr(listing, "_LARGEST", 2)
    assert look_at({"shards_of": str(new)}, {"shards_of"}).unread == [f"shards_of={str(new)!r}"]


def test_every_text_that_dalis_readers_take_is_known() -> None:
    """A new version of DALI fails here, and its readers are looked at."""
    names = {*dali_backend.RegisteredCPUOps(), *dali_backend.RegisteredGPUOps(), *dali_backend.RegisteredMixedOps()}
    readers = {name for name in names if dali_backend.GetSchema(name).HasArgument("num_shards")} | {
        "readers___TFRecord"
    }
    texts = {text for name in readers for text in texts_of(dali_backend.GetSchema(name))}
    assert {"readers__File", "readers__Webdataset", "readers__NemoAsr", "readers__Video"} < readers
    assert texts == (listing._KNOWN | listing.OPTIONS) - {"labels"}
