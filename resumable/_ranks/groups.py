"""Groups of ranks that a user names: a process group, or one dimension of a device mesh."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from resumable._order.world import World
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Group", "group_of_mesh", "group_of_processes"]

_INSTEAD = "Call wrap on the ranks of it alone, or give world=World(rank, size)."


class Group:
    """Ranks that divide the data among them.

    A copy for another process, such as a worker, knows its world and no more.

    Args:
        by: the option by which it was given.
        world: tells rank and world size in it.
        peers: the numbers, in the default group, of all ranks that read the same stream.
    """

    def __init__(self, by: str, world: Callable[[], World], peers: Callable[[], tuple[int, ...]]) -> None:
        self.by, self.world, self.peers = by, world, peers

    def __reduce__(self) -> tuple[Any, ...]:
        return _known, (self.by, self.world(), self.peers())


def _known(by: str, world: World, peers: tuple[int, ...]) -> Group:
    return Group(by, lambda: world, lambda: peers)


def group_of_processes(_: str, group: Any) -> Group:
    """Return the ranks of a process group.

    Raises:
        ConfigurationError: it is none.
    """
    if isinstance(group, Group):
        return group
    distributed: Any = sys.modules.get("torch.distributed")
    kind = None if distributed is None else getattr(distributed, "ProcessGroup", None)
    outside = distributed is not None and group is getattr(distributed.GroupMember, "NON_GROUP_MEMBER", None)
    if not outside and (kind is None or not isinstance(group, kind)):
        raise ConfigurationError(
            f"process_group must be a process group of torch.distributed, but it is {group!r}.\n"
            "Which ranks divide the data could not be known. Give what torch.distributed.new_group() returned."
        )

    def world() -> World:
        rank = -1 if outside else distributed.get_rank(group)
        if rank < 0:
            raise ConfigurationError(
                f"rank {distributed.get_rank()} is no member of the process_group that wrap was given.\n"
                f"No share of the data belongs to it. {_INSTEAD}"
            )
        return World(rank, distributed.get_world_size(group))

    return Group("process_group", world, lambda: tuple(distributed.get_process_group_ranks(group)))


def group_of_mesh(_: str, mesh: Any) -> Group:
    """Return the ranks along the one dimension of a device mesh; its peers are those of the whole mesh.

    Raises:
        ConfigurationError: it is none, or has more than one dimension.
    """
    if isinstance(mesh, Group):
        return mesh
    if any(not hasattr(mesh, name) for name in ("get_local_rank", "get_coordinate", "ndim", "size")):
        raise ConfigurationError(
            f"mesh must be a DeviceMesh of torch.distributed, but it is {mesh!r}.\n"
            'Which ranks divide the data could not be known. Give for instance mesh["dp"].'
        )
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names or ()
        which = f"the dimensions {', '.join(map(repr, names))}" if names else f"{mesh.ndim} dimensions without names"
        raise ConfigurationError(
            f"the mesh has {which}, and the data are divided along one of them.\n"
            "Ranks along the others read the same data, as parts of one model do. Give that dimension, such as "
            f'mesh["{names[0] if names else "dp"}"]; of several that divide the data, make one: '
            'mesh["replicate", "shard"]._flatten("dp").'
        )

    def world() -> World:
        if mesh.get_coordinate() is None:
            raise ConfigurationError(f"this rank is no part of the mesh.\nNo share of the data is its own. {_INSTEAD}")
        return World(mesh.get_local_rank(), mesh.size())

    return Group("mesh", world, lambda: _ranks_of(mesh))


def _ranks_of(mesh: Any) -> tuple[int, ...]:
    """Return the ranks of the mesh of which this is a dimension, where torch tells it."""
    root = getattr(mesh, "_get_root_mesh", None) or getattr(mesh, "get_root_mesh", None)
    whole = mesh if root is None else root()
    return tuple(whole.mesh.flatten().tolist())
