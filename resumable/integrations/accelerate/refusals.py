"""Settings of an Accelerator that do not fit a Loader, refused when it is prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.errors import ConfigurationError, UnsupportedError
from resumable.integrations._given import check_given
from resumable.loader import Loader

if TYPE_CHECKING:
    from resumable.integrations.accelerate.prepared import PreparedLoader

__all__ = ["check", "check_engine", "check_settings", "check_types", "check_world"]

_TRIED = {"NO", "MULTI_CPU", "MULTI_GPU"}
_OURS = (
    "A Loader gives each rank its share of a global batch itself, and its state tells the place by that. Leave the "
    "setting out: DataLoaderConfiguration()."
)
_SETTINGS = {
    "split_batches": "every batch would have to be divided among the ranks, which wrap has done: batch_size is that of "
    "a rank",
    "dispatch_batches": "the main process would have to read the batches of all ranks, and each rank reads its own",
}


def check_types(accelerator: Any, loader: Any, prepared: type[PreparedLoader]) -> None:
    """Refuse anything but an Accelerator and a Loader.

    Raises:
        MissingDependencyError: Accelerate is not installed.
        UnsupportedError: they are something else, or the other way round.
    """
    advice = "give models, optimizers and schedulers to accelerator.prepare()"
    usage = ["prepare(accelerator, loader)"]
    check_given(accelerator, loader, "accelerate.Accelerator", (Loader, prepared), usage=usage, advice=advice)


def check(accelerator: Any, loader: Loader) -> None:
    """Refuse what does not fit.

    Raises:
        UnsupportedError: a setting, or the way in which the model is distributed.
        ConfigurationError: ranks that are others than the Loader's, or uneven last batches.
    """
    check_engine(accelerator)
    check_settings(accelerator)
    seed = accelerator.dataloader_config.data_seed
    if seed is not None:
        raise UnsupportedError(
            f"the Accelerator has data_seed={seed}, and a Loader's order comes from the seed of wrap().\n"
            f"  data_seed:   {seed}\n  loader.seed: {loader.seed}\n"
            "The first would be without effect. Leave it out, and use wrap(..., seed=...)."
        )
    check_world(accelerator, loader)
    if accelerator.num_processes > 1:
        _check_even(accelerator, loader)


def check_settings(accelerator: Any) -> None:
    """Refuse settings by which the accelerator would divide batches that are divided already.

    Raises:
        UnsupportedError: the message says which one, and why.
    """
    for name, why in _SETTINGS.items():
        if getattr(accelerator, name):
            raise UnsupportedError(f"the Accelerator has {name}=True: {why}.\n{_OURS}")


def check_engine(accelerator: Any) -> None:
    """Refuse ways of distributing the model for which exact resumes were not tried.

    Raises:
        UnsupportedError: the message names it.
    """
    name = accelerator.distributed_type.name
    if name not in _TRIED:
        raise UnsupportedError(
            f"the Accelerator distributes the model by {name}, for which exact resumes have not been tried.\n"
            "A checkpoint could have other weights than its place says. Use a single process or DDP."
        )
    parallel = accelerator.parallelism_config
    if parallel is not None and parallel.non_data_parallel_size > 1:
        raise UnsupportedError(
            f"the Accelerator divides the model itself over {parallel.non_data_parallel_size} processes, for which "
            "exact resumes have not been tried.\nProcesses that need the same batch would get different ones. Use "
            "data parallelism only."
        )


def check_world(accelerator: Any, loader: Loader) -> None:
    """Refuse a Loader that has other ranks than the accelerator.

    Raises:
        ConfigurationError: the message has both.
    """
    world, rank, size = loader.progress.world, accelerator.process_index, accelerator.num_processes
    if (world.rank, world.size) != (rank, size):
        raise ConfigurationError(
            "the Loader and the Accelerator disagree about the ranks.\n"
            f"  the Loader:      rank {world.rank} of {world.size}\n  the Accelerator: rank {rank} of {size}\n"
            "Ranks would train on the same samples, or some samples on none. Leave world= out of wrap()."
        )


def _check_even(accelerator: Any, loader: Loader) -> None:
    size, progress = accelerator.num_processes, loader.progress
    last, whole = progress.smallest(), loader.global_batch_size
    uneven = whole if whole % size else last
    if accelerator.even_batches and uneven is not None and uneven % size:
        raise ConfigurationError(
            f"the Accelerator has even_batches=True, its default, and a batch of this Loader has {uneven} samples for "
            f"{size} ranks.\nThe ranks would get batches of different sizes, for which gather() waits forever. Fill "
            'them up, by wrap(..., tail="pad_ranks"), or leave them out, by tail="drop_ranks" or "drop"; or let them '
            "differ, by DataLoaderConfiguration(even_batches=False)."
        )
    if loader.evaluation and progress.strided and progress.last_padding() > 1:
        raise UnsupportedError(
            f"the last batch of this Loader is filled up with {progress.last_padding()} samples, which its "
            "DistributedSampler deals out to as many ranks.\nGathered, they would not stand at the end, where "
            "gather_for_metrics() leaves them out. Wrap the DataLoader without the DistributedSampler, with "
            'tail="pad_ranks".'
        )
