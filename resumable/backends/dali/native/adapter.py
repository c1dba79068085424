"""Adapts DALI iterators, functions that make them, and several in turn."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from resumable.backends.dali.native.backend import NativeBackend
from resumable.backends.dali.native.graph import identity_of
from resumable.backends.dali.native.holders import Kept, Made
from resumable.backends.dali.native.passes import Pass
from resumable.backends.dali.native.private import BaseIterator, checkpoints_itself
from resumable.backends.dali.native.promises import (
    check_shards,
    length_of_epoch,
    shards_of,
    warn_of_lists,
    warn_of_order,
    warn_of_samples,
)
from resumable.backends.dali.native.refusals import check_fresh, check_pipelines
from resumable.backends.dali.native.turns import InTurn, Turns
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from resumable._options import Options
    from resumable.backends.dali.native.passes import Source

__all__ = ["adapt"]

_BATCHES = "Each element of a DALI iterator is a whole batch already; the pipeline says how large."
_CHECKPOINTS = "It goes on by DALI's checkpoints."
_TAIL = "Its last_batch_policy says what happens with the last samples of an epoch."


def adapt(source: Any, options: Options) -> tuple[NativeBackend, Options]:
    """Adapt a DALI iterator, a function of `checkpoints` that makes one, or what `in_turn` returned.

    Raises:
        UnsupportedError: it cannot be resumed, and why; or an option does not fit it.
        MissingDependencyError: DALI is not installed.
    """
    options.refuse("a DALI iterator", batch_size=_BATCHES, collate=_BATCHES, tail=_TAIL, resume=_CHECKPOINTS)
    parts = source.sources if isinstance(source, InTurn) else [source]
    made = [None if isinstance(part, BaseIterator) else Made(part) for part in parts]
    iterators = [part if maker is None else maker.iterator for part, maker in zip(parts, made, strict=True)]
    for iterator, maker in zip(iterators, made, strict=True):
        _check(iterator, made=maker is not None)
    unread: list[str] = []
    identity = identity_of(
        iterators, options.identity, unread
    )  # before a pipeline is built again and forgets operators
    warn_of_lists(unread)
    if isinstance(source, InTurn):
        identity["in_turn"] = source.order
    check, lengths = partial(check_shards, shards_of(iterators), options), list(map(length_of_epoch, iterators))
    holders = [
        maker or Kept(iterator, enable=not checkpoints_itself(iterator))
        for iterator, maker in zip(iterators, made, strict=True)
    ]
    passes = [Pass(holder) for holder in holders]
    whole: Source = Turns(passes, source.order) if isinstance(source, InTurn) else passes[0]
    length = None if None in lengths else sum(filter(None, lengths))
    divided = identity["num_shards"] not in (None, 1)  # or a list of several
    backend = NativeBackend(whole, identity, length, needs_shard=not divided, check=check)
    return backend, _decided(options, divided=divided)


def _check(iterator: Any, *, made: bool) -> None:
    check_fresh(iterator)
    check_pipelines(iterator, made=made)
    warn_of_samples(iterator)
    if not checkpoints_itself(iterator):
        warn_of_order(iterator)


def _decided(options: Options, *, divided: bool) -> Options:
    """Leave the division among the ranks to DALI, where its readers have shards."""
    if not divided:
        return options
    if options.shard:
        raise UnsupportedError(
            "the option shard=True does not fit DALI readers with num_shards: both would divide the samples.\n"
            "No rank would read most of the samples. Leave shard out, or num_shards and shard_id."
        )
    return replace(options, shard=False)
