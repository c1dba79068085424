"""A mixture may differ from a state's in samples that were not read yet; a warning says how."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

import resumable
from resumable.errors import StateMismatchError, StateMismatchWarning
from resumable.samplers import Mixture

if TYPE_CHECKING:
    from pathlib import Path

WEB, CODE, MATH = {"web": 1}, {"web": 2, "code": 1}, {"web": 1, "code": 1, "math": 2}
SIZES = {"web": 40, "code": 25}
PHASES: list[Any] = [(0, WEB), (50, CODE)]
pytestmark = pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs


def wrap(
    weights: Any = None, sizes: dict[str, int] | None = None, workers: int | None = None, **plan: Any
) -> resumable.Loader[Any]:
    """Wrap a mixture whose samples say their source and number."""
    sizes = SIZES if sizes is None else sizes
    sources = {name: [f"{name} {number}" for number in range(size)] for name, size in sizes.items()}
    mixture: Any = resumable.mix(sources, weights=PHASES if weights is None else weights, **plan)
    if workers is None:
        return resumable.wrap(mixture, batch_size=10, seed=3, tail="drop")
    return resumable.wrap(DataLoader(mixture, batch_size=10, num_workers=workers, drop_last=True), seed=3)


def states(loader: resumable.Loader[Any], steps: int) -> list[Any]:
    return [json.loads(json.dumps(loader.state_dict())) for _ in loader.steps(steps)]


def rest(loader: resumable.Loader[Any], until: int) -> list[Any]:
    return [list(batch) for batch in loader.steps(until)]


# what changes, and until which sample it may
FUTURES: dict[str, tuple[dict[str, Any], int, str]] = {
    "a phase that is appended": ({"weights": [*PHASES, (200, WEB)]}, 200, "from sample 200 on: web 1"),
    "another weight in the future": (
        {"weights": [(0, WEB), (50, {"web": 1, "code": 9})]},
        50,
        "50 on: web 0.1, code 0.9",
    ),
    "a phase that starts later": (
        {"weights": [(0, WEB), (90, CODE)]},
        50,
        "50 on: no change of the weights; from sample 90",
    ),
    "a phase that starts earlier": ({"weights": [(0, WEB), (35, CODE)]}, 35, "from sample 35 on"),
    "a source that is appended": (
        {"sizes": {**SIZES, "math": 7}, "weights": [*PHASES, (120, MATH)]},
        120,
        "the source 'math' is new; from sample 120 on: web 0.25, code 0.25, math 0.5",
    ),
    "a source that is put between": (
        {"sizes": {"web": 40, "math": 7, "code": 25}, "weights": [*PHASES, (120, MATH)]},
        120,
        "the source 'math' is new",
    ),
    "a source that grows before it is read": (
        {"sizes": {"web": 40, "code": 26}},
        50,
        "the source 'code' has different samples",
    ),
    "a source that is removed before it is read": (
        {"sizes": {"web": 40}, "weights": WEB},
        50,
        "the source 'code' is missing; from sample 50 on: no change",
    ),
}


@pytest.mark.parametrize("length", [60, None])
@pytest.mark.parametrize("what", FUTURES)
def test_what_was_not_read_yet_may_change(what: str, length: int | None) -> None:
    """Over later epochs, the run is the one that had the new mixture from step 0."""
    change, border, told = FUTURES[what]
    given = {**change, "num_samples": length}
    saved = states(wrap(num_samples=length), 24)
    expected = rest(wrap(**given), 40)
    lengths = {loader.total_steps(0) * 10 for loader in (wrap(**given), wrap(num_samples=length))}
    for step, state in enumerate(saved, start=1):
        loader = wrap(**given)
        if step * 10 > border or (step * 10 > min(lengths) and len(lengths) > 1):  # later epochs start elsewhere
            with pytest.raises(StateMismatchError):
                loader.load_state_dict(state)
            continue
        with pytest.warns(StateMismatchWarning, match=rf"only in samples that were not read yet(.|\n)*{told}"):
            loader.load_state_dict(state)
        assert rest(loader, 40) == expected[step:], step
        again = wrap(**given)
        again.load_state_dict(loader.state_dict())  # now the same, so it says nothing


def test_nothing_is_said_of_the_same_mixture() -> None:
    for step, state in enumerate(states(wrap(num_samples=60), 20), start=1):
        loader = wrap(num_samples=60)
        loader.load_state_dict(state)
        assert loader.global_step == step


PASTS: list[dict[str, Any]] = [
    {"weights": [(0, CODE), (50, CODE)]},
    {"weights": [(0, WEB), (20, CODE), (50, CODE)]},
    {"sizes": {"web": 41, "code": 25}},
    {"sizes": {**SIZES, "math": 7}, "weights": [(0, MATH), (50, CODE)]},
    {"window": 20},
    {"num_samples": 70},
    {"epochs": {"code": 9}},
]


@pytest.mark.parametrize("change", PASTS)
def test_what_was_read_may_not(change: dict[str, Any]) -> None:
    state = states(wrap(num_samples=60), 3)[-1]
    loader = wrap(**{"num_samples": 60 if "epochs" not in change else None, **change})
    with pytest.raises(StateMismatchError):
        loader.load_state_dict(state)


@pytest.mark.slow
def test_so_it_is_with_workers() -> None:
    change: dict[str, Any] = {"weights": [*PHASES, (120, MATH)], "sizes": {**SIZES, "math": 7}, "num_samples": 60}
    saved = states(wrap(num_samples=60, workers=1), 9)
    expected = rest(wrap(**change), 30)
    loader = wrap(**change, workers=2)
    with pytest.warns(StateMismatchWarning, match="'math' is new"):
        loader.load_state_dict(saved[-1])
    assert rest(loader, 30) == expected[9:]
    loader.close()


def test_samples_of_former_sources_are_still_compared() -> None:
    """Whichever source is added, and where."""
    state = states(wrap(num_samples=60), 3)[-1]
    for order in (("web", "code", "math"), ("math", "web", "code"), ("web", "math", "code")):
        sources: dict[str, Any] = {
            name: [f"{name} {number}" for number in range(7 if name == "math" else SIZES[name])] for name in order
        }
        for wrong in ("web", "code", None):
            given = {**sources, wrong: [f"another {text}" for text in sources[wrong]]} if wrong else sources
            mixture = resumable.mix(given, weights=[*PHASES, (120, MATH)], num_samples=60)
            loader = resumable.wrap(mixture, batch_size=10, seed=3, tail="drop")
            if wrong:
                with pytest.raises(StateMismatchError, match="the dataset has changed since the checkpoint"):
                    loader.load_state_dict(state)
            else:
                with pytest.warns(StateMismatchWarning, match="not read yet"):
                    loader.load_state_dict(state)


def test_a_phase_is_appended_to_more_than_a_state_holds() -> None:
    """A state has a digest of very many phases."""
    rng = random.Random(1)
    many: list[Any] = [(0, WEB), *((10 * number, {"web": rng.random(), "code": 1}) for number in range(1, 120))]
    state = states(wrap(many, num_samples=60), 4)[-1]
    assert len(state["sampler"]["weights"]) == 16
    loader = wrap([*many, (5000, WEB), (9000, CODE)], num_samples=60)
    with pytest.warns(StateMismatchWarning, match="from sample 5000 on: web 1; from sample 9000 on"):
        loader.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"sampler\.weights"):
        wrap([*many[:-1], (5000, WEB)], num_samples=60).load_state_dict(state)


def test_a_mixture_that_ends() -> None:
    """Its later epochs repeat all phases, so only the first one may have another future."""
    before, after = [(0, CODE), (40, WEB)], [(0, CODE), (40, {"web": 1, "code": 1})]
    whole = wrap(before, epochs=1)
    saved = states(whole, 2 * len(whole))
    expected = rest(wrap(after, epochs=1), 3 * len(whole))
    for step, state in enumerate(saved, start=1):
        loader = wrap(after, epochs=1)
        if step * 10 > 40:
            with pytest.raises(StateMismatchError):
                loader.load_state_dict(state)
        else:
            with pytest.warns(StateMismatchWarning, match="from sample 40 on: web 0.5, code 0.5"):
                loader.load_state_dict(state)
            assert rest(loader, 3 * len(whole)) == expected[step:]


class Shards:
    """Samples in shards."""

    def __init__(self, name: str, count: int) -> None:
        self.sizes = [13 + number % 3 for number in range(count)]
        self._rows = [f"{name} {number}" for number in range(sum(self.sizes))]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> str:
        return self._rows[index]


@pytest.mark.filterwarnings("ignore::resumable.errors.ShuffleWarning")  # small windows
def test_sources_in_blocks(tmp_path: Path) -> None:
    def made(names: list[str], weights: Any) -> resumable.Loader[Any]:
        sources = {name: Shards(name, 40) for name in names}
        mixture = resumable.mix(sources, weights=weights, num_samples=60, shuffle="blocks")
        return resumable.wrap(mixture, batch_size=10, seed=3)

    phases: list[Any] = [(0, CODE), (150, MATH)]
    saved = states(made(["web", "code"], CODE), 20)
    expected = rest(made(["web", "code", "math"], phases), 40)
    for step, state in enumerate(saved, start=1):
        loader = made(["web", "code", "math"], phases)
        if step > 15:
            with pytest.raises(StateMismatchError):
                loader.load_state_dict(state)
        else:
            with pytest.warns(StateMismatchWarning, match="'math' is new; from sample 150"):
                loader.load_state_dict(state)
            assert rest(loader, 40) == expected[step:]


def test_a_damaged_spec_is_rejected_as_before() -> None:
    state = states(wrap(num_samples=60), 3)[-1]
    for name, value in (("sources", "{"), ("sources", "[]"), ("weights", "[[0]]"), ("weights", 3), ("window", "x")):
        with pytest.raises(StateMismatchError):
            wrap([*PHASES, (200, WEB)], num_samples=60).load_state_dict(
                {**state, "sampler": {**state["sampler"], name: value}, "digest": None}
            )


def test_the_parts_of_a_mixture_without_read_samples() -> None:
    small = Mixture({"a": 5}, window=2)
    assert small.continuation(Mixture({"a": 5, "b": 3}, window=2).spec(), 0, 0) is None
