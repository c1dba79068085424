"""Ranks: what one loader knows of the ranks that it divides its data with."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING

from resumable._order.world import Found, World, find
from resumable._ranks.store import is_initialized
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable._ranks.groups import Group
    from resumable._ranks.watch import Watch

__all__ = ["Ranks"]


class Ranks:
    """Rank and world size of a loader: found out when they are asked for, and fixed once its data were divided by them.

    A copy for another process, such as a worker, knows them as they are now.

    Attributes:
        watch: compares the loader with those of other ranks.
        together: the ranks stand at the same place. An integration says no that itself brings them together again.
        catching_up: this one does so just now, alone.
    """

    def __init__(self) -> None:
        self._fixed: Found | None = None
        self._suggested: World | None = None
        self.watch: Watch | None = None
        self.together, self.catching_up = True, False

    def __getstate__(self) -> dict[str, Found | World | None]:
        return {"_fixed": self._fixed, "_suggested": self._suggested}

    def __setstate__(self, state: dict[str, Found | World | None]) -> None:
        self.__init__()  # type: ignore[misc]  # as a new one
        self.__dict__ |= state

    def of_another_loader(self) -> Ranks:
        """Return the ranks of another loader in the same world; it is compared with its own kind."""
        return copy.copy(self)

    def find(self, given: World | Group | None) -> Found:
        """Return the rank, and what said so: what was given, or what it was fixed to, or what is there now."""
        if isinstance(given, World):
            return Found(given.rank, given.size, "as given by world= or the sampler")
        return self._fixed or self._now(given)

    def _now(self, group: Group | None) -> Found:
        if group is None:
            by, world = "what trains", self._suggested
        else:
            by, world = f"{group.by} given by world=", group.world()
        return find() if world is None else Found(world.rank, world.size, by)

    def suggest(self, world: World) -> None:
        """Take over how what trains divides data, such as among those ranks alone that have a whole model together.

        It counts where nothing was given to `wrap`.
        """
        self._suggested = world

    def fix(self, given: World | Group | None) -> None:
        """Fix the world, as the data are divided by it from now on; or compare it with what it was fixed to.

        Raises:
            ConfigurationError: it is another one.
        """
        if not isinstance(given, World) and self._fixed is None:
            self._fixed = self._now(given)
        else:
            self.check(given)

    def check(self, given: World | Group | None) -> None:
        """Refuse to go on in another world than that by which the data were divided.

        Where the process group is gone since, as at the end of a script, nothing says that it is another one.

        Raises:
            ConfigurationError: it is another one.
        """
        fixed = self._fixed
        if given is not None or fixed is None:
            return
        if fixed.by == "torch.distributed" and not is_initialized():
            return
        now = self._now(None)
        if (now.rank, now.size) == (fixed.rank, fixed.size) or now == Found():
            return
        raise ConfigurationError(
            "the ranks are others than when this loader was first used.\n"
            f"  then: rank {fixed.rank} of {fixed.size} ({fixed.by})\n"
            f"  now:  rank {now.rank} of {now.size} ({now.by})\n"
            "Its data are divided among the ranks of then: samples would be read twice, or never. Call wrap, or read "
            "the first batch and load the state, after torch.distributed.init_process_group(). If ranks come or go "
            "while this process goes on, load a state that was taken before: then they are found out again."
        )

    @contextmanager
    def found_again(self) -> Iterator[None]:
        """Forget the fixed world; if what is inside fails, it is fixed as before."""
        before, self._fixed = self._fixed, None
        try:
            yield
        except BaseException:
            self._fixed = before
            raise
