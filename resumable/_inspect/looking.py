"""`resumable.inspect`: what a checkpoint holds, and where the data stood."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from resumable._inspect.reading import Content, Step, open_checkpoint
from resumable._inspect.states import LoaderState, describe_states, find_states
from resumable._inspect.values import File, Opaque, Tensor, walk

__all__ = ["Inspection", "Part", "inspect"]


@dataclass(frozen=True)
class Part:
    """A part at the top level of a checkpoint.

    Args:
        name: its key.
        type: of the value.
        tensors: how many are in it.
        bytes: of its tensors; of a file that is no checkpoint, its size.
        values: how many numbers, strings and the like are in it.
        objects: the classes of objects that were not made, in alphabetical order.
        problem: why it could not be read; empty where it could.
    """

    name: str
    type: str
    tensors: int = 0
    bytes: int = 0
    values: int = 0
    objects: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Inspection:
    """What is in a checkpoint.

    Args:
        path: as it was given.
        kind: of checkpoint, in words.
        size: in bytes.
        step: of a CheckpointStore; None elsewhere.
        steps: all those of a store.
        states: those of Loaders.
        parts: at the top level.
        notes: what else is to be said, a sentence each.
    """

    path: str
    kind: str
    size: int
    step: int | None
    steps: tuple[Step, ...]
    states: tuple[LoaderState, ...]
    parts: tuple[Part, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as `resumable inspect --json` prints them."""
        return {**asdict(self), "steps": [one._asdict() for one in self.steps]}


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Look into a checkpoint, and at the states of Loaders in it. Nothing of it is executed, and no file is written.

    It may be of `CheckpointStore` (the folder of a run, or of a step), `torch.save`, Lightning,
    `torch.distributed.checkpoint`, the Hugging Face Trainer, Accelerate, safetensors, or JSON.

    Args:
        path: of a file or folder; or a URL that fsspec knows.

    Raises:
        ConfigurationError: it is a flight recorder's folder, or a URL that fsspec does not know.
        CheckpointNotFoundError: there is nothing, or nothing in it.
        CorruptCheckpointError: it is cut or damaged.
        CheckpointError: it is no checkpoint, or could not be read.
    """
    with open_checkpoint(path) as content:
        states = describe_states(find_states(content.tree))
        return Inspection(
            os.fspath(path),
            content.kind,
            content.size,
            content.step,
            content.steps,
            states,
            _parts(content),
            content.notes,
        )


def _parts(content: Content) -> tuple[Part, ...]:
    tree = content.tree
    return (
        tuple(_part(str(key), value) for key, value in tree.items()) if isinstance(tree, dict) else (_part("", tree),)
    )


def _part(name: str, value: Any) -> Part:
    if isinstance(value, File):
        return Part(name, "file", bytes=value.size, problem=value.why)
    tensors, values, objects = {}, 0, set()
    for _, part in walk(value):
        if isinstance(part, Tensor):
            tensors[id(part)] = part
        elif isinstance(part, Opaque):
            objects.add(part.kind)
        elif not isinstance(part, dict | list | tuple):
            values += 1
    size = sum(one.nbytes for one in tensors.values())
    return Part(name, _type_of(value), len(tensors), size, values, tuple(sorted(objects)))


def _type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return value.kind if isinstance(value, Opaque) else type(value).__name__
