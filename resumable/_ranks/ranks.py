"""The ranks that a loader divides its data among."""

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
# Groups of ranks that a user passes: a process group, or one dimension of a device mesh.

_INSTEAD = "Call wrap only on ranks that belong to it, or pass world=World(rank, size)."


class Group:
    """Ranks that divide the data among them.

    A copy for a different process, such as a worker, only knows its world.

    Args:
        by: describes the value of `world=`.
        world: returns rank and world size in it.
        peers: returns the numbers, in the default group, of all ranks that read the same stream.
    """

    def __init__(self, by: str, world: Callable[[], World], peers: Callable[[], tuple[int, ...]]) -> None:
        self.by, self.world, self.peers = by, world, peers

    def __reduce__(self) -> tuple[Any, ...]:
        return _known, (self.by, self.world(), self.peers())


def _known(by: str, world: World, peers: tuple[int, ...]) -> Group:
    return Group(by, lambda: world, lambda: peers)


def check_world(name: str, value: Any) -> World | Group:
    """Return the ranks that divide the data: a `World`, or the ranks of a process group or of a device mesh.

    Raises:
        ConfigurationError: it is something else, or a mesh of more than one dimension.
    """
    if isinstance(value, (World, Group)):
        return value
    distributed: Any = sys.modules.get("torch.distributed")
    kind = getattr(distributed, "ProcessGroup", None)  # missing in a build of PyTorch without distributed
    outside = kind is not None and value is getattr(distributed.GroupMember, "NON_GROUP_MEMBER", None)
    if outside or (kind is not None and isinstance(value, kind)):
        return _of_processes(distributed, value, outside=outside)
    if all(has(value, one) for one in ("get_local_rank", "get_coordinate", "ndim", "size")):
        return _of_mesh(value)
    raise ConfigurationError(
        f"{name} must be a World, a DeviceMesh or a ProcessGroup, but it is {value!r}.\n"
        "This rank's share of the data would be unknown. For example, use World(rank=0, size=2), "
        'mesh["dp"], or the result of torch.distributed.new_group().'
    )


def _of_processes(distributed: Any, group: Any, *, outside: bool) -> Group:
    def world() -> World:
        rank = -1 if outside else distributed.get_rank(group)
        if rank < 0:
            raise ConfigurationError(
                f"rank {distributed.get_rank()} is not a member of the process group that was passed to wrap as "
                "world=.\n"
                f"It has no share of the data. {_INSTEAD}"
            )
        return World(rank, distributed.get_world_size(group))

    return Group("the process group", world, lambda: tuple(distributed.get_process_group_ranks(group)))


def _of_mesh(mesh: Any) -> Group:
    """Return the ranks along the one dimension of a device mesh; its peers are all ranks of the complete mesh."""
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names or ()
        which = f"the dimensions {', '.join(map(repr, names))}" if names else f"{mesh.ndim} dimensions without names"
        raise ConfigurationError(
            f"the mesh has {which}, but the data can be divided only along one.\n"
            "Ranks along the others read the same data, as the parts of one model do. Pass that dimension, for example "
            f'world=mesh["{names[0] if names else "dp"}"]. If several dimensions divide the data, flatten them: '
            'world=mesh["replicate", "shard"]._flatten("dp").'
        )

    def world() -> World:
        if mesh.get_coordinate() is None:
            raise ConfigurationError(f"this rank is not part of the mesh.\nIt has no share of the data. {_INSTEAD}")
        return World(mesh.get_local_rank(), mesh.size())

    return Group("the mesh", world, lambda: _ranks_of(mesh))


def _ranks_of(mesh: Any) -> tuple[int, ...]:
    """Return the ranks of the mesh that has this dimension, if PyTorch has a method for it."""
    from resumable._torch_private import mesh_of_all_ranks  # noqa: PLC0415  # PyTorch is loaded: there is a mesh

    return tuple(mesh_of_all_ranks(mesh).mesh.flatten().tolist())


# ------------------------------------------------------------------ ranks


class Ranks:
    """Rank and world size of a loader: detected when they are needed, and fixed once the data were divided.

    A copy for a different process, such as a worker, has their current values.

    Attributes:
        watch: compares the loader with the same loader on other ranks.
        together: the ranks are at the same position. False if an integration brings them together again itself.
        catching_up: this rank is doing so now, alone.
    """

    def __init__(self) -> None:
        self._fixed: Found | None = None
        self._suggested: World | None = None
        self.watch: Watch | None = None
        self.together, self.catching_up = True, False

    def __getstate__(self) -> dict[str, Found | World | None]:
        return {"_fixed": self._fixed, "_suggested": self._suggested}

    def __setstate__(self, state: dict[str, Found | World | None]) -> None:
        self.__init__()  # type: ignore[misc]  # like a new one
        self.__dict__ |= state

    def of_another_loader(self) -> Ranks:
        """Return the ranks for a different loader in the same world, with a separate watch."""
        return copy.copy(self)

    def find(self, given: World | Group | None) -> Found:
        """Return the rank and how it was detected: as passed, as fixed before, or from the current environment."""
        if isinstance(given, World):
            return Found(given.rank, given.size, "set by world= or the sampler")
        return self._fixed or self._now(given)

    def _now(self, group: Group | None) -> Found:
        if group is None:
            by, world = "the trainer", self._suggested
        else:
            by, world = f"{group.by} passed as world=", group.world()
        return find() if world is None else Found(world.rank, world.size, by)

    def suggest(self, world: World) -> None:
        """Use the trainer's division of the data, for example only among ranks that each hold a complete model.

        It is used if nothing was passed to `wrap`.
        """
        self._suggested = world

    def fix(self, given: World | Group | None) -> None:
        """Fix the world, because the data are divided by it from now on; or compare it with the fixed one.

        Raises:
            ConfigurationError: it has changed.
        """
        if not isinstance(given, World) and self._fixed is None:
            self._fixed = self._now(given)
        else:
            self.check(given)

    def check(self, given: World | Group | None) -> None:
        """Raise if the world differs from the one that the data were divided in.

        If the process group is gone, as at the end of a script, the world counts as unchanged.

        Raises:
            ConfigurationError: it has changed.
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
            "the ranks have changed since this loader was first used.\n"
            f"  then: rank {fixed.rank} of {fixed.size} ({fixed.by})\n"
            f"  now:  rank {now.rank} of {now.size} ({now.by})\n"
            "Its data are divided among the earlier ranks, so samples would be read twice, or never. Call wrap, or "
            "read the first batch and load the state, after torch.distributed.init_process_group(). If ranks come or "
            "go while this process keeps running, load an earlier state: then the ranks are detected again."
        )

    @contextmanager
    def found_again(self) -> Iterator[None]:
        """Forget the fixed world; restore it if the code inside fails."""
        before, self._fixed = self._fixed, None
        try:
            yield
        except BaseException:
            self._fixed = before
            raise
