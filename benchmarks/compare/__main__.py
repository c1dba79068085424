"""Run the job of each library in each situation: `python -m benchmarks.compare [--only LIBRARY] [--rows NAME]`.

It writes `benchmarks/compare/results.json`, from which `python -m benchmarks.compare.page` makes tables and a picture.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.compare.job import Setting
from benchmarks.compare.peers import PEERS, job_of
from benchmarks.compare.situations import SITUATIONS, Trial

__all__ = ["RESULTS", "outcomes", "state_bytes"]

RESULTS = Path(__file__).with_name("results.json")


def outcomes(name: str, workers: int, rows: list[str]) -> dict[str, list[str]]:
    """Run the situations of a library, in children of this process: the text and the grade of each."""
    with tempfile.TemporaryDirectory(prefix="resumable-compare-") as folder:
        trial = Trial(job_of(name), Setting(workers=workers), folder, streams=PEERS[name].streams)
        found = {}
        for row in rows:
            started = time.perf_counter()
            verdict = SITUATIONS[row].verdict(trial)
            found[row] = list(verdict)
            told = f"{name}, {workers} workers, {row}: {verdict.text} ({time.perf_counter() - started:.1f} s)"
            print(told, file=sys.stderr, flush=True)
    return found


def state_bytes(name: str, workers: int) -> int:
    """Return the size of what a library's script saves of its loader, pickled."""
    with tempfile.TemporaryDirectory(prefix="resumable-compare-") as folder:
        return Trial(job_of(name), Setting(workers=workers), folder, streams=False).state_bytes()


def _of_a_library(name: str, workers: int, rows: list[str]) -> dict[str, Any]:
    """Return what the results have of a library, from a process that imports only this one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(_here, name, workers, rows).result()


def _here(name: str, workers: int, rows: list[str]) -> dict[str, Any]:
    return {
        "versions": {package: version(package) for package in PEERS[name].packages},
        "bytes": {str(workers): state_bytes(name, workers)},
        "cells": {str(workers): outcomes(name, workers, rows)},
    }


def _machine() -> str:
    return (
        f"{platform.system()} on {platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"
    )


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=PEERS, help="a library")
    parser.add_argument("--rows", action="append", choices=SITUATIONS, help="a situation")
    parser.add_argument("--workers", action="append", type=int, help="number of workers; 2 and 0 without it")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file to write")
    options = parser.parse_args()
    rows, names, all_workers = options.rows or list(SITUATIONS), options.only or list(PEERS), options.workers or [2, 0]
    os.environ["OMP_NUM_THREADS"] = "1"
    path: Path = options.results
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"peers": {}}
    for workers, name in itertools.product(all_workers, names):
        if workers not in PEERS[name].workers:
            continue
        found = _of_a_library(name, workers, rows)
        before = results["peers"].setdefault(name, {"versions": {}, "bytes": {}, "cells": {}})
        cells = before["cells"].get(str(workers), {}) | found["cells"][str(workers)]
        before["versions"] = found["versions"]
        before["bytes"] |= found["bytes"]
        before["cells"][str(workers)] = {row: cells[row] for row in SITUATIONS if row in cells}
        results |= {"measured": datetime.now(UTC).date().isoformat(), "machine": _machine()}
        results["peers"] = {name: results["peers"][name] for name in PEERS if name in results["peers"]}
        path.write_text(f"{json.dumps(results, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
