"""A second loop over the Loader of torchtitan's dataloader raises, or reads the rest of an epoch and ends the first."""

from __future__ import annotations

import json

import pytest
from test_titan import run


@pytest.mark.slow
def test_second_loops_lose_no_batch_without_an_error() -> None:
    found = json.loads(run("tests/distributed/titan_loops.py"))
    whole = found["whole"]
    assert found["endless"] == found["ended"] == whole
    assert len(found["told"]) == len(whole) == 6
    assert all("while steps() is open" in one and "loader.for_evaluation()" in one for one in found["told"])
    assert all(one == whole[:3] for one in found["passes"]), "each is a pass over epoch 0"
    assert found["cut"] == whole[:3]
    assert len(found["within"]) == 1
    assert "a newer loop over the same Loader was started" in found["within"][0]
