"""The `Loader`: `wrap` builds it, iterators read it, `Progress` tracks its position, `registry` lists the sources."""

from __future__ import annotations

from resumable.loader.loader import Loader

__all__ = ["Loader"]
