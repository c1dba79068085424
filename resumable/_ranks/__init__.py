"""What the ranks of a run know and tell of each other, through the key-value store of their process group."""

from resumable._ranks.ranks import Group, Ranks, check_world
from resumable._ranks.watch import Watch

__all__ = ["Group", "Ranks", "Watch", "check_world"]
