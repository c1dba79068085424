"""The commit marker of a step, and the comparison of a data file with it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import operator
import os
import re
from typing import BinaryIO

from resumable._distribution import UPGRADE
from resumable.errors import CheckpointError, CorruptCheckpointError

__all__ = ["ALGORITHM", "FORMAT", "MARKER", "OURS", "Marker", "corrupt"]

FORMAT = 1  # of the marker; a reader refuses a higher one by name
MARKER = "COMMIT.json"
ALGORITHM = "sha256"  # processors have instructions for it, and `sha256sum` checks a data file by hand
OURS = re.compile(r"[0-9a-f]{16}\.(pt|tmp)")  # the only names that are ever deleted, besides the marker


@dataclasses.dataclass(frozen=True)
class Marker:
    """What `COMMIT.json` says: the data file of a step, its size in bytes and its digest in hexadecimal digits."""

    format: int
    step: int
    file: str
    size: int
    algorithm: str
    digest: str

    def dump(self) -> bytes:
        """Give the bytes of `COMMIT.json`."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def parse(cls, raw: bytes, step: int) -> Marker:
        """Read a step's marker.

        Raises:
            CheckpointError: it has a newer format.
            CorruptCheckpointError: it is no marker, or another step's.
        """
        try:
            fields = dict(json.loads(raw))
            found = operator.index(fields["format"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise corrupt(step, f"its marker cannot be read: {raw[:80]!r}") from None
        if found > FORMAT:
            raise CheckpointError(
                f"The marker of step {step} was written by a newer version, and using an older step would lose work.\n"
                f"  its format:                    {found}\n  the newest this version reads: {FORMAT}\n"
                f"Update with `{UPGRADE}`, or `delete({step})` to do without it."
            )
        with contextlib.suppress(TypeError):
            marker = cls(**fields)
            if (found, marker.step, marker.algorithm) == (FORMAT, step, ALGORITHM) and OURS.fullmatch(marker.file):
                return marker
        raise corrupt(step, f"its marker makes no sense: {raw[:300]!r}")

    def compare(self, file: BinaryIO) -> None:
        """Compare a data file with this marker, and rewind it.

        Raises:
            CorruptCheckpointError: the size or the digest differs.
        """
        if (size := file.seek(0, os.SEEK_END)) != self.size:
            raise corrupt(self.step, f"its data file {self.file} holds {size} bytes, and {self.size} were written")
        file.seek(0)
        found = hashlib.file_digest(file, ALGORITHM).hexdigest()  # type: ignore[arg-type]  # its protocol is narrower
        if found != self.digest:
            values = f"  when written: {self.digest}\n  now:          {found}\n"
            raise corrupt(self.step, f"its data file {self.file} has another {ALGORITHM} checksum", values)
        file.seek(0)


def corrupt(step: int, reason: str, values: str = "") -> CorruptCheckpointError:
    """Give the error that names a corrupt step, what is wrong with it, and the way out."""
    return CorruptCheckpointError(
        f"The checkpoint of step {step} is corrupt: {reason}.\n{values}"
        "Loading it would give something else than was saved. "
        f"Use another step; `latest()` skips this one, and `delete({step})` removes it."
    )
