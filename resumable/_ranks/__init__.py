"""Agreement between the ranks of a run, through the key-value store of their process group."""

from resumable._ranks.ranks import Group, Ranks, check_world
from resumable._ranks.watch import Watch

__all__ = ["Group", "Ranks", "Watch", "check_world"]
