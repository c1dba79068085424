"""Seed and name of a stream: who said them, and how both together set its order and its randomness apart from others.

A seed that was given to `wrap` counts; else that of the wrapped loader's sampler or generator; else that of torch's
global generator, if somebody set it; else 0. It is in the state, and a loader that was given none takes the state's.
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
_LARGEST = 1 << 32  # of seeds that somebody set: an unseeded process, or generator, has more bits
_LIGHTNING = {"pytorch_lightning", "lightning", "lightning_fabric"}
_TORCHS = ("torch.utils.data", "torchdata.stateful_dataloader")
_PATIENCE = timedelta(seconds=10)

_log = getLogger("resumable")
_agreements: Counter[str] = Counter()  # how many seeds the ranks have agreed on, by the names of the streams


class Origin(NamedTuple):
    """Who said the seed and the name of a stream; what `wrap` was not given, a loaded state may say."""

    seed: str = GIVEN
    name: str = GIVEN


def salted(seed: int, name: str) -> int:
    """Return the seed from which a stream computes order and keys: of 64 bits, or without a name the seed itself."""
    return int(derive(seed, name, words=1, purpose=b"name")[0]) if name else seed


def find_seed(source: Any, given: int | None, name: str, world: World | Group | None) -> tuple[int, str]:
    """Return the seed of a stream, and who said it.

    Args:
        source: what is wrapped.
        given: what `wrap` was given.
        name: the stream's, by which the ranks know which of their loaders they agree on.
        world: as it was given.

    Raises:
        ConfigurationError: a seed was given, and the source's sampler or generator has another one; or rank 0 does not
            say its own.
    """
    own, by = next(_seeds_of(source), (None, ""))
    if given is not None:
        if own not in {None, given} and (own or by != _SAMPLER):  # 0 is what a DistributedSampler has by default
            raise ConfigurationError(
                f"seed={given} was given, and {by} of what is wrapped has the seed {own}.\n"
                "One of them would have no effect. Give both the same one, or none to wrap: then the other one counts."
            )
        return given, GIVEN
    if own is not None:
        return own, by
    seed, by = _of_process()
    if seed is None:
        return 0, "the default"
    return _agree(seed, by, name, world)


def refuse_unagreed(by: str, seed: int, name: str, world: World | Group | None) -> None:
    """Refuse to divide a stream by a seed that each rank took from its own generator, unless rank 0 has the same.

    Raises:
        ConfigurationError: it has another one; or there is no process group, by which it could be known.
    """
    ranks = (world if isinstance(world, World) else find()).size
    if by not in {_TORCH, _LIGHTNINGS} or ranks == 1:
        return
    first, who = _agree(seed, by, name, world)
    if who != _RANK_0:
        raise ConfigurationError(
            f"{ranks} ranks divide one order, and its seed was given to none of them: this one took {seed}, which "
            f"{by} had set.\n{_OTHERWISE} Give wrap(..., seed=...), or call wrap after "
            "torch.distributed.init_process_group, so that they can agree."
        )
    if first != seed:
        raise ConfigurationError(
            f"this rank took the seed {seed} from {by}, and rank 0 took {first}.\n{_OTHERWISE} Give "
            "wrap(..., seed=...), or call wrap after torch.distributed.init_process_group: then rank 0's counts."
        )


_OTHERWISE = (
    "Ranks with another one would augment otherwise and, where the order is shuffled, read samples twice and leave "
    "others out."
)


def _seeds_of(source: Any) -> Iterator[tuple[int, str]]:
    """Yield the seeds that a DataLoader has been given, the sampler's first."""
    data = sys.modules.get("torch.utils.data")
    if data is None or not is_a(source, data.DataLoader):
        return
    layers = [source.sampler, source.batch_sampler, ask(source.batch_sampler, "sampler")]
    for layer in layers:
        if is_a(layer, data.DistributedSampler) and type(seed := ask(layer, "seed")) is int:
            yield seed, _SAMPLER
    known = [layer for layer in layers if module_of(type(layer)).startswith(_TORCHS)]  # a user's own keeps its order
    for holder in (*known, source):
        generator: Any = attributes_of(holder).get("generator")
        if issubclass(type(generator), sys.modules["torch"].Generator) and generator.initial_seed() < _LARGEST:
            yield generator.initial_seed(), _GENERATOR


def _of_process() -> tuple[int | None, str]:
    """Return what Lightning's `seed_everything` left for its own samplers, else torch's seed; and who said it."""
    if sys.modules.keys() & _LIGHTNING and os.environ.get("PL_GLOBAL_SEED", "").isdecimal():
        return int(os.environ["PL_GLOBAL_SEED"]), _LIGHTNINGS
    torch = sys.modules.get("torch")
    seed = None if torch is None else int(torch.initial_seed())
    return (seed if seed is not None and seed < _LARGEST else None), _TORCH


def _agree(seed: int, by: str, name: str, world: World | Group | None) -> tuple[int, str]:
    """Return the seed of rank 0, where there is a process group; its store tells it, so that no rank waits for others.

    Each rank counts the loaders of a name, as all of them make the same ones in the same order.
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
                    f"rank 0 did not say the seed of {which}: {problem}.\nThis rank would read another order. Make the "
                    "same loaders in the same order on all ranks, or give wrap(..., seed=...)."
                ) from problem
            _log.warning("waiting for rank 0 to wrap %s, and to say its seed", which)
    raise AssertionError
