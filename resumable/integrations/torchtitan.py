"""A Loader as the dataloader of torchtitan's trainer: `config.dataloader = LoaderConfig(make=...)`.

torchtitan builds its dataloader from a configuration, with the rank and the number of ranks that read data of their
own, and puts it into `torch.distributed.checkpoint` with the model. Its own dataloaders refuse another number of ranks,
and an end of the data where there are several. This one takes both, as a Loader does.

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
        "resumable.integrations.torchtitan needs torchtitan, which is not installed here, or has its BaseDataLoader at "
        "another place.\nInstall it: pip install torchtitan"
    )


_Base: Any = _base()


class TitanLoader(_Base):  # type: ignore[misc]  # its base is found when this is imported
    """A Loader in the shape of torchtitan's dataloaders; made by `LoaderConfig`.

    Args:
        config: with what makes the Loader.
        dp_rank: rank among those that read data of their own.
        dp_world_size: their number.
        given: what else torchtitan gives its dataloaders, such as `tokenizer` and the batch size.

    Attributes:
        loader: the Loader, of which a batch is what the trainer takes: a dict with `input`, and labels.

    Raises:
        ConfigurationError: `make` returned no Loader, or one that reads the data of another rank.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(_Base.Config):  # type: ignore[misc]  # likewise
        """What torchtitan makes the dataloader of.

        Args:
            make: returns the Loader: `make(world, **given)`, to be wrapped with `world=world`.
            epochs: after which the data end, and the training; None for no end.
        """

        make: Callable[..., Loader[Any]] | None = None
        epochs: int | None = None

    def __init__(self, config: Any, *, dp_rank: int, dp_world_size: int, **given: Any) -> None:
        world = World(dp_rank, dp_world_size)
        loader = None if config.make is None else config.make(world, **given)
        if not isinstance(loader, Loader):
            raise ConfigurationError(
                f"make has to return a Loader, but it returned {loader!r}.\n"
                "Give LoaderConfig(make=...) a function of (world, **given) that returns wrap(..., world=world)."
            )
        found = loader._options.find_world()  # noqa: SLF001  # for integrations alone
        if found != world:
            raise ConfigurationError(
                "the Loader reads the data of another rank than torchtitan's trainer says.\n"
                f"  torchtitan: {world}\n  the Loader: {found}\n"
                "Ranks that hold parts of one model have to read the same data. Wrap with the world that make is "
                "given: resumable.wrap(..., world=world)."
            )
        self.loader: Loader[Any] = loader
        self._epochs = config.epochs

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches from here to the end of the last epoch, or without an end."""
        if self._epochs is None:
            return self.loader.steps(math.inf)
        return (batch for epoch in self.loader.epochs(self._epochs) for batch in epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks for `torch.distributed.checkpoint`; all ranks call it, as torchtitan does."""
        return self.loader.dcp().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the position at which the checkpoint was saved, on any number of ranks; all ranks call it."""
        self.loader.dcp().load_state_dict(state_dict)

    def close(self) -> None:
        """End the Loader's workers."""
        self.loader.close()


LoaderConfig = TitanLoader.Config
