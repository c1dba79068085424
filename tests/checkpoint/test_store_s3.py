"""CheckpointStore by the real S3 protocol: s3fs and botocore against moto's server, with faults at every request."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from s3_server import Proxy, moto_server, options
from stores import PROJECT, content, error_of

from resumable.checkpoint import CheckpointStore, limits
from resumable.errors import CheckpointError, CheckpointTimeoutError, CorruptCheckpointError, WriterFencedError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
LIMIT = 2.0  # seconds
SLACK = 15  # for a machine that does something else, too; without limits these faults take minutes, or for ever


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with moto_server() as port:
        yield port


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let s3fs send each request once more, and not four times: errors are then there in a second."""
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 2)


@pytest.fixture
def proxy(server: int) -> Iterator[Proxy]:
    made = Proxy(server)
    yield made
    made.close()


_buckets = itertools.count()


@pytest.fixture
def url(server: int) -> str:
    """A root in a bucket of its own."""
    import s3fs  # noqa: PLC0415  # it takes a second

    bucket = f"bucket-{next(_buckets)}"
    s3fs.S3FileSystem(**options(server)).call_s3("create_bucket", Bucket=bucket)
    return f"s3://{bucket}/run"


def store_at(port: int, url: str, **given: Any) -> CheckpointStore:
    return CheckpointStore(url, storage_options=options(port, retries={"max_attempts": 0}), **given)


def behind(proxy: Proxy, url: str, seconds: float = LIMIT, **given: Any) -> CheckpointStore:
    """Make a store behind a proxy whose client is there already: to make that takes seconds on a busy machine."""
    store = store_at(proxy.port, url, **given)
    store.steps()
    store._steps.seconds = seconds
    return store


def prepared(server: int, url: str) -> None:
    store = store_at(server, url)
    for step in (1, 2, 3):
        store.save(step, content(step))


def found(server: int, url: str) -> tuple[int, int]:
    """Give step and version of the newest checkpoint; all that are committed have to load, without a warning."""
    store = store_at(server, url)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in store.steps():
            assert torch.equal(store.load(step)["weight"], content(step)["weight"])
        latest = store.latest()
    assert latest is not None
    return latest["step"], latest["version"]


def keys(server: int, url: str) -> list[str]:
    import s3fs  # noqa: PLC0415  # it takes a second

    return sorted(s3fs.S3FileSystem(**options(server)).find(url))


def test_saves_loads_prunes_and_deletes(server: int, url: str) -> None:
    store = store_at(server, url, keep=2)
    large: dict[str, Any] = {"step": 4, "weight": torch.arange(3_000_000.0)}  # 12 MB: an upload in parts
    for step in (1, 2, 3):
        store.save(step, content(step))
    store.save(4, large)
    assert store.steps() == [3, 4]
    assert len(keys(server, url)) == 5
    latest = store_at(server, url).latest()
    assert latest is not None
    assert torch.equal(latest["weight"], large["weight"])
    store.delete(4)
    assert store_at(server, url).latest_step() == 3


@pytest.mark.parametrize("size", [200, 3_000, 1_000_000, 7_000_000])
def test_connection_cut_within_a_save(server: int, proxy: Proxy, url: str, size: int) -> None:
    """A connection that is cut within a save leaves the step before."""
    prepared(server, url)
    store = behind(proxy, url, 60, keep=2)
    proxy.plan("refuse", most=size)
    began = time.monotonic()
    error = error_of(lambda: store.save(4, {"step": 4, "weight": torch.arange(3_000_000.0)}))
    assert time.monotonic() - began < SLACK
    assert proxy.fired
    assert error is not None
    assert "step 4 was not saved" in str(error)
    proxy.heal()
    assert found(server, url) == (3, 0)
    store.save(5, content(5))
    assert found(server, url) == (5, 0)
    assert store.steps() == [3, 5]


STRIDES = [
    pytest.param(fault, start, marks=[] if start == 0 else [pytest.mark.long])
    for fault in ("cut", "late", "hang")
    for start in range(3)
]


@pytest.mark.parametrize(("fault", "start"), STRIDES)
def test_a_fault_at_every_request_of_a_save_ends_in_time(
    server: int, proxy: Proxy, url: str, fault: str, start: int
) -> None:
    """An outage from that request on. Every third request; `make test-long` has all of them."""
    prepared(server, url)
    store = behind(proxy, url, 600, keep=2)
    proxy.heal()
    store.save(4, content(4, 1))
    total = len(proxy.seen)
    assert total > 8
    outcomes: set[str] = set()
    step, before = 5, (4, 1)
    for fail_at in range(1 + start, total + 1, 3):
        for limit in (0.5, LIMIT, 5 * LIMIT, 25 * LIMIT):  # a longer one, if a slow machine does not come to the fault
            store._steps.seconds = limit if fault == "hang" else 60
            proxy.plan(fault, fail_at)
            outcome, took = save(store, step)
            fired = proxy.fired
            proxy.heal()
            assert took < limit + SLACK, (fail_at, outcome)
            if fired:
                break
        assert fired, fail_at
        after = found(server, url)
        allowed = {"saved": [(step, 1)], "was not saved": [before], "may or may not": [before, (step, 1)]}
        assert after in allowed[outcome], (fail_at, outcome)
        outcomes.add(outcome)
        before, step = after, step + 1
    assert "was not saved" in outcomes
    store = store_at(server, url, keep=2)
    store.save(90, content(90, 1))
    assert found(server, url) == (90, 1)
    assert len(keys(server, url)) == 1 + 2 * 2


def save(store: CheckpointStore, step: int) -> tuple[str, float]:
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        error = error_of(lambda: store.save(step, content(step, 1)))
    took = time.monotonic() - began
    assert all("could not be removed" in str(one.message) for one in seen if one.category is RuntimeWarning)
    if error is None:
        return "saved", took
    return next(text for text in ("was not saved", "may or may not") if text in str(error)), took


@pytest.mark.parametrize("fault", ["cut", "hang"])
def test_fault_while_reading_ends_in_time(server: int, proxy: Proxy, url: str, fault: str) -> None:
    """A fault while reading ends in time and is no first start."""
    prepared(server, url)
    store = behind(proxy, url)
    for method in ("latest", "latest_step", "steps"):
        store._steps.seconds = 600
        proxy.heal()
        getattr(store, method)()
        total = len(proxy.seen)
        store._steps.seconds = LIMIT / 2 if fault == "hang" else 60
        for fail_at in {1, total}:
            proxy.plan(fault, fail_at)
            began = time.monotonic()
            error = error_of(getattr(store, method))
            assert time.monotonic() - began < LIMIT + SLACK
            assert error is not None
            assert not isinstance(error, CorruptCheckpointError)
            assert isinstance(error, CheckpointTimeoutError) or fault == "cut"
            proxy.heal()
    assert store_at(proxy.port, url).latest_step() == 3


def test_silent_server_is_named(proxy: Proxy, url: str) -> None:
    """A server that never answers is named when the store is made."""
    proxy.plan("hang", 1)
    began = time.monotonic()
    with pytest.raises(CheckpointTimeoutError, match=r"(?s)could not be opened.*2 s, the time limit.*`timeout=`"):
        store_at(proxy.port, url, timeout=LIMIT)
    assert time.monotonic() - began < LIMIT + SLACK


def test_a_marker_that_was_left_behind_does_not_come_back(server: int, proxy: Proxy, url: str) -> None:
    """The request is cancelled, and none of the client's retries writes the marker minutes later."""
    prepared(server, url)
    store = behind(proxy, url, 600)
    proxy.heal()
    store.save(4, content(4))
    marker = next(at for at, one in enumerate(proxy.seen, 1) if one.startswith("PUT") and "COMMIT.json" in one)
    store._steps.seconds = 6
    proxy.plan("hang", marker)
    with pytest.raises(CheckpointTimeoutError, match="may or may not be saved"):
        store.save(5, content(5))
    assert "COMMIT.json" in proxy.seen[-1]
    proxy.heal()
    time.sleep(3)
    assert not proxy.seen
    assert store_at(server, url).steps() == [1, 2, 3, 4]


def test_the_log_says_what_takes_long(
    proxy: Proxy, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = behind(proxy, url, 2.5)
    monkeypatch.setattr(limits, "FIRST", 0.2)
    proxy.plan("hang", 1)
    with caplog.at_level(logging.WARNING, "resumable"), pytest.raises(CheckpointTimeoutError, match=r"2.5 s, the time"):
        store.save(1, content(1))
    lines = [record.message for record in caplog.records]
    assert len(lines) == 3  # after 0.2, 0.6 and 1.4 s
    assert all(line.startswith(f"still saving step 1 to {url} after") for line in lines)
    assert all("the time limit is 2.5 s" in line for line in lines)


def test_the_newest_writer_goes_on_and_the_older_one_is_refused(server: int, url: str) -> None:
    script = f"from test_store_s3 import store_at, content\nstore_at({server}, {url!r}, keep=2).save(10, content(10))\n"
    store = store_at(server, url, keep=2)
    store.save(1, content(1))
    subprocess.run([sys.executable, "-c", script], check=True, cwd=PROJECT)
    with pytest.raises(WriterFencedError, match=r"(?s)step 11 was not saved.*newer process.*the writer: +\d+ on"):
        store_at(server, url, keep=2).save(11, content(11))  # another object of this process is no newer writer
    with pytest.raises(WriterFencedError, match="step 1 was not deleted"):
        store.delete(1)
    assert store.steps() == [1, 10]


@pytest.mark.parametrize(
    "end", [*(pytest.param(end, marks=pytest.mark.long) for end in ("", "sys.exit(3)")), "raise ValueError"]
)
def test_the_end_of_a_program_waits_for_a_save_in_the_background(server: int, url: str, end: str) -> None:
    """The connection is made in the thread, with a look-up of the name, for which thread pools must not be over."""
    script = (
        "import sys, torch\nfrom test_store_s3 import store_at\n"
        f"store = store_at({server}, {url!r})\n"
        "store._steps.files.filesystem.invalidate_cache()\n"
        "store.save(7, {'step': 7, 'weight': torch.arange(8_000_000.0)}, background=True)\n"
        f"{end}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(end, 1), done.stderr
    latest = store_at(server, url).latest()
    assert latest is not None
    assert torch.equal(latest["weight"], torch.arange(8_000_000.0))


def test_failed_background_save_is_raised(server: int, proxy: Proxy, url: str) -> None:
    """A save in the background that fails is raised by the next call."""
    prepared(server, url)
    store = behind(proxy, url, 10)
    for call in (store.latest, lambda: store.save(9, content(9)), store.close):
        proxy.plan("cut", 6)
        store.save(4, content(4), background=True)
        while store._background._thread is not None and store._background._thread.is_alive():
            time.sleep(0.01)
        proxy.heal()
        with pytest.raises(CheckpointError, match="step 4 was not saved"):
            call()
        assert store_at(server, url).steps() == [1, 2, 3]
