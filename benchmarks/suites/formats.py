"""Files in common training formats: this package's sources, and the libraries of these formats."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.ratios import in_turns, median, ratio
from benchmarks.remote import MeasurementError, MissingLibraryError
from benchmarks.report import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.plan import Plan
    from benchmarks.remote import Pool, Remote

__all__ = ["run"]

_TASKS = "benchmarks.tasks_formats"
_CONTENDERS = "benchmarks.contenders"
_PLACES = (1, 50, 90)
_READ_NOTE = (
    "One process without workers, batches of 64 as lists, from the page cache. Factor: items per second of the first "
    "reader of each format / the other's, median of paired turns (smallest-largest). WebDataset and datasets "
    "shuffle in a buffer of 1000; Streaming's order is py1e."
)
_WAIT_NOTE = (
    "From creating the loader to its first batch at a position of the first epoch, after all imports and with existing "
    "files and indices. WebDataset has no state, so it reads up to the position; the stream of datasets refills its "
    "buffer, with different rows. The factor is for 90 %."
)
_HELD_NOTE = (
    "Over one epoch, from its first batch. Memory is the peak growth of the process, without memory-mapped files, "
    "including late imports. Chi-square: how uneven batches of 64 are if the samples are sorted into 64 parts; 1.00 is "
    "a full shuffle. Left out if samples do not contain their number; see [the orders "
    "alone](#orders-alone-how-even-batches-are)."
)
_INDEX_NOTE = (
    "Processor time of the first run, which builds and writes an index, and its size. Documents have 600 "
    "tokens on average, in windows of 256. Megatron: its own functions, NumPy's shuffles and a compiled sample index."
)


class _Contender(NamedTuple):
    label: str
    path: str
    options: dict[str, Any]
    ours: bool = False


def _ours(label: str, kind: str, shuffle: Any) -> _Contender:
    return _Contender(label, f"{_CONTENDERS}.format_ours:Ours", {"kind": kind, "shuffle": shuffle}, ours=True)


def _peer(label: str, path: str, kind: str, samples: int = 0) -> _Contender:
    return _Contender(label, f"{_CONTENDERS}.{path}", {"kind": kind, **({"samples": samples} if samples else {})})


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Compare reading, resuming and indices; missing libraries are listed."""
    samples = plan.length // 50
    with tempfile.TemporaryDirectory() as folder:
        try:
            pool["formats"].make(f"{_TASKS}:Written", folder=folder, samples=samples)
        except MissingLibraryError as error:
            return [Table("Formats of files", ("not measured",), [(f"{error} is not installed",)])]
        formats = _formats(samples)
        return [
            _reading(plan, pool, folder, formats),
            _waiting(plan, pool, folder, formats),
            _held(plan, pool, folder, formats),
            _indices(plan, pool, folder),
        ]


def _formats(samples: int) -> dict[str, list[_Contender]]:
    images = max(samples // 10, 256)
    web = "format_web:Web"
    return {
        "tar, 1 kB of bytes": [
            _ours("Tars, blocks", "tars", "blocks"),
            _ours("Tars, full shuffle", "tars", True),
            _peer("WebDataset", web, "tars", samples),
        ],
        "tar, JPEG decoded": [
            _ours("Tars, blocks", "images", "blocks"),
            _peer("WebDataset", web, "images", images),
        ],
        "Parquet": [
            _ours("Parquet, blocks", "rows", "blocks"),
            _peer("datasets, a stream", "format_hugging:Hugging", "rows", 5 * samples),
            _peer("Grain, windows", "format_grain:Grain", "rows", 5 * samples),
        ],
        "documents of tokens": [
            _ours("Packed, concat, blocks", "concat", "blocks"),
            _ours("Packed, fit, blocks", "fit", "blocks"),
            _peer("Megatron GPTDataset", "format_megatron:Megatron", "documents"),
        ],
        "windows of tokens": [
            _ours("Tokens, full shuffle", "tokens", True),
            _peer("MosaicML Streaming", "format_tokens:Streaming", "documents"),
            _peer("LitData", "format_tokens:Lit", "documents"),
        ],
    }


def _reading(plan: Plan, pool: Pool, folder: str, formats: dict[str, list[_Contender]]) -> Table:
    columns = ("reader", "files", "items/s", "resumable is faster by", "at least as fast")
    table = Table("Formats: throughput", columns, note=_READ_NOTE)
    options = {"batches": plan.batches, "seconds": plan.seconds}
    for files, contenders in formats.items():
        remotes, missing = _ready(pool, folder, files, contenders, partial(_call, "turn", options))
        taken = in_turns(plan.rounds, {one: partial(remote.call, "turn", **options) for one, remote in remotes.items()})
        first = taken[contenders[0].label]
        for one in contenders:
            if one.label in missing:
                table.rows.append((one.label, files, missing[one.label], "", ""))
                continue
            factor = ratio(taken[one.label], first)
            compared = ("", "") if one.ours else (str(factor), factor.at_least(1.0))
            table.rows.append((one.label, files, f"{1 / median(taken[one.label]):,.0f}", *compared))
        pool.rest()
    return table


def _waiting(plan: Plan, pool: Pool, folder: str, formats: dict[str, list[_Contender]]) -> Table:
    places = tuple(f"ms at {place} %" for place in _PLACES)
    columns = ("reader", "files", *places, "bytes of a state", "resumable is faster by", "at least as fast")
    table = Table("Formats: time to the first batch after a resume", columns, note=_WAIT_NOTE)
    for files, contenders in formats.items():
        remotes, missing = _ready(pool, folder, files, contenders, partial(_call, "wait", {"percent": _PLACES[0]}))
        waits = {
            (one, place): partial(remote.call, "wait", percent=place)
            for one, remote in remotes.items()
            for place in _PLACES
        }
        taken: dict[tuple[str, int], list[float]] = in_turns(max(plan.rounds // 3, 1), waits)
        first = taken[contenders[0].label, _PLACES[-1]]
        for one in contenders:
            if one.label in missing:
                table.rows.append((one.label, files, missing[one.label], *("" for _ in columns[3:])))
                continue
            factor = ratio(taken[one.label, _PLACES[-1]], first)
            compared = ("", "") if one.ours else (str(factor), factor.at_least(1.0))
            size = "none" if one.path.endswith(":Web") else str(remotes[one.label].call("size"))
            times = (f"{median(taken[one.label, place]):.1f}" for place in _PLACES)
            table.rows.append((one.label, files, *times, size, *compared))
        pool.rest()
    return table


def _held(plan: Plan, pool: Pool, folder: str, formats: dict[str, list[_Contender]]) -> Table:
    columns = ("reader", "files", "MB more than before it read", "chi-square / dof")
    table = Table("Formats: memory and shuffle", columns, note=_HELD_NOTE)
    for files, contenders in formats.items():
        found: dict[Remote, Any] = {}  # a missing library may be noticed only while reading

        def read(remote: Remote, found: dict[Remote, Any] = found) -> None:
            found[remote] = remote.call("epoch")

        remotes, missing = _ready(pool, folder, files, contenders, read, fresh=files if plan.every else "")
        for one in contenders:
            if one.label in missing:
                table.rows.append((one.label, files, missing[one.label], ""))
                continue
            grown, even = found[remotes[one.label]]
            table.rows.append((one.label, files, f"{grown:.0f}", "" if even is None else f"{even:.2f}"))
        pool.rest()
    return table


def _indices(plan: Plan, pool: Pool, folder: str) -> Table:
    table = Table("Formats: building an index", ("index", "of", "seconds", "bytes"), note=_INDEX_NOTE)
    rounds, samples, count = max(plan.rounds // 3, 1), plan.length // 50, plan.length
    megatron, packing = f"{_CONTENDERS}.format_megatron:Built", f"{_TASKS}:Packing"
    cases: list[tuple[str, str, str, dict[str, Any]]] = [
        ("Tars", f"{samples:,} samples in 8 shards", f"{_TASKS}:Index", {})
    ]
    cases += [
        (f"Packed, {how}", f"{count:,} documents, any epochs", packing, {"count": count, "how": how})
        for how in ("concat", "fit")
    ]
    cases += [
        (
            f"Megatron, {epochs} epoch{'s' * (epochs > 1)}",
            f"{count:,} documents",
            megatron,
            {"count": count, "epochs": epochs},
        )
        for epochs in (1, 4)
    ]
    for label, of, path, options in cases:
        remote = pool["formats" if path.startswith(_TASKS) else "formats Megatron GPTDataset"]
        try:
            remote.make(path, folder=folder, **options)
        except MissingLibraryError as error:
            table.rows.append((label, of, f"{error} is not installed: make peers", ""))
            continue
        seconds = median([float(remote.call("build")) for _ in range(rounds)])
        table.rows.append((label, of, f"{seconds:.3f}", f"{remote.call('size'):,}"))
    return table


def _ready(  # noqa: PLR0913  # who reads what, and how
    pool: Pool, folder: str, files: str, contenders: list[_Contender], once: Callable[[Remote], Any], *, fresh: str = ""
) -> tuple[dict[str, Remote], dict[str, str]]:
    """Create contenders, and use each once; return them by their labels, and why some are left out.

    With `fresh`, a name, each is created in a process that has read nothing.
    """
    remotes: dict[str, Remote] = {}
    missing: dict[str, str] = {}
    for one in contenders:
        remote = pool[f"formats {one.label} {fresh}".strip()]
        try:
            remote.make(f"{_TASKS}:Reader", path=one.path, folder=folder, **one.options)
            once(remote)
            remotes[one.label] = remote
        except MissingLibraryError as error:
            print(f"{one.label} left out, {error} is missing: make peers", file=sys.stderr)
            missing[one.label] = "not installed: make peers"
        except MeasurementError as error:
            if one.ours:
                raise
            print(f"{one.label} on {files}: {str(error).splitlines()[-1]}", file=sys.stderr)
            missing[one.label] = "raises an error"
    return remotes, missing


def _call(method: str, options: dict[str, Any], remote: Remote) -> Any:
    return remote.call(method, **options)
