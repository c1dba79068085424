"""Seeds the global RNGs before every sample or batch, except those that the source never uses.

Seeding all three costs about 7 µs (PyTorch's: 1 µs). Protecting the trainer's states from it costs twice as much: two
of the states are large, and most sources use neither of these RNGs. So the first batch is read with all of them seeded,
to learn which ones are used. From then on, an idle RNG is neither seeded nor saved. Its state is only checked after
each batch. If it was used after all, its state is restored, and the batch is read and collated again with it seeded,
like all later batches. The delivered batch is always the same as with all RNGs seeded.

PyTorch's RNG is always seeded. That takes 1 µs, and code often reads its seed (`torch.initial_seed()`) without using
random numbers, which leaves no trace in its state. Code that saves the state of one of the other RNGs, uses it, and
restores the state without seeding it, is not detected.

A source's own generators count as idle until they are used. So the first batch that uses one is also read without
seeding it: a source that creates something once, such as a random projection, creates the same in every process.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from resumable._randomness.keys import ALL, POSITIVE, isolated, reseed, torch_seed
from resumable._randomness.own_generators import OwnGenerator, OwnGenerators
from resumable._randomness.passed import SampleRNG
from resumable._warn import warn
from resumable.errors import PromiseWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from resumable._randomness.keys import Generator

    Seed: TypeAlias = Callable[[int], object]

__all__ = ["Seeding"]


_ALL_BITS = (1 << 64) - 1


class Seeding:
    """Tracks which RNGs one source uses.

    Args:
        roots: from name to an object that reads samples, such as the dataset. It may have its own generators.
    """

    def __init__(self, roots: Mapping[str, Any] | None = None) -> None:
        self._learnt = False
        self._busy: tuple[Generator, ...] = ALL
        self._idle: tuple[Generator, ...] = ()
        self._seeded: tuple[OwnGenerator, ...] = ()  # the source's own generators that are in use
        self.own = OwnGenerators(roots or {})

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the source's own generators, because a new process searches for its own."""
        without = {
            name: tuple(one for one in getattr(self, name) if one in ALL) for name in ("_busy", "_idle", "_seeded")
        }
        return {**vars(self), **without}

    def read(self, read_all: Callable[[Seed, int], Any], *, isolate: bool, epoch: int = 0) -> Any:
        """Read a batch.

        Args:
            read_all: reads it. Its arguments are a function that seeds, and a mask for the bits of a key that the
                function takes. It calls the function with each key before reading what belongs to the key. The function
                returns a true value.
            isolate: restore the RNGs afterwards.
            epoch: of the batch.
        """
        self._idle += tuple(self.own.before(epoch))
        while True:
            idle = self._idle
            looks = [generator.look() for generator in idle]
            for one in self._seeded:
                one.begin()
            try:
                batch = self._isolated(read_all) if isolate else self._once(read_all)
            except BaseException as error:
                woken = self._woken(idle, looks, put_back=isolate)
                if not woken or not isinstance(error, Exception):  # otherwise, seeding might avoid the failure
                    raise
                continue
            for generator, look in zip(idle, looks):  # noqa: B905  # same length, and twice as fast
                if generator.changed(look):
                    self._woken(idle, looks, put_back=isolate)
                    break
            else:
                found = tuple(self.own.after())
                self._idle += found
                replaced = [one for one in self._seeded if one.is_another()]
                if not found and not replaced:
                    return batch

    def watched(self, read: Callable[[], Any], epoch: int) -> Any:
        """Read a batch whose functions get a `SampleRNG`. Compare the other RNGs after the first batch of this process.

        Warns:
            PromiseWarning: one of them was used.
        """
        # If a different thread reads, the trainer may use the global RNGs meanwhile.
        if self._learnt or threading.current_thread() is not threading.main_thread():
            return read()
        self._learnt, own = True, self.own.before(epoch)
        looks, own_looks, torchs = [one.look() for one in ALL], [one.look() for one in own], _torch_state()
        batch = read()
        used = [one.name for one, look in zip(ALL, looks, strict=True) if one.changed(look)]
        used += ["torch"] if _torch_state() != torchs else []
        for one, look in zip(own, own_looks, strict=True):
            # If a library lets its RNG be set, it has the sample's RNG now, and had an earlier sample's before.
            if one.now() is look[0] and not isinstance(look[0], SampleRNG) and one.changed(look):
                used.append(one.name)
        if used:
            warn(_NOT_PASSED.format(" and ".join(used)), PromiseWarning)
        return batch

    def _isolated(self, read_all: Callable[[Seed, int], Any]) -> Any:
        if self._busy:
            looks = [one.look() for one in self._seeded]
            try:
                with isolated(but=self._idle):
                    return self._once(read_all)
            finally:
                for one, look in zip(self._seeded, looks, strict=False):  # newer ones were idle before
                    one.put_back(look)
        torch = sys.modules.get("torch")
        if torch is None:
            return self._once(read_all)
        generator = torch.default_generator
        state = generator.get_state()
        try:
            return read_all(generator.manual_seed, POSITIVE)
        finally:
            generator.set_state(state)

    def _once(self, read_all: Callable[[Seed, int], Any]) -> Any:
        if not self._learnt:
            return self._learn(read_all)
        return read_all(self._seed, _ALL_BITS) if self._busy else read_all(torch_seed(), POSITIVE)

    def _seed(self, key: int) -> bool:
        for generator in self._busy:
            generator.seed(key)
        torch_seed()(key & POSITIVE)
        return True

    def _woken(self, idle: Sequence[Generator], looks: Sequence[Any], *, put_back: bool) -> bool:
        """Return whether an idle generator was used, and count it as in use from now on."""
        drawn = [(one, look) for one, look in zip(idle, looks, strict=True) if one.changed(look)]
        for generator, look in drawn:
            self._busy += (generator,)
            self._seeded += (generator,) if isinstance(generator, OwnGenerator) else ()
            self._idle = tuple(one for one in self._idle if one is not generator)
            if put_back:
                generator.put_back(look)
        return bool(drawn)

    def _learn(self, read_all: Callable[[Seed, int], Any]) -> Any:
        """Read a batch, and detect which RNGs are used between two seeds."""
        looks: list[Any] = []
        drawn: list[Generator] = []

        def see() -> None:
            if looks:
                drawn.extend(one for one, look in zip(ALL, looks, strict=True) if one.changed(look))

        def seed(key: int) -> bool:
            see()
            reseed(key)
            for one in self._seeded:
                one.seed(key)
            looks[:] = [generator.look() for generator in ALL]
            return True

        batch = read_all(seed, _ALL_BITS)
        see()
        self._busy = (*(generator for generator in ALL if generator in drawn), *self._seeded)
        self._idle += tuple(generator for generator in ALL if generator not in drawn)
        self._learnt = True
        return batch


def _torch_state() -> bytes | None:
    torch = sys.modules.get("torch")
    return None if torch is None else torch.default_generator.get_state().numpy().tobytes()


_NOT_PASSED = (
    'reading a batch with randomness="passed" used an RNG that was not passed: {}.\n'
    "Nothing seeds it, so its numbers differ after a resume. Use the parameter rng instead, with rng.torch for PyTorch "
    'and rng.python for random. Or use randomness="sample", which seeds the other RNGs.'
)
