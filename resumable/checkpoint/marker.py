"""The commit marker of a step, and the verification of data files with it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import operator
import os
import re
from typing import TYPE_CHECKING, Any, BinaryIO

from resumable._distribution import UPGRADE
from resumable.errors import CheckpointError, CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ALGORITHM", "FORMAT", "MARKER", "OURS", "Marker", "Part", "corrupt"]

FORMAT = 2  # newest format of the marker; a higher one raises an error
ALONE = 1  # the format of a marker without parts, which every version can read
MARKER = "COMMIT.json"
ALGORITHM = "sha256"  # fast on most CPUs, and `sha256sum` can check a data file
OURS = re.compile(r"[0-9a-f]{16}\.(pt|tmp)")  # only such files and the marker are deleted


@dataclasses.dataclass(frozen=True)
class Marker:
    """The content of `COMMIT.json`: a step's data file, its size in bytes, its digest, and the parts of the ranks."""

    format: int
    step: int
    file: str
    size: int
    algorithm: str
    digest: str
    parts: tuple[Part, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """The names of all files of the step except the marker, and their sizes in bytes."""
        return {self.file: self.size, **{part.file: part.size for part in self.parts}}

    def dump(self) -> bytes:
        """Return the bytes of `COMMIT.json`."""
        fields = dataclasses.asdict(self)
        if not self.parts:
            del fields["parts"]
        return json.dumps(fields).encode()

    @classmethod
    def parse(cls, raw: bytes, step: int) -> Marker:
        """Read a step's marker.

        Raises:
            CheckpointError: it has a newer format.
            CorruptCheckpointError: it is not a marker, or belongs to a different step.
        """
        try:
            fields = dict(json.loads(raw))
            found = operator.index(fields["format"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise corrupt(step, f"its marker cannot be read: {raw[:80]!r}") from None
        if found > FORMAT:
            raise CheckpointError(
                f"a newer version of resumable wrote step {step}, and this version cannot read it.\n"
                f"  format of the marker: {found}\n  newest known format:  {FORMAT}\n"
                f"Using an older step would lose work. Upgrade with `{UPGRADE}`; or `delete({step})` if you do not "
                "need it."
            )
        with contextlib.suppress(TypeError, ValueError):
            parts = tuple(map(Part.parse, fields.pop("parts", ())))
            marker = cls(**fields, parts=parts)
            expected = FORMAT if parts else ALONE, step, ALGORITHM
            if (found, marker.step, marker.algorithm) == expected and OURS.fullmatch(marker.file):
                return marker
        raise corrupt(step, f"its marker is invalid: {raw[:300]!r}")

    def compare(self, file: BinaryIO) -> None:
        """Verify a data file with this marker, and rewind it.

        Raises:
            CorruptCheckpointError: the size or the digest differs.
        """
        _compare(self.step, f"its data file {self.file}", self.size, self.digest, file)

    def compare_sizes(self, held: Mapping[str, int | None]) -> None:
        """Compare the sizes of the files in the step's directory with this marker.

        Raises:
            CorruptCheckpointError: a file is missing, or its size differs.
        """
        for name, size in self.sizes.items():
            if held.get(name) != size:
                has = "is missing" if name not in held else f"has {held[name]} bytes"
                raise corrupt(self.step, f"its data file {name} {has}, but {size} bytes were written")


@dataclasses.dataclass(frozen=True)
class Part:
    """The data file of one rank: its name, its size in bytes and its hexadecimal digest."""

    rank: int
    file: str
    size: int
    digest: str

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Part:
        """Undo `dataclasses.asdict`.

        Raises:
            TypeError: a field is missing or unknown.
            ValueError: a field is invalid.
        """
        part = cls(**fields)
        if OURS.fullmatch(part.file) and operator.index(part.rank) >= 0 and operator.index(part.size) >= 0:
            return part
        raise ValueError(part)

    def compare(self, step: int, file: BinaryIO) -> None:
        """Verify a data file with this entry of a step's marker, and rewind it."""
        _compare(step, f"the part of rank {self.rank}, {self.file},", self.size, self.digest, file)


def _compare(step: int, what: str, size: int, digest: str, file: BinaryIO) -> None:
    if (held := file.seek(0, os.SEEK_END)) != size:
        raise corrupt(step, f"{what} has {held} bytes, but {size} were written")
    file.seek(0)
    found = hashlib.file_digest(file, ALGORITHM).hexdigest()  # type: ignore[arg-type]  # its protocol is narrower
    if found != digest:
        values = f"  when written: {digest}\n  now:          {found}\n"
        raise corrupt(step, f"{what} has changed: its {ALGORITHM} checksum differs", values)
    file.seek(0)


def corrupt(step: int, reason: str, values: str = "") -> CorruptCheckpointError:
    """Return the error for a corrupt step, with the reason and how to continue."""
    return CorruptCheckpointError(
        f"the checkpoint of step {step} is corrupt: {reason}.\n{values}"
        "Its content would differ from what was saved. "
        f"Use a different step: `latest()` skips this one, and `delete({step})` removes it."
    )
