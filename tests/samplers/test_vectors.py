"""Values that must never change under their algorithm's name: a stream saved today has to resume in years."""

from __future__ import annotations

import numpy as np
import pytest

from resumable._randomness.keyed import derive, random_u64
from resumable._randomness.keys import SampleKeys
from resumable.samplers import Blocks, Mixture, PagedShuffle, Permutation, Sequential, Shuffle, Subset, Weighted

FEISTEL8_V1 = [
    (10, (0, 0), [3, 4, 7, 8, 0, 2], 5),
    (4096, (0, 0), [2188, 342, 170, 4058, 1232, 2421], 2605),
    (4097, (0, 0), [3374, 1712, 1157, 2356, 927, 396], 825),
    (10**6, (0, 0), [353379, 861684, 525365, 637149, 164817, 244387], 721220),
    (10**6, (0, 1), [903481, 385722, 904233, 986119, 785290, 43865], 240785),
    (
        10**12,
        (123, 7),
        [966708295434, 464721759492, 497553400922, 999424598967, 72564573694, 103884656401],
        44823642870,
    ),
]


@pytest.mark.parametrize(("length", "key", "first", "last"), FEISTEL8_V1)
def test_feistel8_v1(length: int, key: tuple[int, int], first: list[int], last: int) -> None:
    permutation = Permutation(length, *key)
    assert permutation.range(0, 6).tolist() == first
    assert permutation.range(length - 1, length).tolist() == [last]


@pytest.mark.parametrize(("length", "key", "first", "last"), FEISTEL8_V1)
def test_shuffle_is_feistel8_v1_keyed_by_seed_and_epoch(
    length: int, key: tuple[int, int], first: list[int], last: int
) -> None:
    seed, epoch = key
    shuffle = Shuffle(length, seed=seed)
    assert shuffle.indices(epoch, 0, 6).tolist() == first
    assert shuffle.indices(epoch, length - 1, length).tolist() == [last]


def test_shuffle_of_more_samples_than_there_are() -> None:
    assert Shuffle(5, seed=4, num_samples=12).indices(3, 0, 12).tolist() == [0, 2, 3, 4, 1, 4, 3, 2, 0, 1, 1, 4]


def test_weighted_v1() -> None:
    small = Weighted([1, 2, 3, 4], num_samples=1000)
    assert small.indices(0, 0, 20).tolist() == [2, 3, 3, 2, 2, 3, 2, 3, 1, 1, 3, 1, 2, 3, 2, 3, 3, 2, 3, 1]
    assert small.indices(1, 0, 20).tolist() == [3, 3, 3, 3, 3, 1, 0, 3, 0, 3, 2, 3, 2, 1, 1, 2, 3, 3, 3, 3]
    assert small.indices(0, 999, 1000).tolist() == [0]
    large = Weighted(np.arange(100_000), seed=123, num_samples=10**12)
    assert large.indices(7, 0, 6).tolist() == [84341, 75731, 73784, 45037, 40292, 55592]
    assert large.indices(7, 10**12 - 1, 10**12).tolist() == [56329]


def test_paged_v1() -> None:
    small = PagedShuffle(np.arange(1000) // 7, window=10, seed=3)
    assert small.indices(0, 0, 12).tolist() == [646, 664, 650, 789, 401, 662, 532, 859, 377, 302, 788, 372]
    assert small.indices(5, 994, 1000).tolist() == [723, 727, 722, 726, 506, 508]
    large = PagedShuffle(np.arange(10**5) % 999, window=64, seed=123)
    assert large.indices(7, 0, 6).tolist() == [1614, 69157, 43572, 28317, 86638, 83479]
    assert large.indices(7, 10**5 - 6, 10**5).tolist() == [13273, 14782, 37083, 17306, 3703, 19725]


def test_blocks_v1() -> None:
    small = Blocks(1000, block=7, window=10, seed=3)
    assert small.indices(0, 0, 12).tolist() == [646, 664, 650, 789, 401, 662, 532, 859, 377, 302, 788, 372]
    assert small.indices(5, 994, 1000).tolist() == [723, 727, 722, 726, 506, 508]
    shards = Blocks([1000, 1, 640, 63, 999], window=9, seed=1)
    assert shards.indices(2, 0, 12).tolist() == [1546, 1135, 2392, 2087, 1953, 1542, 489, 1172, 1547, 2342, 470, 1174]
    assert shards.indices(2, 2697, 2703).tolist() == [2584, 219, 1301, 1850, 402, 435]
    whole = Blocks([1000, 1, 640, 63, 999], block=None, window=2)
    assert whole.indices(0, 0, 12).tolist() == [1542, 1040, 1080, 1354, 1447, 1544, 1579, 1329, 1298, 1555, 1331, 1569]
    large = Blocks(10**12, seed=123)
    assert large.indices(7, 0, 4).tolist() == [762850299451, 843522869986, 435042738189, 509518048643]
    assert large.indices(7, 10**12 - 4, 10**12).tolist() == [925593132124, 305605975936, 572696024687, 201128222793]
    assert large.blocks_of(7, 10**12 - 1)[1].blocks[:3].tolist() == [5567129787, 1593530418, 6549607939]


def test_mixture_v1() -> None:
    sizes, weights = {"web": 1000, "code": 100, "math": 37}, {"web": 0.7, "code": 0.2, "math": 0.1}
    endless = Mixture(sizes, weights=weights, window=16, seed=3)
    assert endless.indices(0, 0, 10).tolist() == [796, 1050, 170, 31, 284, 1111, 797, 391, 385, 114]
    assert endless.indices(5, 1130, 1136).tolist() == [624, 1126, 389, 1095, 702, 1092]
    phases = Mixture(sizes, weights=[(0, weights), (100, {"math": 1, "code": 2})], window=16)
    assert phases.indices(0, 96, 106).tolist() == [1104, 1032, 99, 855, 1066, 1133, 1102, 1058, 1109, 1017]
    leave = Mixture(sizes, weights=weights, epochs=2, window=10, seed=1)
    assert leave.indices(1, 2269, 2274).tolist() == [486, 254, 328, 109, 493]
    stop = Mixture(sizes, weights=weights, epochs=1, at_end="stop", window=10, seed=1)
    assert stop.length == 366
    assert stop.indices(1, 361, 366).tolist() == [842, 638, 997, 1039, 1132]
    large = Mixture({"a": 10**11, "b": 10**12}, seed=123, window=256)
    assert large.indices(7, 10**9, 10**9 + 4).tolist() == [913887339353, 380092062679, 81219753272, 127777601578]


def test_keys_of_samples_and_batches() -> None:
    keys = SampleKeys(0, 0)
    expected = [13369540717904599395, 8596879579266503348, 18072881004030505978, 4957954794754946601]
    assert keys.samples(0, 4).tolist() == expected
    assert (keys.batch(0), keys.batch(64)) == (14333453472558290064, 15558586050622946106)
    assert SampleKeys(0, 1).samples(0, 1).tolist() == [4167969658355615242]
    far = SampleKeys(123, 7)
    assert far.samples(10**12, 10**12 + 2).tolist() == [4674962163093518885, 5801522543059489070]
    assert SampleKeys(123, 7, 1).batch(5) == 11523052260247303127


def test_random_words() -> None:
    words = derive(0, -1, "a", 2**70, words=3, purpose=b"order").tolist()
    assert words == [9296127205230154083, 1978421233357852712, 17475882718214224916]
    assert derive(1, words=9, purpose=b"order").tolist()[-1] == 14465076404706629292
    found = random_u64(np.array([1, 2], dtype=np.uint64), [0, 1, 2**62]).tolist()
    assert found == [17235469408947973867, 583880340377267059, 180750111176274280]


def test_specs_name_the_algorithm_with_its_version() -> None:
    assert Shuffle(3).spec() == {"name": "feistel8-v1", "length": 3, "seed": 0}
    assert Shuffle(5, seed=4, num_samples=12).spec() == {
        "name": "feistel8-v1",
        "length": 12,
        "seed": 4,
        "samples": 5,
    }
    assert Sequential(3).spec() == {"name": "sequential-v1", "length": 3}
    assert Subset([5, 7, 9], Shuffle(3)).spec() == {**Shuffle(3).spec(), "subset": "248c9aa7af81fc64"}
    assert Blocks([1000] * 9 + [7], window=50).spec() == {
        "name": "blocks-v1",
        "length": 9007,
        "seed": 0,
        "block": 64,
        "window": 50,
        "sizes": "1000x9,7",
    }
    assert Mixture({"a": 20, "b": 30}, weights={"a": 3, "b": 1}, epochs={"a": 2}, window=10).spec() == {
        "name": "mixture-v1",
        "length": 50,
        "seed": 0,
        "window": 10,
        "sources": '{"a":20,"b":30}',
        "weights": "[[0,0.75,0.25]]",
        "leave": '{"a":2}',
    }
    assert Weighted([1, 2, 3, 4], num_samples=1000).spec() == {
        "name": "weighted-v1",
        "length": 1000,
        "seed": 0,
        "weights": "014a210a8d7a3103",
    }
