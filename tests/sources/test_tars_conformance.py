"""The promises of every backend, for shards of WebDataset in each order, and in a mixture; without torch."""

from __future__ import annotations

from typing import Any

from tar_files import alone, kept, number, tars

import resumable
from resumable.samplers import Blocks
from resumable.testing import BackendTests


class TestSequential(BackendTests):
    shared = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return alone(**options)

    others = {
        "length": lambda: resumable.wrap(resumable.Tars(kept()[1][:2]), batch_size=8),
        "batch": lambda: alone(batch_size=6),
        "sampler": lambda: alone(shuffle=True),
        "kind": lambda: resumable.wrap(lambda: iter(range(48)), batch_size=8),
    }


class TestShuffle(TestSequential):
    stride = 3

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return alone(**{"shuffle": True, **options})

    others = {"sampler": lambda: alone(shuffle="blocks"), "seed": lambda: alone(shuffle=True, seed=4)}


class TestBlocks(TestSequential):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return alone(sampler=Blocks(tars().sizes, block=4, window=12, seed=1), **options)

    others = {"sampler": lambda: alone(sampler=Blocks(tars().sizes, block=8, window=12, seed=1))}


class TestMixed(TestSequential):
    stride = 4

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        sources = {"tars": tars(transform=number), "numbers": [(index, 0) for index in range(30)]}
        return resumable.wrap(resumable.mix(sources), **{"batch_size": 6, "seed": 3, **options})

    others = {"batch": lambda: TestMixed.make(batch_size=3)}
