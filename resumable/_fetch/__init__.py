"""Fetchers: they read the batches of a Loader from a backend, with one class for each kind of backend."""

from resumable._fetch.elements import ElementFetcher
from resumable._fetch.failures import note_place
from resumable._fetch.fetcher import Changes, Fetcher
from resumable._fetch.indexed import IndexedFetcher
from resumable._fetch.stream import Owner, Stream

__all__ = ["Changes", "ElementFetcher", "Fetcher", "IndexedFetcher", "Owner", "Stream", "note_place"]
