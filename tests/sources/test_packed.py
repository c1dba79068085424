"""Packing as functions of (epoch, window): each token once, any window at once, and values that never change."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import resumable
from resumable.errors import ConfigurationError
from resumable.sources import cu_seqlens
from resumable.sources._packing import best_fit

HOWS = ("flat", "concat", "fit")


def case(trial: int) -> tuple[Any, Any, int, int]:
    """Tokens that say their place, lengths with empty and long documents among them, a window, and a block."""
    rng = np.random.default_rng(trial)
    lengths = rng.integers(trial % 2, 60, int(rng.integers(2, 200))).astype(np.uint16)
    lengths[rng.integers(len(lengths))] = 200
    return np.arange(int(lengths.sum())), lengths, int(rng.integers(1, 90)), int(rng.integers(1, 80))


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
def test_each_token_once_in_any_window(how: Any) -> None:
    """Each token comes once, and any window is as in the stream."""
    for trial in range(12):
        tokens, lengths, length, block = case(trial)
        given: dict[str, Any] = {"documents": lengths, "how": how, "block": block, "seed": trial, "pad": -7}
        packed = resumable.Packed(tokens, length, **given)
        fresh = pickle.loads(pickle.dumps(resumable.Packed(tokens, length, **given)))  # noqa: S301  # our own
        starts, windows = np.cumsum(lengths) - lengths, len(packed)
        for epoch in (0, 1, 5):
            samples = [packed[epoch * windows + window] for window in range(windows)]
            inputs, targets, positions, documents = (
                np.concatenate([sample[name] for sample in samples])
                for name in ("input", "target", "position", "document")
            )
            real = documents >= 0
            assert how == "fit" or real.all()
            assert (inputs[~real] == -7).all()
            assert (targets[~real] == -100).all()
            tokens_seen = inputs[real]
            assert len(np.unique(tokens_seen)) == len(tokens_seen)
            lost = len(tokens) - len(tokens_seen)
            most = {"flat": 2 * length - 1, "concat": length * len(packed.sizes), "fit": 1}
            assert 0 <= lost < most[how]
            assert (np.searchsorted(np.cumsum(lengths), tokens_seen, side="right") == documents[real]).all()
            last = tokens_seen + 1 == (starts + lengths)[documents[real]]
            assert (targets[real] == np.where(last, -100, tokens_seen + 1)).all()
            assert (np.diff(inputs)[positions[1:] != 0] == 1).sum() == (real[1:] & (positions[1:] != 0)).sum()
            for window in np.random.default_rng(trial).integers(0, windows, 8).tolist():
                for name, values in fresh[epoch * windows + window].items():
                    assert values.tolist() == samples[window][name].tolist()


@pytest.mark.parametrize("how", HOWS)
def test_epochs_and_seeds_differ(how: Any) -> None:
    tokens, lengths = np.arange(5000), [50] * 60 + [40] * 50
    packed = [resumable.Packed(tokens, 64, documents=lengths, how=how, block=32, seed=seed) for seed in (0, 1)]
    epochs = [
        str([one[epoch * len(one) + window]["input"].tolist() for window in range(len(one))])
        for one in packed
        for epoch in (1, 2, 3)
    ]
    assert len(set(epochs)) == 6


def test_fit_cuts_only_what_is_longer_and_fills_well() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 4000)
    packed = resumable.Packed(np.zeros(lengths.sum(), np.int8), 200, documents=lengths, how="fit")
    fill = lengths.sum() / (len(packed) * 200)
    assert fill > 0.99
    for window in range(0, len(packed), 7):
        pieces = packed.pieces(window)
        whole = lengths[pieces.document] <= 200
        assert (pieces.length[whole] == lengths[pieces.document][whole]).all()


def test_the_fullest_bin_that_has_room_takes_a_piece() -> None:
    order, bins = best_fit(np.array([3, 6, 5, 4, 2]), 10)
    assert [order[bins == number].tolist() for number in range(bins[-1] + 1)] == [[1, 3], [0, 2, 4]]


def test_windows_do_not_depend_on_the_order_of_fits() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        counts = rng.integers(1, 33, 300)
        assert best_fit(counts, 32)[1][-1] == best_fit(rng.permutation(counts), 32)[1][-1]


def test_a_window_touches_its_own_block() -> None:
    tokens, lengths, length, _ = case(4)
    for how in ("concat", "fit"):
        packed = resumable.Packed(tokens, length, documents=lengths, how=how, block=16)
        borders = np.repeat(np.arange(len(packed.sizes)), packed.sizes)
        for window, block in enumerate(borders.tolist()):
            assert set((packed.pieces(window).document // 16).tolist()) == {block}


def test_all_tokens_are_one_document_where_none_are_given() -> None:
    tokens = np.arange(1000)
    packed = resumable.Packed(tokens, 64)
    assert len(packed) == (1000 - 64) // 64
    for index in range(4 * len(packed)):
        sample = packed[index]
        assert (sample["target"] == sample["input"] + 1).all()
        assert sample["position"].tolist() == list(range(64))
    assert packed[0]["input"][0] == 0
    assert len({int(packed[epoch * len(packed)]["input"][0]) for epoch in range(8)}) > 4


def test_borders_for_attention() -> None:
    packed = resumable.Packed(np.arange(40), 10, documents=[4, 13, 3, 11, 9], how="flat")
    sample = packed[0]
    assert sample["document"].tolist() == [0] * 4 + [1] * 6
    assert cu_seqlens(sample["position"]).tolist() == [0, 4, 10]
    batch = np.stack([packed[0]["position"], packed[1]["position"]])
    assert cu_seqlens(batch).tolist() == [0, 4, 10, 17, 20]
    assert cu_seqlens(batch).dtype == np.int32


PINNED = {
    "flat": (10, [[80, 81, 82], [91, 92, 93], [101, 102, 103]], [[19, 20, 21], [20, 21], [20, 21, 22]]),
    "concat": (11, [[86, 87, 88], [39, 40, 41], [46, 47, 48]], [[26, 19, 24], [20, 16, 26], [27, 28]]),
    "fit": (15, [[45, 46, 47], [28, 29, 30], [21, 22, 23]], [[28], [28], [28]]),
}


@pytest.mark.parametrize("how", HOWS)
def test_values_that_never_change(how: Any) -> None:
    """A stream saved today has to resume in years."""
    lengths = np.arange(1, 31)
    packed = resumable.Packed(np.arange(lengths.sum()), 40, documents=lengths, how=how, block=16, seed=3)
    firsts = [packed[epoch * len(packed) + 2]["input"][:3].tolist() for epoch in range(3)]
    documents = [packed.pieces(epoch * len(packed) + 5).document.tolist() for epoch in range(3)]
    assert (len(packed), firsts, documents) == PINNED[how]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"documents": [50, 49]}, r"sum of the lengths: 99\n  number of tokens:   100"),
        ({"documents": [0, 30, 60]}, "sum of the lengths: 90"),
        ({"documents": [70, -20, 50]}, "the length of document 1 is negative: -20"),
        ({"documents": [50.0, 50.0]}, "integer dtype of at most 63 bits, but it has float64"),
        ({"documents": [[50, 50]]}, r"one dimension, but the shape is \(1, 2\)"),
        ({"documents": np.array([], int)}, "has no lengths of documents"),
        ({"how": "fit"}, "needs the lengths of the documents, but there are none"),
        ({"how": "best"}, "how must be one of flat, concat, fit"),
        ({"length": 0}, "the length of a window must be an integer of 1 or more"),
        ({"length": 101}, "too few for a window of length=101"),
        ({"documents": [50, 50], "how": "concat", "block": 1, "length": 60}, "too few for a window of length=60"),
        ({"block": 0}, "the documents of a block must be"),
        ({"seed": -1}, "the seed must be"),
        ({"dtype": np.uint16}, "dtype=uint16 was passed, but the dtype of tokens is int64"),
    ],
)
def test_what_cannot_be_packed_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resumable.Packed(np.arange(100), **{"length": 10, **given})


def test_uint16_lengths_are_summed_in_64_bits() -> None:
    lengths = np.full(3, 60_000, np.uint16)
    packed = resumable.Packed(np.zeros(180_000, np.uint8), 1000, documents=lengths, how="fit")
    assert len(packed) == 180


def test_windows_below_0_are_refused_and_a_loop_ends() -> None:
    packed = resumable.Packed(np.arange(100), 10)
    with pytest.raises(IndexError, match=r"window -1 does not exist: the windows of epoch 0 are 0\.\.8"):
        packed[-1]
    assert len(list(packed)) == len(packed) == 9
    assert repr(packed) == "Packed('an array', <1 documents>, flat-v1 length=10 block=4096 seed=0)"
