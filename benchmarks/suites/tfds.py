"""TensorFlow Datasets: reading by index, compared with `tf.data` and `tfds.data_source`."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.ratios import in_turns, median, ratio
from benchmarks.remote import MissingLibraryError
from benchmarks.report import Table

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_BATCH = 64
_MODULE = "benchmarks.tasks_tfds"
_REFERENCE = "tf.data"
_NAMES = (
    _REFERENCE,
    "data_source, a loop",
    "index, no threads",
    "index, threads",
    "index, PIL",
    "index, bytes",
    "array_record, threads",
    "tf reader, threads",
    "index, DataLoader workers",
)
_DECODED = {"index, threads", "array_record, threads", "tf reader, threads", "index, DataLoader workers"}
_PLACES = (1, 50, 90)


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Compare throughput, and measure first batches, states and the index; nothing if a library is missing."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            pool["tfds write"].make(f"{_MODULE}:Written")
            pool["tfds write"].call("write", folder=folder, samples=min(plan.length // 250, 4096))
            return [_throughput(plan, pool, folder), _first(plan, pool, folder), _index(plan, pool)]
        except MissingLibraryError as error:
            return [Table("TensorFlow Datasets", ("not measured",), [(f"{error} is not installed",)])]


def _throughput(plan: Plan, pool: Pool, folder: str) -> Table:
    note = (
        "JPEG images of 224 x 224 pixels, decoded, in batches of 64; each reader may use all processors. Complete "
        "epochs, including their start. Ratio: samples per second / tf.data's, median of paired epochs "
        "(smallest-largest). Processor time is for the process, without its workers."
    )
    columns = ("reader", "samples/s", "ratio to tf.data", "processor us per sample", "target", "reached")
    table = Table("TensorFlow Datasets: throughput", columns, note=note)
    for name in _NAMES:
        pool[name].make(f"{_MODULE}:Reading", name=name, folder=folder)
    turns: dict[str, list[Any]] = in_turns(plan.rounds, {name: partial(pool[name].call, "turn") for name in _NAMES})
    wall = {name: [turn["wall"] for turn in taken] for name, taken in turns.items()}
    for name in _NAMES:
        compared = ratio(wall[_REFERENCE], wall[name])
        processor = median([turn["processor"] for turn in turns[name]]) / _BATCH
        target = (">= 1.0", compared.at_least(1.0)) if name in _DECODED else ("none", "")
        table.rows.append(
            (name, f"{_BATCH / median(wall[name]) * 1e6:,.0f}", str(compared), f"{processor:.0f}", *target)
        )
    return table


def _first(plan: Plan, pool: Pool, folder: str) -> Table:
    note = "From opening the dataset to the first batch of 64 decoded images, after all imports and with an index."
    columns = (
        "files",
        *(f"ms at {place} %" for place in _PLACES),
        "90 % / 1 %",
        "target",
        "reached",
        "bytes of a state",
    )
    table = Table("TensorFlow Datasets: time to the first batch", columns, note=note)
    for file_format in ("tfrecord", "array_record"):
        remote = pool[f"tfds first {file_format}"]
        remote.make(f"{_MODULE}:FirstSample", folder=folder, file_format=file_format)
        remote.call("wait", percent=0)
        waits = {place: partial(remote.call, "wait", percent=place) for place in _PLACES}
        taken: dict[int, list[float]] = in_turns(plan.rounds, waits)
        late = ratio(taken[_PLACES[-1]], taken[_PLACES[0]])
        reached = ratio(taken[_PLACES[0]], taken[_PLACES[-1]]).at_least(1 / 1.2)
        times = (f"{median(taken[place]):.1f}" for place in _PLACES)
        table.rows.append((file_format, *times, str(late), "<= 1.2", reached, str(remote.call("size"))))
    return table


def _index(plan: Plan, pool: Pool) -> Table:
    note = "For one file in the page cache; the checksums of all lengths are verified."
    table = Table("TensorFlow Datasets: building an index", ("bytes per record", "s per million records"), note=note)
    remote = pool["tfds write"]
    for size in (100, 20_000):
        remote.make(f"{_MODULE}:IndexBuild", records=plan.length // 100, size=size)
        taken = [remote.call("build") for _ in range(plan.rounds)]
        table.rows.append((str(size), f"{median(taken):.2f} ({min(taken):.2f}-{max(taken):.2f})"))
    return table
