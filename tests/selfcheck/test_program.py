"""`resumable check -- COMMAND`: programs as people write them are stopped at their first batch, and checked there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import programs
import pytest

from resumable._selfcheck.program import check_program
from resumable._selfcheck.report import LoaderReport, Trial
from resumable.cli import main
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from resumable._selfcheck.trials import Heard

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder from which the programs of `programs` can be imported."""
    path = [str(Path(programs.__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(text: str, *words: str, seconds: float = 30.0) -> tuple[Any, list[tuple[float, Heard]]]:
    """Return the report of a program, and its parts with the times at which they came."""
    Path("train.py").write_text(dedent(text))
    parts: list[tuple[float, Heard]] = []
    report = check_program(
        [sys.executable, "train.py", *words], seconds, lambda heard: parts.append((time.time(), heard)), print
    )
    return report, parts


def failed(report: Any) -> dict[str, Trial]:
    return {trial.name: trial for one in report.loaders for trial in one.trials if trial.kept is False}


MAIN = """
    import argparse, time
    import resumable

    def main(args):
        samples = [f"{args.word} {number}" for number in range(30)]
        loader = resumable.wrap(samples, batch_size=4, shuffle=True, seed=0)
        open(f"reading{time.time()}", "w").close()
        try:
            for epoch in loader.epochs(2):
                for batch in epoch:
                    open("trained", "w").close()
        finally:
            open("trained", "w").close()

    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--word", required=True)
        main(parser.parse_args())
"""


def test_a_loader_inside_of_main_is_checked_and_nothing_is_trained(folder: Path) -> None:
    report, parts = checked(MAIN, "--word", "cat")
    assert report.ok, str(report)
    assert report.complete
    assert not report.notes
    (loader,) = report.loaders
    assert loader.source == "Loader of sequence, batches of 4"
    assert loader.read == "18 batches, from epoch 0, step 0 to epoch 2, step 1"
    names = [trial.name for trial in loader.trials]
    assert {"stopped after the last batch of epoch 0", "a fresh process resumes after 9 batches"} <= set(names)
    assert not (folder / "trained").exists(), "the program must not continue"
    starts = sorted(float(path.name.removeprefix("reading")) for path in folder.glob("reading*"))
    assert len(starts) == 2
    when, first = parts[1]
    assert isinstance(first.what, Trial)
    assert when - starts[0] < 5, "the first result comes within 5 s of the first batch"
    assert [heard.what.name for _, heard in parts[1:] if isinstance(heard.what, Trial)] == names
    assert isinstance(parts[0][1].what, LoaderReport)


@pytest.mark.parametrize(
    ("make", "name", "cause"),
    [
        ("counting", "stopped after the first batch", "a counter of the dataset"),
        ("forgetting", "stopped after the first batch", "leaves out"),
        ("of_a_set", "a fresh process reads the same", "PYTHONHASHSEED"),
    ],
)
def test_a_wrong_program_is_caught_with_its_cause(make: str, name: str, cause: str) -> None:
    report, _ = checked(f"""
        import programs
        loader = programs.{make}()
        for batch in loader:
            pass
    """)
    assert report.status == 1
    assert cause in failed(report)[name].cause


def test_a_source_with_a_state_passes_at_the_level_of_a_module() -> None:
    report, _ = checked("""
        import programs
        for batch in programs.stateful():
            pass
    """)
    assert report.ok, str(report)


def test_a_run_that_resumes_is_checked_from_there() -> None:
    report, _ = checked("""
        import resumable
        def make():
            return resumable.wrap(list(range(30)), batch_size=4, shuffle=True, seed=3)
        before = make()
        before.seek(epoch=4, step=3)
        loader = make()
        loader.load_state_dict(before.state_dict())
        for epoch in loader.epochs(9):
            for batch in epoch:
                pass
    """)
    assert report.ok, str(report)
    assert report.loaders[0].read == "15 batches, from epoch 4, step 3 to epoch 6, step 1"


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_torch_are_counted_as_the_user_counts_them(workers: int) -> None:
    report, _ = checked(
        """
        import sys
        import torch
        from torch.utils.data import DataLoader, IterableDataset
        import resumable

        class Numbers(IterableDataset):
            def __iter__(self):
                for number in range(30):
                    yield torch.ones(400, 400).exp().sum() + number

        class Noise(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return torch.rand(2) + index

        def main(args):
            torch.manual_seed(7)
            torch.set_num_threads(2)
            torch.ones(400, 400).exp().sum()  # starts a thread, which a fork does not have
            evaluated = resumable.wrap(DataLoader(Noise(), batch_size=4), evaluation=True)
            for batch in evaluated:
                break
            loader = resumable.wrap(DataLoader(Numbers(), batch_size=10, num_workers=args))
            for batch in loader.steps(100):
                pass
        if __name__ == "__main__":
            main(int(sys.argv[1]))
        """,
        str(workers),
        seconds=300,
    )
    assert report.ok, str(report)
    assert report.loaders[0].source == "Loader of torch-iterable, batches of 10"
    assert report.loaders[0].read.startswith("8 batches")


def test_a_program_that_cannot_be_copied_is_checked_in_place() -> None:
    spawning = """
        import multiprocessing
        import programs
        if __name__ == "__main__":
            multiprocessing.set_start_method("spawn")
            for batch in programs.{}():
                pass
    """
    report, _ = checked(spawning.format("right"))
    assert report.ok, str(report)
    assert not report.notes


def test_a_source_with_a_state_that_cannot_be_copied_is_read_by_launches() -> None:
    """A program that cannot be copied reads a source with its own state once; each other run is a launch.

    As torchrun does, it starts a process in a separate session, which must not outlive the check.
    """
    started = "import time, programs; time.sleep(99)"
    spawning = f"""
        import multiprocessing, subprocess, sys
        import programs
        if __name__ == "__main__":
            subprocess.Popen([sys.executable, "-c", "{started}"], start_new_session=True)
            multiprocessing.set_start_method("spawn")
            for batch in programs.{{}}():
                pass
    """
    report, _ = checked(spawning.format("stateful"), seconds=60)
    assert report.ok, str(report)
    names = [trial.name for trial in report.loaders[0].trials]
    assert names == [
        "the global RNGs are unchanged", "a fresh process reads the same", "a fresh process resumes after 8 batches",
    ]  # fmt: skip
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [command for command in commands if started.encode() in command]
    report, _ = checked(spawning.format("forgetting"), seconds=60)
    ((name, trial),) = failed(report).items()
    assert name.startswith("a fresh process resumes after")
    assert "leaves out something" in trial.cause


def test_a_copy_whose_time_is_over_proves_nothing() -> None:
    """A copy of the program that stops reading because the time is over finds no difference."""
    report, _ = checked(
        """
        import time
        from pathlib import Path
        import resumable

        class Samples:
            def __len__(self):
                return 30
            def __getitem__(self, index):
                with Path("reads").open("a") as file:
                    file.write("x")
                    time.sleep(0.25 * (file.tell() > 80))  # the recorded run has at most 72
                return index

        if __name__ == "__main__":
            for batch in resumable.wrap(Samples(), batch_size=4, seed=0):
                pass
        """,
        seconds=2.0,
    )
    assert not failed(report), str(report)
    assert not report.complete


def test_the_command_prints_each_result_and_the_verdict(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.py").write_text(dedent(MAIN) + "print('noise')\n")
    began = time.monotonic()
    command = [sys.executable, "-m", "resumable", "check", "--", sys.executable, "train.py", "--word", "cat"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [(line, time.monotonic() - began) for line in child.stdout]
    assert child.returncode == 0
    took, out = lines[-1][1], "".join(line for line, _ in lines)
    first = next(when for line, when in lines if line.startswith("PASSED"))
    assert first < took - 0.2, "each result is printed immediately; the fresh process takes longer"
    assert out.startswith("Loader of sequence, batches of 4\n  18 batches, from epoch 0")
    assert "noise" not in out
    found = re.search(r"\nPASSED: (\d+) checks, in ([\d.]+) s\.\n$", out)
    assert found, out
    assert out.count("PASSED  ") == int(found[1])
    assert abs(float(found[2]) - took) < 1.5
    Path("wrong.py").write_text("import programs\nfor batch in programs.counting(): pass\n")
    assert main(["check", "--junit", "ci/check.xml", "--", sys.executable, "wrong.py"]) == 1
    out, _ = capfd.readouterr()
    assert out.splitlines()[-1].startswith("FAILED: ")
    (suite,) = ET.parse("ci/check.xml").getroot()  # noqa: S314  # our own file
    assert int(suite.get("tests", "")) == len(suite) > int(suite.get("failures", "")) > 0
    cases = {case.get("name"): case for case in suite}
    failure = cases["stopped after the first batch"].find("failure")
    assert failure is not None
    assert "a counter of the dataset" in (failure.text or "")
    assert len(suite.findall("testcase/failure")) == out.count("\nFAILED  ")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(["check", "--", sys.executable, "train.py", "--word", "cat"]) == 2
    assert "the program runs on 2 ranks" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([sys.executable, "-c", "raise SystemExit(4)"], "ended with status 4 before a Loader delivered"),
        ([sys.executable, "-c", "import resumable; resumable.wrap([1, 2])"], "ended with status 0 before a Loader"),
        (["train.py"], "cannot start 'train.py': No such file(?s:.*)-- python train.py"),
    ],
)
def test_a_command_without_a_batch_raises(words: list[str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        check_program(words, 30.0, lambda _: None, print)
