"""What all tests share."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the conformance suite that start processes belong to the slow part."""
    for item in items:
        if item.name.startswith("test_a_fresh_process"):
            item.add_marker(pytest.mark.slow)
