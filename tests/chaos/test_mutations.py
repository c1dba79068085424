"""Bugs that are planted into the library, or into the script, are caught by a chaos run; without them it passes.

A chaos run that finds nothing is worth as much as the bugs that it would have found. Each bug of `mutations/planted.py`
is planted in the processes that train, in its baseline runs too, as a real one would be.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import planted
import pytest

import resumable
from resumable.chaos.launch import group
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from resumable.chaos import Report

pytestmark = pytest.mark.slow


MUTATIONS = Path(planted.__file__).parent


@dataclass(frozen=True)
class Campaign:
    """What a chaos run is asked for.

    Args:
        words: of the command, after the Python that runs it.
        faults: their kinds.
        points: moments for each kind.
        more: other options.
    """

    words: tuple[str, ...]
    faults: str
    points: int
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def preload(self) -> tuple[str, ...]:
        """What is imported once for all starts; the bug is planted in each of them."""
        if self.words[0] == "-m":
            return ()  # torchrun, which starts the ranks itself
        needs_torch = self.words[0] != "train_plain.py" or "--store" in self.words
        return ("resumable", "torch", "torch._dynamo") if needs_torch else ("resumable",)

    def run(self, bug: str | None) -> Report:
        words = [str(MUTATIONS / word) if word.endswith(".py") else word for word in self.words]
        words = [sys.executable, *words, *(() if bug is None else ("--bug", bug))]
        return resumable.chaos.run(
            words, faults=self.faults, points=self.points, jobs=2, preload=self.preload, **self.more
        )


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
CAMPAIGNS = {
    "kill": Campaign(("train_plain.py",), "kill", 10),
    "by hand": Campaign(("train_plain.py", "--by-hand"), "kill", 8),
    "replayed": Campaign(("train_plain.py", "--source", "replayed"), "kill", 8),
    "stateful": Campaign(("train_plain.py", "--source", "stateful"), "kill", 3),
    "store": Campaign(("train_plain.py", "--store"), "kill", 2),
    "torn": Campaign(("train_plain.py", "--store"), "torn-write", 5),
    "flip": Campaign(("train_plain.py", "--store"), "flip", 1),
    "fsync": Campaign(("train_plain.py", "--store"), "lost-fsync", 2),
    "workers": Campaign(("train_torch.py", "--workers", "2"), "kill", 3),
    "stream": Campaign(("train_torch.py", "--workers", "2", "--stream"), "kill", 3),
    "ranks": Campaign((*TORCHRUN, "train_torch.py"), "kill", 2, {"resize": [2, 1, 2]}),
    "lightning": Campaign(("train_lightning.py",), "kill", 3),
}
FAST = {"kill", "by hand"}
HEAVY = {"workers", "stream", "ranks", "lightning"}  # up to a minute each; other tests break such runs, too


@dataclass(frozen=True)
class Caught:
    """How a bug is caught: by which campaign, which check, and with which words."""

    campaign: str
    check: str
    words: str


PLACE = r"epoch \d, step \d"
DATA = rf"launch \d trained on different data than the baseline run in {PLACE}: "
BUGS = {
    "epoch_lost": Caught("kill", "true states", r"sent to epoch 1, step \d .* but is at epoch 0, step \d"),
    "last_batch_repeated": Caught("kill", "true states", "sent to epoch 0, step 4 .* at epoch 0, step 3"),
    "last_batch_lost": Caught("kill", "true states", "sent to epoch 0, step 3 .* but is at epoch 1, step 0"),
    "position_rounded_up": Caught("kill", "true states", rf"sent to {PLACE} .* but is at {PLACE}"),
    "handed_twice": Caught("kill", "same weights", "final weights .* in the baseline run"),
    "keyed_by_count": Caught("kill", "same content", DATA + r"the content of row 0 \(sample \d+\)"),
    "generators_forgotten": Caught("kill", "same weights", "final weights"),
    "saved_before_step": Caught("kill", "same weights", "final weights"),
    "helper_left_alive": Caught("kill", "no orphans", r"\[\d+\] were still running after the end of launch 0"),
    "acked_when_handed": Caught("by hand", "same weights", "final weights"),
    "epoch_not_told": Caught("replayed", "same content", DATA),
    "skipped_twice": Caught("replayed", "whole history", rf"not in the weights, the first in {PLACE}"),
    "not_skipped": Caught("replayed", "same content", DATA),
    "looked_ahead_lost": Caught("stateful", "same content", DATA),
    "optimizer_forgotten": Caught("store", "same checkpoints", r"'(weights|momentum)' in the checkpoint of step \d"),
    "oldest_resumed": Caught("store", "newest checkpoint", r"resumed from step \d, but step \d had been saved"),
    "written_in_place": Caught("torn", "comes to its end", "launch 1, which had no fault, failed"),
    "removed_first": Caught("torn", "newest checkpoint", "resumed from step None, but step 1 had been saved"),
    "not_compared": Caught("flip", "comes to its end", "launch 1, which had no fault, failed"),
    "not_synced": Caught("fsync", "checkpoints load", r"committed checkpoint of step \d .* has 0 bytes"),
    "requested_counted": Caught("workers", "same content", DATA),
    "requested_saved": Caught("workers", "true states", rf"was at {PLACE} .*, but its state says {PLACE}"),
    "seeded_by_worker": Caught("workers", "same content", DATA + r"the content of row 0 \(sample \d+\)"),
    "first_worker_begins": Caught("stream", "same content", DATA),
    "old_ranks": Caught("ranks", "same content", DATA),
    "acked_when_fetched": Caught("lightning", "same weights", "final weights"),
}
# Each is caught by the same check of the same campaign as another one, or of a campaign that takes a minute.
LONG = {
    "not_skipped",
    "written_in_place",
    "requested_counted",
    "skipped_twice",
    "optimizer_forgotten",
    "generators_forgotten",
    "position_rounded_up",
    "last_batch_lost",
    "seeded_by_worker",
    "helper_left_alive",
    "first_worker_begins",
    "old_ranks",
    "acked_when_fetched",
    "requested_saved",
    "removed_first",
    "saved_before_step",
    "last_batch_repeated",
    "torn",
}
REFUSED = {"seed_of_the_time"}


@pytest.fixture(autouse=True)
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a directory of its own, and return the one in which the bugs that are run leave their marks."""
    marks = tmp_path / "marks"
    marks.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(planted.MARKS, str(marks))
    monkeypatch.setenv("XDG_CACHE_HOME", str(marks))  # a chaos run redirects what is written anywhere else
    monkeypatch.setattr(group, "PATIENCE", 12.0)  # what these scripts leave alive stays alive
    return marks


def cases(names: Any, campaign_of: Any) -> list[Any]:
    """Let only the campaigns that take seconds be in the fast part of the tests."""
    slow, long = [pytest.mark.slow], [pytest.mark.long]
    return [
        pytest.param(one, marks=slow * (campaign_of(one) not in FAST) + long * (one in LONG | HEAVY)) for one in names
    ]


@pytest.mark.parametrize("campaign", cases(CAMPAIGNS, str))
def test_without_a_bug_the_campaign_passes(campaign: str) -> None:
    report = CAMPAIGNS[campaign].run(None)
    assert report.ok, report.timeline()
    assert all(outcome.fired for outcome in report.outcomes)
    assert not [note for note in report.notes if "between two baseline runs" in note]


@pytest.mark.parametrize("bug", cases(BUGS, lambda bug: BUGS[bug].campaign))
def test_a_planted_bug_is_caught(bug: str, marks: Path) -> None:
    caught = BUGS[bug]
    report = CAMPAIGNS[caught.campaign].run(bug)
    assert (marks / bug).exists(), "the bug was planted where nothing comes by"
    told = [outcome.violations.get(caught.check, "") for outcome in report.outcomes]
    assert any(re.search(caught.words, text, re.DOTALL) for text in told), str(report)


def test_an_order_by_the_time_is_refused(marks: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"trained on different data.*\n.*Seed every loader"):
        CAMPAIGNS["kill"].run("seed_of_the_time")
    assert (marks / "seed_of_the_time").exists()


def test_every_bug_has_its_test() -> None:
    assert BUGS.keys() | REFUSED == planted.LIBRARY.keys() | planted.USER.keys()
    assert {caught.campaign for caught in BUGS.values()} == CAMPAIGNS.keys()
    assert all(plant.__doc__ for plant in planted.LIBRARY.values())


def test_a_bug_of_a_function_that_is_gone_cannot_be_planted() -> None:
    with pytest.raises(KeyError, match="_gone"):
        planted.swap("resumable.loader.loader:Loader", "_gone", lambda real: real)
    script = [sys.executable, str(MUTATIONS / "train_plain.py"), "--bug", "no_such_bug"]
    assert "there is no bug no_such_bug" in subprocess.run(script, capture_output=True, check=False, text=True).stderr
