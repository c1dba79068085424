"""Stores, contents and comparisons for the tests of `CheckpointStore`."""

from __future__ import annotations

import contextlib
import uuid
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from resumable.checkpoint import CheckpointStore
from resumable.checkpoint.marker import MARKER
from resumable.checkpoint.steps import TOKEN
from resumable.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


PROJECT = Path(__file__).parent.parent.parent
CONTENT = {"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "data": {"native": b"\0\xff", "n": [1, -2], "seed": 7}}
LEFTOVER = "0123456789abcdef.pt"


def content(step: int, version: int = 0) -> dict[str, Any]:
    """Content of 20 kB, so that a torn data file can be on the disk in part."""
    return {"step": step, "version": version, "weight": torch.full((5_000,), float(step))}


def make_store(root: Path) -> CheckpointStore:
    """Make a store of steps 1, 2 and 3."""
    made = CheckpointStore(root)
    for step in (1, 2, 3):
        made.save(step, content(step))
    return made


def prepared(root: str | Path) -> None:
    """Make a store of steps 1, 2 and 3 with the leftovers of two crashed saves."""
    make_store(Path(root))
    for step in (0, 2):
        leave(Path(root), step)


def new_root(kind: str, tmp_path: Path) -> str:
    """Give a root that does not exist yet: a path, the URL of one, or one in memory."""
    urls = {"local": str(tmp_path / "a" / "b"), "file": f"file://{tmp_path}/a", "memory": f"memory://{uuid.uuid4()}/a"}
    return urls[kind]


def leave(root: Path, step: int, name: str = LEFTOVER) -> Path:
    path = root / f"step-{step:012d}" / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"torn")
    return path


def data_file(store: CheckpointStore, step: int) -> Path:
    directory = marker_file(store, step).parent
    (path,) = directory.glob("*.pt")
    return path


def marker_file(store: CheckpointStore, step: int) -> Path:
    return Path(store.root) / f"step-{step:012d}" / MARKER


def files(root: str | Path) -> dict[str, bytes]:
    """Give all files but the token of the writer, which says who writes and not what."""
    paths = (path for path in sorted(Path(root).rglob("*")) if path.is_file() and path.name != TOKEN)
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


@contextlib.contextmanager
def unchanged(root: str | Path) -> Iterator[None]:
    before = files(root)
    yield
    assert files(root) == before


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


def found(root: str | Path) -> tuple[int, int] | None:
    """Give step and version of the newest checkpoint; no committed one may look corrupt, not even an old one."""
    store = CheckpointStore(root)
    for step in store.steps():
        assert torch.equal(store.load(step)["weight"], content(step)["weight"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        latest = store.latest()
    return latest and (latest["step"], latest["version"])


def assert_tidy(root: Path, store: CheckpointStore) -> None:
    paths = [path for path in root.rglob("*.*") if path != root / TOKEN]
    names = [path.parent.name + ("/" + MARKER if path.name == MARKER else "/data") for path in paths]
    directories = [f"step-{step:012d}" for step in store.steps()]
    assert sorted(names) == sorted(f"{name}/{kind}" for name in directories for kind in (MARKER, "data"))
    assert sorted(path.name for path in root.iterdir()) == [TOKEN, *directories]


def error_of(action: Callable[[], Any]) -> CheckpointError | None:
    try:
        action()
    except CheckpointError as error:
        return error
    return None


class Custom:
    """A class that `weights_only` does not know."""
