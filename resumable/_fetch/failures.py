"""Exceptions of user code while a batch is made: they arrive unchanged, with notes that say where they were raised.

`StopIteration` is replaced, because it would end the epoch. An error in a worker process is sent to the training
process and raised there with its type, arguments and attributes. The worker's traceback is its cause.
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
_SHOWN = 8  # indices to show of a batch that is read in one call


def note(error: Exception, what: str) -> None:
    """Add a note to an error, once, that says what raised it, and in which worker process.

    Args:
        error: gets the note, and stays the same otherwise.
        what: raised it.
    """
    worker = worker_number()
    _add(error, f"raised by {what}." if worker is None else f"raised by {what}, in worker {worker}.")


def note_first(error: Exception, what: str) -> None:
    """Add a note that says what raised an error, unless it has one, or is an error of this package."""
    if not isinstance(error, ResumableError) and not _is_noted(error):
        note(error, what)


def note_place(error: Exception, at: Cursor, rank: int) -> None:
    """Add a note that says which batch could not be made. Errors of this package about something else get none.

    Args:
        error: gets the note, and stays the same otherwise.
        at: the position of the batch.
        rank: of this process.
    """
    if isinstance(error, SampleError) or not isinstance(error, ResumableError) or _is_noted(error):
        _add(
            error,
            f"in epoch {at.epoch}, step {at.step}, rank {rank}. The batch was not delivered: fix the error, and "
            "iterate again or resume from the state.",
        )


def worker_number() -> int | None:
    """Return the number of this worker process, or None in the training process."""
    torch_data = sys.modules.get("torch.utils.data")  # loaded in each worker
    info = None if torch_data is None else torch_data.get_worker_info()
    return None if info is None else int(info.id)


def ended_inside(what: str) -> SampleError:
    """Return the error for a `StopIteration` of user code, which would be mistaken for the end of the epoch."""
    return SampleError(
        f"{what} raised StopIteration, from a next() on an exhausted iterator.\n"
        "The epoch would end there, without its last batches. Pass a default to next(), or catch the exception there."
    )


def in_short(indices: list[Any]) -> str:
    """List the samples of a batch that is read in one call."""
    more = len(indices) - _SHOWN
    return f"samples {shorten(indices[:_SHOWN])}" + (f" and {more} more" if more > 0 else "")


class WorkerTraceback(Exception):  # noqa: N818  # not an error: it shows where one was raised
    """The traceback of an error that was raised in a worker process."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Sent:
    """An error that a worker process sends.

    Args:
        error: raised there.
    """

    def __init__(self, error: Exception) -> None:
        if not _is_noted(error):
            _add(error, f"raised in worker {worker_number()}.")
        self._words, self._traceback = in_words(error), "".join(format_exception(error))
        self._pickled, self._notes = _pickled(error), _notes(error)

    def error(self) -> Exception:
        """Return the error unchanged, or as its nearest base class that can be sent."""
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
    except Exception as error:  # noqa: BLE001  # of any type, raised in the training process
        yield Sent(error)


def received(answer: Any) -> Any:
    """Return the answer of a worker, or raise it if it is an error."""
    if isinstance(answer, Sent):
        raise answer.error()
    return answer


def _add(error: BaseException, text: str) -> None:
    if _PREFIX + text not in _notes(error):
        with suppress(Exception):  # a user's class may raise anything here
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
            again = pickle.loads(sent)  # noqa: S301  # pickled one line above
            if not isinstance(form, _Apart) and (type(again) is not type(error) or str(again) != str(error)):
                continue  # a class with a constructor that changes its arguments
            return sent
    return b""


def _forms(error: Exception) -> Iterator[Any]:
    """Yield the forms in which an error can be sent, the best first."""
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
    """The parts of an exception that cannot be pickled directly."""

    def __init__(self, kind: type[Any], built_in: type[Any], args: Any, state: dict[str, Any]) -> None:
        self._parts = kind, built_in, args, state

    def __reduce__(self) -> tuple[Any, ...]:
        return _together, self._parts


def _together(kind: type[Any], built_in: type[Any], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    """Make an exception without calling the constructor of its class."""
    if not issubclass(kind, built_in):
        raise TypeError(f"{kind} is not a subclass of {built_in}")
    error = built_in.__new__(kind, *args)
    built_in.__init__(error, *args)
    error.__setstate__(state)
    return error


def _picklable(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    kept = {}
    for name, value in items:
        with suppress(Exception):  # a user's object may raise anything
            pickle.loads(pickle.dumps(value))  # noqa: S301  # pickled here
            kept[name] = value
    return kept


# ------------------------------------------------------------------ lost workers
#
# How PyTorch reports that a worker died or hangs.

_TRANSPORT = {"multiprocessing.resource_sharer", "multiprocessing.connection", "torch.multiprocessing.reductions"}
_TIMEOUT = "DataLoader timed out"
_SIGNS = _TIMEOUT, "DataLoader worker", "Pin memory thread exited"


def is_death(error: BaseException) -> bool:
    """Return whether an error means that a worker process died.

    PyTorch raises it in a signal handler, so between any two lines. Or the pipe to the worker is broken.

    Args:
        error: raised while there are workers.
    """
    if isinstance(error.__cause__, WorkerTraceback) or "Caught " in str(error):
        return False  # raised by user code in a worker, and sent here by this package or by PyTorch
    # Only a plain RuntimeError: errors of this package also derive from it, but describe their cause already.
    told = type(error) is RuntimeError and any(sign in str(error) for sign in _SIGNS)
    return told or isinstance(error, (ConnectionError, EOFError)) or _is_of_transport(error)


def _is_of_transport(error: BaseException) -> bool:
    """Return whether a tensor could not be fetched because the process that sent it is gone."""
    entry = error.__traceback__ if isinstance(error, OSError) else None
    while entry is not None:
        if entry.tb_frame.f_globals.get("__name__") in _TRANSPORT:
            return True
        entry = entry.tb_next
    return False


def describe_death(error: BaseException) -> WorkerError:
    """Return the error to raise if an error means that a worker process died."""
    told = str(error) if type(error) is RuntimeError else f"{type(error).__name__}: {error}"
    if _TIMEOUT in told:
        what = "did not answer"
        advice = "Set a longer timeout= in the DataLoader, or find out what the dataset waits for."
    else:
        what = "died"
        advice = "Check the dataset for a crash, and free memory if the system killed the worker."
    return WorkerError(
        f"a worker process {what}: {told}\n"
        f"The loader's state does not count this batch, so you can resume from it. {advice}"
    )
