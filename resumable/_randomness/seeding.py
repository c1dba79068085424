"""Seeds the global generators before every sample or batch, and leaves out those that the source never draws from.

Seeding all three costs about 7 microseconds, of which torch's takes one, and keeping the trainer's from it twice as
much: the states of the other two are large, and most sources draw from neither. So which ones are drawn from is learnt
from the first batch that is read, where all of them are seeded. One that stayed idle is from then on neither seeded nor
kept, and looked at after each batch: if it was drawn from after all, it gets the state that it had, and the batch is
read and collated once more with it seeded, as are all later ones. What is delivered is always what seeding all of them
gives.

Torch's is always seeded. It takes a microsecond, and code often asks for its seed without drawing from it
(`torch.initial_seed()`), which no look at its state would tell. Code that reads the state of one of the others, draws,
and puts the state back without seeding it, is not seen.

Generators of the source's own count as idle until they are drawn from. So the first batch that draws from one is read
without seeding it, too: what a source draws once and keeps, as a random projection, is what it draws in every process.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from resumable._randomness.keys import ALL, POSITIVE, isolated, reseed, torch_seed
from resumable._randomness.own_generators import OwnGenerator, OwnGenerators

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from resumable._randomness.keys import Generator

    Seed: TypeAlias = Callable[[int], object]

__all__ = ["Seeding"]


_ALL_BITS = (1 << 64) - 1


class Seeding:
    """What is known about the generators that one source draws from.

    Args:
        roots: what samples are read by, by name, such as the dataset: what may have generators of its own.
    """

    def __init__(self, roots: Mapping[str, Any] | None = None) -> None:
        self._learnt = False
        self._busy: tuple[Generator, ...] = ALL
        self._idle: tuple[Generator, ...] = ()
        self._seeded: tuple[OwnGenerator, ...] = ()  # those of the source's own that are busy
        self.own = OwnGenerators(roots or {})

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the source's own generators, which another process looks for among its own."""
        without = {
            name: tuple(one for one in getattr(self, name) if one in ALL) for name in ("_busy", "_idle", "_seeded")
        }
        return {**vars(self), **without}

    def read(self, read_all: Callable[[Seed, int], Any], *, isolate: bool, epoch: int = 0) -> Any:
        """Read a batch.

        Args:
            read_all: reads it. It is given what seeds, and a mask of the bits of a key that this takes; and seeds with
                each key before what the key belongs to. What seeds returns what is true.
            isolate: give the generators back as they were found.
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
                if not woken or not isinstance(error, Exception):  # else, seeded, the sample might not have failed
                    raise
                continue
            for generator, look in zip(idle, looks):  # noqa: B905  # one look for each, and this is half the time
                if generator.changed(look):
                    self._woken(idle, looks, put_back=isolate)
                    break
            else:
                found = tuple(self.own.after())
                self._idle += found
                replaced = [one for one in self._seeded if one.is_another()]
                if not found and not replaced:
                    return batch

    def _isolated(self, read_all: Callable[[Seed, int], Any]) -> Any:
        if self._busy:
            looks = [one.look() for one in self._seeded]
            try:
                with isolated(but=self._idle):
                    return self._once(read_all)
            finally:
                for one, look in zip(self._seeded, looks, strict=False):  # those that came since were idle before
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
        """Return whether an idle generator was drawn from, and count it as a busy one."""
        drawn = [(one, look) for one, look in zip(idle, looks, strict=True) if one.changed(look)]
        for generator, look in drawn:
            self._busy += (generator,)
            self._seeded += (generator,) if isinstance(generator, OwnGenerator) else ()
            self._idle = tuple(one for one in self._idle if one is not generator)
            if put_back:
                generator.put_back(look)
        return bool(drawn)

    def _learn(self, read_all: Callable[[Seed, int], Any]) -> Any:
        """Read a batch, and see which generators are drawn from between one seed and the next."""
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
