"""The data after a restart: what 16 of its samples are like as they are stored, noted in the state and compared."""

from resumable._data.columns import Columns, shards_of, without_seed
from resumable._data.fingerprint import DataFingerprint

__all__ = ["Columns", "DataFingerprint", "shards_of", "without_seed"]
