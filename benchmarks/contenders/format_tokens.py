"""MosaicML Streaming and LitData over windows of the same tokens, in files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders.format_files import BATCH, LENGTH, windows

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Lit", "Streaming"]


class _Loading:
    """What both have in common: a loader with a state."""

    _loader: Any
    _dataset: Any

    def __len__(self) -> int:
        return len(self._dataset)

    def start(self, state: Any = None) -> Iterator[Any]:
        """Begin an epoch, or go on."""
        if state is not None:
            self._loader.load_state_dict(state)
        return iter(self._loader)

    def state_at(self, step: int) -> Any:
        """Read up to there."""
        batches = self.start()
        for _ in range(step):
            next(batches)
        return self._loader.state_dict()


class Streaming(_Loading):
    """MDS shards, shuffled by its default, py1e.

    Args:
        folder: of the files.
        kind: "documents".
    """

    def __init__(self, folder: str, kind: str) -> None:
        from streaming import StreamingDataLoader, StreamingDataset  # noqa: PLC0415  # it may not be there

        local = Path(folder, "mds")
        if not local.exists():
            self.convert(Path(folder, kind), local)
        self._dataset = StreamingDataset(
            local=str(local), shuffle=True, shuffle_seed=0, batch_size=BATCH, num_canonical_nodes=1
        )
        self._loader = StreamingDataLoader(self._dataset, batch_size=BATCH, collate_fn=list)

    @staticmethod
    def convert(tokens: Path, local: Path) -> None:
        """Write the windows as it reads them."""
        from streaming import MDSWriter  # noqa: PLC0415  # it may not be there

        with MDSWriter(out=str(local), columns={"x": f"ndarray:uint16:{LENGTH + 1}"}, size_limit=1 << 22) as writer:
            for window in windows(tokens):
                writer.write({"x": window})


class Lit(_Loading):
    """Chunks of tokens, read by its `TokensLoader`.

    Args:
        folder: of the files.
        kind: "documents".
    """

    def __init__(self, folder: str, kind: str) -> None:
        from litdata import StreamingDataLoader, StreamingDataset, TokensLoader  # noqa: PLC0415  # it may not be there

        local = Path(folder, "lit")
        if not local.exists():
            self.convert(Path(folder, kind), local)
        self._dataset = StreamingDataset(str(local), item_loader=TokensLoader(LENGTH + 1), shuffle=True, seed=0)
        self._loader = StreamingDataLoader(self._dataset, batch_size=BATCH, collate_fn=list)

    @staticmethod
    def convert(tokens: Path, local: Path) -> None:
        """Write the windows as it reads them."""
        import torch  # noqa: PLC0415  # it may not be there
        from litdata import TokensLoader  # noqa: PLC0415  # it may not be there
        from litdata.streaming.cache import Cache  # noqa: PLC0415  # it may not be there

        cache = Cache(str(local), chunk_bytes="4MB", item_loader=TokensLoader(LENGTH + 1))
        for number, window in enumerate(windows(tokens)):
            cache[number] = torch.from_numpy(window.astype("int32"))
        cache.done()
        cache.merge()
