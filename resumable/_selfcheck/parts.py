"""Which parts of a stream are checked, and where they are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from resumable._fetch import IndexedFetcher
from resumable._selfcheck.streams import borders_of

if TYPE_CHECKING:
    from resumable._selfcheck.streams import Recorded
    from resumable.loader import Loader

__all__ = ["Cut", "Part", "cuts_of", "middle_of", "parts_of"]

_MOST = 200  # batches of a part
_FEW = 32  # of the beginning of a long epoch
_AROUND = 3  # batches before the end of a long epoch, and after it


class Part(NamedTuple):
    """A part of the stream.

    Args:
        length: number of batches.
        seek: epoch and step of its first one; None for the beginning.
    """

    length: int
    seek: tuple[int, int] | None = None


class Cut(NamedTuple):
    """A place at which a run is cut.

    Args:
        where: in words.
        after: so many batches of the part.
    """

    where: str
    after: int


def parts_of(loader: Loader) -> list[Part]:
    """Return what is read: two epochs and a bit where they are short, else the beginning and the end of the first."""
    if loader.evaluation or not loader.is_sized:
        return [Part(_MOST)]
    length = loader.total_steps(0)
    if 2 * length + 2 <= _MOST:
        return [Part(2 * length + 2)]
    fetcher = loader._fetcher  # noqa: SLF001  # whether going to a place reads nothing is not seen from outside
    if isinstance(fetcher, IndexedFetcher) and not fetcher.remembers:
        return [Part(_FEW), Part(2 * _AROUND, (0, length - _AROUND))]
    return [Part(_MOST)]


def middle_of(run: Recorded) -> int:
    """Return after how many batches a run is cut in its middle."""
    most = len(run.batches)
    return min((done for done in run.states if done < most), key=lambda done: abs(2 * done - most))


def cuts_of(run: Recorded, part: Part) -> list[Cut]:
    """Return where a part is cut: at its beginning, in its middle, and around the ends of epochs."""
    batches, cuts = run.batches, list[Cut]()
    if part.seek is None:
        cuts += [Cut("cut before the first batch", 0), Cut("cut after the first batch", 1)]
        middle = middle_of(run)
        cuts.append(Cut(f"cut after {middle} batches", middle))
    for number in borders_of(batches):
        epoch = batches[number - 1].epoch
        cuts += [
            Cut(f"cut before the last batch of epoch {epoch}", number - 1),
            Cut(f"cut after the last batch of epoch {epoch}", number),
            Cut(f"cut after the first batch of epoch {epoch + 1}", number + 1),
        ]
    found: dict[int, Cut] = {}
    for cut in cuts:
        if cut.after in run.states and cut.after < len(batches):
            found.setdefault(cut.after, cut)
    return list(found.values())
