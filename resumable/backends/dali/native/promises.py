"""Warnings of promises that DALI's own configuration does not keep, such as every sample exactly once in an epoch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from resumable.backends.dali.native.private import operators, pipelines_of, settings_of
from resumable.errors import ConfigurationError, PromiseWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable._options import Options

__all__ = ["check_shards", "length_of_epoch", "shards_of", "warn_of_lists", "warn_of_order", "warn_of_samples"]

_EXACT = (
    "Every sample comes once with pad_last_batch=True in the reader, and reader_name=... and "
    "last_batch_policy=LastBatchPolicy.PARTIAL in the iterator."
)


def warn_of_samples(iterator: Any) -> None:
    """Warn where samples are lost or repeated in an epoch.

    Raises:
        ConfigurationError: a shard is smaller than a batch, and such batches are dropped.
    """
    settings, meta = settings_of(iterator), _meta(iterator)
    if settings.size < 0 or not meta:
        return
    shard = meta["epoch_size"] // meta["number_of_shards"]
    if settings.policy == "DROP" and min(shard, settings.size) < iterator.batch_size:
        raise ConfigurationError(
            f"each shard has {shard} samples, fewer than the batch of {iterator.batch_size}, and the policy is DROP.\n"
            "No epoch would have a batch. Use smaller batches, fewer shards, or LastBatchPolicy.PARTIAL."
        )
    if problem := _problem(iterator):
        warnings.warn(
            f'the promise "every sample exactly once per epoch" does not hold: {problem}.\n'
            f"A resumed run goes on exactly all the same. {_EXACT}",
            PromiseWarning,
            stacklevel=6,
        )


def _problem(iterator: Any) -> str:
    settings, meta = settings_of(iterator), _meta(iterator)
    if settings.reader is None:
        guess = f"size={settings.size} without reader_name lets DALI guess where an epoch of {meta['epoch_size']} ends"
        return "" if _is_exact_size(iterator) else guess
    if _fits(iterator) or (settings.policy == "PARTIAL" and settings.padded):
        return ""
    if settings.policy == "DROP":
        return "last_batch_policy=DROP leaves out what does not fill a batch"
    if settings.policy == "PARTIAL":
        return "with PARTIAL and pad_last_batch=False, the samples that are cut off a last batch come in no epoch"
    if settings.padded:
        return "last_batch_policy=FILL repeats the last sample until the batch is full"
    return "last_batch_policy=FILL with pad_last_batch=False fills the last batch with samples of the next epoch"


def warn_of_order(iterator: Any) -> None:
    """Warn where turning checkpointing on changes DALI's order."""
    for pipeline in pipelines_of(iterator):
        for one in operators(pipeline):
            if one.arguments.get("shuffle_after_epoch"):
                warnings.warn(
                    f"the order of the reader {one.name!r} (shuffle_after_epoch=True) from the second epoch on is "
                    "another one than without this package: DALI shuffles it again with checkpointing on.\n"
                    "It is as random as before, and the same in every run. Make the pipeline with "
                    "enable_checkpointing=True to say that you know.",
                    PromiseWarning,
                    stacklevel=6,
                )
                return


def warn_of_lists(unread: Sequence[str]) -> None:
    """Warn of lists of samples that cannot be read here."""
    if unread:
        warnings.warn(
            'the promise "a state of other data is refused" does not hold for what cannot be read here: '
            f"{'; '.join(unread)}.\n"
            "With the same number of samples in another order, a resumed run would repeat some and leave out others. "
            'Give the data a name that changes with it: wrap(..., identity="images-v1").',
            PromiseWarning,
            stacklevel=5,
        )


def length_of_epoch(iterator: Any) -> int | None:
    """Return the number of batches of an epoch; None where it changes from epoch to epoch, or is unknown."""
    settings = settings_of(iterator)
    if settings.size < 0:
        return None
    if settings.policy == "FILL" and not settings.padded and not _fits(iterator):
        return None
    return len(iterator)


def shards_of(iterators: Sequence[Any]) -> tuple[set[int], int]:
    """Return into how many shards the readers cut the data, and how many pipelines read them in this process."""
    return (
        {_meta(one)["number_of_shards"] for one in iterators if _meta(one)},
        sum(len(pipelines_of(one)) for one in iterators),
    )


def check_shards(shards: tuple[set[int], int], options: Options) -> None:
    """Warn where no rank reads some shards, once the number of ranks is known."""
    numbers, pipelines = shards
    world = options.find_world()
    reading = pipelines * world.size
    for number in numbers - {1, reading}:
        warnings.warn(
            f'the promise "every sample exactly once per epoch" does not hold: the data is cut into {number} shards, '
            f"but {world.size} ranks with {pipelines} pipelines each read {reading} of them at a time.\n"
            "Samples of an epoch would be left out or repeated. Use num_shards = ranks * pipelines per rank.",
            PromiseWarning,
            stacklevel=8,
        )


def _is_exact_size(iterator: Any) -> bool:
    settings, meta = settings_of(iterator), _meta(iterator)
    per_pipeline, left = divmod(settings.size, len(pipelines_of(iterator)))
    whole = per_pipeline * meta["number_of_shards"] == meta["epoch_size"] and not left
    return whole and (_fits(iterator) or (settings.policy == "PARTIAL" and settings.padded and _pads(iterator)))


def _fits(iterator: Any) -> bool:
    """Return whether every shard is a whole number of batches."""
    meta = _meta(iterator)
    if not meta:
        return bool(settings_of(iterator).size % (iterator.batch_size * len(pipelines_of(iterator))) == 0)
    shard, left = divmod(meta["epoch_size"], meta["number_of_shards"])
    return not left and shard % iterator.batch_size == 0


def _pads(iterator: Any) -> bool:
    return bool(_meta(iterator)["pad_last_batch"])


def _meta(iterator: Any) -> dict[str, int]:
    """Return what DALI says of the reader that counts, or of the only one."""
    readers: dict[str, dict[str, int]] = pipelines_of(iterator)[0].reader_meta()
    name = settings_of(iterator).reader
    if name is not None:
        return readers[name]
    return next(iter(readers.values())) if len(readers) == 1 else {}
