"""A check for the hidden code of pages: `from tests.docs.resumes import assert_resumes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import resumable


def assert_resumes(
    make: Callable[[], resumable.Loader],
    after: int,
    epochs: int = 2,
    *,
    resumed: Callable[[], resumable.Loader] | None = None,
) -> list[Any]:
    """Assert that a run resumed after that many batches gets the rest of them; return all batches.

    `resumed` makes the resumed run's loader, if it differs.
    """
    loader, state, batches = make(), None, []
    for epoch in loader.epochs(epochs):
        for batch in epoch:
            batches.append(_plain(batch))
            if len(batches) == after:
                state = loader.state_dict()
    assert state is not None, f"only {len(batches)} batches"
    again = (resumed or make)()
    again.load_state_dict(state)
    assert [_plain(batch) for epoch in again.epochs(epochs) for batch in epoch] == batches[after:]
    return batches


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
