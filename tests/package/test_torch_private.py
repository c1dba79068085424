"""PyTorch's private names are in one file. If one is missing, plain workers take over, say so, and stay exact."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import resumable
from resumable import _torch_private as private
from resumable._fetch.restarting_workers import Pool
from resumable._fetch.transport import _QuickIterator

PACKAGE = Path(resumable.__file__).parent
FILE = PACKAGE / "_torch_private.py"
# They read files, or are loaded into programs without this package.
OTHER = {"_inspect/pickles.py", "chaos/recorder/guard/writers.py"}
NAMES = re.compile(
    r"\btorch(\.[a-z]\w*)*\._[a-z]\w*|\bfrom torch[\w.]* import [^\n]*\b_[a-z]\w*"
    r"|\b(import|from) torch[\w.]*\._|\b_MultiProcessing\w*"
)
# Attributes of these classes that are their own.
OWN = {Pool: {"_watch", "_inbox", "_results"}, _QuickIterator: {"_results"}}


def test_no_other_file_has_a_private_name_of_pytorch() -> None:
    found = {
        str(path.relative_to(PACKAGE)): sorted({match[0] for match in NAMES.finditer(path.read_text(encoding="utf-8"))})
        for path in PACKAGE.rglob("*.py")
        if path != FILE
    }
    assert {name for name, names in found.items() if names} == OTHER
    assert len(NAMES.findall(FILE.read_text(encoding="utf-8"))) >= 2, "the pattern finds none"


def test_each_name_of_the_iterators_is_checked_and_needed() -> None:
    """A name that is not in the tables would not be missed; one that is not used would be missed for nothing."""
    used = set[str]()
    for kind, own in OWN.items():
        path = Path(sys.modules[kind.__module__].__file__ or "")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
        asked = {node.args[1].value for node in ast.walk(body) if isinstance(node, ast.Call) and _asks(node)}  # type: ignore[attr-defined]
        named = {node.attr for node in ast.walk(body) if isinstance(node, ast.Attribute) and _of_self(node.value)}
        defined = {name for name in vars(kind) if name.startswith("_") and not name.startswith("__")}
        used |= {name for name in (named | asked | defined) - own - {"_can_end_by_themselves"} if _is_private(name)}
        used -= {name for name in defined if name not in dir(kind.__base__) and name not in _attributes()}
    checked = set(private.METHODS[private.WorkersIterator]) | _attributes()
    assert used == checked


def _attributes() -> set[str]:
    return set(private.ATTRIBUTES[private.WorkersIterator])


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _of_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _asks(call: ast.Call) -> bool:
    named = isinstance(call.func, ast.Name) and call.func.id in {"getattr", "hasattr"}
    return named and _of_self(call.args[0]) and isinstance(call.args[1], ast.Constant)


RENAMED = """
import logging, os, sys
from pathlib import Path
import torch.utils.data.dataloader as dataloader, torch.utils.data

logging.basicConfig(stream=sys.stdout, format="%(message)s")

def rename(module, name):
    source = Path(module.__file__).read_text()
    assert name in source
    module.__dict__.pop(name, None)
    exec(compile(source.replace(name, name + "_renamed"), module.__file__, "exec"), module.__dict__)

def run():
    import random
    import resumable
    from torch.utils.data import DataLoader

    class Data:
        def __len__(self):
            return 10
        def __getitem__(self, index):
            return index, random.random()

    def make():
        loader = DataLoader(Data(), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
        return resumable.wrap(loader, seed=0, on_worker_death="restart")

    loader, batches, states = make(), [], []
    for epoch in loader.epochs(2):
        for batch in epoch:
            batches.append([part.tolist() for part in batch])
            states.append(loader.state_dict())
    loader.close()
    resumed = make()
    resumed.load_state_dict(states[6])
    rest = [[part.tolist() for part in batch] for epoch in resumed.epochs(2) for batch in epoch]
    assert rest == batches[7:], (rest, batches)
    resumed.close()
    print("batches", batches)

for name in sys.argv[1:]:
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        print("name", name)
        if name != "none":
            rename(dataloader, name)
            torch.utils.data.DataLoader = dataloader.DataLoader
        run()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


@pytest.mark.slow
def test_workers_are_plain_if_a_name_is_missing() -> None:
    """A resume in the middle of an epoch, with each batch and random number of the unchanged PyTorch."""
    names = ["_iterator", "first_iter", "_MultiProcessingDataLoaderIter"]
    done = subprocess.run(
        [sys.executable, "-c", RENAMED, "none", *names], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    unchanged, *others = done.stdout.split("name ")[1:]
    assert "plain DataLoader" not in unchanged
    for name, told in zip(names, others, strict=True):
        assert told.count("a plain DataLoader runs the worker processes, because PyTorch") == 1, told
        assert told.count('on_worker_death="restart" has no effect') == 1, told
        assert name in told.partition("has no ")[2].partition("batches")[0], told
        assert told.partition("batches ")[2] == unchanged.partition("batches ")[2], name
