"""How a source is brought to a position, by both who do it: the training process and a worker of a `DataLoader`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable.errors import StateMismatchError, StateMismatchWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Leaky(IterableDataset[int]):
    """Has a state that does not lead back: an element is lost if it is loaded before iterating, and two if after."""

    def __init__(self) -> None:
        self.next, self.is_open = 0, False

    def __iter__(self) -> Iterator[int]:
        self.is_open = True
        return self._elements()

    def _elements(self) -> Iterator[int]:
        while self.next < 20:
            self.next += 1
            yield self.next - 1

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"] + 1 + self.is_open
        self.is_open = False


MAKERS: dict[str, Callable[[], Any]] = {
    "training process": Leaky,
    "worker": lambda: DataLoader(Leaky(), batch_size=None, num_workers=1),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_without_strict_a_run_continues_as_without_a_comparison(make: Callable[[], Any]) -> None:
    loader = resumable.wrap(make())
    state = [loader.state_dict() for _ in zip(range(3), loader, strict=False)][-1]
    with pytest.raises(StateMismatchError, match="Restoring it before and after iterating was tried"):
        resumed(make, state, strict=True)
    with pytest.warns(StateMismatchWarning, match="continues with a different element"):
        first, found = resumed(make, state, strict=False)
    assert first == found, "the first order is the one without a comparison"


def resumed(make: Callable[[], Any], state: dict[str, Any], *, strict: bool) -> tuple[int, int]:
    """Return the element that comes next, with the comparison and without it."""
    loader = resumable.wrap(make())
    loader.load_state_dict(state, strict=strict)
    plain = resumable.wrap(make(), checks="ranks")
    plain.load_state_dict(state, strict=strict)
    return int(next(iter(loader))), int(next(iter(plain)))
