"""CheckpointStore: what it gives back, what it refuses, and what it does about damaged files."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import runpy
import subprocess
import sys
import threading
import uuid
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from resumable import checkpoint
from resumable.checkpoint import MARKER, CheckpointStore
from resumable.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptCheckpointError,
    CorruptCheckpointWarning,
    MissingDependencyError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROJECT = Path(__file__).parent.parent
CONTENT = {"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "data": {"native": b"\0\xff", "n": [1, -2], "seed": 7}}


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key, value in wanted.items():
            assert_same(found[key], value)
    elif isinstance(wanted, torch.Tensor):
        assert (found.dtype, found.shape, found.layout) == (wanted.dtype, wanted.shape, wanted.layout)
        assert torch.equal(found.float().to_dense(), wanted.float().to_dense())
    else:
        assert found == wanted


def data_file(store: CheckpointStore, step: int) -> Path:
    directory = marker_file(store, step).parent
    (path,) = directory.glob("*.pt")
    return path


def marker_file(store: CheckpointStore, step: int) -> Path:
    return Path(store.root) / f"step-{step:012d}" / MARKER


def files(root: str | Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(Path(root).rglob("*")) if path.is_file()}


@contextlib.contextmanager
def unchanged(root: str | Path) -> Iterator[None]:
    before = files(root)
    yield
    assert files(root) == before


@pytest.fixture(params=["local", "file", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    urls = {"local": str(tmp_path / "a" / "b"), "file": f"file://{tmp_path}/a", "memory": f"memory://{uuid.uuid4()}/a"}
    return urls[request.param]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Three steps, the content of each being its number."""
    made = CheckpointStore(tmp_path / "run")
    for step in (1, 2, 3):
        made.save(step, {"step": step, "weight": torch.full((100,), float(step))})
    return made


# What goes in comes out.


def test_a_new_store_has_no_checkpoints(root: str) -> None:
    store = CheckpointStore(root)
    assert (store.latest(), store.latest_step(), store.steps()) == (None, None, [])


def test_content_comes_back_as_it_was(root: str) -> None:
    CheckpointStore(root).save(5, CONTENT)
    store = CheckpointStore(root)
    assert_same(store.load(5), CONTENT)
    assert_same(store.latest(), CONTENT)
    assert (store.latest_step(), store.steps()) == (5, [5])


@pytest.mark.slow  # torch imports its compiler with the first optimizer
def test_training_state_comes_back(root: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    store = CheckpointStore(root)
    store.save(0, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()})
    found = store.load(0)
    optimizer.load_state_dict(found["optimizer"])
    for name, value in model.state_dict().items():
        assert torch.equal(found["model"][name], value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3),
        torch.empty(0, 2),
        torch.tensor([True, False]),
        torch.randn(3).bfloat16(),
        torch.randn(3).to(torch.float8_e4m3fn),
        torch.randn(4, 4).T[1:],
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.randn(2)),
        torch.randn(2, requires_grad=True) * 2,
    ],
    ids=["scalar", "empty", "bool", "bfloat16", "float8", "view", "sparse", "parameter", "with a graph"],
)
def test_tensors_of_every_kind_come_back(tensor: torch.Tensor, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(0, {"tensor": tensor})
    assert_same(store.load(0)["tensor"], tensor)


def test_a_conjugate_view_and_an_attribute_on_a_tensor_are_tried_as_they_are(tmp_path: Path) -> None:
    conjugate, labelled = torch.tensor([1 + 2j]).conj(), torch.ones(2)
    labelled.label = "mine"  # type: ignore[attr-defined]
    store = CheckpointStore(tmp_path)
    store.save(0, [conjugate, labelled])
    found = store.load(0)
    assert found[0].item() == 1 - 2j
    assert found[1].label == "mine"


def test_tied_tensors_stay_tied(tmp_path: Path) -> None:
    weight = torch.ones(3)
    store = CheckpointStore(tmp_path)
    store.save(0, {"in": weight, "out": weight})
    found = store.load(0)
    assert found["in"].data_ptr() == found["out"].data_ptr()


def test_map_location_is_torchs(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(0, CONTENT)
    assert store.load(0, map_location="meta")["model"]["weight"].is_meta
    latest = store.latest(map_location="meta")
    assert latest is not None
    assert latest["model"]["weight"].is_meta
    with pytest.raises(CheckpointError, match="nowhere"):
        store.load(0, map_location="nowhere")


def test_tensors_larger_than_a_chunk_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CHUNK", 1000)
    for url in (str(tmp_path), f"memory://{uuid.uuid4()}"):
        store = CheckpointStore(url)
        store.save(0, {"tensor": torch.arange(12_345)})
        assert torch.equal(store.load(0)["tensor"], torch.arange(12_345))


def test_the_data_file_is_one_that_torch_and_sha256sum_know(store: CheckpointStore) -> None:
    marker = json.loads(marker_file(store, 3).read_bytes())
    path = data_file(store, 3)
    assert torch.load(path, weights_only=True)["step"] == 3
    digest = subprocess.run(["sha256sum", path], check=True, capture_output=True, text=True).stdout.split()[0]  # noqa: S607
    assert marker == {
        "format": 1,
        "step": 3,
        "file": path.name,
        "size": path.stat().st_size,
        "algorithm": "sha256",
        "digest": digest,
    }


def test_saving_leaves_random_generators_and_content_alone(tmp_path: Path) -> None:
    before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()  # type: ignore[index]  # noqa: NPY002
    content = {"tensor": torch.ones(2, requires_grad=True)}
    CheckpointStore(tmp_path).save(0, content)
    after = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()  # type: ignore[index]  # noqa: NPY002
    assert before == after
    assert content["tensor"].requires_grad


def test_a_relative_root_is_the_one_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = CheckpointStore("runs/digits", keep=3)
    monkeypatch.chdir("/")
    store.save(0, CONTENT)
    assert (tmp_path / "runs" / "digits" / "step-000000000000" / MARKER).exists()
    assert repr(store) == "CheckpointStore('runs/digits', keep=3)"


def test_importing_the_module_imports_neither_torch_nor_fsspec() -> None:
    code = "import sys, resumable.checkpoint; sys.exit(bool({'torch', 'fsspec'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT)


# Which steps there are.


def test_steps_are_ordered_by_number_not_by_time_or_spelling(root: str) -> None:
    store = CheckpointStore(root)
    steps = [10**13, 9, 10, 0, 10**12, 10**12 - 1]
    for step in steps:
        store.save(np.int64(step), {"step": step})
    assert store.steps() == sorted(steps)
    assert store.latest() == {"step": 10**13}


def test_file_times_do_not_matter(store: CheckpointStore) -> None:
    for age, path in enumerate(sorted(Path(store.root).rglob("*"), reverse=True)):
        os.utime(path, (age, age))
    assert store.latest_step() == 3


def test_foreign_names_are_no_steps(store: CheckpointStore) -> None:
    for name in ("step-5", "step-0000000000009", "step-00000000000x", "other"):
        (Path(store.root) / name).mkdir()
        (Path(store.root) / name / MARKER).write_text("{}")
    (Path(store.root) / "notes.txt").write_text("mine")
    store.save(4, {"step": 4})
    assert store.steps() == [1, 2, 3, 4]
    assert (Path(store.root) / "notes.txt").exists()


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_steps_are_kept(root: str, keep: int) -> None:
    store = CheckpointStore(root, keep=keep)
    for step in range(8):
        store.save(step, {"step": step})
        assert store.steps() == list(range(max(0, step + 1 - keep), step + 1))
        assert [store.load(kept)["step"] for kept in store.steps()] == store.steps()


def test_pruning_leaves_no_files(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    for step in range(3):
        store.save(step, CONTENT)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000002"]


def test_the_step_just_saved_is_never_pruned(store: CheckpointStore) -> None:
    again = CheckpointStore(store.root, keep=2)
    again.save(0, {"step": 0})
    assert again.steps() == [0, 2, 3]
    again.save(1, {"step": 1})
    assert again.steps() == [1, 2, 3]


def test_a_store_with_less_to_keep_prunes_at_the_next_save_only(store: CheckpointStore) -> None:
    small = CheckpointStore(store.root, keep=1)
    assert small.steps() == [1, 2, 3]
    small.save(4, {"step": 4})
    assert small.steps() == [4]


def test_saving_a_step_again_replaces_it(root: str) -> None:
    store = CheckpointStore(root, keep=2)
    for version in range(3):
        store.save(7, {"version": version})
        assert store.load(7) == {"version": version}
    assert store.steps() == [7]


def test_saving_a_step_again_leaves_one_data_file(store: CheckpointStore) -> None:
    old = data_file(store, 2)
    store.save(2, {"step": 2, "again": True})
    assert data_file(store, 2) != old
    assert store.load(2)["again"]


def test_delete_removes_one_step(root: str) -> None:
    store = CheckpointStore(root)
    for step in (1, 2):
        store.save(step, CONTENT)
    store.delete(2)
    assert (store.steps(), store.latest_step()) == ([1], 1)
    with pytest.raises(CheckpointNotFoundError, match=r"(?s)step 2 .* deleted.*asked for: 2\n  committed: 1\nUse a"):
        store.delete(2)


def test_a_step_that_is_not_there_is_named_with_those_that_are(store: CheckpointStore) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"(?s)step 4 .*asked for: 4\n  committed: 1, 2, 3\nUse .*latest"):
        store.load(4)
    for step in range(4, 15):
        store.save(step, {})
    with pytest.raises(CheckpointNotFoundError, match=r"committed: 5, 6, .*, 14 and 4 before"):
        store.load(99)


# What is refused.


@pytest.mark.parametrize("step", [-1, 1.0, "3", None, True, np.float32(2), np.int64(-5)])
def test_a_step_is_a_whole_number(store: CheckpointStore, step: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: store.save(step, {}),
        lambda: store.load(step),
        lambda: store.delete(step),
    ]
    for call in calls:
        with (
            unchanged(store.root),
            pytest.raises(ConfigurationError, match=rf"(?s)step .*0 or more.*{re.escape(repr(step))}.*training"),
        ):
            call()


@pytest.mark.parametrize("keep", [0, -1, 1.5, "2"])
def test_keep_is_a_positive_number_or_none(tmp_path: Path, keep: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"(?s)keep .*1 or more.*{re.escape(repr(keep))}\nUse None"):
        CheckpointStore(tmp_path, keep=keep)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigurationError, match=r"(?s)is a file.*Give a directory"):
            CheckpointStore(path)


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)foo://x.*not known: foo.*s3://.*install"):
        CheckpointStore("foo://x")


def test_a_missing_filesystem_package_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'fsspec\[s3\]'"):
        CheckpointStore("s3://bucket/run")


def test_a_missing_torch_gives_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for verify in (True, False):
        with pytest.raises(MissingDependencyError, match=r"pip install 'resumable\[torch\]'"):
            CheckpointStore(tmp_path, verify=verify).save(0, {})
    assert not files(tmp_path)


def test_none_is_no_content(store: CheckpointStore) -> None:
    with unchanged(store.root), pytest.raises(ConfigurationError, match="latest"):
        store.save(4, None)


class Custom:
    """A class that `weights_only` does not know."""


class Raising:
    """A class whose pickling fails with an error of its own."""

    def __reduce__(self) -> Any:
        raise ArithmeticError("no pickling")


REFUSED: list[tuple[Any, str]] = [
    ({"data": {"at": [1, np.float64(2)]}}, r"content\['data'\]\['at'\]\[1\], a numpy.float64"),
    ({"array": np.zeros(2)}, r"content\['array'\], a numpy.ndarray"),
    ({"a": 1, "model": torch.nn.Linear(1, 1)}, r"content\['model'\], a torch.nn.modules.linear.Linear"),
    ([{"x": (0, Custom())}], r"content\[0\]\['x'\]\[1\], a \w+.Custom"),
    ({"call": lambda: 1}, r"content\['call'\], a builtins.function"),
    ({"bad": Raising()}, r"(?s)content\['bad'\], a \w+.Raising.*ArithmeticError: no pickling"),
    ({Path("key"): 1}, r"content, a builtins.dict"),
    ({"lock": threading.Lock()}, r"content\['lock'\], a _thread.lock"),
]


@pytest.mark.parametrize(("content", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_what_could_not_be_loaded_is_not_saved(store: CheckpointStore, content: Any, named: str) -> None:
    for step in (3, 4):
        with unchanged(store.root), pytest.raises(CheckpointError, match=named) as caught:
            store.save(step, content)
        assert f"step {step} was not saved" in str(caught.value)
        assert "add_safe_globals" in str(caught.value)
    assert store.latest_step() == 3


def test_a_class_that_was_allowed_is_saved_and_named_where_it_is_not_allowed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with torch.serialization.safe_globals([Custom]):
        store.save(0, {"custom": Custom()})
        assert isinstance(store.load(0)["custom"], Custom)
    for load in (store.latest, lambda: store.load(0)):
        with pytest.raises(CheckpointError, match=r"(?s)step 0 .*whole.*Custom.*add_safe_globals") as caught:
            load()
        assert not isinstance(caught.value, CorruptCheckpointError)


def test_without_verify_the_error_comes_at_load(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, verify=False)
    store.save(0, {"custom": Custom()})
    with pytest.raises(CheckpointError, match="Custom"):
        store.load(0)


def test_without_verify_a_failing_pickle_leaves_nothing(store: CheckpointStore) -> None:
    quick = CheckpointStore(store.root, verify=False)
    with unchanged(store.root), pytest.raises(CheckpointError, match=r"(?s)untouched.*no pickling") as caught:
        quick.save(3, {"bad": Raising()})
    assert isinstance(caught.value.__cause__, ArithmeticError)


# Damaged files.


def flip(path: Path, offset: int, bit: int = 0) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[offset] ^= 1 << bit
    path.write_bytes(damaged)


def assert_skipped(store: CheckpointStore, step: int, reason: str, used: int) -> None:
    with pytest.raises(CorruptCheckpointError, match=rf"(?s)step {step} is corrupt.*{reason}.*delete\({step}\)"):
        store.load(step)
    with pytest.warns(
        CorruptCheckpointWarning, match=rf"(?s)step {step} is corrupt.*{reason}.*step {used} is used"
    ) as seen:
        assert_same(store.latest(), store.load(used))
    assert [warning.filename for warning in seen] == [__file__] * len(seen)
    with pytest.warns(CorruptCheckpointWarning, match=reason):
        assert store.latest_step() == used


def test_a_flipped_bit_anywhere_in_the_data_is_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, CONTENT)
    path = data_file(store, 1)
    whole = path.read_bytes()
    for offset in range(0, len(whole), 7):
        flip(path, offset, offset % 8)
        with pytest.raises(CorruptCheckpointError, match="checksum"):
            store.load(1)
        path.write_bytes(whole)
    assert_same(store.load(1), CONTENT)


def test_truncated_and_grown_data_are_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, CONTENT)
    path = data_file(store, 1)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 9), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpointError, match=f"holds {length} bytes, and {len(whole)} were written"):
            store.load(1)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CorruptCheckpointError, match=f"holds {len(whole) + 1} bytes"):
        store.load(1)


def test_nothing_is_unpickled_before_the_checksum_is_compared(store: CheckpointStore) -> None:
    path = data_file(store, 3)
    torch.save({"custom": Custom()}, path)
    path.write_bytes(path.read_bytes().ljust(json.loads(marker_file(store, 3).read_bytes())["size"], b"\0"))
    with pytest.raises(CorruptCheckpointError, match=r"checksum|holds"):
        store.load(3)


def test_a_marker_cut_anywhere_is_found(store: CheckpointStore) -> None:
    path = marker_file(store, 3)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpointError, match=r"marker cannot be read"):
            store.load(3)


def test_a_flipped_bit_in_a_marker_is_found(store: CheckpointStore) -> None:
    path = marker_file(store, 3)
    whole = path.read_bytes()
    for offset, bit in itertools.product(range(len(whole)), (0, 5)):  # 5 turns letters into capitals
        flip(path, offset, bit)
        with pytest.raises(CheckpointError, match=r"corrupt|newer"):
            store.load(3)
        path.write_bytes(whole)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[1]",
        b"{}",
        b"[" * 10**5,
        b'{"format": "1"}',
        b'{"format": 0}',
        b'{"format": 1}',
        b'{"format": 1, "step": 3, "file": 4, "size": 1, "algorithm": "sha256", "digest": ""}',
        b'{"format": 1, "step": 3, "file": "../../secret.pt", "size": 1, "algorithm": "sha256", "digest": ""}',
        b'{"format": 1, "step": 2, "file": "0123456789abcdef.pt", "size": 1, "algorithm": "sha256", "digest": ""}',
        b'{"format": 1, "step": 3, "file": "0123456789abcdef.pt", "size": 1, "algorithm": "md5", "digest": ""}',
    ],
)
def test_a_marker_of_garbage_is_skipped(store: CheckpointStore, raw: bytes) -> None:
    marker_file(store, 3).write_bytes(raw)
    assert_skipped(store, 3, "marker (cannot be read|makes no sense)", used=2)
    store.delete(3)
    assert store.latest_step() == 2


def test_a_missing_data_file_is_skipped(store: CheckpointStore) -> None:
    data_file(store, 3).unlink()
    assert_skipped(store, 3, "is missing", used=2)


def test_several_corrupt_checkpoints_are_each_warned_of(store: CheckpointStore) -> None:
    flip(data_file(store, 3), 50)
    data_file(store, 2).unlink()
    with pytest.warns(CorruptCheckpointWarning) as seen:
        assert store.latest_step() == 1
    assert [re.search(r"step \d", str(warning.message))[0] for warning in seen] == ["step 3", "step 2"]  # type: ignore[index]


def test_all_corrupt_is_an_error_and_not_a_first_start(store: CheckpointStore) -> None:
    for step in (1, 2, 3):
        flip(data_file(store, step), 50)
    for method in (store.latest, store.latest_step):
        with pytest.raises(
            CorruptCheckpointError, match=r"(?s)lose the training.*step 3.*step 2.*step 1.*anew on purpose"
        ):
            method()


def test_a_corrupt_step_can_be_saved_again_and_pruned(store: CheckpointStore) -> None:
    marker_file(store, 3).write_bytes(b"garbage")
    marker_file(store, 2).write_bytes(b"garbage")
    small = CheckpointStore(store.root, keep=1)
    small.save(3, {"step": 3})
    assert (small.steps(), small.latest()) == ([3], {"step": 3})


def test_a_newer_format_is_refused_by_name_and_not_skipped(store: CheckpointStore) -> None:
    path = marker_file(store, 3)
    path.write_text(json.dumps({"format": 2, "parts": ["of", "tomorrow"]}))
    for call in (store.latest, store.latest_step, lambda: store.load(3)):
        with pytest.raises(CheckpointError, match=r"(?s)step 3 .*newer.*format: +2\n.*reads: 1\n.*--upgrade") as caught:
            call()
        assert not isinstance(caught.value, CorruptCheckpointError)
    store.save(4, {"step": 4})
    assert path.exists()
    assert store.latest_step() == 4


def test_leftovers_alone_are_a_first_start(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    torn = marker_file(store, 5).with_name("0123456789abcdef.pt")
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"torn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (store.latest(), store.latest_step(), store.steps()) == (None, None, [])
    with pytest.raises(CheckpointNotFoundError):
        store.load(5)


# The documentation.


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(PROJECT / "examples" / "checkpoint_store.py"), run_name="__main__")
    assert "skipped" in capsys.readouterr().out


@pytest.mark.slow  # it makes an optimizer, too
def test_the_guides_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    guide = (PROJECT / "docs" / "how-to" / "checkpoints.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    assert blocks
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "checkpoints.md", "exec"), namespace)  # noqa: S102
