"""The Loader: `wrap` makes it, iterators read it, `Progress` knows its position, and the registry knows the sources."""

from __future__ import annotations

from resumable.loader.loader import Loader

__all__ = ["Loader"]
