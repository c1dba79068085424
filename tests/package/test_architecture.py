"""Imports run one way and in no circle, what is public is a list, and `import resumable` loads no framework."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

import resumable

PACKAGE = Path(resumable.__file__).parent
ROOT = Path(__file__).parents[2]

# From the bottom to the top: each floor with its rooms, and each room with its parts.
FLOORS = tomllib.loads((ROOT / "docs/internals/rooms.toml").read_text(encoding="utf-8"))["floors"]
# The rooms of `chaos`, each with the rooms that it may import; imports for type checkers count as well. A lower room
# comes first. Only `launch` imports code of the watched process: the guard.
ROOMS = {
    "ledger": set(),
    "digests": set(),
    "recorder": {"ledger", "digests"},
    "plan": {"ledger"},
    "inventory": {"ledger", "digests"},
    "launch": {"ledger", "digests", "recorder.guard", "plan", "inventory"},
    "verify": {"ledger", "digests", "plan", "inventory"},
    "report": {"ledger", "plan", "verify"},
    "campaign": {"ledger", "plan", "inventory", "launch", "verify", "report"},
    "api": {"plan", "launch", "verify", "report", "campaign"},
}
# What users may import. All else has an underscore somewhere in its path, or is inside of one of the packages below.
PUBLIC = {
    *("loader", "protocols", "errors", "failpoints", "flight", "rng", "cli"),
    *("samplers", "sources", "backends", "integrations", "distributed", "checkpoint", "chaos", "testing", "torch"),
}
PRIVATE = re.compile(
    r"\bresumable(?:\.\w+)*\._(?!_)\w+"
    r"|\bfrom +resumable[\w.]* +import\b(?: *\([^)]*|[^\n#]*)(?<![\w.])_(?!_)\w+",
)
FOR_CONTRIBUTORS = {"internals", "explanation", "reference"}  # folders of pages that may name private modules
TYPING = {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
# Loaded neither by the import of the package, nor to wrap and read a list.
SLOW = {"tqdm", "importlib.metadata", "asyncio", "multiprocessing", "subprocess", "fractions", "decimal", "difflib"}
SLOW |= {"tempfile", "shutil", "pdb", "unittest", "concurrent.futures", "ssl", "socket"}
SLOW |= {"resumable.checkpoint", "resumable._flight", "resumable.samplers.mixture"}
READ_A_LIST = """
import resumable
loader = resumable.wrap(list(range(100)), batch_size=4, shuffle=True)
next(iter(loader))
loader.load_state_dict(loader.state_dict())
next(iter(loader))
"""


def modules() -> dict[str, Path]:
    """Return the modules of the package by their names."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("resumable", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(name: str, *, typing: bool) -> set[str]:
    """Return the modules of the package that a module imports, wherever in its code.

    Args:
        name: of the module.
        typing: with the imports that only type checkers see.
    """
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    unseen: set[ast.AST] = set()
    if not typing:
        guarded = [
            node.body for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) in TYPING
        ]
        unseen = {inner for statement in chain(*guarded) for inner in ast.walk(statement)}
    package = name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in set(ast.walk(tree)) - unseen:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            home = ".".join([*above, *([node.module] if node.module else [])])
            names = {f"{home}.{alias.name}" for alias in node.names}
            found |= {one if one in MODULES else home for one in names}
    return (found & set(MODULES)) - {name}


def part_of(name: str) -> str:
    """Return what has a floor: the part of the package that a module is in."""
    return name.split(".")[1] if "." in name else "__init__"


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other by their imports."""

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        left = list(graph[start])
        while left:
            if (name := left.pop()) not in seen:
                seen.add(name)
                left += graph[name]
        return seen

    reached = {name: reach(name) for name in graph}
    groups = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph}
    return sorted(list(group) for group in groups if group)


def test_imports_run_one_way() -> None:
    """A part imports from the floors below it, and from the earlier parts of its room."""
    rooms = [(number, room) for number, floor in enumerate(FLOORS) for room in floor["rooms"]]
    places = [
        (part, (number, room["name"], index)) for number, room in rooms for index, part in enumerate(room["parts"])
    ]
    place = dict(places)
    assert {part_of(name) for name in MODULES} ^ set(place) == set(), "a part has no room, or a room has no part"
    assert len(places) == len(place), "a part is in two rooms"
    wrong = []
    for name in MODULES:
        part = part_of(name)
        floor, room, index = place[part]
        for other in imports(name, typing=False):
            below, beside, earlier = place[part_of(other)]
            if part_of(other) != part and not (below < floor or (beside == room and earlier < index)):
                wrong.append(f"{name} imports {other}, which is not below it")
            if part == part_of(other) == "backends" and other.split(".")[2:3] not in ([], name.split(".")[2:3]):
                wrong.append(f"{name} imports {other}, which is a different backend")
    assert not wrong, "\n".join(wrong)


def test_rooms_of_chaos_use_only_their_doors() -> None:
    room = {name: name.split(".")[2] for name in MODULES if name.startswith("resumable.chaos.")}
    assert set(room.values()) == set(ROOMS), "a room is not in the table, or is gone"
    wrong, used = [], set()
    for name, here in room.items():
        for other in imports(name, typing=True) & set(room):
            inside = other.removeprefix("resumable.chaos.")
            door = next((one for one in ROOMS[here] if f"{inside}.".startswith(f"{one}.")), None)
            used.add((here, door))
            if door is None and room[other] != here:
                wrong.append(f"{name} imports {other}, which is not open to it")
    assert not wrong, "\n".join(wrong)
    assert {(one, door) for one, doors in ROOMS.items() for door in doors} <= used, "a door that nobody uses"


def test_no_imports_are_circular() -> None:
    found = circles({name: imports(name, typing=True) for name in MODULES})
    assert not found, "\n".join(" <-> ".join(group) for group in found)


def test_what_is_public_is_on_the_list() -> None:
    """A new module is private, or a promise made on purpose. Pages and examples for users import nothing private."""
    assert {part for part in map(part_of, MODULES) if not part.startswith("_")} ^ PUBLIC == set()
    assert sorted(resumable.__all__) == sorted(set(resumable.__all__))
    assert [name for name in resumable.__all__ if getattr(resumable, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        resumable.nothing  # noqa: B018  # that it fails is the point
    pages = {path for path in (ROOT / "docs").rglob("*.md") if FOR_CONTRIBUTORS.isdisjoint(path.parts)}
    assert {path.parent.name for path in pages} >= {"docs", "debug"}
    shown = [ROOT / "README.md", *sorted(pages), *sorted((ROOT / "examples").rglob("*.py"))]
    private = [f"{path}: {said[0]}" for path in shown for said in PRIVATE.finditer(path.read_text(encoding="utf-8"))]
    assert not private, "\n".join(private)


@pytest.mark.parametrize(
    "line",
    [
        "from resumable._fetch import Fetcher",
        "import resumable._options",
        "from resumable import _options as options",
        "from resumable.backends import torch, _torch",
        "from resumable.backends import (\n    torch,\n    _torch,\n)",
    ],
)
def test_a_private_import_would_be_found(line: str) -> None:
    assert PRIVATE.search(line)
    assert not PRIVATE.search(line.replace("_", ""))


def loaded_by(code: str) -> set[str]:
    """Return the modules that a fresh process loads to run some code, without those of NumPy and of its own start."""
    script = f"import sys, numpy.random\nbefore = set(sys.modules)\n{code}\nprint(*set(sys.modules) - before)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout.split()
    )


@pytest.mark.parametrize(
    ("code", "slow"),
    [
        ("import resumable", SLOW | {"resumable.backends"}),
        (READ_A_LIST, SLOW),
    ],
    ids=["import", "a list"],
)
def test_no_framework_and_nothing_slow_is_loaded(code: str, slow: set[str]) -> None:
    """The time itself (below 100 ms with NumPy's share) is a number of the benchmarks."""
    loaded = loaded_by(code)
    assert "resumable" in loaded
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names <= {"resumable", "numpy"}
    assert loaded & slow == set()


def test_every_error_is_in_the_tree_that_is_drawn() -> None:
    drawn = resumable.errors.__doc__ or ""
    for name in resumable.errors.__all__:
        assert name in drawn
        error = getattr(resumable.errors, name)
        assert issubclass(error, (resumable.ResumableError, UserWarning))
    defined = {name for name, value in vars(resumable.errors).items() if isinstance(value, type)}
    assert defined == set(resumable.errors.__all__)


def test_third_parties_register_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from resumable.loader import registry  # noqa: PLC0415  # only this test reads its table

    monkeypatch.setattr(registry, "_adapters", dict(registry._adapters))
    resumable.register("test_architecture.Tape", "no_such_package.adapter:adapt", install="pip install tapes")
    with pytest.raises(
        resumable.errors.MissingDependencyError, match="needs no_such_package.*\nInstall it: pip install tapes"
    ):
        resumable.wrap(Tape())


class Tape:
    """A type that a third party would register."""


Tape.__module__ = "test_architecture"
