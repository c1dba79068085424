"""Ranks: what one loader knows of the ranks that it divides its data with."""

from __future__ import annotations

import copy
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from resumable._introspection import has
from resumable._order.world import Found, World, find
from resumable._ranks.store import is_initialized
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable._ranks.watch import Watch


__all__ = ["Group", "Ranks", "check_world"]


# ------------------------------------------------------------------ groups
#
# Groups of ranks that a user names: a process group, or one dimension of a device mesh.

_INSTEAD = "Call wrap on the ranks of it alone, or give world=World(rank, size)."


class Group:
    """Ranks that divide the data among them.

    A copy for another process, such as a worker, knows its world and no more.

    Args:
        by: what was given as `world=`, in words.
        world: tells rank and world size in it.
        peers: the numbers, in the default group, of all ranks that read the same stream.
    """

    def __init__(self, by: str, world: Callable[[], World], peers: Callable[[], tuple[int, ...]]) -> None:
        self.by, self.world, self.peers = by, world, peers

    def __reduce__(self) -> tuple[Any, ...]:
        return _known, (self.by, self.world(), self.peers())


def _known(by: str, world: World, peers: tuple[int, ...]) -> Group:
    return Group(by, lambda: world, lambda: peers)


def check_world(name: str, value: Any) -> World | Group:
    """Return what says which ranks divide the data: a `World`, or the ranks of a process group or of a device mesh.

    Raises:
        ConfigurationError: it is something else, or a mesh of more than one dimension.
    """
    if isinstance(value, (World, Group)):
        return value
    distributed: Any = sys.modules.get("torch.distributed")
    kind = getattr(distributed, "ProcessGroup", None)  # none in a build of torch without distributed
    outside = kind is not None and value is getattr(distributed.GroupMember, "NON_GROUP_MEMBER", None)
    if outside or (kind is not None and isinstance(value, kind)):
        return _of_processes(distributed, value, outside=outside)
    if all(has(value, one) for one in ("get_local_rank", "get_coordinate", "ndim", "size")):
        return _of_mesh(value)
    raise ConfigurationError(
        f"{name} must be a World, a DeviceMesh or a ProcessGroup, but it is {value!r}.\n"
        "Which share of the data belongs to this rank could not be known. Use for instance World(rank=0, size=2), "
        'mesh["dp"], or what torch.distributed.new_group() returned.'
    )


def _of_processes(distributed: Any, group: Any, *, outside: bool) -> Group:
    def world() -> World:
        rank = -1 if outside else distributed.get_rank(group)
        if rank < 0:
            raise ConfigurationError(
                f"rank {distributed.get_rank()} is no member of the process group that wrap was given as world=.\n"
                f"No share of the data belongs to it. {_INSTEAD}"
            )
        return World(rank, distributed.get_world_size(group))

    return Group("the process group", world, lambda: tuple(distributed.get_process_group_ranks(group)))


def _of_mesh(mesh: Any) -> Group:
    """Return the ranks along the one dimension of a device mesh; its peers are those of the whole mesh."""
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names or ()
        which = f"the dimensions {', '.join(map(repr, names))}" if names else f"{mesh.ndim} dimensions without names"
        raise ConfigurationError(
            f"the mesh has {which}, and the data are divided along one of them.\n"
            "Ranks along the others read the same data, as parts of one model do. Give that dimension, such as "
            f'world=mesh["{names[0] if names else "dp"}"]; of several that divide the data, make one: '
            'world=mesh["replicate", "shard"]._flatten("dp").'
        )

    def world() -> World:
        if mesh.get_coordinate() is None:
            raise ConfigurationError(f"this rank is no part of the mesh.\nNo share of the data is its own. {_INSTEAD}")
        return World(mesh.get_local_rank(), mesh.size())

    return Group("the mesh", world, lambda: _ranks_of(mesh))


def _ranks_of(mesh: Any) -> tuple[int, ...]:
    """Return the ranks of the mesh of which this is a dimension, where torch tells it."""
    root = getattr(mesh, "_get_root_mesh", None) or getattr(mesh, "get_root_mesh", None)
    whole = mesh if root is None else root()
    return tuple(whole.mesh.flatten().tolist())


# ------------------------------------------------------------------ ranks


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
