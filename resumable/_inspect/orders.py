"""The sampler that a state speaks of, made again from what the state says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._distribution import pip_install
from resumable.errors import MissingDependencyError, StateFormatError, StateMismatchError, UnsupportedError
from resumable.samplers import Blocks, Sequential, Shuffle, Uniform
from resumable.samplers.blocks import parse_sizes
from resumable.samplers.mixture import mixture_of
from resumable.samplers.simple import Laps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resumable._state import State
    from resumable.samplers import Sampler

__all__ = ["IN_TURN", "sampler_of"]

IN_TURN = {"torch-distributed-v1", "torch-generator-v1"}
_WAY_OUT = (
    "In a script that wraps the same data, loader.load_state_dict(state) and "
    "loader.sample_indices(epoch=..., step=...) say it without reading any data."
)


def sampler_of(state: State) -> Sampler:
    """Return the sampler of a state.

    Raises:
        UnsupportedError: the state has not all that the order depends on.
        StateMismatchError: this version of torch draws other numbers.
        StateFormatError: what it says makes no sampler.
    """
    spec = {
        key.removeprefix("sampler."): value for key, value in state.fingerprint.items() if key.startswith("sampler.")
    }
    name = str(spec["name"])
    if name == "source-order-v1":
        raise UnsupportedError(
            f"the source of this state, {state.fingerprint.get('backend.source', 'unknown')} "
            f"({state.fingerprint['backend.kind']}), gives its elements in an order of its own.\n"
            "No state says what they are, and neither does one of this source. Indices are known of sources that are "
            "read by index, without a sampler of your own."
        )
    make = _KNOWN.get(name)
    try:
        sampler = None if make is None or "subset" in spec else _by_epoch(make, spec)
    except ImportError as error:
        raise MissingDependencyError(
            f"the order of this state is that of torch, and torch is not installed.\nInstall it: {pip_install('torch')}"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise StateFormatError(
            f"the state is damaged: its sampler is {spec}.\nNo order follows from it. Use another checkpoint."
        ) from error
    if sampler is None:
        raise UnsupportedError(f"{_missing(spec)}\nThe samples cannot be computed from the state alone. {_WAY_OUT}")
    return _check(sampler, spec)


def _by_epoch(make: Callable[[Mapping[str, Any]], Sampler | None], spec: Mapping[str, Any]) -> Sampler | None:
    """Make a sampler, with the epoch in its indices where the state is of packed documents."""
    inner = make(spec)
    return inner if inner is None or "packing" not in spec else Laps(inner, spec["windows"], spec["packing"])


def _check(sampler: Sampler, spec: Mapping[str, Any]) -> Sampler:
    made = sampler.spec()
    if made == spec:
        return sampler
    if "torch" in spec and {**made, "torch": None} == {**spec, "torch": None}:
        raise StateMismatchError(
            "this version of torch draws other numbers by the seed of the state, so the samples would be others.\n"
            f"  in the checkpoint: {spec['torch']}\n  drawn here:        {made['torch']}\n"
            "Use the version of torch that the run was started with."
        )
    other = sorted(name for name in {*made, *spec} if made.get(name) != spec.get(name))
    raise UnsupportedError(
        f"the sampler {spec['name']} of this state depends on more than is known here: {', '.join(other)}.\n"
        f"The samples cannot be computed from the state alone. {_WAY_OUT}"
    )


def _missing(spec: Mapping[str, Any]) -> str:
    if "subset" in spec:
        return f"the state has a digest of the subset's indices ({spec['subset']}), and not the indices."
    if (lacks := _LACKS.get(str(spec["name"]))) is not None:
        what, field = lacks
        return f"the state has a digest of {what} ({spec.get(field)}), and not these."
    return f"the sampler of this state, {spec['name']}, is not one of this package."


_LACKS = {
    "weighted-v1": ("the weights", "weights"),
    "paged-v1": ("the pages of the samples", "pages"),
    "blocks-v1": ("the sizes of the shards", "sizes"),
    "mixture-v1": ("the sources, their weights or their shards", "sources"),
}


def _blocks(spec: Mapping[str, Any]) -> Sampler | None:
    """Make the shuffle in blocks again; None where the sizes of the shards are too many to be in a state."""
    sizes = parse_sizes(spec["sizes"]) if "sizes" in spec else spec["length"]
    if sizes is None:
        return None
    return Blocks(sizes, block=spec["block"], window=spec["window"], seed=spec["seed"])


def _distributed(spec: Mapping[str, Any]) -> Sampler:
    from resumable.backends.torch.torch_order import Seeded  # noqa: PLC0415  # torch comes with it

    return Seeded(spec["length"], spec["torch_seed"])


def _generator(spec: Mapping[str, Any]) -> Sampler:
    """Make the `DataLoader` again whose generator draws what the state says, over numbers."""
    import torch  # noqa: PLC0415  # only for states of torch's order
    from torch.utils.data import DataLoader, RandomSampler  # noqa: PLC0415  # the same

    from resumable.backends.torch.torch_order import Chained  # noqa: PLC0415  # the same

    generator = torch.Generator().manual_seed(spec["torch_seed"])
    numbers = range(spec["samples"])
    sampler = RandomSampler(
        numbers, replacement=bool(spec["replacement"]), num_samples=spec["length"], generator=generator
    )
    lives_on = spec["workers_seed"] == "once"
    loader: DataLoader[Any] = DataLoader(
        numbers,  # type: ignore[arg-type]  # nothing is read from it
        sampler=sampler,
        num_workers=int(lives_on),
        persistent_workers=lives_on,
        generator=None if spec["workers_seed"] == "never" else generator,
    )
    return Chained(loader, sampler, spec["torch_seed"], drawn=False)


_KNOWN: dict[str, Callable[[Mapping[str, Any]], Sampler | None]] = {
    "blocks-v1": _blocks,
    "mixture-v1": mixture_of,
    "sequential-v1": lambda spec: Sequential(spec["length"]),
    "feistel8-v1": lambda spec: Shuffle(
        spec.get("samples", spec["length"]), seed=spec["seed"], num_samples=spec["length"]
    ),
    "uniform-v1": lambda spec: Uniform(spec["samples"], seed=spec["seed"], num_samples=spec["length"]),
    "torch-distributed-v1": _distributed,
    "torch-generator-v1": _generator,
}
