"""Names and labels of the sources; what makes them, and what trains from them, is imported in other processes only."""

from __future__ import annotations

from typing import NamedTuple

from resumable.errors import ConfigurationError

__all__ = ["SOURCES", "Source", "find_source"]

_MODULE = "resumable.demo.sources"
_LOOP = "resumable.demo.training"
_LIGHTNING = "resumable.demo.lightning_training"


class Source(NamedTuple):
    """A kind of source.

    Args:
        label: for people.
        make: path of the function that makes the loader, `module:function`; it is given the digits to train on.
        program: module of the training program.
    """

    label: str
    make: str
    program: str = _LOOP


SOURCES = {
    "list": Source("list", f"{_MODULE}:make_sequence"),
    "generator": Source("generator function", f"{_MODULE}:make_generator"),
    "reader": Source("object with state_dict", f"{_MODULE}:make_reader"),
    "map-style": Source("DataLoader", f"{_MODULE}:make_map_style"),
    "map-style-workers": Source("DataLoader, 2 workers", f"{_MODULE}:make_map_style_workers"),
    "own-sampler": Source("DataLoader, own sampler", f"{_MODULE}:make_own_sampler"),
    "stateful-stream": Source("IterableDataset with state, 2 workers", f"{_MODULE}:make_stateful_stream"),
    "stream": Source("IterableDataset, 2 workers", f"{_MODULE}:make_stream"),
    "lightning": Source("Lightning, DataLoader", f"{_MODULE}:make_plain", _LIGHTNING),
    "lightning-stream": Source(
        "Lightning, IterableDataset with state, 2 workers", f"{_MODULE}:make_stateful_stream", _LIGHTNING
    ),
}


def find_source(name: str) -> Source:
    """Return the source of a name, or the user's own for `module:function`.

    Raises:
        ConfigurationError: there is none of that name.
    """
    if ":" in name:
        return Source(name, name)
    if name not in SOURCES:
        raise ConfigurationError(
            f"there is no source {name!r}.\nUse {', '.join(SOURCES)}, or module:function for one of your own: a "
            "function that takes the digits and returns what resumable.wrap gave."
        )
    return SOURCES[name]
