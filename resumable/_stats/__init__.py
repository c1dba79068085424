"""What `loader.stats()` tells: waits, reading, the queue of worker processes, and sizes."""

from resumable._stats.meter import Made, Meter, Queue
from resumable._stats.numbers import LoaderStats, between
from resumable._stats.stopwatch import Stopwatch

__all__ = ["LoaderStats", "Made", "Meter", "Queue", "Stopwatch", "between"]
