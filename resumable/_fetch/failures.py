"""What a user's code raises while a batch is made: it arrives as it is, with notes that say where it belongs.

Only `StopIteration` cannot, as it would end the epoch. An error of a worker process is sent, and raised in the training
process with its type, arguments and attributes; the worker's traceback is its cause.
"""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from resumable._introspection import ask, in_words, module_of, mro_of, shorten
from resumable.errors import ResumableError, SampleError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resumable._order.cursor import Cursor


__all__ = [
    "Sent",
    "describe_death",
    "ended_inside",
    "in_short",
    "is_death",
    "note",
    "note_first",
    "note_place",
    "received",
    "sending",
    "worker_number",
]


_PREFIX = "resumable: "
_SHOWN = 8  # indices of a batch that is read as a whole


def note(error: Exception, what: str) -> None:
    """Add a note of what raised an error, and in which worker process, once.

    Args:
        error: stays the same otherwise.
        what: raised it.
    """
    worker = worker_number()
    _add(error, f"raised by {what}." if worker is None else f"raised by {what}, in worker {worker}.")


def note_first(error: Exception, what: str) -> None:
    """Add a note of what raised an error, unless it has one, or is of this package and says what it means."""
    if not isinstance(error, ResumableError) and not _is_noted(error):
        note(error, what)


def note_place(error: Exception, at: Cursor, rank: int) -> None:
    """Add a note of the batch that could not be made; not to an error of this package about something else.

    Args:
        error: stays the same otherwise.
        at: the place of the batch.
        rank: of this process.
    """
    if isinstance(error, SampleError) or not isinstance(error, ResumableError) or _is_noted(error):
        _add(
            error,
            f"in epoch {at.epoch}, step {at.step}, rank {rank}. The batch was not delivered: mend what raised, and "
            "iterate again or go on from the state.",
        )


def worker_number() -> int | None:
    """Return the number of the worker process that this is, or None."""
    torch_data = sys.modules.get("torch.utils.data")  # there in each worker
    info = None if torch_data is None else torch_data.get_worker_info()
    return None if info is None else int(info.id)


def ended_inside(what: str) -> SampleError:
    """Return what to raise for a `StopIteration` of a user's code, which would be taken for the end of the epoch."""
    return SampleError(
        f"{what} raised StopIteration, by a next() on something that is at its end.\n"
        "The epoch would end there, without its last batches. Give next() a default, or catch it there."
    )


def in_short(indices: list[Any]) -> str:
    """Name the samples of a batch that is read as a whole."""
    more = len(indices) - _SHOWN
    return f"samples {shorten(indices[:_SHOWN])}" + (f" and {more} more" if more > 0 else "")


class WorkerTraceback(Exception):  # noqa: N818  # it says where an error comes from
    """The traceback of an error that was raised in a worker process."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Sent:
    """An error on its way from a worker process.

    Args:
        error: raised there.
    """

    def __init__(self, error: Exception) -> None:
        if not _is_noted(error):
            _add(error, f"raised in worker {worker_number()}.")
        self._words, self._traceback = in_words(error), "".join(format_exception(error))
        self._pickled, self._notes = _pickled(error), _notes(error)

    def error(self) -> Exception:
        """Return the error as it was; as its nearest base class that can be sent, where it cannot."""
        error: Exception
        try:
            error = pickle.loads(self._pickled)  # noqa: S301  # from our own worker
        except Exception:  # noqa: BLE001  # a user's class may raise anything
            error = SampleError(self._words)
            for told in self._notes:
                error.add_note(told)
        error.__cause__ = WorkerTraceback(self._traceback)
        return error


def sending(answers: Iterator[Any]) -> Iterator[Any]:
    """Yield a worker's answers, the last of which may be an error."""
    try:
        yield from answers
    except Exception as error:  # noqa: BLE001  # of whatever type, it is raised in the training process
        yield Sent(error)


def received(answer: Any) -> Any:
    """Return what a worker sent, or raise it."""
    if isinstance(answer, Sent):
        raise answer.error()
    return answer


def _add(error: BaseException, text: str) -> None:
    if _PREFIX + text not in _notes(error):
        with suppress(Exception):  # whatever a user's class makes of it
            error.add_note(_PREFIX + text)


def _is_noted(error: BaseException) -> bool:
    return any(told.startswith(_PREFIX) for told in _notes(error))


def _notes(error: BaseException) -> list[str]:
    notes = ask(error, "__notes__", [])
    return [told for told in notes if isinstance(told, str)] if isinstance(notes, (list, tuple)) else []


def _pickled(error: Exception) -> bytes:
    for form in _forms(error):
        with suppress(Exception):  # a user's class may raise anything
            sent = pickle.dumps(form)
            again = pickle.loads(sent)  # noqa: S301  # what was just made
            if not isinstance(form, _Apart) and (type(again) is not type(error) or str(again) != str(error)):
                continue  # a class whose constructor makes something else of what it is given
            return sent
    return b""


def _forms(error: Exception) -> Iterator[Any]:
    """Yield what an error can be sent as, the best first."""
    yield error
    kind = type(error)
    built_in: Any = next(base for base in mro_of(kind) if module_of(base) == "builtins")
    _, args, *rest = built_in.__reduce__(error)
    state = _picklable(rest[0].items() if rest else ())
    yield _Apart(kind, built_in, args, state)
    words = (in_words(error),)
    for base in mro_of(kind):
        if base not in {Exception, BaseException, object}:
            yield _Apart(base, built_in, words, state)


class _Apart:
    """An exception taken apart, for one that cannot be pickled as it is."""

    def __init__(self, kind: type[Any], built_in: type[Any], args: Any, state: dict[str, Any]) -> None:
        self._parts = kind, built_in, args, state

    def __reduce__(self) -> tuple[Any, ...]:
        return _together, self._parts


def _together(kind: type[Any], built_in: type[Any], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    """Make an exception, past the constructor of its class."""
    if not issubclass(kind, built_in):
        raise TypeError(f"{kind} is no {built_in}")
    error = built_in.__new__(kind, *args)
    built_in.__init__(error, *args)
    error.__setstate__(state)
    return error


def _picklable(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    kept = {}
    for name, value in items:
        with suppress(Exception):  # a user's object may raise anything
            pickle.loads(pickle.dumps(value))  # noqa: S301  # what was just made
            kept[name] = value
    return kept


# ------------------------------------------------------------------ lost workers
#
# Workers that are lost: how torch says that one died or hangs.

_TRANSPORT = {"multiprocessing.resource_sharer", "multiprocessing.connection", "torch.multiprocessing.reductions"}
_TIMEOUT = "DataLoader timed out"
_SIGNS = _TIMEOUT, "DataLoader worker", "Pin memory thread exited"


def is_death(error: BaseException) -> bool:
    """Return whether an error says that a worker process died.

    torch tells it by the handler of a signal, so between any two lines; or the pipe to the worker is broken.

    Args:
        error: raised while there are workers.
    """
    if isinstance(error.__cause__, WorkerTraceback) or "Caught " in str(error):
        return False  # raised by the user's code in a worker, and brought here by us or by torch
    # A plain RuntimeError: those of this package have bases that are, but say already what they mean.
    told = type(error) is RuntimeError and any(sign in str(error) for sign in _SIGNS)
    return told or isinstance(error, (ConnectionError, EOFError)) or _is_of_transport(error)


def _is_of_transport(error: BaseException) -> bool:
    """Return whether a tensor could not be fetched from the process that sent it, as that is gone."""
    entry = error.__traceback__ if isinstance(error, OSError) else None
    while entry is not None:
        if entry.tb_frame.f_globals.get("__name__") in _TRANSPORT:
            return True
        entry = entry.tb_next
    return False


def describe_death(error: BaseException) -> WorkerError:
    """Return what to raise for an error that says that a worker process died."""
    told = str(error) if type(error) is RuntimeError else f"{type(error).__name__}: {error}"
    if _TIMEOUT in told:
        what = "gave no answer"
        advice = "give the DataLoader a longer timeout=, or find what the dataset waits for, and go on from the state."
    else:
        what = "died"
        advice = "look for a crash in the dataset, free memory if the system killed it, and go on from the state."
    return WorkerError(
        f"a process that reads samples {what}: {told}\nThe loader's state is that before this batch: {advice}"
    )
