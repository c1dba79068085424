"""Tests the package with old and new versions of Python, PyTorch and the frameworks: `make test-matrix`.

Each environment runs a part of the tests, saves the states of every kind of source, and continues from the states of
all other environments. The result is `docs/reference/versions.md`.

python support_matrix.py [--complete] [TORCH ...]

`TORCH` is the newest PyTorch as words for pip, such as `torch --index-url https://download.pytorch.org/whl/cpu`. If an
index has only builds for GPUs, the environments need 25 GB. `--complete` fails if something could not be installed;
otherwise the page lists it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resumable._requirements import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "reference" / "versions.md"

PLAIN = ("parquet", "tars")  # the extras without PyTorch
FRAMEWORKS = ("lightning", "accelerate", "transformers", "datasets", *PLAIN)
TEST_TOOLS = ("pytest", "pytest-timeout", "hypothesis", "lightning")
SHOWN = ("torch", "numpy", "fsspec", "pytorch-lightning", "accelerate", "transformers", "datasets", "pyarrow")
TESTS = (
    "tests/samplers/test_samplers.py",
    "tests/randomness/test_randomness.py",
    "tests/randomness/test_passed.py::test_the_numbers_of_a_key_never_change",
    "tests/randomness/test_passed.py::test_at_a_key_nothing_is_left_of_the_one_before",
    "tests/randomness/test_passed.py::test_the_memory_of_this_numpy_is_as_expected",
    "tests/package/test_torch_private.py::test_workers_are_plain_if_a_name_is_missing",
    "tests/lightning/test_packages.py::test_either_package_alone",
    "tests/lightning/test_packages.py::test_every_private_name_is_there",
    "tests/hf_accelerate/test_accelerate_kills.py::test_killed_after_saves_and_resumed[indexed-1-2]",
    "tests/hf_transformers/test_trainer_kills.py::test_killed_and_resumed[plain]",
    "tests/hf_transformers/test_trainer_kills.py::test_killed_and_resumed[a stream of datasets]",
)
PYARROW = (
    "pyarrow==21.0.0"  # the oldest that the oldest `datasets` accepts; newer ones need NumPy 2, and pip cannot know
)


class Environment(NamedTuple):
    """Versions to test together: all of them the oldest that are accepted, or the newest that there are."""

    name: str
    python: str
    oldest: bool = False
    torch: bool = True

    @property
    def folder(self) -> Path:
        return ROOT / f".venv-matrix-{self.name}"

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "python"


ENVIRONMENTS = (
    Environment("oldest", "3.11", oldest=True),
    Environment("3.11", "3.11"),
    Environment("3.12", "3.12"),
    Environment("3.13", "3.13"),
    Environment("plain", "3.13", torch=False),
)


class NotInstalled(Exception):  # noqa: N818  # the page lists it, and the rest is tested
    """Something cannot be installed here."""


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # its output


def run(*words: object, variables: dict[str, str] | None = None) -> str:
    """Run a program, and return what it writes; end this one if it fails."""
    command, variables = [str(word) for word in words], os.environ | (variables or {})
    done = subprocess.run(command, cwd=ROOT, env=variables, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


# ---------------------------------------------------------------------- making environments


def find_python(version: str) -> str:
    """Return an interpreter of a version, from the path or from pyenv.

    Raises:
        NotInstalled: there is none.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for path in (f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True))):
        found = shutil.which(path)
        if found and not subprocess.run([found, "-c", "pass"], check=False, capture_output=True).returncode:
            return found
    raise NotInstalled(f"Python {version}: no interpreter was found")


def pins(environment: Environment) -> list[str]:
    """Return what pip must choose in the oldest environment."""
    oldest = [f"{package}=={versions.oldest}" for package, versions in VERSIONS.items()]
    return [*oldest, PYARROW] if environment.oldest else []


def install(environment: Environment, *words: str, constraints: Iterable[str] = ()) -> None:
    """Install packages.

    Raises:
        NotInstalled: pip found no such packages.
    """
    pip = environment.program, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "constraints.txt")
        file.write_text("\n".join(constraints), encoding="utf-8")
        try:
            run(*pip, "--constraint", file, *words)
        except SystemExit as error:
            say(str(error))
            raise NotInstalled(f"Python {environment.python}: pip could not install {' '.join(words)}") from error


def make(environment: Environment, torch: list[str]) -> None:
    """Make an environment, unless it is there.

    Raises:
        NotInstalled: there is no such Python, or pip could not install the packages.
    """
    python, ready = find_python(environment.python), environment.folder / ".ready"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [project["optional-dependencies"][extra] for extra in FRAMEWORKS]
    wanted = repr((environment, torch, pins(environment), project["dependencies"], extras))
    if ready.exists() and ready.read_text(encoding="utf-8") == wanted:
        return
    say(f"making {environment.folder.name}")
    run(python, "-m", "venv", "--clear", environment.folder)
    kept = pins(environment)
    if environment.torch:  # first and alone, so its build is chosen once
        install(environment, *torch, constraints=kept)
        kept.append(f"torch=={versions(environment)['torch']}")  # no package may replace it
        install(environment, *TEST_TOOLS, f"--editable=.[{','.join(FRAMEWORKS)}]", constraints=kept)
    else:
        install(environment, f"--editable=.[{','.join(PLAIN)}]")
    ready.write_text(wanted, encoding="utf-8")


def try_make(torch: list[str], environment: Environment) -> str:
    """Make an environment; return what could not be installed, if anything."""
    try:
        make(environment, torch)
    except NotInstalled as error:
        return str(error)
    return ""


def versions(environment: Environment) -> dict[str, str]:
    """Return the versions that are installed."""
    listed = run(environment.program, "-m", "pip", "--disable-pip-version-check", "list", "--format=json")
    return {one["name"].lower().replace("_", "-"): one["version"] for one in json.loads(listed)}


# ---------------------------------------------------------------------- running


def variables() -> dict[str, str]:
    paths = [ROOT, HERE, ROOT / "tests" / "backends", ROOT / "tests" / "sources"]
    return {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}


def run_tests(environment: Environment) -> str:
    """Run a part of the tests, and return pytest's count; end this program if one fails."""
    # Old and new frameworks may warn here. `make test` reports warnings as errors, with the versions that it uses.
    options = "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"
    output = run(environment.program, "-m", "pytest", *options, *TESTS, variables=variables())
    return re.search(r"\d+ passed", output)[0]  # type: ignore[index]  # pytest says it if nothing fails


def run_streams(environment: Environment, folder: str, *words: str) -> list[dict[str, str]]:
    """Save or continue the streams of every kind; end this program if one differs."""
    program = environment.program, HERE / "cross_streams.py", folder, environment.name
    lines = [json.loads(line) for line in run(*program, *words, variables=variables()).splitlines()]
    if wrong := [line for line in lines if line["error"]]:
        text = "\n".join(f"{line['from']} -> {line['to']}, {line['kind']}:\n{line['error']}" for line in wrong)
        raise SystemExit(text)
    return lines


def try_alone(folder: str, environment: Environment) -> tuple[int, str]:
    """Save the states of every kind and run the tests; return the number of kinds, and pytest's count."""
    run(environment.program, "-m", "resumable", "doctor")
    count = len(run_streams(environment, folder, "save"))
    return count, run_tests(environment) if environment.torch else "none"


def main(*words: str) -> None:
    """Make the environments, run everything, and write the page."""
    torch = [word for word in words if word != "--complete"] or ["torch"]
    with ThreadPoolExecutor(2) as pool:
        problems = dict(zip(ENVIRONMENTS, pool.map(partial(try_make, torch), ENVIRONMENTS), strict=True))
    made, missing = [one for one, problem in problems.items() if not problem], list(filter(None, problems.values()))
    for text in missing:
        say(f"not run: {text}")
    if missing and "--complete" in words:
        raise SystemExit(1)
    tests: dict[Environment, str] = {}
    crossed = Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        run_streams(made[0], folder, "write")
        for environment, (count, counted) in zip(made, pool.map(partial(try_alone, folder), made), strict=True):
            tests[environment] = counted
            say(f"{environment.name}: states of {count} kinds of sources saved; tests: {counted}")
        others = [[other.name for other in made if other != environment] for environment in made]
        for lines in pool.map(lambda one, names: run_streams(one, folder, "load", *names), made, others):
            crossed.update((line["from"], line["to"]) for line in lines)
    for one, other in sorted(crossed):
        say(f"{one} -> {other}: {crossed[one, other]} kinds")
    PAGE.write_text(page(made, tests, crossed, missing), encoding="utf-8")


# ---------------------------------------------------------------------- the page

TITLE = """# Versions

resumable works with these versions of other packages, on Python 3.11 or newer. An older version raises
`MissingDependencyError` with the version to install. Newer versions than the tested ones are accepted.

"""
TESTED = """
## Tested together

`make test-matrix` wrote this page. Each environment runs a part of the tests. It also saves states of each kind of
source that it can read, with and without worker processes, and continues from the states of the other environments. The
batches that follow must be identical bit for bit, including the random numbers of augmentations.

"""
CROSSED = """
Number of kinds of sources that were saved in one environment and continued in the other:

"""


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])


def bounds() -> str:
    """Return the table of accepted versions."""
    rows = [[f"`{package}`", oldest, newest] for package, (oldest, newest) in VERSIONS.items()]
    return table(["package", "oldest", "newest tested"], rows)


def page(
    made: list[Environment], tests: dict[Environment, str], crossed: Counter[tuple[str, str]], missing: list[str]
) -> str:
    """Return the page."""
    rows = []
    for environment in made:
        found = versions(environment)
        python = run(environment.program, "--version").split()[1]
        rows.append([environment.name, python, *(found.get(name, "none") for name in SHOWN), tests[environment]])
    names = [environment.name for environment in made]
    counts = [[f"saved in {one}", *(str(crossed[one, other] or "") for other in names)] for one in names]
    tested = table(["environment", "Python", *SHOWN, "tests"], rows)
    absent = "".join(f"- {text}.\n" for text in missing)
    return (
        f"{TITLE}{bounds()}{TESTED}{tested}{CROSSED}{table(['', *(f'continued in {name}' for name in names)], counts)}"
        + (f"\nNot run, because it could not be installed:\n\n{absent}" if missing else "")
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
