"""What Accelerate, transformers, Lightning and torch write, by themselves and with our states in it, is read."""

from __future__ import annotations

import base64
import json
import pickle
import random
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from kept import of_accelerate, of_torch, trained, wrapped
from kept_lightning import fit_and_save
from pytorch_lightning.plugins.io import AsyncCheckpointIO

import resumable
from resumable.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
ON_TOP = Path(sys.prefix) / "transformers/bin/python"  # what make sets up beside the environment of the tests
KINDS = ["Accelerate", "Accelerate, pickled", "Trainer", "Lightning, distributed", "2 ranks"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each kind, of a loader that stands at step 3 of epoch 1, or 2 with the Trainer."""
    root = tmp_path_factory.mktemp("written")
    run(ON_TOP, "frameworks_run.py", root)
    run(sys.executable, "shards_run.py", root / "shards", "2")
    for name in ("safe", "pickled"):
        (root / name).mkdir()
    return {
        "Accelerate": of_accelerate(root / "safe"),
        "Accelerate, pickled": of_accelerate(root / "pickled", safe=False),
        "Trainer": root / "trainer" / "checkpoint-8",
        "Lightning, distributed": root / "last.ckpt",
        "2 ranks": root / "shards",
    }


def run(python: str | Path, script: str, *words: str | Path) -> None:
    ended = subprocess.run([python, HERE / script, *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]


WHERE = {
    "Accelerate": ("checkpoint of Accelerate", '"custom_checkpoint_0.pkl"'),
    "Accelerate, pickled": ("checkpoint of Accelerate", '"custom_checkpoint_0.pkl"'),
    "Trainer": ("checkpoint of the Hugging Face Trainer", '"loader.pt"'),
    "Lightning, distributed": ("Lightning checkpoint", '"meta.pt".callbacks.ResumableCallback.ranks.0.loaders.0.state'),
    "2 ranks": ("torch.distributed.checkpoint", "loader"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_where_the_data_stood_and_which_samples_come(kind: str, written: dict[str, Path]) -> None:
    found = resumable.inspect(written[kind])
    (state,) = found.states
    assert found.kind == WHERE[kind][0]
    assert WHERE[kind][1] in {state.where, *state.also}
    step = 2 if kind == "Trainer" else 3
    ranks = 2 if kind == "2 ranks" else 1
    assert (state.epoch, state.step, state.steps_in_epoch, state.percent) == (1, step, 6, round(100 * step / 6, 2))
    assert (state.seed, state.name, state.world_size, state.global_batch) == (3, "train", ranks, 4)
    assert (state.global_step, state.length, state.problem) == (6 + step, 22, "")
    assert not found.notes
    assert not any(part.problem for part in found.parts)
    assert found.size == sum(path.stat().st_size for path in written[kind].iterdir())
    expected = wrapped().sample_indices(epoch=7, step=1)
    assert list(resumable.samples(written[kind], epoch=7, step=1).indices) == expected
    assert resumable.diff(written[kind], written[kind]).is_equal


def test_states_in_trainer_state_json(written: dict[str, Path]) -> None:
    """States in `trainer_state.json` are found, plain and packed."""
    (state,) = resumable.inspect(written["Trainer"]).states
    inside = '"trainer_state.json".stateful_callbacks.InTrainerState.attributes'
    assert set(state.also) == {f"{inside}.state", f"{inside}.packed.loader"}
    before = written["Trainer"].with_name("checkpoint-4")
    found = resumable.diff(before, written["Trainer"])
    assert {one.where for one in found.states} == {state.where, *state.also}
    assert not [one for one in found.values if one.where.startswith(inside)]
    (first, _, last) = resumable.inspect(before.parent).states
    assert (first.where, first.global_step, last.global_step) == ('checkpoint-4."loader.pt"', 4, 9)


def test_nothing_of_the_users_classes_is_made(written: dict[str, Path]) -> None:
    parts = {part.name: part for part in resumable.inspect(written["Accelerate"]).parts}
    assert parts["custom_checkpoint_1.pkl"].objects == ("kept.Notes", "pathlib.PosixPath")
    assert (parts["model.safetensors"].tensors, parts["optimizer.bin"].tensors) == (2, 6)
    arguments = {part.name: part for part in resumable.inspect(written["Trainer"]).parts}["training_args.bin"]
    assert "transformers.training_args.TrainingArguments" in arguments.objects


def test_asynchronous_checkpoints_of_lightning(tmp_path: Path) -> None:
    plugin = AsyncCheckpointIO()
    fit_and_save(tmp_path / "last.ckpt", plugins=[plugin])
    plugin.teardown()
    found = resumable.inspect(tmp_path / "last.ckpt")
    assert (found.kind, found.states[0].step, found.states[0].global_step) == ("Lightning checkpoint", 3, 9)


# ---------------------------------------------------------------------- states that are packed


def packed(state: Any) -> bytes:
    file = BytesIO()
    torch.save(state, file)
    return file.getvalue()


PACKED: dict[str, Callable[[Any], Any]] = {
    "bytes of torch.save": packed,
    "the same in base64": lambda state: base64.b64encode(packed(state)).decode(),
    "bytes of a pickle": pickle.dumps,
    "the same as text": lambda state: base64.b64encode(pickle.dumps(state)).decode(),
    "JSON": json.dumps,
    "bytes of bytes": lambda state: packed([packed(state)]),
}


@pytest.mark.parametrize("way", PACKED)
def test_a_packed_state_is_found_and_compared_by_its_fields(way: str, tmp_path: Path) -> None:
    for batches in (9, 10):
        content = {**trained(batches), "note": "gA no base64", "raw": b"\x80 no pickle", "text": "{no JSON"}
        content["data"] = PACKED[way](content["data"])
        of_torch(tmp_path, content).rename(tmp_path / f"{batches}.pt")
    (state,) = resumable.inspect(tmp_path / "9.pt").states
    assert (state.where.partition(".")[0], state.epoch, state.step) == ("data", 1, 3)
    (found,) = resumable.diff(tmp_path / "9.pt", tmp_path / "10.pt").states
    assert {field.where for field in found.fields} >= {"cursor.step", "global_step"}
    assert resumable.samples(tmp_path / "9.pt", epoch=0, step=0).indices


def test_packs_in_packs_end(tmp_path: Path) -> None:
    inside: Any = trained(1)["data"]
    for _ in range(40):
        inside = pickle.dumps([inside])
    torch.save({"data": inside}, tmp_path / "deep.pt")
    torch.save({"data": pickle.dumps([inside])}, tmp_path / "deeper.pt")
    assert not resumable.inspect(tmp_path / "deep.pt").states
    assert not resumable.diff(tmp_path / "deep.pt", tmp_path / "deeper.pt").is_equal


def test_what_is_packed_is_not_run(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    torch.save({"data": pickle.dumps(Runs()), "text": base64.b64encode(packed(Runs())).decode()}, tmp_path / "a.pt")
    torch.save({"data": pickle.dumps([Runs()]), "text": "gA"}, tmp_path / "b.pt")
    resumable.inspect(tmp_path / "a.pt")
    resumable.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert not (tmp_path / "ran").exists()


# ---------------------------------------------------------------------- damage

CASES = 40


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_anywhere_is_refused_noted_or_shows_nothing_else(
    kind: str, seed: int, written: dict[str, Path], tmp_path: Path
) -> None:
    """A file with a checksum never shows another state; one without, such as JSON, says that the state was edited."""
    whole, folder, dice = written[kind], tmp_path / written[kind].name, random.Random(seed)
    shutil.copytree(whole, folder)
    (before,) = resumable.inspect(whole).states
    told = 0
    for _ in range(CASES):
        path = dice.choice(sorted(folder.iterdir()))
        raw = path.read_bytes()
        path.write_bytes(damaged(raw, dice))
        try:
            found = resumable.inspect(folder)
            resumable.diff(whole, folder)
        except CheckpointError:
            told += 1
        else:
            told += bool(found.notes)
            for state in found.states:
                assert state.problem or (state.epoch, state.step) == (before.epoch, before.step), (path, state)
        path.write_bytes(raw)
    assert told > CASES // 4


def damaged(raw: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(min(len(raw), dice.choice([256, 4096, len(raw)])))
    if dice.random() < 0.5:
        return raw[:at]
    return raw[:at] + bytes([raw[at] ^ (1 << dice.randrange(8))]) + raw[at + 1 :]
