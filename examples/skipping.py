"""Three ranks read a third each of one stream, because its iterator can skip: python examples/skipping.py."""

from __future__ import annotations

from typing import Any

import resumable

RANKS, BATCH, LINES = 3, 8, 240


class Lines:
    """An iterator over the lines of a file, for example, with an index of their offsets."""

    def __init__(self) -> None:
        self.line = self.drawn = 0

    def __iter__(self) -> Lines:
        """Return the iterator."""
        return self

    def __next__(self) -> int:
        """Read a line."""
        if self.line == LINES:
            raise StopIteration
        self.line, self.drawn = self.line + 1, self.drawn + 1
        return self.line

    def skip(self, n: int) -> None:
        """Skip `n` elements, or all that are left if there are fewer."""
        self.line = min(self.line + n, LINES)


def run(rank: int, state: dict[str, Any] | None = None) -> tuple[list[list[int]], dict[str, Any], int]:
    """Return a rank's batches, its state after the second of them, and how many lines it read."""
    opened: list[Lines] = []

    def lines() -> Lines:
        opened.append(Lines())
        return opened[-1]

    loader = resumable.wrap(lines, batch_size=BATCH, tail="drop", world=resumable.World(rank, RANKS))
    if state is not None:
        loader.load_state_dict(state)
    batches, saved = [], loader.state_dict()
    for batch in loader:
        batches.append(batch)
        saved = loader.state_dict() if len(batches) == 2 else saved
    return batches, saved, sum(one.drawn for one in opened)


for rank in range(RANKS):
    batches, state, drawn = run(rank)
    rest, _, again = run(rank, state)
    assert rest == batches[2:]
    print(f"rank {rank} read {drawn} of {LINES} lines for {len(batches) * BATCH}, and {again} after a resume")
