"""pip knows this package as `resumable-data`: nothing tells users to install `resumable`, which is another project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from resumable._distribution import DISTRIBUTION, UPGRADE, pip_install

ROOT = Path(__file__).parents[2]
FOLDERS = ("resumable", "docs", "examples", "benchmarks", "tests", ".ci")
SUFFIXES = {"", ".md", ".py", ".toml", ".yml", ".yaml", ".cfg", ".txt", ".sh"}

WRONG = re.compile(
    r"""
      \b(?:install|uninstall|upgrade|update)\b [^\n]{0,40}? (?<![\w./@-]) ["'`]? resumable (?! [\w-] | \.\w)
    | (?<![\w.]) ["'] resumable \[                                       # an extra, as in pyproject.toml
    | \b (?:version|distribution|metadata|requires|files) \( ["'] resumable ["'] \)
    | ^ name \s* = \s* ["'] resumable ["']
    | pypi\.org/(?:project|simple|p)/resumable (?!-)
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
WITH_EXTRAS = re.compile(rf"(?:{DISTRIBUTION}|install \"\.)\[([a-z, -]+)\]")


def texts() -> list[Path]:
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    files = [path for path in [*ROOT.iterdir(), *inside] if path.is_file() and path.suffix in SUFFIXES]
    return sorted(path for path in files if path != Path(__file__) and path.name not in {"LICENSE", ".git"})


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


@pytest.mark.slow
def test_nothing_says_to_install_what_belongs_to_somebody_else() -> None:
    assert len(texts()) > 300
    for path in texts():
        assert [match[0] for match in WRONG.finditer(path.read_text(encoding="utf-8"))] == [], path


@pytest.mark.parametrize(
    "wrong",
    [
        "pip install resumable",
        'pip install "resumable"',
        'pip install "resumable[torch]"',
        "pip install 'resumable>=1'",
        "pip install -U resumable\n",
        "Update with `pip install --upgrade resumable`",
        "Upgrade resumable to a newer version",
        "Or upgrade resumable.",
        'all = ["resumable[torch]"]',
        'name = "resumable"',
        'version("resumable")',
        "importlib.metadata.version('resumable')",
        "https://pypi.org/project/resumable",
    ],
)
def test_the_wrong_name_would_be_found(wrong: str) -> None:
    assert WRONG.search(wrong)


@pytest.mark.parametrize(
    "right",
    [
        pip_install("torch"),
        UPGRADE,
        "pip install resumable-data",
        "import resumable",
        "python -m examples.demo",
        "resumable.wrap(loader)",
        "Install torch, and see resumable.rng.",
        "https://pypi.org/project/resumable-data",
    ],
)
def test_the_right_name_is_left_alone(right: str) -> None:
    assert not WRONG.search(right)


def test_the_constant_is_the_name_in_the_metadata() -> None:
    assert project()["name"] == DISTRIBUTION


def test_extras_that_are_named_anywhere_exist() -> None:
    known = set(project()["optional-dependencies"])
    for path in [*texts(), Path(__file__)]:
        for extras in WITH_EXTRAS.findall(path.read_text(encoding="utf-8")):
            assert set(re.split(r",\s*", extras)) <= known, path
    assert len(WITH_EXTRAS.findall((ROOT / "pyproject.toml").read_text(encoding="utf-8"))) > 3


def test_extras_that_the_code_names_exist() -> None:
    named: set[str] = set()
    for path in (ROOT / "resumable").rglob("*.py"):
        for arguments in re.findall(r"(?<!def )pip_install\(([^)*]+)\)", path.read_text(encoding="utf-8")):
            named |= set(re.findall(r"[\"']([a-z0-9]+)[\"']", arguments))
    assert "torch" in named
    assert named <= set(project()["optional-dependencies"])


def test_the_package_says_that_it_has_types() -> None:
    assert "Typing :: Typed" in project()["classifiers"]
    assert (ROOT / "resumable/py.typed").is_file()


def test_all_is_every_extra_that_is_for_users() -> None:
    extras = project()["optional-dependencies"]
    ours = {"all", "demo", "docs", "bench", "peers", "dev"}  # the sum itself, and what is for us
    (everything,) = extras["all"]
    assert set(everything.removeprefix(f"{DISTRIBUTION}[").removesuffix("]").split(",")) == set(extras) - ours
