"""The sources of this package, read without a DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import resumable
from benchmarks.contenders.format_files import BATCH, LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Ours"]


class Ours:
    """A source in a Loader.

    Args:
        folder: of the files.
        kind: "tars", "images", "rows", "tokens", or how `Packed` packs.
        shuffle: as `wrap` takes it.
    """

    def __init__(self, folder: str, kind: str, shuffle: Any) -> None:
        self.source = _source(Path(folder), kind)
        self._loader = resumable.wrap(self.source, batch_size=BATCH, shuffle=shuffle, seed=0, randomness="off")

    def __len__(self) -> int:
        return len(self.source)

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch, or continue."""
        if state is not None:
            self._loader.load_state_dict(state)
        return iter(self._loader)

    def state_at(self, step: int) -> Any:
        """Seek to a step and return the state."""
        self._loader.seek(epoch=0, step=step)
        return self._loader.state_dict()


def _source(folder: Path, kind: str) -> Any:
    if kind in ("tars", "images"):
        return resumable.Tars(sorted((folder / kind).glob("*.tar")), decode=kind == "images")
    if kind == "rows":
        return resumable.Parquet(sorted((folder / kind).glob("*.parquet")))
    tokens = folder / "documents" / "tokens.bin"
    return resumable.Tokens(tokens, LENGTH) if kind == "tokens" else resumable.Packed(tokens, LENGTH, how=kind)  # type: ignore[arg-type]  # it is one of them
