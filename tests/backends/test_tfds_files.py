"""The files of TensorFlow Datasets: index, checksums, damage, forks, and wrong files of every sort."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tfds_builders import TEST, TRAIN, folder

import resumable
from resumable._fetch.reader import Reader
from resumable._fetch.workers import RequestDataset
from resumable.backends import tfds as backend
from resumable.backends.tfds import records as index_cache
from resumable.backends.tfds import records as tfrecord
from resumable.backends.tfds.records import TFRecordFile, build_index, masked_crc
from resumable.errors import ConfigurationError, DataError, MissingDependencyError, UnsupportedError
from resumable.loader.registry import find_dataset


@pytest.fixture
def copy(tmp_path: Path) -> str:
    """Return a copy of the TFRecord set, to be damaged."""
    return shutil.copytree(folder("shapes", "tfrecord"), tmp_path / "shapes" / "1.0.0").as_posix()


def first_file(root: str) -> Path:
    return next(Path(root).glob("*train*-00000-of-*"))


def read_all(root: str, **options: Any) -> list[Any]:
    source = backend.source(root, "train", **{"index_dir": False, "fields": ["label"], **options})
    return [batch["label"].tolist() for batch in resumable.wrap(source, batch_size=8)]


def test_the_checksum_of_the_standard() -> None:
    """RFC 3720, appendix B.4: 32 bytes of zeros, of ones, and counting up; before the masking."""
    table = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, bytes(range(32)): 0x46DD794E}
    for message, crc in table.items():
        assert masked_crc(message) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_a_missing_package_is_named_with_its_extra(copy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    tfrecord._crc32c.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"google-crc32c.*\nInstall it: pip install .*\[tfds\]"):
        read_all(copy)
    tfrecord._crc32c.cache_clear()


def test_an_index_says_where_the_records_are(copy: str) -> None:
    path = str(first_file(copy))
    index = build_index(path)
    assert (index[0], index[-1]) == (0, Path(path).stat().st_size)
    file = TFRecordFile(path, index, verify=True)
    for record in range(len(index) - 1):
        assert len(file.read(record)) == index[record + 1] - index[record] - 16


def test_an_empty_file_has_no_record(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert build_index(str(tmp_path / "empty")).tolist() == [0]


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_truncated_file_is_named_with_its_record(copy: str, cut: int) -> None:
    file = first_file(copy)
    records = len(build_index(str(file))) - 1
    os.truncate(file, file.stat().st_size - cut)
    with pytest.raises(DataError, match=rf"record {records - 1} of the file {file} is truncated"):
        read_all(copy)


@pytest.mark.parametrize("left", [1, 5, 11])
def test_a_header_that_is_cut_in_two_is_named(copy: str, left: int) -> None:
    file = first_file(copy)
    index = build_index(str(file))
    os.truncate(file, int(index[3]) + left)
    with pytest.raises(DataError, match=rf"record 3 of the file {file} is truncated"):
        read_all(copy)


def test_whole_records_that_are_missing_are_seen(copy: str) -> None:
    file = first_file(copy)
    os.truncate(file, int(build_index(str(file))[-2]))
    with pytest.raises(DataError, match=rf"{file} has 11 records, but dataset_info.json says 12"):
        read_all(copy)


@pytest.mark.parametrize("record", [0, 4, 11])
@pytest.mark.parametrize("offset", [0, 3, 7, 9])
def test_a_corrupt_length_is_named_with_its_record(copy: str, record: int, offset: int) -> None:
    file = first_file(copy)
    flip(file, int(build_index(str(file))[record]) + offset)
    with pytest.raises(DataError, match=rf"record {record} of the file {file} is corrupt: the checksum of its length"):
        read_all(copy)


def test_corrupt_data_is_seen_where_it_is_asked_for(copy: str) -> None:
    file = first_file(copy)
    index = build_index(str(file))
    flip(file, int(index[5]) + 30)
    with pytest.raises(DataError, match=rf"record 5 of the file {file} is corrupt: the checksum of its data"):
        read_all(copy, verify=True, fields=None, decode="none")
    good = folder("shapes", "tfrecord")
    assert read_all(good, verify=True) == read_all(good)


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 0x10
    file.write_bytes(content)


def test_a_file_that_changes_while_it_is_read_is_seen(copy: str) -> None:
    source = backend.source(copy, "train", index_dir=False, decode="none")
    assert len(source.record(3)) > 16
    file = first_file(copy)
    content = file.read_bytes()
    with file.open("r+b") as open_file:  # the same file, not a new one of that name
        open_file.write(content[8:] + content[:8])
    with pytest.raises(DataError, match="record 4 of the file .* is not at its position"):
        source.record(4)


class TestTheIndexIsKept:
    def test_and_used_again(self, copy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        kept = tmp_path / "indices"
        whole = read_all(copy, index_dir=kept)
        assert len(list(kept.iterdir())) == 5
        monkeypatch.setattr(index_cache, "build_index", lambda path: pytest.fail("it was built again"))
        assert read_all(copy, index_dir=kept) == whole

    @pytest.mark.parametrize("damage", [b"", b"resumable-tfrecord-index-1\n", b"nonsense" * 20])
    def test_and_built_anew_where_it_is_damaged(self, copy: str, tmp_path: Path, damage: bytes) -> None:
        whole = read_all(copy, index_dir=tmp_path / "indices")
        for file in (tmp_path / "indices").iterdir():
            file.write_bytes(damage)
        assert read_all(copy, index_dir=tmp_path / "indices") == whole

    def test_and_every_flipped_byte_of_it_is_seen(self, copy: str, tmp_path: Path) -> None:
        path = str(first_file(copy))
        right = index_cache.find_index(path, tmp_path)
        (file,) = tmp_path.glob("*.index")
        content = file.read_bytes()
        for place in range(len(content)):
            file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            assert np.array_equal(index_cache.find_index(path, tmp_path), right)
        assert file.read_bytes() == content

    def test_and_built_anew_where_the_file_is_another_one(self, copy: str, tmp_path: Path) -> None:
        kept = tmp_path / "indices"
        read_all(copy, index_dir=kept)
        one, other = (sorted(Path(copy).glob("*train*"))[number] for number in (0, 1))
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
        swapped = read_all(copy, index_dir=kept)
        assert swapped == read_all(copy)

    def test_or_not_where_nothing_can_be_written(self, copy: str, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert read_all(copy, index_dir=tmp_path / "file" / "below") == read_all(copy)

    def test_by_default_below_the_users_cache(self, copy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        source = backend.source(copy, "train+test")
        assert source.build_index() == TRAIN + TEST
        assert len(list((tmp_path / "cache/resumable/tfrecord-index").iterdir())) == 10

    @pytest.mark.slow
    def test_by_processes_that_build_it_at_the_same_time(self, copy: str, tmp_path: Path) -> None:
        script = f"from resumable.backends.tfds import source; source({copy!r}, 'train', index_dir={str(tmp_path)!r})"
        commands = [[sys.executable, "-c", f"{script}.build_index()"] for _ in range(3)]
        children = [subprocess.Popen(command) for command in commands]
        assert [child.wait(120) for child in children] == [0, 0, 0]
        assert len(list(tmp_path.glob("*.index"))) == 5
        assert not [file for file in tmp_path.iterdir() if file.is_file() and file.suffix != ".index"]


class TestForks:
    """array_record cannot be read in a process that was forked from one that read it."""

    def run(self, how: str, read_first: str) -> str:
        script = f"""
import sys
import tensorflow_datasets, resumable, resumable.backends.tfds
from array_record.python import array_record_data_source
from torch.utils.data import DataLoader

def main():
    root = {folder("shapes", "array_record")!r}
    ours = resumable.backends.tfds.source(root, "train", as_supervised=True)
    theirs = tensorflow_datasets.builder_from_directory(root).as_data_source("train")
    {read_first}
    {how}
    try:
        print("read", sum(1 for _ in resumable.wrap(reading)))
    except Exception as error:
        print(error)

if __name__ == "__main__":
    main()
"""
        path = Path(self.folder, "script.py")
        path.write_text(script)
        some_file = str(first_file(folder("shapes", "array_record")))
        command = [sys.executable, str(path), some_file]
        child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
        assert child.returncode == 0, child.stderr
        return child.stdout

    @pytest.fixture(autouse=True)
    def _in(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    OURS = "reading = DataLoader(ours, batch_size=8, num_workers=2{})"
    ELSEWHERE = "next(iter(array_record_data_source.ArrayRecordDataSource(sys.argv[1])))"  # by code of neither package
    THEIRS = "reading = DataLoader(theirs, batch_size=8, num_workers=2, collate_fn=list{})"

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("how", "read_first"),
        [
            (OURS, ELSEWHERE),
            (OURS, "ours[0]"),
            (THEIRS, "theirs[0]"),
            (OURS, "next(iter(resumable.wrap(theirs, batch_size=2, collate=list)))"),
        ],
        ids=["elsewhere", "ours", "theirs", "one after the other"],
    )
    def test_a_fork_behind_a_read_is_refused_with_the_way_out(self, how: str, read_first: str) -> None:
        said = self.run(how.format(""), read_first)
        assert "this process was forked after array_record files were used" in said
        assert 'multiprocessing_context="forkserver"' in said

    @pytest.mark.slow
    @pytest.mark.parametrize(("how", "context"), [(OURS, "spawn"), (THEIRS, "forkserver")], ids=["ours", "theirs"])
    def test_the_way_out_is_one(self, how: str, context: str) -> None:
        assert self.run(how.format(f", multiprocessing_context={context!r}"), "ours[0]; theirs[0]") == "read 8\n"

    @pytest.mark.slow
    def test_a_fork_before_any_read_is_fine(self) -> None:
        assert self.run(self.THEIRS.format(""), "pass") == "read 8\n"

    def test_tfrecord_files_may_be_read_before_and_behind_a_fork(self) -> None:
        source = backend.source(folder("shapes", "tfrecord"), "train", index_dir=False, as_supervised=True)
        label = source[7][1]
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, bytes([source[7][1]]))
            os._exit(0)
        assert os.read(reading, 1) == bytes([label])
        assert os.waitpid(child, 0)[1] == 0
        assert source[7][1] == label


def test_a_source_is_pickled_without_what_is_open() -> None:
    for file_format in ("tfrecord", "array_record"):
        source = backend.source(folder("shapes", file_format), "train", index_dir=False)
        before = repr(source[5])
        content = pickle.dumps(source)
        assert len(content) < 4000
        assert repr(pickle.loads(content)[5]) == before  # noqa: S301  # our own


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_the_reader_tf_gives_what_as_dataset_gives(file_format: str) -> None:
    """Bit for bit, and the other decoders do not: so their names are part of the identity."""
    script = f"""
import numpy as np
import resumable, resumable.backends.tfds as backend
from resumable.testing import digest
root = {folder("shapes", file_format)!r}
source = backend.source(root, "train[5:]+test", reader="tf", add_tfds_id=True, index_dir=False)
samples = [source[index] for index in range(len(source))]
ours = {{sample.pop("tfds_id").replace(b"array_record", b"tfrecord"): sample for sample in samples}}
import tensorflow_datasets as tfds
builder = tfds.builder_from_directory({folder("shapes", "tfrecord")!r})
theirs = builder.as_dataset(split="train[5:]+test", read_config=tfds.ReadConfig(add_tfds_id=True))
names = []
for sample in theirs.as_numpy_iterator():
    names.append(sample.pop("tfds_id"))
    assert digest(ours[names[-1]]) == digest(sample), (ours[names[-1]], sample)
other = backend.source({folder("shapes", file_format)!r}, "train[5:]+test", decode="pil", fields=["image"])
same = sum(np.array_equal(other[index]["image"], source[index]["image"]) for index in range(20))
batches = list(resumable.wrap(source, batch_size=16, shuffle=True, transform=lambda sample: sample["image"]))
print(len(names), len(ours), same, sum(map(len, batches)))
"""
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=200)
    assert child.returncode == 0, child.stderr
    count, own, same, read = map(int, child.stdout.split())
    assert count == own == read == TRAIN - 5 + TEST
    assert same < 20


WHOLE = """
import sys
import numpy as np
import resumable, resumable.backends.tfds as backend
from resumable.testing import digest

def batches(source, state=None, tail="pad", **options):
    loader = resumable.wrap(source, batch_size=7, shuffle=True, seed=3, tail=tail, **options)
    if state:
        loader.load_state_dict(state)
    return loader, [batch for epoch in loader.epochs(2) for batch in epoch]

shapes, digits, images = sys.argv[1:]
fixed = {"reader": "tf", "fields": ["label", "name", "vector"]}
cv2 = {"decode": "cv2", "fields": ["image", "label", "name", "vector"]}
sources = {
    "OpenCV": (images, cv2),
    "OpenCV, marked": (images, {**cv2, "mark_padding": True, "add_tfds_id": True, "threads": 3}),
    "OpenCV, supervised, no threads": (images, {"decode": "cv2", "as_supervised": True, "threads": 0}),
    "fields": (shapes, fixed),
    "marked": (shapes, {**fixed, "mark_padding": True, "add_tfds_id": True}),
    "repeated, no threads": (shapes, {**fixed, "repeats": 2, "threads": 0}),
    "supervised": (digits, {"reader": "tf", "as_supervised": True, "mark_padding": True}),
}
for name, (root, options) in sources.items():
    source = backend.source(root, "train", index_dir=False, **options)
    _, whole = batches(source)
    assert source.makes_batches, name
    _, one_by_one = batches(source, transform=lambda sample: sample)
    assert [digest(batch) for batch in whole] == [digest(batch) for batch in one_by_one], name
    parts = [batches(source, tail="partial", **more)[1] for more in ({}, {"transform": lambda sample: sample})]
    assert [digest(batch) for batch in parts[0]] == [digest(batch) for batch in parts[1]], name
    for batch in whole:
        for part in batch.values() if isinstance(batch, dict) else batch:
            assert isinstance(part, list) or part.flags.writeable, name
    for step in range(len(whole)):
        loader = resumable.wrap(source, batch_size=7, shuffle=True, seed=3, tail="pad")
        loader.seek(epoch=step * 2 // len(whole), step=step % (len(whole) // 2))
        _, rest = batches(source, loader.state_dict())
        assert [digest(batch) for batch in rest] == [digest(batch) for batch in whole[step:]], (name, step)
for options in {"reader": "tf"}, {"decode": "cv2"}, {"decode": "pil"}:
    source = backend.source(shapes, "train", index_dir=False, **options)
    source.prepare()
    assert not source.makes_batches, "images of any size"
"""

BROKEN = """
import sys
import resumable, resumable.backends.tfds as backend


source = backend.source(sys.argv[1], "train", reader="tf", index_dir=False, fields=["label"], verify=True)
loader = resumable.wrap(source, batch_size=4)
try:
    list(loader)
except resumable.errors.DataError as error:
    assert "raised by sample 5." in error.__notes__[0], error.__notes__
    assert loader.cursor.step == 1
else:
    raise AssertionError
"""


def run(script: str, *arguments: str) -> None:
    command = [sys.executable, "-c", script, *arguments]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert child.returncode == 0, child.stderr


@pytest.mark.slow
def test_whole_batches_of_tensorflow_are_those_of_its_samples() -> None:
    run(WHOLE, *(folder(variant, "tfrecord") for variant in ("shapes", "digits", "fixed")))


@pytest.mark.slow
def test_bad_sample_in_a_whole_batch(copy: str) -> None:
    """A bad sample is named by its index if batches are decoded whole."""
    flip(first_file(copy), int(build_index(str(first_file(copy)))[5]) + 30)
    run(BROKEN, copy)


def test_cv2_and_pil_agree() -> None:
    """OpenCV and Pillow agree on these images, and none gives the bytes."""
    sources = {
        decode: backend.source(folder("shapes", "tfrecord"), "test", decode=decode, index_dir=False)
        for decode in ("cv2", "pil", "none")
    }
    for index in range(TEST):
        assert np.array_equal(sources["cv2"][index]["image"], sources["pil"][index]["image"])
        assert sources["none"][index]["image"][:2] == b"\xff\xd8"


def test_a_batch_of_different_shapes_is_refused() -> None:
    source = backend.source(folder("shapes", "tfrecord"), "train", fields=["boxes"], index_dir=False)
    with pytest.raises(DataError, match=r"different shapes in boxes/box: \(0,\), \(1, 4\).*\n.*collate=list"):
        next(iter(resumable.wrap(source, batch_size=8)))
    assert len(next(iter(resumable.wrap(source, batch_size=8, collate=list)))) == 8


def refused(match: str, *arguments: Any, error: type[Exception] = ConfigurationError, **options: Any) -> None:
    with pytest.raises(error, match=match):
        backend.source(*arguments, **options)


def test_bad_options_are_refused(tmp_path: Path) -> None:
    ours, theirs = folder("shapes", "tfrecord"), folder("shapes", "array_record")
    refused("no split 'valid'.*\n.*train, test", ours, "valid")
    refused("no split 'train.5'", ours, "train[5")
    refused("reader must be one of", ours, "train", reader="fast")
    refused("decode must be one of cv2, pil, none", ours, "train", decode="tf")
    refused("decode must be one of tf", ours, "train", decode="pil", reader="tf")
    refused("the files of .* have the format array_record", theirs, "train", reader="index")
    refused("the files of .* have the format tfrecord", ours, "train", reader="data_source")
    refused("fields must be a list.*\n.*boxes, image, label, name, vector", ours, "train", fields=["picture"])
    refused("fields must be a list", ours, "train", fields="image")
    refused("fields and as_supervised", ours, "train", fields=["image"], as_supervised=True)
    refused("were both passed", ours, "train", add_tfds_id=True, as_supervised=True)
    refused("repeats must be", ours, "train", repeats=0)
    refused("threads must be", ours, "train", threads=-1)
    refused("no dataset 'nothing_of_that_name'", "nothing_of_that_name", "train", data_dir=tmp_path)


def test_a_name_and_a_builder_are_as_good_as_a_folder() -> None:
    import tensorflow_datasets as tfds  # noqa: PLC0415  # as in a user's script

    root = Path(folder("shapes", "tfrecord"))
    named = backend.source("shapes", "test", data_dir=root.parents[1])
    built = backend.source(tfds.builder_from_directory(str(root)), "test")
    assert named.resumable_identity == built.resumable_identity == backend.source(root, "test").resumable_identity


def test_a_builder_cannot_be_wrapped_as_a_whole() -> None:
    import tensorflow_datasets as tfds  # noqa: PLC0415  # as in a user's script

    builder = tfds.builder_from_directory(folder("shapes", "tfrecord"))
    with pytest.raises(UnsupportedError, match=r"the splits train, test.\n.*source\(builder, split\)"):
        resumable.wrap(builder, batch_size=8)


def test_a_format_without_a_reader_is_refused(copy: str) -> None:
    info = Path(copy, "dataset_info.json")
    info.write_text(info.read_text().replace('"fileFormat": "tfrecord"', '"fileFormat": "riegeli"'))
    refused("the format riegeli, which cannot be read by index", copy, "train", error=UnsupportedError)


def test_a_set_without_its_features_is_refused(copy: str) -> None:
    import tensorflow_datasets as tfds  # noqa: PLC0415  # as in a user's script

    builder = tfds.builder_from_directory(copy)
    Path(copy, "features.json").unlink()
    refused("is not prepared: there is no .*features.json", builder, "train")


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("tensorflow_datasets", r'pip install "resumable-data\[tfds\]"'),
        ("array_record", r'pip install "resumable-data\[tfds\]"'),
    ],
)
def test_a_missing_package_is_named_with_the_command(
    module: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    refused(command, folder("shapes", "array_record"), "train", error=MissingDependencyError)


def test_the_default_decoder_is_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder("shapes", "tfrecord")
    assert backend.source(root, "train").resumable_identity["decode"] == "cv2"
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "cv2" else find(name))
    assert backend.source(root, "train").resumable_identity["decode"] == "pil"
    refused("pip install opencv-python", root, "train", decode="cv2", error=MissingDependencyError)


def test_parquet_slices_that_would_be_whole_splits_are_refused() -> None:
    """Of parquet files, TensorFlow Datasets reads all samples, whatever the slice."""
    import tensorflow_datasets as tfds  # noqa: PLC0415  # as in a user's script

    theirs = tfds.builder_from_directory(folder("shapes", "array_record")).as_data_source("train[:10]")
    theirs.data_source = range(TRAIN)
    with pytest.raises(UnsupportedError, match="has 61 samples, but its split 'train\\[:10\\]' has 10"):
        resumable.wrap(theirs, batch_size=8)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_many_shards_need_few_open_files(copy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resumable.backends.tfds.records._OPEN_FILES", 2)
    before = open_files()
    source = backend.source(copy, "train+test", index_dir=False, fields=["label"])
    order = np.random.default_rng(0).permutation(len(source)).tolist()
    for index in order:
        source[index]
        assert open_files() <= before + 2


def test_a_length_that_reaches_behind_everything(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**63 + 5)
    checksum = struct.pack("<I", masked_crc(length))
    (tmp_path / "huge").write_bytes(length + checksum + bytes(100))
    with pytest.raises(DataError, match="record 0 of the file .* is truncated"):
        build_index(str(tmp_path / "huge"))


def test_the_workers_see_the_users_dataset() -> None:
    """A data source of theirs is guarded by code of ours, which their code in a worker never meets."""
    import tensorflow_datasets as tfds  # noqa: PLC0415  # as in a user's script

    theirs = tfds.builder_from_directory(folder("shapes", "array_record")).as_data_source("train")
    guarded = find_dataset(theirs)
    assert guarded is not theirs
    assert RequestDataset(Reader(guarded, list, "off")).user_dataset is theirs
    plain = [1, 2, 3]
    assert find_dataset(plain) is plain


def test_bad_sample_among_others_is_named(copy: str) -> None:
    """A bad sample is named by its index even if others are read with it."""
    flip(first_file(copy), int(build_index(str(first_file(copy)))[5]) + 30)
    source = backend.source(copy, "train", index_dir=False, fields=["label"], verify=True, threads=2)
    loader = resumable.wrap(source, batch_size=2)
    with pytest.raises(DataError, match="raised by sample 5"):
        list(loader)
    assert loader.cursor.step == 2


FORKED = """
import sys
import resumable
from torch.utils.data import DataLoader
from resumable.backends import tfds as backend

source = backend.source(sys.argv[1], "train", reader="tf", index_dir=False, fields=["label"], threads=0)
if sys.argv[2] == "used":
    source[0]
loader = DataLoader(source, batch_size=8, num_workers=1, timeout=60, multiprocessing_context=sys.argv[3])
print(sum(len(batch["label"]) for batch in resumable.wrap(loader, seed=1)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("before", "expected"), [("used", "forked after TensorFlow was used"), ("unused", "61")])
def test_tensorflow_in_forked_workers(before: str, expected: str) -> None:
    """TensorFlow in forked workers is rejected if it would hang."""
    command = [sys.executable, "-c", FORKED, folder("shapes", "tfrecord"), before, "fork"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110)
    assert expected in (done.stderr if before == "used" else done.stdout), done.stderr[-2000:]
