"""Make `assets/ranks.svg`: global batches that four ranks divide, and then two. `python docs/draw_ranks.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from drawing import box, framed, label

import resumable

__all__ = ["PICTURE", "batches", "picture"]

PICTURE = Path(__file__).parent / "assets/ranks.svg"
SAMPLES, GLOBAL, STEPS, RANKS = 48, 8, 3, (4, 2)
LEFT, WIDE, HIGH, ROW = 58, 41, 22, 28


def batches() -> list[list[list[int]]]:
    """Return what each rank reads in each step, before and after the number of ranks has changed."""
    data = list(range(SAMPLES))
    state: Any = None
    steps = []
    for ranks in RANKS:
        worlds = [resumable.World(rank, ranks) for rank in range(ranks)]
        options: dict[str, Any] = {"batch_size": GLOBAL // ranks, "shuffle": True, "seed": 0}
        loaders = [resumable.wrap(data, world=world, **options) for world in worlds]
        if state:
            for loader in loaders:
                loader.load_state_dict(state)
        loops = [iter(loader) for loader in loaders]
        steps += [[next(loop) for loop in loops] for _ in range(STEPS)]
        state = loaders[0].state_dict()
    return steps


def picture() -> str:
    """Return the picture: a row per step, a box per sample, a color per rank."""
    shapes, y = [], 0
    for step, shares in enumerate(batches()):
        if step % STEPS == 0:
            shapes += _head(y, len(shares), step)
            y += 42
        shapes.append(label(LEFT - 8, y + 15, f"step {step}", "", "end"))
        samples = [(rank, sample) for rank, share in enumerate(shares) for sample in share]
        shapes += [
            box(LEFT + WIDE * place, y, (WIDE - 3, HIGH), "abcd"[rank], sample)
            for place, (rank, sample) in enumerate(samples)
        ]
        y += ROW
        if step == STEPS - 1:
            shapes.append(f'<path class="mark" d="M10 {y + 10}H390"/>')
            shapes.append(label(200, y + 28, "killed; resumed on two ranks", "red", "middle"))
            y += 36
    return framed(y + 6, shapes)


def _head(y: int, ranks: int, step: int) -> list[str]:
    share = GLOBAL // ranks
    heads = [
        label(LEFT + WIDE * share * (rank + 0.5) - 1, y + 36, f"rank {rank}", "note", "middle") for rank in range(ranks)
    ]
    text = f"{ranks} ranks, {share} samples each" + ("" if step else f": global batches of {GLOBAL}")
    return [label(LEFT, y + 19, text, "bold"), *heads]


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
