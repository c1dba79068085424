"""A Loader as the dataloader of torchtitan's trainer: `config.dataloader = LoaderConfig(make=...)`.

torchtitan builds its dataloader from a configuration and the data-parallel rank and world size, and saves it with the
model in `torch.distributed.checkpoint`. Its own dataloaders can neither resume on a different number of ranks nor end
on several ranks. This one can do both, like any Loader.

Source: `BaseDataLoader` of torchtitan 0.3 (`torchtitan.components.dataloader`), and of its main branch in August 2026
(`torchtitan.components.data.loader`).
"""

from __future__ import annotations

import math
from collections.abc import Callable  # noqa: TC003  # a field's type, which torchtitan's parser of options resolves
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from resumable._order.world import World
from resumable.errors import ConfigurationError, MissingDependencyError
from resumable.loader.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["LoaderConfig", "TitanLoader"]

_HOMES = ("torchtitan.components.dataloader", "torchtitan.components.data.loader")


def _base() -> Any:
    for home in _HOMES:
        try:
            return import_module(home).BaseDataLoader
        except ModuleNotFoundError as error:
            if error.name is None or not home.startswith(error.name):
                raise
    raise MissingDependencyError(
        "resumable.integrations.torchtitan needs torchtitan, which is not installed, or has no BaseDataLoader in "
        f"{' or '.join(_HOMES)}.\nInstall it: pip install torchtitan"
    )


_Base: Any = _base()


class TitanLoader(_Base):  # type: ignore[misc]  # its base is found when this is imported
    """A Loader with the interface of torchtitan's dataloaders. `LoaderConfig` creates it.

    Args:
        config: has the function that creates the Loader.
        dp_rank: data-parallel rank.
        dp_world_size: number of data-parallel ranks.
        given: other arguments that torchtitan passes to its dataloaders, such as `tokenizer` and the batch size.

    Attributes:
        loader: the Loader. It must yield batches as the trainer expects them: a dict with `input`, and labels.

    Raises:
        ConfigurationError: `make` did not return a Loader, or the Loader reads the data of a different rank.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(_Base.Config):  # type: ignore[misc]  # the same
        """The configuration from which torchtitan builds the dataloader.

        Args:
            make: a function that returns the Loader. It is called as `make(world, **given)`, and must wrap the source
                with `world=world`.
            epochs: number of epochs after which the data and the training end; None for no end.
        """

        make: Callable[..., Loader[Any]] | None = None
        epochs: int | None = None

    def __init__(self, config: Any, *, dp_rank: int, dp_world_size: int, **given: Any) -> None:
        world = World(dp_rank, dp_world_size)
        loader = None if config.make is None else config.make(world, **given)
        if not isinstance(loader, Loader):
            raise ConfigurationError(
                f"LoaderConfig.make must return a Loader, but returned {loader!r}.\n"
                "Pass a function make(world, **given) that returns wrap(..., world=world)."
            )
        found = loader._options.find_world()  # noqa: SLF001  # for integrations alone
        if found != world:
            raise ConfigurationError(
                "the Loader reads the data of a different rank than torchtitan's trainer expects.\n"
                f"  torchtitan: {world}\n  the Loader: {found}\n"
                "Ranks that share one copy of the model must read the same data. In make(world, **given), pass the "
                "world on: resumable.wrap(..., world=world)."
            )
        self.loader: Loader[Any] = loader
        self._epochs = config.epochs

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the remaining batches up to the last epoch's end, or without an end."""
        if self._epochs is None:
            return self.loader.steps(math.inf)
        return (batch for epoch in self.loader.epochs(self._epochs) for batch in epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks for `torch.distributed.checkpoint`. All ranks must call it."""
        return self.loader.dcp().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the saved position, on any number of ranks. All ranks must call it."""
        self.loader.dcp().load_state_dict(state_dict)

    def close(self) -> None:
        """End the Loader's workers."""
        self.loader.close()


LoaderConfig = TitanLoader.Config
