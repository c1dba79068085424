"""MosaicML Streaming and LitData over windows of the same tokens, in their own file formats."""

from __future__ import annotations

from pathlib import Path

from benchmarks.contenders.format_files import BATCH, LENGTH, windows
from benchmarks.contenders.format_states import Stateful

__all__ = ["Lit", "Streaming"]


class Streaming(Stateful):
    """MDS shards, shuffled with the default, py1e.

    Args:
        folder: of the files.
        kind: "documents".
    """

    def __init__(self, folder: str, kind: str) -> None:
        from streaming import StreamingDataLoader, StreamingDataset  # noqa: PLC0415  # it may not be there

        local = Path(folder, "mds")
        if not local.exists():
            self.convert(Path(folder, kind), local)
        dataset = StreamingDataset(
            local=str(local), shuffle=True, shuffle_seed=0, batch_size=BATCH, num_canonical_nodes=1
        )
        loader = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=list)
        super().__init__(loader, len(dataset), batched=True)

    @staticmethod
    def convert(tokens: Path, local: Path) -> None:
        """Write the windows in its format."""
        from streaming import MDSWriter  # noqa: PLC0415  # it may not be there

        with MDSWriter(out=str(local), columns={"x": f"ndarray:uint16:{LENGTH + 1}"}, size_limit=1 << 22) as writer:
            for window in windows(tokens):
                writer.write({"x": window})


class Lit(Stateful):
    """Chunks of tokens, read with its `TokensLoader`.

    Args:
        folder: of the files.
        kind: "documents".
    """

    def __init__(self, folder: str, kind: str) -> None:
        from litdata import StreamingDataLoader, StreamingDataset, TokensLoader  # noqa: PLC0415  # it may not be there

        local = Path(folder, "lit")
        if not local.exists():
            self.convert(Path(folder, kind), local)
        dataset = StreamingDataset(str(local), item_loader=TokensLoader(LENGTH + 1), shuffle=True, seed=0)
        super().__init__(StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=list), len(dataset), batched=True)

    @staticmethod
    def convert(tokens: Path, local: Path) -> None:
        """Write the windows in its format."""
        import torch  # noqa: PLC0415  # it may not be there
        from litdata import TokensLoader  # noqa: PLC0415  # it may not be there
        from litdata.streaming.cache import Cache  # noqa: PLC0415  # it may not be there

        cache = Cache(str(local), chunk_bytes="4MB", item_loader=TokensLoader(LENGTH + 1))
        for number, window in enumerate(windows(tokens)):
            cache[number] = torch.from_numpy(window.astype("int32"))
        cache.done()
        cache.merge()
