"""CheckpointStore under a power cut leaves the old or the new checkpoint: one process, several ranks, background."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from power_cuts import PowerCuts
from stores import assert_tidy, content, found
from torch._C._distributed_c10d import HashStore

from resumable._ranks import rendezvous
from resumable._ranks.rendezvous import Rendezvous
from resumable.checkpoint import CheckpointStore

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(  # noqa: TID251  # only elsewhere than on Linux
    not Path("/proc/self/fd").exists(), reason="the files' bytes are read through Linux's /proc"
)
STEPS = (1, 2, 3, 3, 4)


def whole(root: Path) -> int | None:
    newest = found(root)
    return newest and newest[0]


class Saves:
    """Saves under power cuts: with an eye on the steps that a new process may find."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, background: bool = False) -> None:
        self.cuts = PowerCuts(tmp_path, monkeypatch, whole)
        self._background = background

    def save(self, step: int) -> bool:
        def save() -> None:
            with CheckpointStore(self.cuts.root, keep=2) as store:
                store.save(step, content(step), background=self._background)

        return self.cuts.save(save, self.cuts.allowed, step)


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True])
def test_power_cut_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool) -> None:
    """A power cut at any time leaves the old or the new checkpoint."""
    saves = Saves(tmp_path, monkeypatch, background=background)
    assert all(saves.save(step) for step in STEPS)
    assert saves.cuts.cuts > 50
    saves.cuts.disk.close()


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("crashed", [3, 4])
def test_power_cut_after_a_restart(tmp_path: Path, crashed: int, background: bool) -> None:
    """A power cut after a crash and a restart leaves a whole checkpoint."""
    for point in itertools.count(1):
        (tmp_path / str(point)).mkdir()
        with pytest.MonkeyPatch.context() as monkeypatch:
            saves = Saves(tmp_path / str(point), monkeypatch, background=background)
            cuts = saves.cuts
            assert all(saves.save(step) for step in (1, 2, 3))
            cuts.countdown = point
            harmed = not saves.save(crashed)
            cuts.countdown = 0
            assert saves.save(9)
            cuts.disk.close()
        assert_tidy(cuts.root, CheckpointStore(cuts.root))
        if not harmed:
            break
    assert point > 7


# ---------------------------------------------------------------------- several ranks


def of_ranks(root: Path, size: int = 2) -> tuple[int, int] | None:
    """Give step and version of the newest checkpoint; the parts of all ranks have to be there, of the same save."""
    newest, store = found(root), CheckpointStore(root)
    for step in store.steps():
        version = store.load(step)["version"]
        for rank in range(size):
            assert store.load_part(step, rank=rank) == {"step": step, "rank": rank, "version": version}
    return newest


class Ranks:
    """Ranks as threads, so that one disk sees what all of them do; they meet at a store of torch's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int = 2) -> None:
        store, self._own = HashStore(), threading.local()
        self._meet = [Rendezvous(store, rank, size) for rank in range(size)]
        monkeypatch.setattr(rendezvous, "find", lambda: getattr(self._own, "rendezvous", None))

    def save(self, root: Path, step: int, version: int, *, background: bool) -> None:
        """Save a step with a part of each rank."""
        errors: list[BaseException] = []

        def run(met: Rendezvous) -> None:
            self._own.rendezvous = met
            try:
                with CheckpointStore(root, shared=True, keep=2, timeout=60) as store:
                    part = {"step": step, "rank": met.rank, "version": version}
                    store.save(step, content(step, version), part=part, background=background)
            except BaseException as error:  # noqa: BLE001  # a thread has nobody to raise it to
                errors.append(error)

        threads = [threading.Thread(target=run, args=(met,)) for met in self._meet]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors


@pytest.fixture
def ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PowerCuts, Ranks]]:
    cuts = PowerCuts(tmp_path, monkeypatch, of_ranks)
    yield cuts, Ranks(monkeypatch)
    cuts.disk.close()


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True])
def test_power_cut_in_a_save_of_ranks(ranked: tuple[PowerCuts, Ranks], background: bool) -> None:
    """A power cut in a save of several ranks leaves the old or the new parts.

    In a part of any rank, between the parts and the commit, in the commit, while older steps are removed.
    """
    cuts, ranks = ranked
    before: Any = None
    for version, step in enumerate(STEPS):
        after = (step, version)
        save = lambda after=after: ranks.save(cuts.root, *after, background=background)  # noqa: E731  # for the table
        assert cuts.save(save, [before], after)
        before = after
    assert cuts.cuts > 100
