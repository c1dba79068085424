"""What a Loader shows of what it wraps, and what it says where a script asks it for more."""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import getattr_static
from typing import TYPE_CHECKING, Any

from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ShowsSource"]

_NO_ORDER = (
    "The order belongs to the loader: it tells the sampler each epoch itself, so that set_epoch() can go. What would "
    "read by the sampler alone would begin again from the front. Give another order by wrap(..., sampler=...)."
)
_NOT_HERE = {
    "dataset": "What would read a stream's dataset on its own would begin it again, without a word. Only those whose "
    "samples have an index are shown. Keep a reference to yours.",
    "sampler": _NO_ORDER,
    "batch_sampler": _NO_ORDER,
    "drop_last": "The end of an epoch is a matter of wrap(..., tail=...), and len(loader) counts its batches.",
    "shuffle": "The order belongs to the loader. Give it to the DataLoader, or wrap(..., shuffle=True) for a sequence.",
}
_NOT_SET = {
    "epoch": "Use seek(epoch=...), or load_state_dict().",
    "cursor": "Use seek(epoch=..., step=...), or load_state_dict().",
    "global_step": "It counts what is in the weights. Only load_state_dict() sets it.",
    "seed": "It is an option of wrap, and in the state.",
    "name": "It is an option of wrap, and in the state.",
    "samples_seen": "It counts what is in the weights. Only load_state_dict() sets it.",
}
_PREPARE = (
    "a Loader was given to Accelerate's prepare(), which would give it back as it is.\n"
    "Its batches would stay on the CPU, gradients would be accumulated over the end of an epoch, and save_state() "
    "would not save its place. Leave it out of accelerator.prepare(), and prepare it by itself: "
    "loader = resumable.integrations.accelerate.prepare(accelerator, loader)."
)
_MAKE_ANOTHER = "Make the source as you want it, and wrap that."
_FIXED = {"dataset", "batch_size", "num_workers", "collate_fn", *_NOT_HERE, *_NOT_SET}


class ShowsSource:
    """Read-only attributes of a `DataLoader` that most scripts ask for; anything else is refused with advice.

    `sampler`, `batch_sampler` and `drop_last` are not there, nor is the `dataset` of a stream: what finds them takes a
    Loader for a `DataLoader`, and makes another one over the raw data of it.
    """

    _wrapped: Any
    _shows: Mapping[str, Any]

    @property
    def dataset(self) -> Any:
        """The dataset of a `DataLoader`, or the sequence, as it was given; only where samples have an index."""
        return self._show("dataset")

    @property
    def batch_size(self) -> int | None:
        """Samples per rank and step, as it was asked for; None where the elements are the batches."""
        size: int | None = self._show("batch_size")
        return size

    @property
    def num_workers(self) -> int:
        """Worker processes of the `DataLoader`."""
        number: int = self._show("num_workers")
        return number

    @property
    def collate_fn(self) -> Callable[[list[Any]], Any]:
        """What makes a batch of samples in the `DataLoader`."""
        function: Callable[[list[Any]], Any] = self._show("collate_fn")
        return function

    def _show(self, name: str) -> Any:
        try:
            return self._shows[name]
        except KeyError:
            raise AttributeError(name) from None  # which __getattr__ makes a message of

    if not TYPE_CHECKING:  # a type checker shall know of no other attribute

        @property
        def __class__(self) -> type:
            """The class of a Loader, as `type()` says it, too.

            Raises:
                UnsupportedError: Accelerate's `prepare` asks for it, to see whether there is anything to prepare.
            """
            if "accelerate.accelerator" in sys.modules:
                private = import_module("resumable.integrations.accelerate.private")
                if private.is_preparing(depth=2):
                    raise UnsupportedError(_PREPARE)
            return type(self)

        def __getattr__(self, name: str) -> Any:
            """Refuse an attribute that a Loader does not have.

            Raises:
                AttributeError: always; where the wrapped thing has it, the message says so.
                UnsupportedError: Accelerate's `prepare_data_loader` asks whether it was prepared.
            """
            if name == "_is_accelerate_prepared":
                raise UnsupportedError(_PREPARE)
            text = f"'Loader' object has no attribute {name!r}"
            if not name.startswith("_"):
                text += self._advice(name)
            raise AttributeError(text, name=name, obj=self)

        def __setattr__(self, name: str, value: Any) -> None:
            """Refuse to set what would change nothing.

            Raises:
                AttributeError: it is fixed, or an attribute of the wrapped thing.
            """
            own = name in vars(type(self)) or name in vars(self) or name.startswith("_")
            if name in _FIXED or (not own and self._has(name)):
                raise AttributeError(
                    f"{name} of a Loader cannot be set; it was set to {value!r}.\n"
                    f"The batches would stay what they are. {_NOT_SET.get(name, _MAKE_ANOTHER)}",
                    name=name,
                    obj=self,
                )
            super().__setattr__(name, value)

    def _advice(self, name: str) -> str:
        if name in _NOT_HERE:
            return f".\n{_NOT_HERE[name]}"
        if not self._has(name):
            return ""
        return (
            f".\nThe {type(self._wrapped).__qualname__} that was wrapped has one, and the Loader does not show it, as "
            "setting it or reading by it would not go by the loader's place. Keep a reference to what you wrapped, and "
            "ask that."
        )

    def _has(self, name: str) -> bool:
        """Return whether the wrapped thing has an attribute, without running code of it."""
        missing = object()
        return getattr_static(vars(self).get("_wrapped"), name, missing) is not missing
