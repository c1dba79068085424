"""Saves the states of every kind of source in this environment, or continues from states of different environments.

python cross_streams.py FOLDER NAME write          writes the files that the sources read
python cross_streams.py FOLDER NAME save           saves states, with the digest of what follows each
python cross_streams.py FOLDER NAME load OTHER...  continues from the states of others, and compares what follows

It prints one line of JSON for each kind. Digests cover every value of a batch, random numbers included.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import sys
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from every_source import EPOCHS, kinds_of, write_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable import Loader

STATES = (0, 1, 3, 7)  # batches before each saved state; the last one is in the second epoch for some kinds


def plain(value: Any) -> Any:
    """Return a batch as values whose text is the same with every version of Python, NumPy and PyTorch."""
    if hasattr(value, "detach"):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def rest_of(loader: Loader[Any]) -> Iterator[str]:
    """Yield the digest of each batch that is left."""
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            yield hashlib.sha256(repr((epoch.number, plain(batch))).encode()).hexdigest()


def saved(make: Any) -> list[tuple[bytes, list[str]]]:
    """Return some states of a run, each with the digests of the batches after it."""
    loader, states, digests = make(), [], []
    states.append(pickle.dumps(loader.state_dict()))
    for digest in rest_of(loader):
        digests.append(digest)
        states.append(pickle.dumps(loader.state_dict()))
    assert len(digests) > min(STATES[1:]), "too few batches to be resumed"
    middle = len(digests) // 2 + 1
    return [(states[step], digests[step:]) for step in {*STATES, middle} if step < len(digests)]


def compare(make: Any, cases: list[tuple[bytes, list[str]]]) -> None:
    """Continue from each state, and check that the same batches follow."""
    for state, expected in cases:
        loader = make()
        loader.load_state_dict(pickle.loads(state))  # noqa: S301  # this program wrote it
        assert list(rest_of(loader)) == expected, f"other batches follow {len(expected)} batches before the end"


def main(folder: Path, name: str, action: str, *others: str) -> None:
    """Do it, and print what happened with each kind."""
    warnings.simplefilter("ignore")  # about sources whose data is compared only in part
    logging.getLogger("resumable").setLevel(logging.ERROR)  # about many Loaders of the same seed
    files = folder / "files"
    if action == "write":
        files.mkdir()
        write_files(files)
        return
    kinds, path = kinds_of(files), folder / f"{name}.states"
    found: dict[str, Any] = {}
    for other in others or [name]:
        cases = pickle.loads((folder / f"{other}.states").read_bytes()) if others else {}  # noqa: S301  # so it did
        for kind, make in kinds.items():
            if others and kind not in cases:
                continue
            try:
                if others:
                    compare(make, cases[kind])
                else:
                    found[kind] = saved(make)
                error = ""
            except Exception:  # noqa: BLE001  # it is reported
                error = traceback.format_exc()
            sys.stdout.write(json.dumps({"from": other, "to": name, "kind": kind, "error": error}) + "\n")
            sys.stdout.flush()
    if not others:
        path.write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
