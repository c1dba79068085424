"""Checks the data after a restart: digests of 16 stored samples are saved in the state and compared."""

from resumable._data.columns import Columns, shards_of, without_seed
from resumable._data.fingerprint import DataFingerprint

__all__ = ["Columns", "DataFingerprint", "shards_of", "without_seed"]
