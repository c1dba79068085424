"""`StatefulDataLoader` replaces torchdata's class: the same constructor and semantics, with the states of `wrap`.

    from resumable.torch import StatefulDataLoader

    loader = StatefulDataLoader(dataset, batch_size=32, shuffle=True, num_workers=4)
    for epoch in range(10):
        for batch in loader:
            ...
            saved = loader.state_dict()

Use it if a framework expects a `DataLoader` with a state. For a loop you write yourself, `resumable.wrap` has the
simpler rules.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from logging import getLogger
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from resumable._adopt import adopt, position_of
from resumable._introspection import ask
from resumable._options import check_choice
from resumable._order.world import World
from resumable._warn import warn
from resumable.errors import (
    ConfigurationError,
    LoopError,
    LoopWarning,
    MissingDependencyError,
    ResumableError,
    StateFormatError,
    UnsupportedError,
)
from resumable.loader.wrap import wrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch.utils.data import Dataset, Sampler

    from resumable._order.cursor import Cursor
    from resumable.loader.loader import Loader

__all__ = ["StatefulDataLoader", "install"]

T_co = TypeVar("T_co", covariant=True)
AfterLast = Literal["empty", "next"]
Order = Literal["feistel", "torch", "torchdata"]

# Keys of a state. Frameworks add keys to it, and Accelerate sets the first one.
_FINISHED, _STATE, _SEED = "_iterator_finished", "resumable", "sampler_seed"
_TORCHDATAS = {"_snapshot", "_num_yielded"}  # keys of a state of torchdata's class
_MODULES = ("torchdata.stateful_dataloader", "torchdata.stateful_dataloader.stateful_dataloader")
# Arguments that a script may change after construction, as with PyTorch's class.
_CHANGEABLE = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("generator", "prefetch_factor", "pin_memory_device", "in_order"),
)
_SEEDS = 1 << 32
_ENDLESS = 1 << 62  # epochs

_log = getLogger("resumable")


@dataclass
class _Defaults:
    """Arguments of loaders that do not pass them; `install` sets them."""

    after_last: AfterLast = "empty"
    order: Order = "feistel"
    options: dict[str, Any] = field(default_factory=dict)


_installed = _Defaults()


class StatefulDataLoader(DataLoader[T_co]):
    """A `DataLoader` with `state_dict()` and `load_state_dict()`, which replaces torchdata's `StatefulDataLoader`.

    As in torchdata, each `iter()` is one epoch, also after `break`, and a state taken within an epoch resumes there.
    Unlike torchdata's, it restores augmentations, fits other numbers of workers and ranks, and rejects a state of
    different data. The Loader from `wrap` that does this is `loader`.

    Args:
        dataset, batch_size, ..., in_order: as for `torch.utils.data.DataLoader`. `in_order=False` is rejected, because
            the order in which workers finish differs in every run.
        snapshot_every_n_steps: accepted as for torchdata's class. A state here is always exact without it.
        after_last: what the first loop reads if a state was taken after an epoch's last batch and before the end of
            its loop. "empty": nothing, as with torchdata, which scripts expect that save their own epoch number;
            "next": the next epoch, for scripts that compute the epoch as `step // len(loader)`.
        order: of a shuffled map-style dataset. "feistel": the order of `wrap`; "torch": PyTorch's, for a seeded
            generator or sampler; "torchdata": the order of torchdata's class. Then its states can be loaded.
        seed: of order and augmentation. By default, the seed of the sampler or `generator`. If neither has one and
            `shuffle=True`, PyTorch's global RNG chooses one, which the state saves.
        world: rank and number of ranks. By default, from a `DistributedSampler`. Without one, each rank reads all
            samples, as in PyTorch.
        **options: other options of `wrap`.

    Raises:
        UnsupportedError: the arguments allow no exact resume; or an option does not fit them.
        ConfigurationError: an option has a bad value.
    """

    loader: Loader[T_co]

    def __init__(  # noqa: PLR0913, PLR0917  # the signature of DataLoader
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        after_last: AfterLast | None = None,
        order: Order | None = None,
        seed: int | None = None,
        world: World | None = None,
        **options: Any,
    ) -> None:
        after_last, order = after_last or _installed.after_last, order or _installed.order
        # Lightning makes a loader again from its attributes, and one of them is `options`.
        options = {**_installed.options, **options.pop("options", {}), **options}
        _check(after_last, order)
        drawn = None
        if shuffle and sampler is None and batch_sampler is None and not isinstance(dataset, IterableDataset):
            if generator is None and order == "torch" and seed is not None:
                generator = torch.Generator().manual_seed(seed)
            draws: Any = generator  # without a generator, the seed is random, and saved
            if generator is None and (seed is None or order == "torchdata"):
                drawn = int(torch.empty((), dtype=torch.int64).random_(_SEEDS).item()) if seed is None else None
                draws = torch.Generator().manual_seed(seed if drawn is None else drawn)  # type: ignore[arg-type]  # one of them is there
            if draws is not None:
                sampler, shuffle = _random_sampler(order)(dataset, generator=draws), None
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.after_last, self.order, self.seed, self.world, self.options = after_last, order, seed, world, options
        self._drawn = drawn
        self._restart()
        self._wrap()

    def _restart(self) -> None:
        """Forget loops and a rejected state, which belong to one process."""
        self._lock = threading.RLock()  # a framework may take a state in another thread than the loop's
        self._loop: _Loop | None = None  # the newest
        self._refused: Exception | None = None
        self._resumed = False  # a state was loaded, and no loop has started since
        self._loaded = False  # a state was loaded
        self._foreign: Mapping[str, Any] | None = None  # of torchdata's class, until a loop tells its epoch
        self._epoch_set = self._sampler_epoch()

    # ------------------------------------------------------------------ the Loader that reads

    def _wrap(self, position: dict[str, Any] | None = None) -> None:
        """Wrap a plain `DataLoader` with the same arguments, and go to a position."""
        used = self._arguments()
        plain, given = self._plain(self._samplers()[-1])
        if self._divides() is None:
            given.setdefault("world", World(0, 1))
        try:
            loader: Loader[T_co] = wrap(plain, **given)
            if position is not None:
                loader.load_state_dict(position)
        except ResumableError as error:
            _explain(error)
            raise
        if "loader" in vars(self):
            self.loader.close()
        self.loader, self._used = loader, used

    def _plain(self, sampler: Any) -> tuple[DataLoader[T_co], dict[str, Any]]:
        """Return a plain `DataLoader` with the same arguments and this sampler, and the options of `wrap`."""
        streams = isinstance(self.dataset, IterableDataset)
        kind: Any = _torchdatas() if self.order == "torchdata" and not streams else DataLoader
        batching: dict[str, Any] = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        if self.batch_size is None and self.batch_sampler is not None:
            batching = {"batch_sampler": self.batch_sampler}
        elif not streams:
            batching["sampler"] = sampler
        arguments = dict(zip(_CHANGEABLE, self._arguments(), strict=False))
        given: dict[str, Any] = {
            name: one for name, one in (("seed", self.seed), ("world", self.world)) if one is not None
        }
        given |= self.options
        if self.order != "feistel" and not streams:
            given["order"] = "torch"  # a sampler of torchdata means its own order
        return kind(self.dataset, **batching, **arguments, persistent_workers=self.persistent_workers), given

    def resumable_arguments(self) -> tuple[DataLoader[T_co], dict[str, Any]] | None:
        """Return what `wrap` and the integrations read instead: a plain `DataLoader`, and options of `wrap`.

        Raises:
            UnsupportedError: a state was loaded, which the new Loader would not have.
        """
        if type(self).__iter__ is not StatefulDataLoader.__iter__:
            return None
        if self._loaded:
            here = self.loader.cursor
            raise UnsupportedError(
                f"this StatefulDataLoader has loaded a state, and is at epoch {here.epoch}, step {here.step}, but the "
                "Loader that wraps it starts at epoch 0, step 0.\nIt would repeat batches. Iterate over the "
                "StatefulDataLoader itself, or wrap it first, and load a state of the Loader that wrap() returns."
            )
        sampler = self._samplers()[-1]
        if self._drawn is not None and sampler is self.sampler:
            sampler = _random_sampler(self.order)(self.dataset)  # no seed was passed
        return self._plain(sampler)

    def _samplers(self) -> list[Any]:
        """Return the objects that may be a sampler with a state, the one that is asked for indices last."""
        inner = ask(self.batch_sampler, "sampler")
        return [self.sampler, self.batch_sampler, self.sampler if inner is None else inner]

    def _arguments(self) -> list[Any]:
        """Return everything that a script can change after construction."""
        return [*(getattr(self, name) for name in _CHANGEABLE), *self._samplers()]

    def _follow_arguments(self) -> None:
        """Read with the arguments that the script has changed since the last loop."""
        if any(now is not used for now, used in zip(self._arguments(), self._used, strict=True)):
            here = self.loader.cursor
            self._wrap(self.loader.state_dict() if self._resumed or here.epoch or here.step else None)

    def _divides(self) -> Any:
        """Return the sampler that divides the samples among ranks, if there is one."""
        for layer in self._samplers():
            if ask(layer, "num_replicas") is not None:
                return layer
        return None

    def _sampler_epoch(self) -> int | None:
        """Return the epoch that a script has set on the sampler by `set_epoch`."""
        for layer in self._samplers():
            if callable(ask(layer, "set_epoch")) and type(epoch := ask(layer, "epoch")) is int:
                return epoch
        return None

    # ------------------------------------------------------------------ iterating

    def __iter__(self) -> Iterator[T_co]:  # type: ignore[override]  # PyTorch promises its private class
        """Return an iterator over one epoch, or over the rest of the epoch after a state was loaded.

        Raises:
            UnsupportedError: `set_epoch` was called with a different epoch than the state's, in the middle of an epoch;
                or the script has set an attribute to a value that the constructor rejects.
            StateMismatchError, StateFormatError: `load_state_dict` raised it, and the script caught it.

        Warns:
            LoopWarning: the state was taken after the last batch, so this loop has none (`after_last="empty"`); or
                `set_epoch` goes back to an epoch that was trained already.
        """
        with self._lock:
            if self._refused is not None:
                raise self._refused  # a script that caught it must not train from scratch
            if self._loop is not None and self._loop.is_left:
                self.loader.end_epoch()
            self._follow_arguments()
            self._follow_set_epoch()
            loader = self.loader
            epoch = next(loader.epochs(_ENDLESS))
            nothing_left = self._resumed and loader.is_sized and loader.cursor.step >= len(epoch)
            if nothing_left and self.after_last == "next":
                loader.end_epoch()
                epoch = next(loader.epochs(_ENDLESS))
            elif nothing_left:
                warn(
                    f"the state was taken after the last batch of epoch {epoch}, so this loop has no batch.\n"
                    "A script that computes its epoch as step // len(loader) trains one epoch less. Pass "
                    'StatefulDataLoader(..., after_last="next") to start the next epoch instead.',
                    LoopWarning,
                )
            self._loop, self._resumed = _Loop(self._resumed, loader.cursor), False
            return _EpochIterator(self, self._loop, iter(epoch))

    def _take(self, loop: _Loop) -> Iterator[T_co] | None:
        """Make a loop that a loaded state has replaced the newest again, if it had read nothing and starts there."""
        if self._loop is not None or self._refused is not None or loop.started or loop.start != self.loader.cursor:
            return None
        self._loop, self._resumed = loop, False
        return iter(next(self.loader.epochs(_ENDLESS)))

    def _follow_set_epoch(self) -> None:
        """Go to the epoch that the script has set since the last loop."""
        loader, told = self.loader, self._sampler_epoch()
        if self._foreign is not None:
            self._continue(self._foreign, told)
            self._foreign, self._epoch_set = None, told
        here = loader.cursor.epoch
        if told is None or (told == self._epoch_set and not self._resumed):
            return
        self._epoch_set = told
        within = self._resumed and loader.cursor.step > 0 and not self._is_done()
        if told == here or (self._resumed and told == 0):  # 0: not called yet, or a count that restarts
            return
        if within:
            raise UnsupportedError(
                f"set_epoch({told}) was called, but the state that was loaded is in the middle of epoch {here}.\n"
                f"The rest of epoch {here} would not be read. Call set_epoch({here}), or load no state."
            )
        if told < here:
            warn(
                f"set_epoch({told}) was called, and epoch {here} is next: epoch {told} is trained again, in the same "
                "order.\nA script that counts its epochs from 0 after a resume does this. Save the epoch number, and "
                "continue from it.",
                LoopWarning,
            )
        loader.seek(epoch=told)

    def _is_done(self) -> bool:
        loader = self.loader
        return loader.is_sized and loader.cursor.step >= loader.total_steps(loader.cursor.epoch)

    # ------------------------------------------------------------------ the state

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that a loop received. Any thread may call it, at any time."""
        with self._lock:
            if self._refused is not None:
                raise self._refused  # it would overwrite the one that was rejected
            if self._foreign is not None:
                return dict(self._foreign)
            loop = self._loop
            finished = loop is not None and loop.over and self.loader.cursor.step == 0
            return {_FINISHED: finished, _STATE: self.loader.state_dict(), _SEED: self._drawn}

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Continue after the batch at which a state was taken: the next `iter()` reads the rest of its epoch.

        Args:
            state_dict: from `state_dict()`, other keys in it are ignored; a state of torchdata's class, if
                `order="torchdata"`, to which the next `iter()` goes if a sampler has `set_epoch`; or an empty one,
                which lets the next loop start a new epoch.
            strict: as in `Loader.load_state_dict`.

        Raises:
            StateFormatError: it is not a state of this class.
            StateMismatchError: data, batch size, seed or sampler differ, or torchdata's state had workers and this
                loader has none, or the other way round. The next `iter()` raises the error again, so
                a script that catches it does not train from scratch.
        """
        with self._lock:
            self._refused = self._foreign = None
            before, self._loop = self._loop, None
            self._loaded = bool(state_dict)
            if not state_dict:
                if before is not None and before.is_left:
                    self.loader.end_epoch()
                return
            try:
                self._load(state_dict, strict=strict)
            except Exception as error:
                _explain(error)
                self._refused = error
                raise
            self._resumed = True

    def _load(self, state: Mapping[str, Any], *, strict: bool) -> None:
        if _STATE not in state:
            self._adopt(state)
            return
        self._draw_from(state.get(_SEED))
        self.loader.load_state_dict(state[_STATE], strict=strict)
        if state.get(_FINISHED) and self.loader.cursor.step > 0:
            self.loader.end_epoch()  # Accelerate reads one batch ahead, and marks the end of the epoch itself

    def _draw_from(self, seed: int | None) -> None:
        """Shuffle with the seed of a state, if the seed of this process is random."""
        if seed is not None and self._drawn is not None and seed != self._drawn:
            self._drawn = seed
            self.sampler.generator.manual_seed(seed)  # type: ignore[attr-defined]  # the sampler made in __init__
            self._wrap()

    def _adopt(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that torchdata's class has saved."""
        if not _TORCHDATAS & set(state):
            raise StateFormatError(
                f"the state has no key {_STATE!r}; its keys are {sorted(map(str, state))}.\n"
                "It is not a state of StatefulDataLoader. Pass what state_dict() returned."
            )
        if self.order != "torchdata" or isinstance(self.dataset, IterableDataset):
            raise StateFormatError(
                "the state was saved by torchdata's StatefulDataLoader, whose order differs from this loader's.\n"
                "The rest of the epoch would repeat some samples and skip others. For a map-style dataset, pass "
                'StatefulDataLoader(..., order="torchdata"); a stream can only finish its run with torchdata.'
            )
        saved = position_of(state, epoch=None, step=None).generator
        if saved is not None:
            generator = torch.Generator()
            generator.set_state(saved)
            self._draw_from(generator.initial_seed())
        if self._sampler_epoch() is None:
            self._continue(state, 0 if type(self.sampler) is SequentialSampler else None)
        else:
            self._foreign = state  # set_epoch may follow

    def _continue(self, state: Mapping[str, Any], epoch: int | None) -> None:
        """Go to the position of torchdata's state; a state does not have the number of an epoch."""
        if state.get(_FINISHED) and epoch is not None:
            adopt(self.loader, epoch=epoch, step=0)
            return
        adopt(self.loader, state, epoch=epoch)
        if state.get(_FINISHED):
            self.loader.end_epoch()

    # ------------------------------------------------------------------ other processes, and the end

    def __getstate__(self) -> dict[str, Any]:
        """Return arguments and position, for a process that continues there."""
        own = {name: value for name, value in vars(self).items() if name not in {"_lock", "_loop", "_used", "loader"}}
        if self._refused is None:
            own["_sent"] = self.state_dict()
        return own

    def __setstate__(self, own: dict[str, Any]) -> None:
        sent = own.pop("_sent", None)
        vars(self).update(own)
        refused = self._refused
        self._restart()
        self._refused = refused
        self._wrap()
        if sent is not None and sent.get(_STATE) != self.loader.state_dict():
            self.load_state_dict(sent)

    def close(self) -> None:
        """End the worker processes; the position stays."""
        self.loader.close()


@dataclass
class _Loop:
    """How far one loop is. The loader keeps it instead of the iterator, so a dropped iterator frees its workers.

    Args:
        resumed: the epoch continues after a state.
        start: the position before its first batch.
        started: a batch was delivered.
        over: it has reached the end.
    """

    resumed: bool
    start: Cursor
    started: bool = False
    over: bool = False

    @property
    def is_left(self) -> bool:
        """Whether a new loop starts a new epoch, though this one was not read to its end."""
        return not self.over and (self.started or self.resumed)


class _EpochIterator(Generic[T_co]):
    """The batches of one epoch.

    Args:
        owner: the loader.
        loop: this loop.
        batches: of the Loader that reads.
    """

    def __init__(self, owner: StatefulDataLoader[T_co], loop: _Loop, batches: Iterator[T_co]) -> None:
        self._owner, self._loop, self._batches = owner, loop, batches
        self._failed: Any = None  # the cursor of a batch that raised

    def __iter__(self) -> Iterator[T_co]:
        return self

    def __len__(self) -> int:
        return len(self._owner)

    def __next__(self) -> T_co:
        owner = self._owner
        with owner._lock:  # noqa: SLF001  # one thing in two classes
            if self._loop.over:
                raise StopIteration
            if owner._loop is not self._loop:  # noqa: SLF001
                again = owner._take(self._loop)  # noqa: SLF001
                self._batches = self._batches if again is None else again
            if owner._loop is not self._loop:  # noqa: SLF001
                raise LoopError(
                    "the next batch was requested from an iterator, but a newer loop over the same StatefulDataLoader "
                    "was started, or a state was loaded.\nBoth loops would take batches of one stream. Finish one "
                    "before you start the next, or make a second loader."
                )
            loader = owner.loader
            if self._failed is not None and self._failed == loader.cursor and loader.is_sized:
                loader.seek(epoch=loader.cursor.epoch, step=loader.cursor.step + 1)  # as PyTorch, it skips that batch
            self._failed = None
            try:
                batch = next(self._batches)
            except StopIteration:
                self._loop.over = True
                raise
            except Exception as error:
                _explain(error)
                self._failed = loader.cursor
                raise
            self._loop.started = True
            return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader."""
        return self._owner.state_dict()


def install(*, after_last: AfterLast = "empty", order: Order = "feistel", **options: Any) -> None:
    """Make `torchdata.stateful_dataloader.StatefulDataLoader` in this process the class of this module.

    Call it before a framework imports torchdata's class:

        import resumable.torch

        resumable.torch.install()
        import verl

    Args:
        after_last: default of the loaders that are made from now on.
        order: the same.
        **options: options of `wrap` for them.

    Raises:
        MissingDependencyError: torchdata is not installed.
        ConfigurationError: modules have imported torchdata's class already; the message lists them.
    """
    theirs = _torchdatas()
    late = [
        name
        for name, module in list(sys.modules.items())
        if name not in _MODULES and vars(module).get("StatefulDataLoader") is theirs
    ]
    if late:
        raise ConfigurationError(
            f"torchdata's StatefulDataLoader was imported before install() was called, by {', '.join(sorted(late))}.\n"
            "These modules would keep using it. Call resumable.torch.install() before you import them."
        )
    _check(after_last, order)
    _installed.after_last, _installed.order, _installed.options = after_last, order, options
    for name in _MODULES:
        vars(sys.modules[name])["StatefulDataLoader"] = StatefulDataLoader
    _log.info("torchdata.stateful_dataloader.StatefulDataLoader is resumable.torch.StatefulDataLoader from now on")


_theirs: list[Any] = []  # torchdata's class, which install() hides


def _torchdatas() -> Any:
    """Return torchdata's own class.

    Raises:
        MissingDependencyError: torchdata is not installed.
    """
    if not _theirs:
        try:
            from torchdata.stateful_dataloader import StatefulDataLoader as Theirs  # noqa: PLC0415  # an optional package
        except ImportError as error:
            raise MissingDependencyError("torchdata is not installed. Run: pip install torchdata") from error
        _theirs.append(Theirs)
    return _theirs[0]


def _explain(error: Exception) -> None:
    """Say once where options go that an error recommends for `wrap`."""
    note = "Pass options of wrap() to StatefulDataLoader(), or to install() if a framework creates it."
    if isinstance(error, ResumableError) and "wrap(" in str(error) and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _random_sampler(order: str) -> Any:
    if order != "torchdata":
        return RandomSampler
    _torchdatas()
    from torchdata.stateful_dataloader.sampler import RandomSampler as Theirs  # noqa: PLC0415  # an optional package

    return Theirs


def _check(after_last: str, order: str) -> None:
    check_choice("after_last", after_last, get_args(AfterLast), "It says what follows an epoch's last batch.")
    check_choice("order", order, get_args(Order), "It selects the order of a shuffled dataset.")
