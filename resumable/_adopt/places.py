"""Where another program stands, as its checkpoint says it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resumable._state import damaged
from resumable.errors import ConfigurationError, ResumableError, StateFormatError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

__all__ = ["Place", "place_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """What a checkpoint says of a place.

    Args:
        by: who says it.
        step: batches of the epoch that were trained on.
        epoch: None where it is not said.
        ended: the epoch's end was reached.
        total: batches over all epochs, where they are counted.
        generator: the sampler's, as it was when the epoch's order was drawn.
        state: torchdata's own, to go on from by its own loader.
        workers: worker processes that the state is of.
        reads_to_the_end: the program asks for more after the last batch of an epoch, as a `for` loop does.
    """

    by: str
    step: int
    epoch: int | None = None
    ended: bool = False
    total: int | None = None
    generator: torch.Tensor | None = None
    state: Mapping[str, Any] | None = None
    workers: int = 0
    reads_to_the_end: bool = True


def place_of(state: Any, *, epoch: int | None, step: int | None) -> Place:
    """Read a checkpoint.

    Args:
        state: of torchdata's `StatefulDataLoader`, or a checkpoint of Lightning's Trainer; None where there is none.
        epoch: where the checkpoint does not say it.
        step: the same.

    Raises:
        StateFormatError: it is neither, or damaged.
        ConfigurationError: epoch and step are missing, or said twice.
        UnsupportedError: it has more than an order can go on from.
    """
    epoch, step = _count("epoch", epoch), _count("step", step)
    if state is None:
        if epoch is None:
            raise ConfigurationError(
                "adopt() was given neither a checkpoint nor an epoch.\n"
                "It could not know where the job stands. Give epoch= and step=: how many batches of it are trained on."
            )
        return Place("epoch and step", step or 0, epoch)
    if step is not None:
        raise ConfigurationError(
            f"a checkpoint and step={step} were given, but the checkpoint says how many batches were trained on.\n"
            "Only one of them can be right. Leave out one of them."
        )
    readers = {"loops": _lightning, "_snapshot": _torchdata, "_num_yielded": _torchdata}
    read = next((one for name, one in readers.items() if hasattr(state, "get") and name in state), None)
    if read is None:
        raise StateFormatError(
            f"this is no checkpoint that adopt() knows: {_told(state)}.\n"
            "Nothing is adopted. Give the state of a StatefulDataLoader, a checkpoint of Lightning's Trainer, or epoch "
            "and step. The state of a Loader goes to its load_state_dict()."
        )
    try:
        return read(state, epoch)
    except ResumableError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise damaged(state, error) from error


def _torchdata(state: Mapping[str, Any], epoch: int | None) -> Place:
    """Read the state of a `StatefulDataLoader`, with workers or without."""
    workers, main, step = 0, state, state.get("_num_yielded")
    datasets = [state.get("dataset_state")]
    if "_snapshot" in state:
        snapshot = state["_snapshot"]
        main, step = snapshot["_main_snapshot"], snapshot["_snapshot_step"] + state["_steps_since_snapshot"]
        workers, datasets = (
            main["_num_workers"],
            [one["dataset_state"] for one in snapshot["_worker_snapshots"].values()],
        )
        fetchers = [one["fetcher_state"] for one in snapshot["_worker_snapshots"].values()]
    else:
        fetchers = [state["fetcher_state"]]
    if any(one is not None for one in (*datasets, *fetchers)):
        raise UnsupportedError(
            "the state of the StatefulDataLoader has a state of its dataset, which is an IterableDataset, or has "
            "state_dict().\nIt would be lost, and with it what follows. Go on with the StatefulDataLoader."
        )
    order = main["_sampler_iter_state"] or {}
    generator = (order.get("sampler_iter_state") or order).get("generator")
    return Place(
        "torchdata's StatefulDataLoader",
        operator.index(step),  # type: ignore[arg-type]  # what is none raises
        epoch,
        ended=bool(state["_iterator_finished"]),
        generator=generator,
        state=state,
        workers=workers,
    )


def _lightning(checkpoint: Mapping[str, Any], epoch: int | None) -> Place:
    """Read the counters of a Trainer's fit loop: the batches that were processed are in the weights."""
    loop = checkpoint["loops"]["fit_loop"]
    epochs, batches = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
    done, step, total = (int(one["processed"]) for one in (epochs, batches["current"], batches["total"]))
    ended = epochs["started"] == done  # the epoch of the last batch, and none was begun since
    if epochs["started"] < epochs["ready"] or batches["is_last_batch"] or not step:
        done, step = (done if ended else done + bool(batches["is_last_batch"])), 0
    elif ended:
        done -= 1
    if epoch not in {None, done}:
        raise ConfigurationError(
            f"the checkpoint of Lightning's Trainer is of epoch {done}, but epoch={epoch} was given.\n"
            "Only one of them can be right. Leave out epoch."
        )
    loaders = loop["state_dict"].get("combined_loader", [])
    known = [_torchdata(one, None).generator for one in loaders if {"_snapshot", "_num_yielded"} & set(one)]
    generator = known[0] if len(loaders) == len(known) == 1 else None
    return Place("Lightning's Trainer", step, done, total=total, generator=generator, reads_to_the_end=False)


def _count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if count < 0 or isinstance(value, bool):
        raise ConfigurationError(
            f"{name} must be an integer of 0 or more, but it is {value!r}.\nThere is no such place. Both count from 0."
        )
    return count


def _told(state: Any) -> str:
    return f"a {type(state).__qualname__} with {', '.join(map(str, state))}" if hasattr(state, "keys") else repr(state)
