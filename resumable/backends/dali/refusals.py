"""Checks of a DALI iterator when it is wrapped: errors if it cannot be resumed, warnings if it breaks a promise."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from resumable.backends.dali.private import (
    BaseIterator,
    callbacks,
    checkpoints_itself,
    functions_of,
    is_consumed,
    is_fed,
    is_read_by_hand,
    operators,
    pipelines_of,
    settings_of,
    was_rebuilt,
)
from resumable.errors import ConfigurationError, PromiseWarning, StateFormatError, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable._options import Options


__all__ = [
    "check_fresh",
    "check_holds_checkpoints",
    "check_pipelines",
    "check_place",
    "check_shards",
    "length_of_epoch",
    "refuse_by_hand",
    "refuse_errors",
    "shards_of",
    "warn_of_lists",
    "warn_of_order",
    "warn_of_python",
    "warn_of_samples",
]


_FACTORY = (
    "Pass a function that makes the iterator instead: wrap(make), where make(checkpoints) builds its pipelines with "
    "enable_checkpointing=True and, unless checkpoints is None, checkpoint=checkpoints[i]."
)
_EXACT = (
    "To get every sample once, set pad_last_batch=True in the reader, and reader_name=... and "
    "last_batch_policy=LastBatchPolicy.PARTIAL in the iterator."
)


def check_fresh(iterator: Any) -> None:
    """Check that no batch was taken from an iterator.

    Raises:
        UnsupportedError: batches were taken.
    """
    if was_rebuilt(iterator):
        raise UnsupportedError(
            "this DALI iterator was wrapped before, and its pipelines were rebuilt for that loader.\n"
            "Two loaders would take each other's batches. Create one iterator per loader, or use the existing loader."
        )
    if is_consumed(iterator):
        raise UnsupportedError(
            "batches were taken from this DALI iterator before it was wrapped.\n"
            "They would not be counted, and a resumed run would repeat them. Wrap the iterator right after creating it."
        )


def check_place(before: tuple[int, bool], now: tuple[int, bool]) -> None:
    """Check that only the loader has moved the iterator.

    Args:
        before: the position where the loader left it, as `place_of` returns it.
        now: its current position.

    Raises:
        UnsupportedError: the two differ.
    """
    if before != now:
        raise UnsupportedError(
            "batches were taken from the DALI iterator, or it was reset, after it was wrapped.\n"
            f"  where the loader left it: {before[0]} samples into the epoch\n"
            f"  where it is now:          {now[0]} samples into the epoch\n"
            "Batches would be missing or counted in the wrong epoch. Use only the loader: it resets the iterator "
            "itself, and next(iter(loader)) counts as a batch."
        )


def check_holds_checkpoints(iterator: Any, *, at_checkpoint: bool) -> None:
    """Check that a function has made a DALI iterator with checkpointing on.

    Raises:
        UnsupportedError: it is something else.
    """
    if not isinstance(iterator, BaseIterator):
        raise UnsupportedError(
            f"the function with the parameter checkpoints returned a {type(iterator).__qualname__}.\n"
            "There would be nothing to resume. Return a DALI iterator, such as DALIGenericIterator."
        )
    if not at_checkpoint:
        check_fresh(iterator)
    if not checkpoints_itself(iterator):
        raise UnsupportedError(
            "the function created pipelines without enable_checkpointing=True.\n"
            "There would be no state to resume from. Create them with Pipeline(..., enable_checkpointing=True), or "
            "@pipeline_def(enable_checkpointing=True)."
        )
    ignored = [one for one in pipelines_of(iterator) if at_checkpoint and not one.is_restored_from_checkpoint]
    if ignored:
        raise UnsupportedError(
            f"the function built {len(ignored)} of {len(pipelines_of(iterator))} pipelines without their checkpoint.\n"
            "They would start over. Pass Pipeline(..., checkpoint=checkpoints[i]) for each. Pipeline.deserialize "
            "ignores that argument: use deserialize_and_build."
        )


def check_pipelines(iterator: Any, *, made: bool) -> None:
    """Check that the operators of all pipelines can be restored, and their Python functions made again.

    Args:
        iterator: holds the pipelines.
        made: whether a function can make it again.

    Raises:
        UnsupportedError: an operator cannot be restored; the message shows which.
    """
    for pipeline in pipelines_of(iterator):
        known = operators(pipeline)
        if not known:
            raise UnsupportedError(
                "the pipeline was deserialized, so its operators are unknown and it cannot be serialized again.\n"
                "States of different pipelines could not be distinguished. Build it from its Python definition."
            )
        _check_sources(pipeline)
        functions = [one.name for one in known if one.schema.endswith("PythonFunction")]
        functions += ["external_source"] * bool(callbacks(pipeline))
        if functions and not made:
            raise UnsupportedError(
                f"the pipeline calls Python functions ({', '.join(functions)}), which DALI cannot serialize.\n"
                f"The iterator could not be restored to its position. {_FACTORY}"
            )


def refuse_by_hand(source: Any, options: Options) -> NoReturn:  # noqa: ARG001  # an adapter is called with both
    """Reject a DALI pipeline without an iterator, and a reader of DALI's dynamic mode.

    Raises:
        UnsupportedError: always.
    """
    what = is_read_by_hand(source)
    if what == "DALI pipelines":
        raise UnsupportedError(
            "this is a DALI Pipeline, which does not say where an epoch ends.\n"
            "Batches could not be counted. Put it into one of DALI's iterators, and wrap that: "
            "nvidia.dali.plugin.pytorch.DALIGenericIterator(pipeline, names, reader_name=...), "
            "DALIClassificationIterator or DALIRaggedIterator of the same module, or an iterator of "
            "nvidia.dali.plugin.jax or nvidia.dali.plugin.paddle."
        )
    raise UnsupportedError(f"this is one of the {what}: {type(source).__qualname__}.\n{NOT_DYNAMIC}")


NOT_DYNAMIC = (
    "A reader continues from its current position and shuffles on top of its last order, and no state contains that. "
    "A resumed run would get different batches. Build a pipeline (nvidia.dali.pipeline_def with fn.readers) and wrap "
    "its DALI iterator. Or write a class with __iter__, state_dict and load_state_dict that calls the reader's "
    "get_state() and set_state() (the reader needs enable_checkpointing=True)."
)


def warn_of_python(iterators: Sequence[Any]) -> dict[str, Any]:
    """Return the user's functions that the pipelines of iterators call, and warn about them."""
    pipelines = [pipeline for iterator in iterators for pipeline in pipelines_of(iterator)]
    found = {f"{place}/{name}": one for place, pipe in enumerate(pipelines) for name, one in functions_of(pipe).items()}
    if found:
        warnings.warn(
            f"this DALI pipeline calls Python ({', '.join(sorted(name.partition('/')[2] for name in found))}), which "
            "cannot be inspected. A resumed run continues with the same samples only if that code depends on nothing "
            "but its arguments.\nIt runs ahead of the batches, and the global random generators are not seeded "
            "there. Anything that it remembers from earlier calls starts over. Draw random numbers from "
            "numpy.random.default_rng([seed, info.epoch_idx, info.idx_in_epoch]), and compute an epoch's order from "
            "info.epoch_idx alone. The element after a resume is compared with the saved run.",
            PromiseWarning,
            stacklevel=5,
        )
    return found


def _check_sources(pipeline: Any) -> None:
    for kind, resumes in callbacks(pipeline):
        if not resumes:
            raise UnsupportedError(
                f"the pipeline has an fn.external_source whose source is a {kind}, and DALI does not save its "
                "state.\nA resumed run would silently read it from the start. Use a function of one argument "
                "(SampleInfo, BatchInfo or the batch number) whose result depends on nothing else."
            )
    if fed := is_fed(pipeline):
        raise UnsupportedError(
            f"the pipeline gets data from outside, through feed_input or iter_setup: {', '.join(fed)}.\n"
            "DALI does not save the state of that data, so a resumed run would read different data. Pass "
            "fn.external_source a source: a function of one argument whose result depends on nothing else."
        )


@contextmanager
def refuse_errors(checkpoints: Sequence[bytes | None]) -> Iterator[None]:
    """Translate DALI's errors while a pipeline is built.

    Raises:
        UnsupportedError: an operator has no checkpoints.
        StateMismatchError: the checkpoint belongs to a different pipeline.
        StateFormatError: the checkpoint is damaged.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "Checkpointing is not implemented" in text:
            raise UnsupportedError(
                f"the pipeline has an operator without checkpoints: {_line_with('Checkpointing is not', text)}\n"
                "DALI cannot restore it to a position, and would produce different data. Remove it, or do its work in "
                "wrap(..., transform=...)."
            ) from error
        if "Could not serialize" in text:
            raise UnsupportedError(
                f"the pipeline has an operator that DALI cannot serialize: {_line_with('Could not serialize', text)}\n"
                f"The iterator could not be restored to its position. {_FACTORY}"
            ) from error
        if "doesn't recognize" in text or "no checkpoint for" in text:
            raise StateMismatchError(
                "the checkpoint belongs to a different DALI pipeline.\n"
                f"  in the checkpoint: {_line_with('recogni', text)}\n"
                "  in this run:       a pipeline without that operator\n"
                "Build the same pipeline as in the original run."
            ) from error
        if "deserialize checkpoint" in text:
            sizes = [len(one) for one in checkpoints if one is not None]
            raise StateFormatError(
                f"DALI's checkpoint inside the state is damaged (sizes in bytes: {sizes}): "
                f"{_line_with('deserialize', text)}\nNothing can be read from it. Load a different checkpoint."
            ) from error
        raise


def _line_with(words: str, text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if words in line), lines[0] if lines else text)


def warn_of_samples(iterator: Any) -> None:
    """Warn if samples are lost or repeated in an epoch.

    Raises:
        ConfigurationError: a shard is smaller than a batch, and incomplete batches are dropped.
    """
    settings, meta = settings_of(iterator), _meta(iterator)
    if settings.size < 0 or not meta:
        return
    shard = meta["epoch_size"] // meta["number_of_shards"]
    if settings.policy == "DROP" and min(shard, settings.size) < iterator.batch_size:
        raise ConfigurationError(
            f"each shard has {shard} samples, fewer than the batch size {iterator.batch_size}, and the policy is "
            "DROP.\nEpochs would have no batches. Use smaller batches, fewer shards, or LastBatchPolicy.PARTIAL."
        )
    if problem := _problem(iterator):
        warnings.warn(
            f'"every sample exactly once per epoch" is not guaranteed: {problem}.\n'
            f"A resumed run still continues exactly. {_EXACT}",
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
        return "last_batch_policy=DROP drops the samples that do not fill a batch"
    if settings.policy == "PARTIAL":
        return "PARTIAL with pad_last_batch=False removes samples from the last batch, and they appear in no epoch"
    if settings.padded:
        return "last_batch_policy=FILL repeats the last sample until the batch is full"
    return "last_batch_policy=FILL with pad_last_batch=False fills the last batch with samples of the next epoch"


def warn_of_order(iterator: Any) -> None:
    """Warn if enabling checkpointing changes DALI's order."""
    for pipeline in pipelines_of(iterator):
        for one in operators(pipeline):
            if one.arguments.get("shuffle_after_epoch"):
                warnings.warn(
                    f"enabling checkpointing changes the order of the reader {one.name!r} (shuffle_after_epoch=True) "
                    "from the second epoch on, because DALI then shuffles it again.\n"
                    "The new order is equally random, and the same in every run. Create the pipeline with "
                    "enable_checkpointing=True to silence this warning.",
                    PromiseWarning,
                    stacklevel=6,
                )
                return


def warn_of_lists(unread: Sequence[str]) -> None:
    """Warn about lists of samples that cannot be read here."""
    if unread:
        warnings.warn(
            "changed data may go unnoticed, because some lists of samples cannot be read here: "
            f"{'; '.join(unread)}.\n"
            "If the same number of samples is in a different order, a resumed run would repeat some and skip others. "
            'Pass a name for the data, and change it whenever the data changes: wrap(..., identity="images-v1").',
            PromiseWarning,
            stacklevel=5,
        )


def length_of_epoch(iterator: Any) -> int | None:
    """Return the number of batches per epoch; None if it is unknown or varies."""
    settings = settings_of(iterator)
    if settings.size < 0:
        return None
    if settings.policy == "FILL" and not settings.padded and not _fits(iterator):
        return None
    return len(iterator)


def shards_of(iterators: Sequence[Any]) -> tuple[set[int], int]:
    """Return into how many shards the readers split the data, and how many pipelines read them in this process."""
    return (
        {_meta(one)["number_of_shards"] for one in iterators if _meta(one)},
        sum(len(pipelines_of(one)) for one in iterators),
    )


def check_shards(shards: tuple[set[int], int], options: Options) -> None:
    """Warn if no rank reads some shards, once the number of ranks is known."""
    numbers, pipelines = shards
    world = options.find_world()
    reading = pipelines * world.size
    for number in numbers - {1, reading}:
        warnings.warn(
            f'"every sample exactly once per epoch" is not guaranteed: the data is split into {number} shards, but '
            f"{world.size} ranks with {pipelines} pipelines each read {reading} of them at a time.\n"
            "Some samples would be skipped or repeated. Use num_shards = ranks * pipelines per rank.",
            PromiseWarning,
            stacklevel=8,
        )


def _is_exact_size(iterator: Any) -> bool:
    settings, meta = settings_of(iterator), _meta(iterator)
    per_pipeline, left = divmod(settings.size, len(pipelines_of(iterator)))
    whole = per_pipeline * meta["number_of_shards"] == meta["epoch_size"] and not left
    return whole and (_fits(iterator) or (settings.policy == "PARTIAL" and settings.padded and _pads(iterator)))


def _fits(iterator: Any) -> bool:
    """Return whether every shard divides into full batches."""
    meta = _meta(iterator)
    if not meta:
        return bool(settings_of(iterator).size % (iterator.batch_size * len(pipelines_of(iterator))) == 0)
    shard, left = divmod(meta["epoch_size"], meta["number_of_shards"])
    return not left and shard % iterator.batch_size == 0


def _pads(iterator: Any) -> bool:
    return bool(_meta(iterator)["pad_last_batch"])


def _meta(iterator: Any) -> dict[str, int]:
    """Return DALI's metadata of the reader that determines the epoch, or of the only one."""
    readers: dict[str, dict[str, int]] = pipelines_of(iterator)[0].reader_meta()
    name = settings_of(iterator).reader
    if name is not None:
        return readers[name]
    return next(iter(readers.values())) if len(readers) == 1 else {}
