"""Seed and name of a stream: their origin, and how they make its order and randomness independent of others.

A seed passed to `wrap` comes first, then the seed of the wrapped loader's sampler or generator, then PyTorch's global
seed if it was set, else 0. The state includes it, and a loader without its own seed uses the state's.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from datetime import timedelta
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._introspection import ask, attributes_of, is_a, module_of
from resumable._order.world import World, find
from resumable._randomness.keyed import derive
from resumable._ranks.store import find_store, is_initialized
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable._ranks import Group


__all__ = ["GIVEN", "STATE", "Origin", "find_seed", "refuse_unagreed", "salted"]


GIVEN = "wrap"
STATE = "the state"
_TORCH = "torch.manual_seed"
_LIGHTNINGS = "Lightning's seed_everything"
_RANK_0 = "torch.manual_seed of rank 0"
_SAMPLER, _GENERATOR = "the sampler", "the generator"
_LARGEST = 1 << 32  # seeds that a user sets are below; an unseeded process or generator has more bits
_LIGHTNING = {"pytorch_lightning", "lightning", "lightning_fabric"}
_TORCHS = ("torch.utils.data", "torchdata.stateful_dataloader")
_PATIENCE = timedelta(seconds=10)

_log = getLogger("resumable")
_agreements: Counter[str] = Counter()  # from the name of a stream to the number of seeds that the ranks have agreed on


class Origin(NamedTuple):
    """Who set the seed and the name of a stream. A loaded state may set what `wrap` did not get."""

    seed: str = GIVEN
    name: str = GIVEN


def salted(seed: int, name: str) -> int:
    """Return the seed for a stream's order and keys, with 64 bits; without a name, it is the seed itself."""
    return int(derive(seed, name, words=1, purpose=b"name")[0]) if name else seed


def find_seed(source: Any, given: int | None, name: str, world: World | Group | None) -> tuple[int, str]:
    """Return the seed of a stream, and where it is from.

    Args:
        source: the wrapped source.
        given: the seed passed to `wrap`.
        name: of the stream. With it, the ranks know which of their loaders they agree on.
        world: as passed to `wrap`.

    Raises:
        ConfigurationError: `wrap` got a seed, and the source's sampler or generator has a different one; or rank 0 does
            not post its own.
    """
    own, by = next(_seeds_of(source), (None, ""))
    if given is not None:
        if own not in {None, given} and (own or by != _SAMPLER):  # 0 is the default of a DistributedSampler
            raise ConfigurationError(
                f"wrap got seed={given}, but {by} of the source has the seed {own}.\n"
                "One of them would have no effect. Use the same seed for both, or remove seed= to use the source's."
            )
        return given, GIVEN
    if own is not None:
        return own, by
    seed, by = _of_process()
    if seed is None:
        return 0, "the default"
    return _agree(seed, by, name, world)


def refuse_unagreed(by: str, seed: int, name: str, world: World | Group | None) -> None:
    """Reject a seed that each rank took from its own RNG, unless rank 0 has the same.

    Raises:
        ConfigurationError: rank 0 has a different seed; or a process group is missing, and nothing can be compared.
    """
    ranks = (world if isinstance(world, World) else find()).size
    if by not in {_TORCH, _LIGHTNINGS} or ranks == 1:
        return
    first, who = _agree(seed, by, name, world)
    if who != _RANK_0:
        raise ConfigurationError(
            f"{ranks} ranks divide one order, but none of them was passed its seed: this rank took {seed} from {by}.\n"
            f"{_OTHERWISE} Pass wrap(..., seed=...), or call wrap after torch.distributed.init_process_group, so they "
            "can agree on one."
        )
    if first != seed:
        raise ConfigurationError(
            f"this rank took the seed {seed} from {by}, but rank 0 took {first}.\n{_OTHERWISE} Pass wrap(..., "
            "seed=...), or call wrap after torch.distributed.init_process_group to use rank 0's seed."
        )


_OTHERWISE = (
    "With different seeds, ranks would augment differently and, if the order is shuffled, read some samples twice and "
    "others never."
)


def _seeds_of(source: Any) -> Iterator[tuple[int, str]]:
    """Yield the seeds that were passed to a DataLoader, the sampler's first."""
    data = sys.modules.get("torch.utils.data")
    if data is None or not is_a(source, data.DataLoader):
        return
    layers = [source.sampler, source.batch_sampler, ask(source.batch_sampler, "sampler")]
    for layer in layers:
        if is_a(layer, data.DistributedSampler) and type(seed := ask(layer, "seed")) is int:
            yield seed, _SAMPLER
    known = [layer for layer in layers if module_of(type(layer)).startswith(_TORCHS)]  # a custom one keeps its order
    for holder in (*known, source):
        generator: Any = attributes_of(holder).get("generator")
        if issubclass(type(generator), sys.modules["torch"].Generator) and generator.initial_seed() < _LARGEST:
            yield generator.initial_seed(), _GENERATOR


def _of_process() -> tuple[int | None, str]:
    """Return the seed that Lightning's `seed_everything` set for its own samplers, else PyTorch's; and its origin."""
    if sys.modules.keys() & _LIGHTNING and os.environ.get("PL_GLOBAL_SEED", "").isdecimal():
        return int(os.environ["PL_GLOBAL_SEED"]), _LIGHTNINGS
    torch = sys.modules.get("torch")
    seed = None if torch is None else int(torch.initial_seed())
    return (seed if seed is not None and seed < _LARGEST else None), _TORCH


def _agree(seed: int, by: str, name: str, world: World | Group | None) -> tuple[int, str]:
    """Return the seed of rank 0 if there is a process group. It is read from the store, so no collective is needed.

    Each rank counts the loaders with a name, because all ranks make the same ones in the same order.
    """
    alone = isinstance(world, World) and world.size == 1
    found = find() if is_initialized() and not alone else None
    if found is None or found.size == 1:
        return seed, by
    number = _agreements[name]
    _agreements[name] += 1
    key = f"resumable/seed/{number}/{name}"
    store: Any = find_store()
    if found.rank == 0:
        store.set(key, str(seed))
    else:
        _wait(store, key, name)
        seed = int(store.get(key))
    return seed, _RANK_0


def _wait(store: Any, key: str, name: str) -> None:
    error = sys.modules["torch.distributed"].DistStoreError
    waits: list[Callable[[], None]] = [lambda: store.wait([key], _PATIENCE), lambda: store.wait([key])]
    for number, wait in enumerate(waits):
        try:
            return wait()
        except error as problem:
            which = f"the loader {name!r}" if name else "a loader without a name"
            if number == len(waits) - 1:
                raise ConfigurationError(
                    f"rank 0 did not post the seed of {which}: {problem}.\nThis rank would read a different order. "
                    "Wrap the same loaders in the same order on all ranks, or pass wrap(..., seed=...)."
                ) from problem
            _log.warning("waiting for rank 0 to wrap %s and post its seed", which)
    raise AssertionError
