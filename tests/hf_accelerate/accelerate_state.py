"""What Accelerate keeps per process, which one test leaves to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from accelerate.state import AcceleratorState, GradientState

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each test begin as a process without an Accelerator."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
