"""Groups of ranks that a user names: a process group, or one dimension of a device mesh."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from resumable._introspection import has
from resumable._order.world import World
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Group", "check_world"]

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
