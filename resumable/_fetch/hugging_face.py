"""What datasets of Hugging Face's library are known to do: divide themselves between the ranks, and draw nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resumable._introspection import ask, module_of, qualname_of
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from resumable._options import Options

__all__ = ["divided", "draws_nothing"]


def divided(source: Any, options: Options) -> Options:
    """Return the options with `shard=False` for a stream that `split_dataset_by_node` has divided.

    Raises:
        ConfigurationError: it would be divided again, and most of it would be read by no rank.
    """
    if not module_of(type(source)).startswith("datasets."):
        return options
    ranks = ask(ask(source, "_distributed"), "world_size", 1)
    if ranks == 1:
        return options
    if options.shard:
        raise ConfigurationError(
            f"with shard=True, the {ranks} parts that split_dataset_by_node made of the stream would be divided "
            "between the ranks once more.\nMost samples would be read by no rank. Leave shard out, or wrap the stream "
            "without split_dataset_by_node."
        )
    return replace(options, shard=False)


def draws_nothing(dataset: Any) -> bool:
    """Return whether reading a dataset's samples draws no random numbers, so that it may read them all at once."""
    kind = module_of(type(dataset)), qualname_of(type(dataset))
    if kind == ("torch.utils.data.dataset", "Subset"):
        return draws_nothing(dataset.dataset)
    if kind != ("datasets.arrow_dataset", "Dataset"):
        return False
    return bool(ask(dataset, "_format_type", "custom") != "custom")  # which is a function of the user's
