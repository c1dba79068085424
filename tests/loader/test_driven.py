"""A Loader that an integration drives: what it takes over, what raises meanwhile, and what it gives back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import resumable
from resumable.errors import ConfigurationError, LoopError, UnsupportedError
from resumable.loader.iterators import deliver

if TYPE_CHECKING:
    from collections.abc import Callable


def numbers(**options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(list(range(5)), **options)


def once(**options: Any) -> resumable.Loader[Any]:
    """A generator object, which can be read once."""
    return resumable.wrap((number for number in range(5)), identity="once", **options)


def delivered(loader: resumable.Loader[Any], count: int) -> list[Any]:
    return [deliver(loader, loader.cursor.epoch) for _ in range(count)]


@pytest.mark.parametrize("make", [numbers, once])
def test_loops_continue_after_the_last_batch_that_counts(make: Any) -> None:
    """What was delivered before it was driven counts, too; a source that is read once stays open."""
    loader = make()
    assert next(iter(loader)) == 0
    loader.drive("a framework")
    assert (loader.driver, loader.ack_mode, loader.global_step) == ("a framework", "manual", 1)
    assert delivered(loader, 2) == [1, 2]
    loader.ack(2)
    loader.give_back()
    assert (loader.driver, loader.ack_mode, loader.global_step) == ("", "auto", 3)
    assert list(loader) == [3, 4]


def test_batches_in_flight_come_again() -> None:
    """Batches in flight are delivered again to the next loop."""
    loader = numbers(ack="manual")
    batches = iter(loader)
    assert [next(batches), next(batches)] == [0, 1]
    loader.ack()
    loader.drive("a framework")
    assert delivered(loader, 3) == [1, 2, 3]
    loader.ack()
    loader.give_back()
    assert (loader.ack_mode, loader.progress.in_flight) == ("manual", 0)
    assert list(loader) == [2, 3, 4]


def test_batches_in_flight_and_no_way_back() -> None:
    """A source that cannot go back is not driven over batches in flight."""
    loader = once(ack="manual")
    batches = iter(loader)
    assert next(batches) == 0
    with pytest.raises(UnsupportedError, match="its source cannot go back"):
        loader.drive("a framework")
    assert (loader.driver, loader.progress.in_flight) == ("", 1)
    assert next(batches) == 1


def test_fetched_batch_of_an_epoch_read_on() -> None:
    """A batch that was only fetched ahead is an error if its epoch is read further."""
    loader = once()
    loader.drive("a framework")
    assert delivered(loader, 3) == [0, 1, 2]
    loader.ack(2)
    loader.give_back()
    assert loader.global_step == loader.state_dict()["global_step"] == 2
    reads: list[Callable[[], Any]] = [lambda: next(iter(loader)), loader.peek, lambda: next(loader.steps(9))]
    for read in reads:
        with pytest.raises(UnsupportedError, match=r"is at .*step=3.*cannot go back to .*step=2.*\n.*wrap\(make\)"):
            read()
    loader.end_epoch()
    assert loader.epoch == 1


@pytest.mark.parametrize("read", [iter, lambda loader: loader.epochs(2), lambda loader: loader.steps(9)])
def test_every_loop_raises_while_it_is_driven(read: Any) -> None:
    loader = numbers()
    early, opened = read(loader), read(other := numbers())
    next(opened)
    loader.drive("a framework")
    other.drive("a framework", "Use the other loop.")
    for loop in (early, read(loader)):
        with pytest.raises(LoopError, match=r"a framework delivers its batches\.\n.*loader\.for_evaluation\(\)"):
            next(loop)
    with pytest.raises(LoopError, match=r"over the object that a framework returned\."):
        next(early)
    with pytest.raises(LoopError, match=r"Use the other loop\. To read"):
        next(read(other))
    with pytest.raises(LoopError, match="a newer loop"):
        next(opened)
    with pytest.raises(UnsupportedError, match=r"rewind\(\) was called on a Loader that a framework reads"):
        loader.rewind()
    assert loader.peek() == 0
    assert list(loader.for_evaluation()) == [*range(5)]
    assert delivered(loader, 5) == [*range(5)]


def test_it_is_driven_once_at_a_time() -> None:
    loader = numbers()
    loader.drive("a framework")
    with pytest.raises(ConfigurationError, match=r"first:  a framework\n  second: something else\n.*Wrap the"):
        loader.drive("something else")
    loader.give_back()
    loader.drive("something else")
    assert loader.driver == "something else"


def test_no_loop_after_it_is_warned_of_as_one_that_was_resumed() -> None:
    """The framework counted the epochs."""
    before, loader = numbers(), numbers()
    list(before)
    loader.drive("a framework")
    loader.load_state_dict(before.state_dict())
    loader.give_back()
    assert list(loader) == [*range(5)]
    assert loader.epoch == 2


NAMES = sorted(name for name in vars(numbers()) if not name.startswith("_"))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_wrapped_may_have_any_attribute(name: str) -> None:
    """Also of a name that a Loader uses for itself, and sets later."""
    assert len(NAMES) >= 5

    class Source(SimpleNamespace):
        def __iter__(self) -> Any:
            return iter(range(3))

    loader = resumable.wrap(Source(**{name: "of the source"}), identity="source")
    loader.drive("a framework")
    loader.give_back()
    loader.resumed = True
    assert list(loader.epochs(1).__next__()) == [0, 1, 2]
    with pytest.raises(AttributeError, match="cannot set"):
        loader.batch_size = 3  # type: ignore[misc]  # that is the point
