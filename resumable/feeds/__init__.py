"""Feeds: how a Loader gets its batches from a backend of each kind."""

from resumable.feeds.base import Feed
from resumable.feeds.elements import ElementFeed
from resumable.feeds.indexed import IndexedFeed

__all__ = ["ElementFeed", "Feed", "IndexedFeed"]
