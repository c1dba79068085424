"""The commands print what the functions return, in plain text that fits, or as one JSON document."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from kept import FLAT, of_store, of_torch, trained, wrapped

import resumable
from resumable.cli import main, show

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return trained()


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")


@pytest.mark.parametrize("kind", FLAT)
def test_inspect_fits_into_60_columns_and_cuts_nothing(
    kind: str, tmp_path: Path, content: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = FLAT[kind](tmp_path, content)
    assert main(["inspect", str(path), "--all"]) == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    assert all(len(line) <= 60 or len(line.split()) < 4 for line in printed.splitlines()), "but for long words"
    assert not set(printed) & {"\x1b", "…", "\t"}
    together = "".join(printed.split())
    for value in ("Loaderstateatdata", "step3of6,50%", "globalstep9", "samplesseen34", "seed3", "nametrain", str(path)):
        assert value in together
    assert f"seed={content['data']['sampler']['seed']}" in together
    assert "".join(str(content["data"]["fingerprint"]["samples"]).split()) in together


def test_json_is_one_document_and_what_the_functions_return(
    tmp_path: Path, content: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = str(of_store(tmp_path, content)), str(of_torch(tmp_path, trained(10)))
    assert main(["inspect", a, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(resumable.inspect(a).as_dict()))
    assert main(["diff", a, b, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(resumable.diff(a, b).as_dict()))
    assert found["is_equal"] is False
    assert main(["samples", a, "--epoch", "1", "--step", "2", "--json"]) == 0
    indices = json.loads(capsys.readouterr().out)["indices"]
    assert indices == wrapped().sample_indices(epoch=1, step=2)


def test_diff_and_its_statuses(tmp_path: Path, content: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(of_store(tmp_path, content)), str(of_torch(tmp_path, trained(10)))
    assert main(["diff", a, a]) == 0
    assert "Equal: all 50 parts (model 2, optimizer 20, data 28)" in capsys.readouterr().out
    assert main(["diff", a, b]) == 1
    printed = capsys.readouterr().out
    assert "optimizer.state.0.exp_avg" in printed, "no name is folded"
    assert "cursor.step" in printed
    assert "Different: " in printed
    assert main(["diff", a, str(tmp_path / "none")]) == 2
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert errors.startswith("error: ")
    assert "does not exist" in errors
    assert "Traceback" not in errors


def test_long_lists_are_cut_with_a_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, add in (("a", 0.0), ("b", 1.0)):
        torch.save({f"layer{number}": torch.ones(2) + add for number in range(100)}, tmp_path / name)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert main(["diff", a, b]) == 1
    short = capsys.readouterr().out
    assert main(["diff", a, b, "--all"]) == 1
    whole = capsys.readouterr().out
    assert "... and 80 more; --all shows them." in short
    assert (short.count("layer"), whole.count("layer")) == (20, 100)
    assert main(["inspect", a]) == 0
    assert "... and 70 more; --all shows them." in capsys.readouterr().out


def test_samples(tmp_path: Path, content: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    path = str(of_torch(tmp_path, content))
    assert main(["samples", path, "--epoch", "7", "--step", "1", "--rank", "0", "--loader", "train"]) == 0
    expected = wrapped().sample_indices(epoch=7, step=1)
    assert capsys.readouterr().out.splitlines()[-1] == " ".join(map(str, expected))
    assert main(["samples", path, "--epoch", "7", "--step", "6"]) == 2
    assert capsys.readouterr().err.startswith("error: epoch 7 has 6 batches")


@pytest.mark.parametrize("words", [["inspect"], ["diff", "a"], ["samples", "a", "--epoch", "x", "--step", "1"]])
def test_words_that_are_missing(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "words",
    [
        *([], ["chaos"], ["chaos", "run"], ["chaos", "replay"], ["check"], ["verify"], ["doctor"], ["flight"]),
        *(["inspect"], ["diff"], ["samples"]),
    ],
    ids=" ".join,
)
def test_help_fits_into_80_columns(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help and wrong words fit into 80 columns, with examples and the statuses."""
    monkeypatch.delenv("COLUMNS")  # in a pipe there are 80
    monkeypatch.setattr(sys, "__stdout__", None)
    monkeypatch.setattr(sys, "__stderr__", None)
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert 60 < max(map(len, printed.splitlines())) <= 80, printed
    assert re.search(r"\nexamples?:\n  resumable ", printed)
    assert not words or (("exit status: 0" in printed and "--json" in printed) or words == ["chaos"])
    with pytest.raises(SystemExit) as ended:
        main([*words, "--no-such-option"])
    assert ended.value.code == 2
    wrong = capsys.readouterr().err
    assert max(map(len, wrong.splitlines())) <= 80, wrong
    assert wrong.startswith("error: ")
    assert "\nhint: " in wrong


def test_help_is_printed_without_a_command_and_a_typo_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "\ncommands:\n  check " in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["chek"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: unknown command: 'chek'\nhint: Did you mean `resumable check`?\n"


def test_the_version_imports_no_command_and_no_numpy() -> None:
    code = "import sys; from resumable.cli import main\ntry: main(['-V'])\nfinally: print(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, *loaded = child.stdout.split()[1:]
    assert version == resumable.__version__
    ours = {name for name in loaded if name.split(".")[0] in {"resumable", "numpy", "torch", "asyncio"}}
    assert ours == {"resumable", "resumable._distribution", "resumable._version", "resumable.cli", "resumable.cli.main",
        "resumable.cli.show", "resumable.errors", "resumable.failpoints"}  # fmt: skip


def test_names_in_a_file_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"\x1b[2J\n[bold]x": {"\x07": 1}, "\ud800": torch.ones(1)}, tmp_path / "a.pt")
    torch.save({"\x1b[2J\n[bold]x": {"\x07": "\x1b]0;title"}}, tmp_path / "b.pt")
    assert main(["inspect", str(tmp_path / "a.pt")]) == 0
    assert main(["diff", str(tmp_path / "a.pt"), str(tmp_path / "b.pt")]) == 1
    printed = capsys.readouterr().out
    assert not set(printed) & {"\x1b", "\x07", "\ud800"}
    assert r"\x1b[2J\n[bold]x" in printed


def test_numbers_that_json_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("a", 1.0), ("b", float("nan"))):
        torch.save({"x": torch.tensor([value]), "y": value, "z": 3}, tmp_path / name)
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (found["tensors"][0]["largest"], found["values"][0]["b"]) == ("nan", "nan")


def refuse(word: str) -> None:
    raise AssertionError(word)


def test_a_reader_that_closes_the_pipe(tmp_path: Path, content: dict[str, Any]) -> None:
    path = of_store(tmp_path, content)
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "resumable", "inspect", str(path)]
    child = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (child.returncode, child.stderr) == (0, "")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (5056, "5.06 kB"), (10**15, "1000 TB")]
)
def test_sizes(size: int, text: str) -> None:
    assert show.in_bytes(size) == text


def test_the_functions_are_no_names_of_import_star() -> None:
    names: dict[str, Any] = {}
    exec("from resumable import *", names)  # noqa: S102  # what a script writes
    assert not {"inspect", "diff", "samples"} & set(names)
    assert callable(resumable.inspect)
    assert callable(resumable.samples)
