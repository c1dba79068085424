"""The example's GPT: what a token sees, and that a pre-training on three sources is the same however it is killed."""

from __future__ import annotations

import signal
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import small_gpt
import torch
import torch._dynamo  # optimizers import it: here once, and not in each forked process
from models import corpus
from models.gpt import GPT, Shape, collate
from small_gpt import LENGTH, STEPS

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLS = (3, 5, 6, 19, 29, 30)  # before the first save, at one, after one, far from one, and at the end
OTHERS = (".generators.python", ".generators.numpy")  # the training draws from neither, and seeds neither


def train(data: Path, root: Path, kill: int = 0) -> int | None:
    process = get_context("fork").Process(target=small_gpt.train, args=(str(data), str(root), kill))
    process.start()
    process.join(120)
    return process.exitcode


def leaves(content: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a checkpoint with where they are, tensors as lists."""
    if isinstance(content, (dict, list, tuple)):
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        for name, value in pairs:
            yield from leaves(value, f"{at}.{name}")
    elif not at.startswith(OTHERS):
        yield at, content.tolist() if isinstance(content, torch.Tensor | np.ndarray) else content


@pytest.mark.slow
def test_killed_pre_training_is_bit_equal(tmp_path: Path) -> None:
    """A pre-training killed anywhere is the baseline one bit for bit."""
    corpus.write(str(tmp_path))
    assert train(tmp_path, tmp_path / "baseline") == 0
    for kill in KILLS:
        assert train(tmp_path, tmp_path / "killed", kill) == -signal.SIGKILL
    assert train(tmp_path, tmp_path / "killed") == 0
    stores = [resumable.CheckpointStore(tmp_path / name) for name in ("baseline", "killed")]
    assert [store.steps() for store in stores] == [[STEPS - 5, STEPS]] * 2
    for step in (STEPS - 5, STEPS):
        baseline, killed = (dict(leaves(store.load(step))) for store in stores)
        assert killed == baseline, f"step {step}"
        assert len([name for name in baseline if name.startswith(".gpt.")]) > 20


def test_no_token_sees_another_document_or_a_later_token() -> None:
    torch.manual_seed(0)
    shape = Shape(length=12)
    gpt = GPT(shape).eval()
    document = torch.tensor([[3] * 5 + [7] * 4 + [-1] * 3])
    position = torch.tensor([[*range(5), *range(4), *range(3)]])
    tokens = torch.randint(shape.vocabulary, (1, 12))
    logits = gpt(tokens, position, document)
    for place in range(12):
        changed = tokens.clone()
        changed[0, place] = (tokens[0, place] + 1) % shape.vocabulary
        differs = (gpt(changed, position, document) != logits).any(dim=-1)[0]
        sees = [other >= place and document[0, other] == document[0, place] for other in range(12)]
        assert differs.tolist() == sees


def test_a_document_has_the_same_logits_wherever_it_is_packed() -> None:
    torch.manual_seed(0)
    gpt = GPT(Shape(length=64)).eval()
    lengths = [20, 30, 10, 25, 35]
    packed = resumable.Packed(np.arange(120, dtype=np.uint16), 64, documents=lengths, how="fit")
    for window in packed:
        batch = collate([window])
        logits = gpt(batch["input"], batch["position"], batch["document"])[0]
        for number in set(window["document"]) - {-1}:
            own = window["document"] == number
            assert (window["position"][own] == range(lengths[number])).all()
            alone = torch.from_numpy(window["input"][own])[None]
            places = torch.arange(lengths[number])[None]
            assert torch.allclose(gpt(alone, places, torch.zeros_like(places))[0], logits[own], atol=1e-5)


def test_windows_of_tokens_and_of_documents_make_one_batch() -> None:
    tokens = np.arange(300, dtype=np.uint16)
    packed = resumable.Packed(tokens, LENGTH, documents=[100, 200], how="fit")
    batch = collate([packed[0], resumable.Tokens(tokens, LENGTH)[2]])
    assert {name: values.shape for name, values in batch.items()} == dict.fromkeys(
        ("input", "target", "position", "document"), (2, LENGTH)
    )
    assert batch["input"][1].tolist() == batch["position"][1].add(2 * LENGTH).tolist()
    assert batch["target"][1].tolist() == batch["input"][1].add(1).tolist()
    assert set(batch["document"][1].tolist()) == {0}
