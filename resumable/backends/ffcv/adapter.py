"""Adapts an FFCV Loader: its order, its batches, and which of its operations can be made reproducible."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from ffcv.loader import Loader
from ffcv.pipeline.compiler import Compiler
from ffcv.traversal_order import QuasiRandom, Random, Sequential

from resumable import samplers
from resumable.backends.ffcv.identity import Source, pages_of_samples, warn_of_batch
from resumable.backends.ffcv.keyed import own_generators
from resumable.backends.ffcv.reading import FFCVBackend
from resumable.errors import ConfigurationError, PromiseWarning, UnsupportedError

if TYPE_CHECKING:
    from resumable._options import Options
    from resumable.backends.ffcv.pipeline import Pipeline
    from resumable.samplers import Sampler


__all__ = ["adapt", "find_order"]


def adapt(thing: Any, options: Options) -> tuple[FFCVBackend, Options] | None:
    """Adapt a Loader, or the result of `source`. Returns None if a subclass overrides the iteration."""
    source = thing if isinstance(thing, Source) else Source(thing)
    loader = source.loader
    if not isinstance(loader, Loader) or type(loader).__iter__ is not Loader.__iter__:
        return None
    options.refuse(
        "an FFCV Loader",
        batch_size="Pass it to the Loader.",
        shuffle="Pass order= to the Loader.",
        transform="Add an operation to the Loader's pipelines.",
        collate="FFCV makes complete batches.",
        shard="Samples are divided among the ranks by index.",
    )
    options.refuse_passed("an FFCV Loader", 'Its compiled operations are seeded per sample with randomness="sample".')
    options = replace(options, randomness=_randomness(source, options))
    backend = FFCVBackend(source, options)
    if options.randomness != "off":
        _check_randomness(source, options, backend.pipeline)
    window = source.window or 2 * loader.batch_size * options.find_world().size
    return backend, replace(
        options,
        batch_size=loader.batch_size,
        sampler=options.sampler or find_order(loader, options.stream_seed, window),
    ).with_defaults(tail="drop" if loader.drop_last else "partial")


def _randomness(source: Source, options: Options) -> Any:
    if not source.keyed and options.randomness not in {None, "off"}:
        raise ConfigurationError(
            f"keyed=False was passed to source(), and randomness={options.randomness!r} to wrap().\n"
            "keyed=False leaves the randomness to FFCV, but randomness= makes it reproducible. Remove one of them."
        )
    if not source.keyed or options.randomness == "off":
        return "off"
    if not Compiler.is_enabled:
        raise UnsupportedError(
            "FFCV's compiler is switched off (Compiler.set_enabled(False)), so operations use the random generators of "
            'the training process.\nThey could not be seeded. Switch it on, or pass wrap(..., randomness="off").'
        )
    return options.with_defaults().randomness


def _check_randomness(source: Source, options: Options, pipeline: Pipeline) -> None:
    for each in pipeline.planned:
        operation, mode = each.place.operation, each.plan.mode
        name = type(getattr(operation, "module", operation)).__qualname__
        kept = own_generators(operation, each.function) if mode in {"late", "batch"} else []
        if kept and type(operation) not in source.modes:
            _refuse(source, name, kept)
        elif options.randomness != "sample":
            continue
        elif mode == "mixup" or (mode == "batch" and not each.plan.known):
            warn_of_batch(name, mode, stacklevel=5)
        elif mode == "late" and not each.plan.known:
            pipeline.watched[each.place.node.id] = name


def _refuse(source: Source, name: str, kept: list[str]) -> None:
    told = (
        f"{name} uses its own random generators ({', '.join(kept)}), which cannot be seeded from outside.\n"
        "A resumed run would get different augmentations than an uninterrupted one. Let it use the global generators,"
    )
    if source.on_nondeterministic == "error":
        raise UnsupportedError(
            f'{told} or accept it: wrap(source(loader, on_nondeterministic="warn")), with source from '
            "resumable.backends.ffcv."
        )
    warnings.warn(f"{told} or ignore this warning.", PromiseWarning, stacklevel=6)


def find_order(loader: Loader, seed: int, window: int) -> Sampler:
    """Return the order of a loader, and of its `indices` if it has any.

    Args:
        loader: FFCV's.
        seed: of our loader; FFCV's own seed is ignored.
        window: number of pages that `QUASI_RANDOM` shuffles together.

    Raises:
        UnsupportedError: the order is custom.
    """
    length = int(loader.reader.num_samples)
    indices = np.asarray(loader.indices).astype(np.int64)
    inner = _inner(loader, indices, seed, window)
    if np.array_equal(indices, np.arange(length)):
        return inner
    return samplers.Subset(indices, inner)


def _inner(loader: Loader, indices: np.ndarray, seed: int, window: int) -> Sampler:
    order, count = type(loader.traversal_order), len(indices)
    if order is Sequential:
        return samplers.Sequential(count)
    if order is Random:
        return samplers.Shuffle(count, seed=seed)
    if order is QuasiRandom:
        pages = pages_of_samples(loader.reader)[indices]
        return samplers.PagedShuffle(pages, window=window, seed=seed)
    raise UnsupportedError(
        f"the Loader has a custom order, {order.__qualname__}, which only produces complete epochs.\n"
        "It may depend on earlier epochs, so a resumed run could not find its position. Pass the order as "
        "wrap(..., sampler=...), a function of the position, and set order=OrderOption.SEQUENTIAL in the Loader."
    )
