"""Makes fresh loaders of what a user's function returns."""

from __future__ import annotations

import logging
import multiprocessing
import time
import warnings
import weakref
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from resumable._registry import refuse_list
from resumable._selfcheck.calling import call
from resumable._wrap import wrap
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.loader import Loader
from resumable.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable._selfcheck.streams import Generators

__all__ = ["Maker", "hearing", "living_workers"]

_PATIENCE = 5.0  # seconds for workers to be gone after close()


class Maker:
    """Makes the loaders of a user's function, as often as wanted.

    Args:
        make: the function.
        generators: are put back before each call.
        what: the function, for messages.
    """

    def __init__(self, make: Callable[[], Any], generators: Generators, what: str = "") -> None:
        self._make, self._generators, self._what = make, generators, what
        self._seen: list[weakref.ref[Loader]] = []
        self.trained = tuple(key for key, loader in self.all().items() if not loader.evaluation)

    def all(self) -> dict[str, Loader]:
        """Return all loaders of one call, by their keys.

        Raises:
            ConfigurationError: the function raised, or there is no loader in what it returned.
        """
        self._generators.put_back()
        found = dict(_loaders(call(self._make, self._what), ""))
        for loader in found.values():
            self._refuse_known(loader)
        if not found:
            raise ConfigurationError("the function returned an empty collection of loaders.\nNothing was checked.")
        return found

    def _refuse_known(self, loader: Loader) -> None:
        if any(one() is loader for one in self._seen):
            raise ConfigurationError(
                "the function returned the same loader twice.\nIt cannot be compared with itself. Make a new one "
                "at each call of the function."
            )
        self._seen.append(weakref.ref(loader))

    @contextmanager
    def loader(self, key: str, state: Any = None, seek: tuple[int, int] | None = None) -> Iterator[Loader]:
        """Give a fresh loader, and close it and all others of its call at the end.

        Args:
            key: of the loader.
            state: to load first; None for none.
            seek: epoch and step to go to first.
        """
        loaders = self.all()
        try:
            if state is not None:
                loaders[key].load_state_dict(state)
            if seek is not None:
                loaders[key].seek(epoch=seek[0], step=seek[1])
            yield loaders[key]
        finally:
            for one in loaders.values():
                one.close()


def living_workers(before: set[int | None]) -> list[str]:
    """Return the child processes that were not there before, after they had some time to end."""
    end = time.monotonic() + _PATIENCE
    while True:
        living = [one for one in multiprocessing.active_children() if one.pid not in before]
        if not living or time.monotonic() > end:
            return [f"{one.name} (pid {one.pid})" for one in living]
        time.sleep(0.02)


@contextmanager
def hearing() -> Iterator[list[str]]:
    """Give a list that gets each warning of this package once, and keep them from being shown."""
    said: list[str] = []
    log, listener = logging.getLogger("resumable"), _Listener(said)
    passes_on = log.propagate
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: _note(said, str(message))
        log.addHandler(listener)
        log.propagate = False
        try:
            yield said
        finally:
            log.removeHandler(listener)
            log.propagate = passes_on


class _Listener(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        _note(self._said, record.getMessage())


def _note(said: list[str], text: str) -> None:
    if text not in said:
        said.append(text)


def _loaders(made: Any, key: str) -> Iterator[tuple[str, Loader]]:
    if made is None:
        raise UnsupportedError("the function returned None, and no loader.\nNothing was checked. Let it return one.")
    if isinstance(made, dict):
        for name, one in made.items():
            yield from _loaders(one, f"{key}[{name!r}]")
    elif isinstance(made, (list, tuple)) and made and _is_loader(made[0]):
        for number, one in enumerate(made):
            yield from _loaders(one, f"{key}[{number}]")
    elif not isinstance(made, Loader) and callable(getattr(made, "train_dataloader", None)):
        yield from _loaders(_of_module(made), key)
    else:
        yield key, _unrecorded(made if isinstance(made, Loader) else wrap(made))


def _is_loader(one: Any) -> bool:
    """Return whether a list that begins with this is one of loaders, and not one of samples."""
    if isinstance(one, Loader) or any(base.__name__ == "DataLoader" for base in type(one).__mro__):
        return True
    try:
        refuse_list([one])
    except UnsupportedError:
        return True
    return False


def _of_module(module: Any) -> Any:
    """Return what a LightningDataModule trains from, without a Trainer."""
    for name, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        if callable(getattr(module, name, None)):
            call(partial(getattr(module, name), *arguments), name)
    return call(module.train_dataloader)


def _unrecorded(loader: Loader) -> Loader:
    """Take the flight recorder out: its folder has the record of the real run."""
    options = loader._options  # noqa: SLF001  # there is no other way to ask
    if options.recorder is not None:
        loader.progress = Progress(loader._fetcher, options.unrecorded())  # noqa: SLF001  # likewise
    return loader
