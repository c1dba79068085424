"""Sources that are made of others, and carry the order in which they are read."""

from resumable.sources.mix import Mix, mix

__all__ = ["Mix", "mix"]
