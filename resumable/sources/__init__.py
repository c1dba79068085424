"""Sources that are made of others or of files, and say what an epoch of them is."""

from resumable.sources._tar.decode import image
from resumable.sources.mix import Mix, mix
from resumable.sources.packed import Packed, cu_seqlens
from resumable.sources.parquet import Parquet, Row
from resumable.sources.tars import Tars
from resumable.sources.tokens import Tokens

__all__ = ["Mix", "Packed", "Parquet", "Row", "Tars", "Tokens", "cu_seqlens", "image", "mix"]
