"""The data after a restart: what 16 of its samples are like as they are stored, noted in the state and compared."""

from resumable._data.columns import Columns
from resumable._data.fingerprint import DataFingerprint
from resumable._data.shards import shards_of, without_seed

__all__ = ["Columns", "DataFingerprint", "shards_of", "without_seed"]
