"""Sources that are made of others or of files, and say what an epoch of them is."""

from resumable.sources.mix import Mix, mix
from resumable.sources.packed import Packed, cu_seqlens
from resumable.sources.parquet import Parquet, Row
from resumable.sources.tokens import Tokens

__all__ = ["Mix", "Packed", "Parquet", "Row", "Tokens", "cu_seqlens", "mix"]
