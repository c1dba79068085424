"""Sources that read files or combine other sources, and define what an epoch is."""

from resumable.sources.mix import Mix, mix
from resumable.sources.packed import Packed, Piece, cu_seqlens
from resumable.sources.parquet import Parquet, Row
from resumable.sources.tars import Tars, image
from resumable.sources.tokens import Span, Tokens

__all__ = ["Mix", "Packed", "Parquet", "Piece", "Row", "Span", "Tars", "Tokens", "cu_seqlens", "image", "mix"]
