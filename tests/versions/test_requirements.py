"""Versions that are too old raise an error, and `pyproject.toml` and the page have the same lower bounds."""

from __future__ import annotations

import re
import sys
import tomllib
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import support_matrix
from datasets import Dataset
from torch.utils.data import DataLoader

import resumable
from resumable._requirements import VERSIONS, check_version
from resumable.errors import MissingDependencyError
from resumable.integrations import _library, keras

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUMBERS: Any = [1, 2]
ROOT = Path(__file__).parents[2]
BELOW = {
    "numpy": "1.23.5",
    "fsspec": "2023.4.0",
    "torch": "2.5.1+cpu",
    "pytorch-lightning": "2.4.0.post0",
    "lightning": "2.4.0",
    "accelerate": "1.9.0",
    "transformers": "5.19.0",
    "trl": "1.15.2",
    "datasets": "4.8.5",
    "keras": "3.7.0",
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Return a function that changes the version of a package: in its metadata, and in its module if it is imported."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    check_version.cache_clear()

    def install(package: str, version: str) -> None:
        folder = tmp_path / f"{package.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        if (module := sys.modules.get(package.replace("-", "_"))) is not None:
            monkeypatch.setattr(module, "__version__", version)

    yield install
    check_version.cache_clear()


def use_datasets(*, streamed: bool) -> Any:
    data = Dataset.from_dict({"number": [1, 2]})
    return resumable.wrap(data.to_iterable_dataset() if streamed else data, batch_size=1)


# The first use of each package. The integrations check a Trainer or an Accelerator with the same function.
USES: dict[str, list[Callable[[], Any]]] = {
    "numpy": [lambda: resumable.wrap([1])],
    "fsspec": [lambda: resumable.CheckpointStore("memory://old"), lambda: resumable.inspect("memory://old")],
    "torch": [lambda: resumable.wrap(DataLoader(NUMBERS)), lambda: resumable.ResumableSampler(1)],
    "datasets": [partial(use_datasets, streamed=True), partial(use_datasets, streamed=False)],
    "keras": [lambda: keras._from_keras("keras", "Model")],
    **{
        package: [partial(_library.check_names, object(), "__doc__", package=package)]
        for package in ("pytorch-lightning", "lightning", "accelerate", "transformers", "trl")
    },
}


@pytest.mark.parametrize("package", VERSIONS)
def test_an_old_version_is_rejected_where_it_is_used(package: str, installed: Callable[[str, str], None]) -> None:
    installed(package, BELOW[package])
    oldest = VERSIONS[package].oldest
    message = f'(?s)^{package} {re.escape(BELOW[package])} is too old: .* {oldest} or newer.*"{package}>={oldest}"$'
    for use in USES[package]:
        check_version.cache_clear()
        with pytest.raises(MissingDependencyError, match=message):
            use()
    health = resumable.doctor()
    assert not health.ok
    assert re.search(message, health.traps[0])


@pytest.mark.parametrize("version", ["2.5", "2.5.0.post0", "2.5.0rc1", "2.10.1+cpu", "3", "nightly"])
def test_the_oldest_and_what_is_newer_or_unknown_is_accepted(
    version: str, installed: Callable[[str, str], None]
) -> None:
    installed("lightning", version)
    check_version("lightning")


def test_a_package_without_metadata_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    check_version.cache_clear()
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delattr(sys.modules["numpy"], "__version__")
    check_version("numpy")
    check_version.cache_clear()


def test_pyproject_has_the_same_lower_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lists = [project["dependencies"], *(extras[name] for name in extras if name != "peers")]  # which are only compared
    bounds = {tuple(one.split(">=")) for one in chain(*lists) if one.split(">=")[0] in VERSIONS}
    assert bounds == {(package, versions.oldest) for package, versions in VERSIONS.items()}


def test_the_page_has_the_same_bounds() -> None:
    assert support_matrix.bounds() in support_matrix.PAGE.read_text(encoding="utf-8")
