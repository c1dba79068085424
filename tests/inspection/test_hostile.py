"""Pickles that would run something are read, and run nothing."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from kept import of_distributed, of_step, of_torch, trained

import resumable
from resumable._inspect.pickles import read_pickle
from resumable.errors import CorruptCheckpointError


class Runs:
    """Touches a file when it is loaded."""

    def __init__(self, touched: Path) -> None:
        self.touched = touched

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.touched}",)


def by_hand(touched: Path) -> dict[str, bytes]:
    """Every way in which a pickle can call something, or import it."""
    command = f"touch {touched}".encode()
    text = b"S'" + command + b"'\n"
    short = b"\x8c" + bytes([len(command)]) + command
    system = b"\x8c\x05posix\x8c\x06system\x93"
    path = b"\x8c\x07pathlib\x8c\x04Path\x93" + b"\x8c" + bytes([len(str(touched))]) + str(touched).encode() + b"\x85R"
    return {
        "reduce": b"cposix\nsystem\n(" + text + b"tR.",
        "stack global": b"\x80\x04" + system + short + b"\x85R.",
        "inst": b"(" + text + b"iposix\nsystem\n.",
        "obj": b"(cposix\nsystem\n" + text + b"o.",
        "newobj": b"\x80\x02cposix\nsystem\n(" + text + b"t\x81.",
        "newobj_ex": b"\x80\x04" + system + short + b"\x85}\x92.",
        "build": b"\x80\x04cbuiltins\nexec\n(S'open(\"" + str(touched).encode() + b'", "w")\'\ntR}b.',
        "reduce of what was built": b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93" + path + b"\x8c\x05touch\x86R)R.",
        "items of what was built": b"\x80\x04" + path + b"(\x8c\x01a\x8c\x01bu(\x8c\x01ae.",
        "import": b"ctrap_of_this_test\nthing\n.",
        "in a builder": b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cposix\nsystem\nN(" + text + b"tNtR.",
        "persistent": b"\x80\x02cposix\nsystem\n" + short + b"\x86Q.",
        "extension": b"\x80\x02\x82\x01(" + text + b"tR.",
    }


NAMES = tuple(by_hand(Path("x")))


def as_torch_file(path: Path, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = tmp_path / "touched"
    (tmp_path / "trap_of_this_test.py").write_text(f"open({str(touched)!r}, 'w')\nthing = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    data = by_hand(touched)[name]
    path = as_torch_file(tmp_path / "bad.pt", data)
    for look in (resumable.inspect, lambda one: resumable.diff(one, one)):
        try:
            look(path)
        except CorruptCheckpointError:
            assert name == "items of what was built"
    assert not touched.exists()
    assert "trap_of_this_test" not in sys.modules


@pytest.mark.parametrize("name", ["reduce", "stack global", "inst", "obj", "import", "reduce of what was built"])
def test_it_would_have_been_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = tmp_path / "touched"
    (tmp_path / "trap_of_this_test.py").write_text(f"open({str(touched)!r}, 'w').close()\nthing = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trap_of_this_test", raising=False)
    pickle.loads(by_hand(touched)[name])  # noqa: S301  # the control
    monkeypatch.delitem(sys.modules, "trap_of_this_test", raising=False)
    assert touched.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_saved_is_shown_by_its_name(zipped: bool, tmp_path: Path) -> None:
    touched, path = tmp_path / "touched", tmp_path / "bad.pt"
    content = {"model": {"w": torch.ones(2)}, "bad": Runs(touched), "data": trained(2)["data"]}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    found = resumable.inspect(path)
    assert {part.name: part.objects for part in found.parts} == {"model": (), "bad": ("posix.system",), "data": ()}
    assert [state.step for state in found.states] == [2]
    assert not touched.exists()


def test_in_a_store_and_in_a_folder(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    step = of_step(tmp_path, trained(1))
    next(step.glob("*.pt")).write_bytes(pickle.dumps(Runs(touched)))
    with pytest.raises(CorruptCheckpointError, match="bytes instead of"):
        resumable.inspect(step)
    folder = of_distributed(tmp_path, trained(1))
    (folder / ".metadata").write_bytes(pickle.dumps(Runs(touched)))
    with pytest.raises(CorruptCheckpointError, match="is not PyTorch's"):
        resumable.inspect(folder)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "custom_checkpoint_0.pkl").write_bytes(pickle.dumps(Runs(touched)))
    (part,) = resumable.inspect(tmp_path / "files").parts
    assert part.type == "posix.system"
    assert not touched.exists()


def test_a_folder_of_shards_reads_nothing_outside_of_it(tmp_path: Path) -> None:
    content = trained(1)
    (tmp_path / "secret.distcp").write_bytes(b"secret")
    folder = of_distributed(tmp_path, content)
    metadata = folder / ".metadata"
    raw = metadata.read_bytes()
    assert raw.count(b"\x8c\x0c__0_0.distcp") == 1
    metadata.write_bytes(raw.replace(b"\x8c\x0c__0_0.distcp", b"\x8c\x0c../secret.dc"))
    with pytest.raises(CorruptCheckpointError, match="outside the folder"):
        resumable.inspect(folder)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_as_pickle_reads_them(protocol: int) -> None:
    values: dict[Any, Any] = {
        "numbers": [0, -1, 255, 256, 65536, 1 << 40, -(1 << 70), 1.5, float("inf"), True, None, 1 + 2j],
        "texts": ["", "a", "ä\n", "x" * 300, b"", b"\x00\xff" * 200, bytearray(b"ab")],
        "others": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {1, 2}, frozenset({3}), {}, [], {(1, 2): [3]}],
        3: {"deep": [[[]]]},
    }
    values["twice"] = values["texts"]
    assert read_pickle(pickle.dumps(values, protocol)) == values


def test_trees_without_an_end_are_gone_through(tmp_path: Path) -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    doubled: list[Any] = []
    for _ in range(200):
        doubled = [doubled, doubled]
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for number, value in enumerate((endless, doubled)):
        torch.save({"a": value}, tmp_path / f"{number}.pt")
        assert resumable.inspect(tmp_path / f"{number}.pt").parts
        assert resumable.diff(tmp_path / f"{number}.pt", tmp_path / f"{number}.pt").is_equal
    data = b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."
    as_torch_file(tmp_path / "deep.pt", data)
    assert resumable.inspect(tmp_path / "deep.pt").parts
    assert resumable.diff(tmp_path / "deep.pt", tmp_path / "deep.pt").is_equal


def test_a_tensor_that_is_larger_than_its_file_is_told(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    name = next(name for name in records if name.endswith("data.pkl"))
    assert b"K\x04\x85" in records[name]
    records[name] = records[name].replace(b"K\x04\x85", b"J\x00\x00\x00\x7f\x85")
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        for one, raw in records.items():
            archive.writestr(one, raw)
    with pytest.raises(CorruptCheckpointError, match="elements, but its storage has"):
        resumable.diff(tmp_path / "b.pt", tmp_path / "b.pt")


GUARD = """
import sys
def watch(event, args):
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wxa+"):
        print("WROTE", args, file=sys.stderr)
    if event in {"os.system", "subprocess.Popen", "os.mkdir", "os.remove", "os.rename", "pickle.find_class"}:
        print("DID", event, args, file=sys.stderr)
import resumable.cli.inspect, resumable.cli.diff, fsspec.implementations.local
sys.dont_write_bytecode = True
sys.addaudithook(watch)
for words in (["inspect", sys.argv[1]], ["diff", sys.argv[1], sys.argv[1]], ["inspect", sys.argv[2], "--json"],
              ["samples", sys.argv[2], "--epoch", "1", "--step", "2"]):
    assert resumable.cli.main(words) == 0
assert "torch" not in sys.modules
"""


def test_commands_only_read(tmp_path: Path) -> None:
    """The commands write nothing, run nothing and unpickle nothing."""
    bad = tmp_path / "bad.pt"
    torch.save({"bad": Runs(tmp_path / "touched"), "w": torch.ones(3)}, bad)
    good = of_torch(tmp_path, trained(2))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    child = subprocess.run([sys.executable, "-c", GUARD, bad, good], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stderr) == (0, "")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_watch_would_see_it(tmp_path: Path) -> None:
    spoiled = GUARD.replace("for words in", f"open({str(tmp_path / 'x')!r}, 'w')\nfor words in")
    good = of_torch(tmp_path, trained(1))
    child = subprocess.run([sys.executable, "-c", spoiled, good, good], capture_output=True, text=True, check=False)
    assert "WROTE" in child.stderr


def test_a_pickle_of_a_gigabyte_that_is_not_there() -> None:
    for data in (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x0f.", b"\x80\x04r\xff\xff\xff\x7f.", b"\x80\x04", b"."):
        with pytest.raises(CorruptCheckpointError, match="truncated or damaged"):
            read_pickle(io.BytesIO(data))
