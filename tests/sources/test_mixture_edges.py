"""Mixtures at their edges: other data, tails, datasets around a mixture, padding, and numbers out of range."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, random_split

import resumable
from resumable.errors import ConfigurationError, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path


def files(kind: str, count: int) -> list[str]:
    return [f"/data/{kind}/{number}.json" for number in range(count)]


class Computed(Dataset[int]):
    """Stores nothing of its samples."""

    def __len__(self) -> int:
        return 900

    def __getitem__(self, index: int) -> int:
        return index


def made(small: Any, *, in_torch: bool) -> resumable.Loader[Any]:
    source: Any = resumable.mix({"a": files("a", 5000), "b": Computed(), "c": small})
    if in_torch:
        return resumable.wrap(DataLoader(source, batch_size=8, collate_fn=list))
    return resumable.wrap(source, batch_size=8)


@pytest.mark.parametrize("in_torch", [False, True])
@pytest.mark.parametrize(
    ("small", "other"),
    [(files("c", 9), files("c", 9)[::-1]), (TensorDataset(torch.arange(9)), TensorDataset(torch.arange(9) + 5))],
    ids=["files", "tensors"],
)
def test_other_data_of_the_smallest_source_are_refused(small: Any, other: Any, in_torch: bool) -> None:
    state = made(small, in_torch=in_torch).state_dict()
    made(small, in_torch=in_torch).load_state_dict(state)
    made(other, in_torch=in_torch).load_state_dict({**state, "fingerprint": None, "digest": None})
    with pytest.raises(StateMismatchError, match="the dataset has changed since the checkpoint: sample"):
        made(other, in_torch=in_torch).load_state_dict(state)


@pytest.mark.parametrize("sources", [16, 17])
def test_many_sources_have_a_fingerprint(sources: int) -> None:
    mixture = resumable.mix({str(number): files(str(number), 9) for number in range(sources)})
    assert resumable.wrap(mixture, batch_size=8).state_dict()["fingerprint"]["of"] == "elements"


@pytest.mark.parametrize("tail", ["pad", "carry", "partial", "pad_ranks", "drop", "drop_ranks"])
@pytest.mark.parametrize("plan", [{}, {"epochs": 1}], ids=["endless", "ends"])
def test_consumed_at_each_batch_of_each_tail(tail: Any, plan: dict[str, Any]) -> None:
    mixture = resumable.mix({"a": range(10), "b": range(10)}, window=5, named=True, **plan)
    loader = resumable.wrap(mixture, batch_size=8, tail=tail)
    seen = Counter[str]()
    for epoch in loader.epochs(4):
        for number, batch in enumerate(epoch):
            padding = 4 if tail == "pad" and number == 2 else 0
            seen.update(name for name, _ in batch[: len(batch) - padding])
            left_out = 4 * loader.cursor.epoch if tail == "drop" else 0
            assert sum(loader.consumed().values()) == sum(seen.values()) + left_out
            if tail != "drop":
                assert loader.consumed() == seen


def around(kind: str) -> Any:
    mixture: Any = resumable.mix({"a": range(90), "b": range(10)}, weights={"a": 1, "b": 1})
    made: dict[str, Any] = {
        "subset": lambda: Subset(mixture, range(10)),
        "split": lambda: random_split(mixture, [90, 10])[0],
        "concatenated": lambda: ConcatDataset([Computed(), Subset(mixture, range(10))]),
    }
    return made[kind]()


@pytest.mark.parametrize("kind", ["subset", "split", "concatenated"])
def test_what_hides_a_mixture_is_refused(kind: str) -> None:
    source = around(kind)
    calls: list[Any] = [
        lambda: resumable.wrap(source, batch_size=8),
        lambda: resumable.wrap(DataLoader(source, batch_size=8, shuffle=True)),
        lambda: resumable.ResumableSampler(source),
        lambda: resumable.mix({"c": source}),
    ]
    for call in calls:
        with pytest.raises(UnsupportedError, match=r"around a Mix, which has its own order(.|\n)*mix those"):
            call()


def test_a_sampler_alone_takes_no_mixture() -> None:
    mixture = resumable.mix({"a": range(90), "b": range(10)})
    with pytest.raises(ConfigurationError, match=r"created for a Mix, which(.|\n)*resumable\.wrap\(DataLoader"):
        resumable.ResumableSampler(mixture)


def test_padding_reaches_the_source() -> None:
    seen = list[str]()

    class Seeing(Computed):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> int:
            seen.append(type(index).__name__)
            return index

    source: Any = resumable.mix({"a": Seeing(), "b": Seeing()}, epochs=1)
    list(resumable.wrap(DataLoader(source, batch_size=4), tail="pad"))
    assert Counter(seen) == {"int": 10, "Padding": 2}


@pytest.mark.parametrize("text", ["web.jsonl", b"web", bytearray(b"web")])
def test_a_text_is_no_source(text: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"the source 'b' of a mixture is a (str|bytes|bytearray): "):
        resumable.mix({"a": [1], "b": text})


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"epochs": 10**18}, r"used up after 1000000000000000000 epochs of 10 samples, which is more than 2\*\*62"),
        ({"epochs": {"b": 10**17}, "weights": {"a": 1, "b": 1e-9}}, r"no source .* used up before sample 2\*\*62"),
        ({"weights": [(0, {"a": 1}), (10**30, {"b": 1})]}, r"must start at 2\*\*62 = \d+ or earlier"),
        ({"weights": [(0, {"a": 1}), (1e6, {"b": 1})]}, r"must start at an integer, but it starts at 1000000\.0"),
        ({"epochs": math.inf}, "must be an integer of 1 or more, but they are inf"),
    ],
)
def test_numbers_out_of_range_are_told(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resumable.mix({"a": range(10), "b": range(10)}, **plan)


def test_numbers_of_numpy_are_integers() -> None:
    plan: dict[str, Any] = {"epochs": np.int64(2), "weights": [(np.int64(0), {"a": 1, "b": 1})]}
    mixture = resumable.mix({"a": range(10), "b": range(10)}, **plan)
    assert len(resumable.wrap(mixture, batch_size=8)) == 5
    assert mixture.locate(np.array([12])) == [("b", 2)]


def test_an_index_is_an_integer() -> None:
    mixture: Any = resumable.mix({"a": range(10)})
    calls: list[Any] = [lambda: mixture[0:3], lambda: mixture.locate([1.5])]
    for call in calls:
        with pytest.raises(UnsupportedError, match="needs an integer index, but got"):
            call()


# ---------------------------------------------------------------------- a state of other sources


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        ({"web": 100, "code": 50, "math": 9}, "'math' is new, with 9 samples"),
        (
            {"math": 9, "web": 100, "code": 50, "wiki": 3},
            "'math' is new, with 9 samples; 'wiki' is new, with 3 samples",
        ),
        ({"web": 100}, "'code' is missing, which had 50 samples"),
        ({"web": 100, "code": 51}, "'code' had 50 samples and has 51"),
        ({"web": 99, "code": 51}, "'web' had 100 samples and has 99; 'code' had 50 samples and has 51"),
        ({"web": 100, "text": 50}, "'code' is missing, which had 50 samples; 'text' is new, with 50 samples"),
        ({"code": 50, "web": 100}, "their order differs"),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_changed_sources_are_named(lengths: dict[str, int], told: str, weighted: bool) -> None:
    def made(some: dict[str, int]) -> Any:
        weights: Any = dict.fromkeys(some, 1) if weighted else None
        sources = {name: list(range(length)) for name, length in some.items()}
        return resumable.wrap(resumable.mix(sources, weights=weights), batch_size=8, seed=0)

    loader = made({"web": 100, "code": 50})
    list(loader.steps(3))
    state = loader.state_dict()
    with pytest.raises(StateMismatchError) as caught:
        made(lengths).load_state_dict(state)
    assert str(caught.value).startswith(
        f"the sources of the mixture (sampler.sources) differ from the checkpoint's: {told}."
    )
    made({"web": 100, "code": 50}).load_state_dict(state)


def test_changed_sources_of_a_large_mixture() -> None:
    """A state has only a digest of very many, as states of earlier versions have of more than a few."""

    def made(count: int) -> Any:
        return resumable.wrap(
            resumable.mix({f"a source with a long name {number}": [1, 2, 3] for number in range(count)}), batch_size=8
        )

    with pytest.raises(StateMismatchError, match="differs from the checkpoint's"):
        made(101).load_state_dict(made(100).state_dict())
    with pytest.raises(StateMismatchError, match="'a source with a long name 20' is new, with 3 samples"):
        made(21).load_state_dict(made(20).state_dict())
    state = made(20).state_dict()
    for name in ("sources", "weights"):
        digest = hashlib.blake2b(state["sampler"][name].encode(), digest_size=8, person=b"resumable1").hexdigest()
        made(20).load_state_dict({**state, "sampler": {**state["sampler"], name: digest}, "digest": None})
        with pytest.raises(StateMismatchError, match=rf"sampler\.{name}"):
            made(20).load_state_dict({**state, "sampler": {**state["sampler"], name: "0" * 16}, "digest": None})


def test_the_samples_of_a_large_mixture_are_in_its_state(tmp_path: Path) -> None:
    names = [f"a source with a long name {number}" for number in range(20)]
    data = resumable.mix({name: [1, 2, 3] for name in names}, weights={name: 1 + len(name) for name in names})
    loader = resumable.wrap(data, batch_size=8, seed=0)
    list(loader.steps(3))
    path = tmp_path / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    assert list(resumable.samples(path, epoch=1, step=2).indices) == loader.sample_indices(epoch=1, step=2)
