"""Log messages when a stream opens: its position, which rank reads it, and how the rank was detected.

The logger `resumable` has no handler, not even a `NullHandler`. So in a script that configures no logging, Python
prints its warnings to standard error, and nothing below.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from resumable._order.world import Found, World, several_ranks
from resumable._ranks import Group, Watch
from resumable._ranks.seeds import refuse_unagreed
from resumable._ranks.store import is_initialized
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from typing import Any

    from resumable._data import DataFingerprint
    from resumable._fetch import Fetcher
    from resumable._options import Options
    from resumable._order.cursor import Cursor
    from resumable._state import Mark


__all__ = ["Opening", "compares", "warn_of_environment"]


_log = logging.getLogger("resumable")
_said: set[str] = set()  # the warnings that were logged in this process
_BOTH_WAYS = "world=World(0, 1) to read everything, or world=World.detect() if the variables are correct."


class Opening:
    """Logs where a stream opens, once after each time that `wrap`, a load or `seek` sets its position.

    Args:
        fetcher: of the stream.
        options: of the loader.

    Attributes:
        shares: the ranks combine their scores, so each of them should evaluate only its part.
    """

    def __init__(self, fetcher: Fetcher, options: Options) -> None:
        self._fetcher, self._options = fetcher, options
        self._how: str | None = "from the start" + (" of each loop" if options.evaluation else "")
        self._agreed = False  # whether the ranks have agreed on the seed
        self.shares = False
        self._ranks = options.ranks
        if self._ranks.watch is None:
            self._ranks.watch = Watch(options.known_as, named=bool(options.name))
        self._watch = self._ranks.watch

    def of(self, fetcher: Fetcher, options: Options) -> Opening:
        """Return the same object for a new fetcher of the loader."""
        other = Opening(fetcher, options)
        other.shares = self.shares
        return other

    def moved(self, how: str) -> None:
        """Note that the position was set, and how."""
        self._how = how
        self._watch.moved()

    def loaded(self) -> None:
        """Note that a state set the position. The position is the same on all ranks, and so is the seed."""
        self.moved("after a loaded state")
        self._agreed = True
        self._ranks.fix(self._options.world)

    def check_ranks(self) -> None:
        """Check that the ranks are the same as those that the data were divided among.

        Raises:
            ConfigurationError: they are not.
        """
        self._ranks.check(self._options.world)

    def step(self) -> None:
        """Check the other ranks before a batch is read.

        Raises:
            RankError: a rank differs from this one, or has failed.
        """
        self._watch.step()

    def failed(self, error: BaseException, at: Cursor) -> None:
        """Report an error to the other ranks."""
        if not self._options.evaluation:
            self._watch.failed(error, f" in epoch {at.epoch}, step {at.step}")

    def tell(self, mark: Mark, global_batch: int, noted: DataFingerprint) -> None:
        """Fix the ranks, and log that the stream opens at a mark, unless a running loop reopens it.

        Args:
            mark: the position.
            global_batch: samples per step over all ranks.
            noted: the fingerprint of the data.

        Raises:
            ConfigurationError: the ranks have changed, or do not agree on a seed.
            RankMismatchError: a rank has posted a different fingerprint of its stream.
        """
        options = self._options
        self._ranks.fix(options.world)
        first = self._how is not None
        if first:
            self._tell_first(mark, global_batch)
        if (first or not mark.cursor.step) and compares(self._watch, options):
            key = "set" if first else f"epoch {mark.cursor.epoch}"
            fingerprint = fingerprint_of_rank(self._fetcher, options, mark, global_batch, noted)
            self._watch.compare(key, fingerprint)
            if first:
                self._watch.begins(fingerprint.get("place"))

    def _tell_first(self, mark: Mark, global_batch: int) -> None:
        if not self._agreed:
            options = self._options
            refuse_unagreed(options.origin.seed, options.seed or 0, options.known_as, options.world)
            self._agreed = True
        how, self._how = self._how or "", None
        found = self._ranks.find(self._options.world)
        if self._fetcher.world().size > 1:
            self._warn(found)
        elif found == Found():
            _warn_of_job()
        if _log.isEnabledFor(logging.INFO):
            _log.info(
                "%s: %s; %s; %s; seed %d%s",
                _name(self._fetcher),
                _place(self._fetcher, mark, global_batch),
                how if how.startswith("from") else f"{how}, {_way(self._fetcher, self._options, mark)}",
                _rank(self._fetcher, self._options),
                self._options.seed,
                f", name {self._options.name}" if self._options.name else "",
            )

    def _warn(self, found: Found) -> None:
        if self._options.evaluation and not self.shares and self._options.world is None:
            _warn_of_part(found)
        else:
            warn_of_environment(found, "this loader", _BOTH_WAYS)


def warn_of_environment(found: Found, what: str, way_out: str) -> None:
    """Warn, once per process, if only the environment makes this process read a part of the data.

    Args:
        found: the rank, and how it was detected.
        what: what reads the data, for the message.
        way_out: what to pass instead.
    """
    if found.variables is None or found.size == 1 or "environment" in _said:
        return
    _said.add("environment")
    _log.warning(
        "rank %d of %d from environment variables alone (%s): %s reads 1/%d of each global batch.\n"
        "torch.distributed is not initialised, so nothing else confirms that there are other ranks. Without them, the "
        "rest of the data is not read at all. Pass %s",
        *(found.rank, found.size, found.variables, what, found.size, way_out),
    )


def _warn_of_job() -> None:
    """Warn, once per process, if the environment shows several ranks, but not which one this is."""
    if (size := several_ranks()) is not None and "job" not in _said:
        _said.add("job")
        _log.warning(
            "the environment shows several ranks (%s), but no variable says which one this is: it reads all the data.\n"
            "If others run the same script, each of them trains on every sample. Start it with the launcher, which "
            "sets both variables, read the first batch after init_process_group(), or pass "
            "wrap(..., world=World(rank, size)). If it runs alone, unset the variable.",
            size,
        )
    tasks = os.environ.get("SLURM_NTASKS", "1")
    if tasks == "1" or "SLURM_STEP_NUM_TASKS" in os.environ or "job" in _said:
        return
    _said.add("job")
    _log.warning(
        "the SLURM job has %s tasks (SLURM_NTASKS), but srun did not start this process: it is the only rank, and "
        "reads all the data.\nIf others run the same script, each of them trains on every sample. Start it with srun, "
        "or read the first batch after init_process_group().",
        tasks,
    )


def _warn_of_part(found: Found) -> None:
    if "evaluation" in _said:
        return
    _said.add("evaluation")
    _log.warning(
        "a loader with evaluation=True is divided among the ranks: rank %d of %d (%s) reads 1/%d of each global "
        "batch.\nIf this rank evaluates alone, its score covers only that part. Pass world=World(0, 1) if one rank "
        "evaluates everything, or world=World.detect() if all ranks evaluate and combine their scores.",
        *(found.rank, found.size, found.by, found.size),
    )


def _name(fetcher: Fetcher) -> str:
    backend = fetcher.backend
    kind, source = backend.kind, backend.identity.get("source")
    return f"{kind}" if source in {None, kind} else f"{kind} {source}"


def _place(fetcher: Fetcher, mark: Mark, global_batch: int) -> str:
    cursor = mark.cursor
    place = f"epoch {cursor.epoch}, step {cursor.step}"
    try:
        plan = fetcher.plan(global_batch)
    except ConfigurationError:  # raised again when the batches are read
        return place
    total = 0 if plan is None else plan.total(cursor)
    return f"{place} of {total} ({100 * cursor.step // total} %)" if total else place


def _way(fetcher: Fetcher, options: Options, mark: Mark) -> str:
    """Describe how the source gets to a mark."""
    source, cursor = mark.source, mark.cursor
    if fetcher.unit == "sample":
        return "by index" if source is None else "by index and the dataset's own state"
    if options.resume == "replay_run":
        return f"{cursor.epoch} epochs and {cursor.position} elements replayed"
    if source is None or options.replays:
        return f"{cursor.position} elements replayed"
    if source.ended and cursor.position:
        return "at the epoch's end"
    replayed, skipped = source.replayed(fetcher.replayed), source.replayed(_none)
    if not replayed:
        return "from the source's own state"
    return f"{replayed} elements replayed" + (" after the source's own state" if replayed == skipped else "")


def _none(_: Any) -> int:
    return 0


def _rank(fetcher: Fetcher, options: Options) -> str:
    found = options.ranks.find(options.world)
    own = ", with its own stream" if fetcher.world().size < found.size else ""
    return f"rank {found.rank} of {found.size} ({found.by}){own}"


# ------------------------------------------------------------------ peers
#
# The values that the ranks must have in common when a stream opens, and the ranks that are compared.


def compares(watch: Watch, options: Options) -> bool:
    """Turn the watch of a loader on if there are ranks to compare with, and return whether it is on."""
    if not options.compares_ranks or not is_initialized():
        watch.turn_off()
        return False
    distributed: Any = sys.modules["torch.distributed"]
    given, world = options.world, options.find_world()
    if isinstance(given, World) and given.size != distributed.get_world_size():
        watch.turn_off()  # which of the ranks divide these data is unknown
        return False
    watch.turn_on(distributed.get_rank(), world, given.peers() if isinstance(given, Group) else None)
    return watch.is_on


def fingerprint_of_rank(
    fetcher: Fetcher, options: Options, mark: Mark, global_batch: int, noted: DataFingerprint
) -> dict[str, Any]:
    """Return what the ranks must have in common. The values that explain most of the others come first.

    Ranks with separate streams (`shard=False`) have only the position in common: their data and options may differ. If
    an integration lets ranks catch up, as the Lightning callback does after an error, positions are not compared.
    """
    cursor = mark.cursor
    step = f"epoch {cursor.epoch}, step {cursor.step}"
    place = {"place": f"{step}, after {cursor.position} samples"} if options.ranks.together else {}
    if options.shard is False:
        return {"place": step} if place else {}
    own = fetcher.fingerprint()
    of_data = {name: own.pop(name) for name in list(own) if name.startswith("backend.")}
    of_order = {name: value for name, value in own.items() if name not in {"rank", "randomness.seed"}}
    return {
        **of_data,
        "length": fetcher.traits.length,
        "samples": noted.of_rank(),
        "batch_size": options.batch_size,
        "randomness.seed": own["randomness.seed"],
        **of_order,
        "global_batch": global_batch,
        **place,
    }
