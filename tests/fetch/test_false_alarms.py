"""Right programs get no warning, wherever they are interrupted and resumed."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from right_programs import HEAVY, LIGHT, on_disk

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = [*LIGHT, *(pytest.param(name, marks=pytest.mark.slow) for name in HEAVY)]


@pytest.fixture(scope="module", autouse=True)
def _files() -> Iterator[None]:
    with on_disk():
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_program_gets_no_warning(name: str) -> None:
    program: Any = (LIGHT | HEAVY)[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FutureWarning)  # of Lightning
        whole, states = program(None)
        assert {done % (len(whole) // 3) != 0 for done, _ in states} == {True, False}, "saved in and between epochs"
        for done, state in states:
            assert program(state)[0] == whole[done:], f"after {done} of {len(whole)} batches"
