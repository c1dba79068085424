"""What the logger `resumable` says when a stream opens: where it stands, which rank reads it, and who said so.

The logger has no handler of its own, not even one that does nothing: so Python itself prints its warnings to the
standard error of a script that configures no logging, and nothing below.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from resumable._order.world import World, find
from resumable._seeds import refuse_unagreed
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from typing import Any

    from resumable._fetch import Fetcher
    from resumable._options import Options
    from resumable._order.world import Found
    from resumable._state import Mark

__all__ = ["Opening", "warn_of_environment"]

_log = logging.getLogger("resumable")
_said: set[str] = set()  # the warnings that this process has had
_BOTH_WAYS = "world=World(0, 1) to read everything, or world=World.detect() if the variables are right."


class Opening:
    """Says where a stream opens, once after each time that a user set its place: by `wrap`, a load, or `seek`.

    Args:
        fetcher: of the stream.
        options: of the loader.

    Attributes:
        shares: the ranks put their scores together, so that a part of an evaluation is what each of them wants.
    """

    def __init__(self, fetcher: Fetcher, options: Options) -> None:
        self._fetcher, self._options = fetcher, options
        self._how: str | None = "from the beginning" + (" of each loop" if options.evaluation else "")
        self._agreed = False  # the ranks on the seed
        self.shares = False

    def of(self, fetcher: Fetcher, options: Options) -> Opening:
        """Return the same for another fetcher of the loader."""
        other = Opening(fetcher, options)
        other.shares = self.shares
        return other

    def moved(self, how: str) -> None:
        """Note that the place was set, and by what."""
        self._how = how

    def loaded(self) -> None:
        """Note that the place was set by a state, which is the same on all ranks, as its seed is."""
        self._how, self._agreed = "after a loaded state", True

    def tell(self, mark: Mark, global_batch: int) -> None:
        """Say that the stream opens at a mark, unless it is a later opening of a running loop."""
        if self._how is None:
            return
        if not self._agreed:
            options = self._options
            refuse_unagreed(options.origin.seed, options.seed or 0, options.known_as, options.world)
            self._agreed = True
        how, self._how = self._how, None
        if self._options.world is None and self._fetcher.world().size > 1:
            self._warn(find())
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
        if self._options.evaluation and not self.shares:
            _warn_of_part(found)
        else:
            warn_of_environment(found, "this loader", _BOTH_WAYS)


def warn_of_environment(found: Found, what: str, way_out: str) -> None:
    """Say, once per process, that the environment alone makes this process read a part of the data.

    Args:
        found: the rank, and what said so.
        what: what reads, for the message.
        way_out: what to give it.
    """
    if found.variables is None or found.size == 1 or "environment" in _said:
        return
    _said.add("environment")
    _log.warning(
        "rank %d of %d by the environment alone (%s): %s reads 1/%d of each global batch.\n"
        "torch.distributed is not initialised, so nothing else shows that there are other ranks. Without them, the "
        "rest of the data is not read at all. Give %s",
        *(found.rank, found.size, found.variables, what, found.size, way_out),
    )


def _warn_of_part(found: Found) -> None:
    if "evaluation" in _said:
        return
    _said.add("evaluation")
    _log.warning(
        "a loader with evaluation=True is divided among the ranks: rank %d of %d (%s) reads 1/%d of each global "
        "batch.\nIf this rank evaluates alone, its score is that of a part. Give world=World(0, 1) for a rank that "
        "evaluates everything, or world=World.detect() where all ranks do and put their scores together.",
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
    except ConfigurationError:  # is raised where the batches are read
        return place
    total = 0 if plan is None else plan.total(cursor)
    return f"{place} of {total} ({100 * cursor.step // total} %)" if total else place


def _way(fetcher: Fetcher, options: Options, mark: Mark) -> str:
    """Say how the source gets to a mark."""
    source, cursor = mark.source, mark.cursor
    if fetcher.unit == "sample":
        return "by index" if source is None else "by index and the dataset's own state"
    if source is None or options.resume == "replay":
        return f"{cursor.position} elements replayed"
    if source.ended and cursor.position:
        return "at the epoch's end"
    replayed, skipped = source.replayed(fetcher.can.replayed or _none), source.replayed(_none)
    if not replayed:
        return "by the source's own state"
    return f"{replayed} elements replayed" + (" after the source's own state" if replayed == skipped else "")


def _none(_: Any) -> int:
    return 0


def _rank(fetcher: Fetcher, options: Options) -> str:
    given = options.world
    found = find() if given is None else None
    world = given or (World() if found is None else World(found.rank, found.size))
    by = "as given by world= or the sampler" if found is None else found.by
    own = ", with a stream of its own" if fetcher.world().size < world.size else ""
    return f"rank {world.rank} of {world.size} ({by}){own}"
