"""Make `assets/counting.svg`: which batches a state counts. `python docs/draw_counting.py`."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

from drawing import box, framed, label

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PICTURE", "counts", "picture"]

PICTURE = Path(__file__).parent / "assets/counting.svg"
BATCHES, DEPTH, TRAINED, READ_AHEAD = 12, 4, 3, 4
LEFT, WIDE, HIGH = 14, 31, 24
ROWS = {
    "auto": 'plain loop, ack="auto"',
    "manual": 'loop with a prefetcher, ack="manual"',
}


def counts(ack: str) -> tuple[int, int]:
    """Return how many batches are delivered, and how many the state counts, after some optimizer steps."""
    options: dict[str, Any] = {"ack": ack, "name": ack}
    loader = resumable.wrap(list(range(BATCHES)), batch_size=1, seed=0, **options)
    batches = iter(loader) if ack == "auto" else _prefetched(loader)
    for _ in range(TRAINED):
        next(batches)
        if ack == "manual":
            loader.ack()
    return loader.cursor.step, loader.state_dict()["cursor"]["step"]


def _prefetched(loader: Any) -> Iterator[Any]:
    waiting: deque[Any] = deque()
    for batch in loader:
        waiting.append(batch)
        if len(waiting) == DEPTH:
            yield waiting.popleft()


def picture() -> str:
    """Return the picture: a row per loop, a box per batch."""
    shapes, y = [], 4
    for ack, text in ROWS.items():
        delivered, counted = counts(ack)
        kinds = "a" * counted + "b" * (delivered - counted)
        shapes.append(label(LEFT, y + 18, text, "bold"))
        for number in range(BATCHES):
            kind = kinds[number] if number < len(kinds) else "c" if number < delivered + READ_AHEAD else "pale"
            shapes.append(box(LEFT + WIDE * number, y + 28, (WIDE - 3, HIGH), kind, number))
        x = LEFT + WIDE * counted - 1.5
        shapes.append(f'<path class="mark" d="M{x:g} {y + 24}V{y + 62}"/>')
        shapes.append(label(x + 6, y + 68, f"a resumed run starts with batch {counted}", "red"))
        y += 84
    legend = {
        "a": "acknowledged: in the weights",
        "b": "in flight: not trained on yet",
        "c": "prefetched by workers",
        "pale": "not read yet",
    }
    for number, (kind, text) in enumerate(legend.items()):
        place = LEFT + (0, 0, 216, 216)[number], y + (0, 20, 0, 20)[number]
        shapes += [box(place[0], place[1], (14, 12), kind), label(place[0] + 20, place[1] + 10, text)]
    return framed(y + 42, shapes)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
