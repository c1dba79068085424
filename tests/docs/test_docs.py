"""The documentation is true: its code runs, its links lead somewhere, nothing is left out."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from scripts_forked import WARNINGS, run_script

import resumable
from resumable import errors
from resumable.integrations.lightning.lightning_state import UNSTARTED, LightningState, TrainerPosition

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *PAGES]
SHOWN_ONLY = {"bash", "console", "diff", "ini", "json", "text", "toml", "yaml"}
FENCE = re.compile(r"^(?P<indent> *)(```(?P<info>.*)|<!-- test(?P<hidden>.*)|-->)$")
TITLE = re.compile(r'title="(?P<name>[^"]+)"')

# Names that the fragments on a page use without defining them.
PRELUDES = {
    "docs/get-started/quickstart.md": """
import torch
from torch.utils.data import TensorDataset
dataset = TensorDataset(torch.zeros(96, 4), torch.zeros(96, dtype=torch.long))
directory, model = "checkpoints", torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
}

# Code in blocks of `text`, which is not run: page and first line, and the complete program that is run instead.
SHOWN_AS_TEXT = {
    ("docs/debug/chaos-pytest.md", 'report = resumable.chaos.run(["python", "train.py"])'): "test_resume.py there",
    ("docs/debug/chaos-pytest.md", "assert all(outcome.retrained <= 3 for outcome in report.outcomes)"): "the same",
    ("docs/debug/chaos-pytest.md", "found = [store.latest_step() if rank == 0 else None]"): "examples/chaos_ranks.py",
    ("docs/checkpoints/migrate.md", "from streaming import LocalDataset"): "none: streaming is only in .venv-peers",
    ("docs/frameworks/ray.md", "def train_loop_per_worker(config):"): "examples/ray_train.py",
    ("docs/frameworks/torchtitan.md", "from resumable.integrations.torchtitan import LoaderConfig"): (
        "examples/torchtitan_loader.py"
    ),
}
# Files of a page that its own code does not use, and the test that runs them.
RUN_ELSEWHERE = {
    ("docs/clusters/elastic.md", "train.py"): "tests/distributed/test_cluster_pages.py",
    ("docs/frameworks/transformers.md", "train.py"): "tests/hf_transformers/test_trainer_alone.py",
    ("docs/frameworks/transformers.md", "tune.py"): "tests/hf_transformers/test_trainer_alone.py",
}


class Block(NamedTuple):
    """Code between fences, or Python that only the tests see: between the lines `<!-- test` and `-->`.

    `line` is the number of its first line in the page, from 1.
    """

    language: str
    title: str | None
    line: int
    code: str


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    opened: tuple[str, int] | None = None
    lines = page.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        fence = FENCE.match(line)
        if fence is None:
            continue
        if opened is None:
            if fence[2] != "-->":  # the end of a comment for people
                opened = fence["info"] if fence["hidden"] is None else f"python{fence['hidden']}", number + 1
            continue
        info, begin = opened
        title = TITLE.search(info)
        code = textwrap.dedent("\n".join(lines[begin - 1 : number - 1]))
        found.append(Block(info.partition(" ")[0], title and title["name"], begin, code))
        opened = None
    assert opened is None, f"{page}: the block of line {opened} is not closed"
    return found


def script(page: Path) -> str:
    """Return the page's code for one file, each block on its line of the page, for tracebacks to lead there."""
    lines = [""] * len(page.read_text(encoding="utf-8").split("\n"))
    for block in blocks(page):
        if block.language == "python" and block.title is None:
            code = block.code.split("\n")
            lines[block.line - 1 : block.line - 1 + len(code)] = code
    lines[0] = f"exec({PRELUDES.get(relative(page), '')!r})" if not lines[0] else lines[0]
    return "\n".join(lines)


def run(folder: Path, *arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    child = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": os.pathsep.join([".", str(ROOT)]), "PYTHONWARNINGS": WARNINGS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr


@pytest.mark.slow
@pytest.mark.every_cell
@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    files = [block for block in blocks(page) if block.title is not None]
    for block in files:
        (tmp_path / str(block.title)).write_text(block.code, encoding="utf-8")
    (tmp_path / "page.py").write_text(script(page), encoding="utf-8")
    child = run_script(tmp_path / "page.py", tmp_path, PYTHONPATH=os.pathsep.join([".", str(ROOT)]))
    assert child.returncode == 0, child.stdout + child.stderr
    tests = [str(block.title) for block in files if str(block.title).startswith("test_")]
    if tests:
        run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


def test_hidden_code_runs_between_the_visible(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "```python\nx = 1\n```\n\n<!-- test\nassert x == 2\n-->\n\n<!-- for people\n-->\n"
    page.write_text(text, encoding="utf-8")
    assert [(block.language, block.line, block.code) for block in blocks(page)] == [
        ("python", 2, "x = 1"),
        ("python", 6, "assert x == 2"),
    ]


def is_code(text: str) -> bool:
    """Return whether a text is Python that does something: it calls, defines or imports."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    does = (ast.Call, ast.FunctionDef, ast.Import, ast.ImportFrom)
    return any(isinstance(node, does) for node in ast.walk(tree))


def test_no_python_is_hidden_in_a_block_of_another_language() -> None:
    unknown, shown = [], set()
    for page in TEXTS:
        for block in blocks(page):
            if block.language not in {"", "python", *SHOWN_ONLY}:
                unknown.append(f"{relative(page)}:{block.line}: {block.language!r}")
            if block.language not in {"python", "bash", "console"} and is_code(block.code):
                shown.add((relative(page), block.code.split("\n")[0]))
    assert not unknown
    assert shown == set(SHOWN_AS_TEXT)


def test_code_is_between_fences_of_backquotes() -> None:
    """Other fences, and blocks that are only indented, would be shown as code and not be run."""
    wrong = []
    for page in TEXTS:
        text = page.read_text(encoding="utf-8")
        text = re.sub(r"^ *```.*?^ *```$|^ *<!-- test.*?^ *-->$", "", text, flags=re.DOTALL | re.MULTILINE)
        wrong += [f"{relative(page)}: {line}" for line in re.findall(r"^ *(?:~~~|````).*|<pre\b.*", text, re.MULTILINE)]
        paragraph = ""  # the last line that starts a paragraph at the left
        for before, line in pairwise(text.split("\n")):
            if line[:1].strip():
                paragraph = line
            elif not before and line.startswith("    ") and not re.match(r"[-*+] |\d+\. |!!! |\?\?\?", paragraph):
                wrong.append(f"{relative(page)}: {line}")
    assert not wrong, "\n".join(wrong)


def test_every_file_of_a_page_is_run() -> None:
    """A test, what other code of the page imports or starts, what a command of it starts; or what another test runs."""
    left = set()
    for page in PAGES:
        files = [block for block in blocks(page) if block.title is not None and block.language == "python"]
        for file in files:
            name = str(file.title)
            others = (one.code for one in blocks(page) if one.language in {"python", "console"} and one.title != name)
            stem = re.escape(name.removesuffix(".py"))
            use = re.compile(rf"\b(import|from) {stem}\b|\b{stem}\.py\b|[\"']{stem}:")
            if not name.startswith("test_") and not any(map(use.search, others)):
                left.add((relative(page), name))
    assert left == set(RUN_ELSEWHERE)
    for (page_name, name), test in RUN_ELSEWHERE.items():
        text = (ROOT / test).read_text(encoding="utf-8")
        assert Path(page_name).name in text, f"{test} does not run {name} of {page_name}"


@pytest.mark.parametrize("page", TEXTS, ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)(?: +[^)]*)?\)|^\[[^]]+\]:\s*(\S+)", text, flags=re.MULTILINE)
    for target in map("".join, found):
        name, _, anchor = target.partition("#")
        if "://" in name:
            continue
        there = page.parent / name if name else page
        assert there.exists(), f"{page}: {target}"
        assert not anchor or anchor in slugs(there), f"{page}: {target}"


def slugs(page: Path) -> list[str]:
    """Return the anchors of a page's headings and of the objects that it documents, as the site makes them."""
    text = page.read_text(encoding="utf-8")
    titles, objects = (re.findall(rf"^{mark} (.+)$", text, flags=re.MULTILINE) for mark in ("#+", ":::"))
    return [re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles] + objects


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"[\w/-]+\.md", navigation)
    assert sorted(f"docs/{name}" for name in listed) == [relative(page) for page in PAGES]


def test_every_public_name_is_in_the_reference_once() -> None:
    pages = sorted((ROOT / "docs/reference/api").glob("*.md"))
    shown = re.findall(r"^::: (\S+)$", "\n".join(page.read_text(encoding="utf-8") for page in pages), re.MULTILINE)
    elsewhere = {"errors", "ResumableError", "__version__", "mix", "sources"}
    assert sorted(shown) == sorted(set(shown))
    assert {f"resumable.{name}" for name in resumable.__all__ if name not in elsewhere} <= set(shown)
    assert "`resumable.__version__`" in (ROOT / "docs/reference/api/wrap.md").read_text(encoding="utf-8")
    assert {"resumable.sources.mix.mix", "resumable.sources.Mix"} <= set(shown)  # `resumable.mix` is also a module


MODULES = {"resumable.rng", "resumable.samplers"}


def test_what_the_reference_shows_is_not_a_module_of_the_same_name() -> None:
    """`resumable.sources.mix` is a function to Python, and a module to the tool that makes the pages."""
    for page in sorted((ROOT / "docs/reference").rglob("*.md")):
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            path = (ROOT / name.replace(".", "/")).with_suffix(".py")
            assert name in MODULES or not (path.is_file() or path.with_suffix("").is_dir()), name


def test_each_page_of_the_reference_starts_with_an_example() -> None:
    for page in (ROOT / "docs/reference/api").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert 0 < text.find("\n```python\n") < text.find("\n::: "), page


def fields_in(section: str) -> list[str]:
    """Return the names in the first column of a section's tables."""
    text = (ROOT / "docs/reference/state-format.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `(\w+)` \|", text.partition(f"# {section}\n")[2].partition("\n## ")[0], re.MULTILINE)


def test_every_field_of_a_state_is_explained() -> None:
    state = resumable.wrap(list(range(4)), batch_size=2).state_dict()
    assert sorted(fields_in("State format")) == sorted(state)
    state = LightningState(TrainerPosition("epoch", 0, 0, 0), torn=False, ranks=[], metrics={}).as_dict()
    assert fields_in("Lightning checkpoints") == list({**state, **UNSTARTED})


def test_every_error_is_in_the_tables_with_its_bases() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`(\w+)`\]\(#resumable\.errors\.(\w+)\) \| (`[^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    assert [name for name, _, _ in rows] == [anchor for _, anchor, _ in rows]
    found = {name: re.findall(r"`(\w+)`", bases) for name, _, bases in rows}
    kinds = {name: getattr(errors, name) for name in errors.__all__}
    assert found == {name: [base.__name__ for base in kind.__bases__] for name, kind in kinds.items()}
    assert {f"resumable.errors.{name}" for name in kinds} == set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
