"""A backend for a custom format: fixed-size records in a file, read by number.

python examples/own_backend.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Records:
    """Reads any record of a file of 32-bit floats, so it implements the protocol `IndexedBackend`."""

    kind = "float-records"

    def __init__(self, path: Path, width: int) -> None:
        self._rows = np.memmap(path, dtype=np.float32, mode="r").reshape(-1, width)
        self.length = len(self._rows)
        self.identity = {"file": path.name, "width": width}

    def read(self, requests: Iterable[resumable.Request]) -> Iterator[np.ndarray]:
        """Yield one batch per request, with noise that belongs to the sample."""
        for request in requests:
            noise = [np.random.default_rng(key).normal(size=self._rows.shape[1]) for key in request.keys]
            yield np.asarray(self._rows[request.indices]) + np.array(noise, dtype=np.float32)


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "records.f32")
    np.arange(40, dtype=np.float32).tofile(file)

    def make(seed: int = 0) -> resumable.Loader:
        """Wrap a new backend over the same file."""
        return resumable.wrap(Records(file, width=4), batch_size=3, shuffle=True, seed=seed)

    loader = make()
    first, *rest = [(loader.state_dict(), batch) for _ in range(2) for batch in loader]
    print(f"first batch:\n{first[1].round(1)}")
    resumed = make()
    resumed.load_state_dict(first[0])
    again = [batch for _ in range(2) for batch in resumed]
    assert all(np.array_equal(batch, same) for (_, batch), same in zip(rest, again, strict=True))
    print(f"resumed at {first[0]['cursor']}: the other {len(again)} batches of two epochs are the same, noise included")
    try:
        make(seed=1).load_state_dict(first[0])
    except resumable.errors.StateMismatchError as error:
        print(f"a different seed raises: {error}")
