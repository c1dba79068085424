"""The data after a restart: what 16 of its samples are like as they are stored, noted in the state and compared."""

from resumable._data.columns import Columns
from resumable._data.noted import Noted
from resumable._data.shards import shards_of, without_seed

__all__ = ["Columns", "Noted", "shards_of", "without_seed"]
