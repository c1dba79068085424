"""Imports run one way, nothing heavy is imported by `import resumable`, and what is public is what is said to be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import resumable

PACKAGE = Path(resumable.__file__).parent
FRAMEWORKS = {"torch", "tensorflow", "nvidia", "ffcv", "lightning", "pytorch_lightning", "grain", "torchdata", "fsspec"}
SLOW = {"tqdm", "importlib.metadata", "asyncio", "multiprocessing", "subprocess", "matplotlib", "rich", "pandas"}
SLOW |= {
    "fractions",
    "decimal",
    "difflib",
    "tempfile",
    "shutil",
    "pdb",
    "unittest",
    "concurrent.futures",
    "ssl",
    "socket",
}
SLOW |= {"resumable.backends", "resumable.checkpoint", "resumable._flight", "resumable.samplers.mixture"}
WRAPPED = SLOW - {"resumable.backends"}  # what wrapping a list and reading it needs no more than importing does

# From the bottom to the top; a module may import from the layers below its own, and from its own package.
LAYERS = [
    {"errors", "_version", "_distribution", "_durable"},
    {"_naming", "_loops", "_leaving", "_parts", "_stats", "_twins", "failpoints"},
    {"_randomness", "_order"},
    {"samplers", "rng", "_ranks"},
    {"_checks", "_seeds"},
    {"protocols", "_options", "_wrap_types"},
    {"_peers"},
    {"_opening"},
    {"_state"},
    {"_data", "_dcp"},
    {"_fetch"},
    {"_flight", "_doubts"},
    {"_peeking"},
    {"_ends"},
    {"progress", "iteration", "_shown", "_lifecycle", "_place"},
    {"_registry", "_recorded", "flight"},
    {"loader"},
    {"_wrap"},
    {"distributed"},
    {"backends", "integrations", "checkpoint", "sources"},
    {"_adopt", "_inspect"},
    {"__init__"},
    {"testing", "chaos"},
    {"_selfcheck"},
    {"cli"},
    {"__main__"},
]
# What users may import. All else has an underscore somewhere in its path, or is inside of one of the packages below.
PUBLIC = {
    *("loader", "progress", "iteration", "protocols", "errors", "failpoints", "flight", "rng", "cli"),
    *("samplers", "sources", "backends", "integrations", "distributed", "checkpoint", "chaos", "testing"),
}
ROOT = Path(__file__).parents[2]
SHOWN = [ROOT / "README.md", *(ROOT / "docs/how-to").glob("*.md"), *(ROOT / "docs/tutorial").glob("*.md")]
SHOWN += (ROOT / "examples").rglob("*.py")
PRIVATE = re.compile(r"(?:from|import) +resumable(?:\.\w+)*\._\w+|from +resumable(?:\.\w+)* +import +[^\n]*\b_[a-z]\w*")

RANK = {name: number for number, layer in enumerate(LAYERS) for name in layer}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The parts of this package that a module imports when it runs; annotations may name anything."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inside = [f"resumable.{alias.name}" for alias in node.names]
            names = inside if node.module == "resumable" else [node.module]
        found |= {name.split(".")[1] for name in names if name.startswith("resumable.")}
    return {name for name in found if name in RANK}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    own = part_of(path)
    assert own in RANK, f"{own} has no layer"
    above = {name for name in imports(path) if name != own and RANK[name] > RANK[own]}
    beside = {name for name in imports(path) if name != own and RANK[name] == RANK[own]}
    assert not above, f"{own} imports {above} from above"
    assert not beside, f"{own} imports {beside} from beside"


def test_what_is_public_is_on_the_list() -> None:
    """A module that appears is private, or a promise that was made on purpose."""
    found = {part_of(path) for path in modules()}
    assert {name for name in found if not name.startswith("_")} == PUBLIC


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_what_users_are_shown_imports_nothing_private(path: Path) -> None:
    assert not PRIVATE.findall(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "line",
    [
        "from resumable._fetch import Fetcher",
        "import resumable._registry",
        "from resumable import _registry as registry",
        "from resumable.backends import torch, _torch",
    ],
)
def test_a_private_import_would_be_found(line: str) -> None:
    assert PRIVATE.search(line)
    assert not PRIVATE.search(line.replace("_", ""))


@pytest.mark.parametrize("path", sorted((PACKAGE / "backends").iterdir()), ids=lambda path: path.name)
def test_adapters_never_import_each_other(path: Path) -> None:
    files = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("resumable.backends."):
                assert (node.module or "").split(".")[2] == path.stem, f"{file.name} imports {node.module}"


def test_import_loads_numpy_and_nothing_else_that_is_slow() -> None:
    """The time itself (below 100 ms with NumPy's share) is a figure of the benchmarks."""
    script = "import sys, resumable; print(*sorted({name.split('.')[0] for name in sys.modules} | set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout.split()
    assert "numpy" in loaded
    assert not (FRAMEWORKS | SLOW) & set(loaded)


def test_a_list_is_read_without_more_of_it() -> None:
    script = (
        "import sys, resumable\n"
        "loader = resumable.wrap(list(range(100)), batch_size=4, shuffle=True)\n"
        "next(iter(loader)); loader.load_state_dict(loader.state_dict()); next(iter(loader))\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules} | set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout.split()
    assert not (FRAMEWORKS | WRAPPED) & set(loaded)


def test_public_names_are_what_is_said() -> None:
    assert sorted(resumable.__all__) == sorted(set(resumable.__all__))
    for name in resumable.__all__:
        assert getattr(resumable, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        resumable.nothing  # noqa: B018  # that it fails is the point


def test_every_error_is_in_the_tree_that_is_drawn() -> None:
    drawn = resumable.errors.__doc__ or ""
    for name in resumable.errors.__all__:
        assert name in drawn
        error = getattr(resumable.errors, name)
        assert issubclass(error, (resumable.ResumableError, UserWarning))
    defined = {name for name, value in vars(resumable.errors).items() if isinstance(value, type)}
    assert defined == set(resumable.errors.__all__)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_third_parties_register_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from resumable import _registry as registry  # noqa: PLC0415  # only this test looks at its table

    monkeypatch.setattr(registry, "_adapters", dict(registry._adapters))
    resumable.register("test_architecture.Tape", "no_such_package.adapter:adapt", install="pip install tapes")
    with pytest.raises(
        resumable.errors.MissingDependencyError, match="needs no_such_package.*\nInstall it: pip install tapes"
    ):
        resumable.wrap(Tape())


class Tape:
    """A type that a third party would register."""


Tape.__module__ = "test_architecture"
