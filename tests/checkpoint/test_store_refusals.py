"""CheckpointStore: what it refuses, and how it says so."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from stores import Custom, files, make_store, unchanged

from resumable.checkpoint import CheckpointStore
from resumable.errors import CheckpointError, ConfigurationError, CorruptCheckpointError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return make_store(tmp_path / "run")


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
            pytest.raises(ConfigurationError, match=rf"(?s)step .*at least 0.*{re.escape(repr(step))}.*training"),
        ):
            call()


@pytest.mark.parametrize("keep", [0, -1, 1.5, "2"])
def test_keep_is_a_positive_number_or_none(tmp_path: Path, keep: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"(?s)keep .*at least 1.*{re.escape(repr(keep))}.\nUse None"):
        CheckpointStore(tmp_path, keep=keep)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigurationError, match=r"(?s)is a file.*Pass a directory"):
            CheckpointStore(path)


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)foo://x.*not known: foo.*s3://.*install"):
        CheckpointStore("foo://x")


@pytest.mark.usefixtures("without_s3fs")
def test_a_missing_filesystem_package_gives_the_command() -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install 'fsspec\[s3\]'"):
        CheckpointStore("s3://bucket/run")


def test_a_missing_torch_gives_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for verify in (True, False):
        with pytest.raises(MissingDependencyError, match=r'pip install "resumable-data\[torch\]"'):
            CheckpointStore(tmp_path, verify=verify).save(0, {})
    assert not files(tmp_path)


def test_none_is_no_content(store: CheckpointStore) -> None:
    with unchanged(store.root), pytest.raises(ConfigurationError, match="latest"):
        store.save(4, None)


class Raising:
    """A class whose pickling fails with an error of its own."""

    def __reduce__(self) -> Any:
        raise ArithmeticError("no pickling")


REFUSED: list[tuple[Any, str]] = [
    ({"data": {"at": [1, np.float64(2)]}}, r"content\['data'\]\['at'\]\[1\] \(a numpy.float64\)"),
    ({"array": np.zeros(2)}, r"content\['array'\] \(a numpy.ndarray\)"),
    ({"a": 1, "model": torch.nn.Linear(1, 1)}, r"content\['model'\] \(a torch.nn.modules.linear.Linear\)"),
    ([{"x": (0, Custom())}], r"content\[0\]\['x'\]\[1\] \(a \w+.Custom\)"),
    ({"call": lambda: 1}, r"content\['call'\] \(a builtins.function\)"),
    ({"bad": Raising()}, r"(?s)content\['bad'\] \(a \w+.Raising\).*ArithmeticError: no pickling"),
    ({Path("key"): 1}, r"content \(a builtins.dict\)"),
    ({"lock": threading.Lock()}, r"content\['lock'\] \(a _thread.lock\)"),
]


@pytest.mark.parametrize(("content", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_what_could_not_be_loaded_is_not_saved(store: CheckpointStore, content: Any, named: str) -> None:
    for step in (3, 4):
        with unchanged(store.root), pytest.raises(CheckpointError, match=named) as caught:
            store.save(step, content)
        assert f"step {step} was not saved" in str(caught.value)
        assert "add_safe_globals" in str(caught.value)
    assert store.latest_step() == 3


def test_allowed_class_where_it_is_not_allowed(tmp_path: Path) -> None:
    """A class that was allowed is saved, and named if it is not allowed."""
    store = CheckpointStore(tmp_path)
    with torch.serialization.safe_globals([Custom]):
        store.save(0, {"custom": Custom()})
        assert isinstance(store.load(0)["custom"], Custom)
    for load in (store.latest, lambda: store.load(0)):
        with pytest.raises(CheckpointError, match=r"(?s)step 0 .*intact.*Custom.*add_safe_globals") as caught:
            load()
        assert not isinstance(caught.value, CorruptCheckpointError)


def test_without_verify_the_error_comes_at_load(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, verify=False)
    store.save(0, {"custom": Custom()})
    with pytest.raises(CheckpointError, match="Custom"):
        store.load(0)


def test_without_verify_a_failing_pickle_leaves_nothing(store: CheckpointStore) -> None:
    quick = CheckpointStore(store.root, verify=False)
    with (
        unchanged(store.root),
        pytest.raises(CheckpointError, match=r"(?s)earlier checkpoints are unchanged.*no pickling") as caught,
    ):
        quick.save(3, {"bad": Raising()})
    assert isinstance(caught.value.__cause__, ArithmeticError)
