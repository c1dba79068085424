"""DALI's iterators resume bit-exactly at every step of three epochs, whatever their options."""

from __future__ import annotations

import gc
import itertools
import pickle
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from coverings import covering, meetings
from dali_pipelines import (
    BATCH,
    FILES,
    images,
    images_and_labels,
    iterator,
    legacy_iterator,
    made,
    pipelines,
    training_pipeline,
)
from nvidia.dali import backend, fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import (
    DALIClassificationIterator,
    DALIGenericIterator,
    DALIRaggedIterator,
    LastBatchPolicy,
)

import resumable
from resumable.backends.dali import in_turn
from resumable.errors import PromiseWarning
from resumable.testing import BackendTests, digest, rest_of_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable.loader.loader import Loader

EPOCHS = 3
WARNED = pytest.mark.filterwarnings("ignore::resumable.errors.PromiseWarning")
Run = list[tuple[int, str]]
Case = tuple[str, bool, bool, int, int, bool]  # policy, padded, auto_reset, prefetch, pipelines, prepare_first_batch


def run_and_states(loader: Loader) -> tuple[Run, list[dict[str, Any]]]:
    run, states = [], [loader.state_dict()]
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            run.append((epoch.number, digest(batch)))
            states.append(loader.state_dict())
    return run, states


def raw_run(source: Any) -> Run:
    """What DALI gives by itself, with the epochs ended as its options need."""
    run = []
    for epoch in range(EPOCHS):
        run += [(epoch, digest(batch)) for batch in iter(lambda: next(source, None), None)]
        if source._auto_reset == "no":
            source.reset()
    return run


def check_every_step(make: Callable[[], Any], *, stride: int = 1, compare: bool = True) -> Run:
    """The wrapped run is that of DALI alone, and from each of its states the rest is the same."""
    run, states = run_and_states(resumable.wrap(make()))
    assert {epoch for epoch, _ in run} == set(range(EPOCHS))
    assert len(set(run)) > len(run) // 2, "most batches differ, so that a wrong one is found"
    if compare:
        assert run == raw_run(make()), "wrapping changes nothing"
    for step in range(0, len(states), stride):
        loader = resumable.wrap(make())
        loader.load_state_dict(states[step])
        assert rest_of_run(loader, EPOCHS) == run[step:], f"restored after {step} batches"
    return run


class TestDali(BackendTests):
    native = True
    stride = 2

    @staticmethod
    def make(**options: Any) -> Loader:
        return resumable.wrap(iterator(), **options)

    others = {
        "batch": lambda: resumable.wrap(iterator(pipeline={"batch_size": 5})),
        "kind": lambda: resumable.wrap([1, 2, 3]),
        "samples": lambda: resumable.wrap(iterator(reader={"file_filters": ["000*.jpg"]})),
    }


class TestDaliFromAFunction(TestDali):
    stride = 4

    @staticmethod
    def make(**options: Any) -> Loader:
        def make(checkpoints: list[bytes] | None) -> Any:
            one = None if checkpoints is None else checkpoints[0]
            return iterator(pipeline={"enable_checkpointing": True, "checkpoint": one})

        return resumable.wrap(make, **options)


@pytest.mark.slow
def test_pipeline_of_the_lightning_page() -> None:
    """The pipeline of the Lightning page resumes with everything left to DALI."""
    check_every_step(lambda: made(pipelines(), DALIClassificationIterator))


@pytest.mark.slow
def test_the_class_form_with_define_graph() -> None:
    check_every_step(legacy_iterator)


CORNERS: list[Case] = [
    ("FILL", True, True, 2, 1, True),
    ("FILL", False, False, 1, 2, True),
    ("DROP", True, False, 4, 2, False),
    ("DROP", False, True, 2, 1, True),
    ("PARTIAL", True, False, 2, 2, True),
    ("PARTIAL", False, True, 1, 1, False),
]
GRID: list[Case] = list(
    itertools.product(
        ("FILL", "DROP", "PARTIAL"), (True, False), (True, False), (1, 2, 4), (1, 2), (True, False)
    )
)  # fmt: skip


def check_options(case: Case, *, stride: int) -> None:
    policy, padded, auto, prefetch, count, prepare = case

    def make() -> Any:
        return iterator(
            count,
            reader={"pad_last_batch": padded},
            pipeline={"prefetch_queue_depth": prefetch},
            last_batch_policy=LastBatchPolicy[policy],
            auto_reset=auto,
            prepare_first_batch=prepare,
        )

    check_every_step(make, stride=stride)


@pytest.mark.slow
@WARNED
@pytest.mark.parametrize("case", CORNERS, ids=str)
def test_every_policy(case: Case) -> None:
    check_options(case, stride=2)


SAMPLE = covering(GRID, strength=3)


def test_any_three_options_meet_in_the_sample_of_the_grid() -> None:
    assert len(SAMPLE) <= len(GRID) / 3
    assert set().union(*(meetings(case, 3) for case in SAMPLE)) == set().union(*(meetings(case, 3) for case in GRID))


@WARNED
@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case if case in SAMPLE else pytest.param(case, marks=pytest.mark.long) for case in GRID], ids=str
)
def test_every_combination(case: Case) -> None:
    check_options(case, stride=1)


@pytest.mark.slow
@WARNED
@pytest.mark.parametrize(
    "reader",
    [
        {"random_shuffle": False},
        {"initial_fill": 3},
        {"num_shards": 3, "shard_id": 1},
        {"num_shards": 3, "shard_id": 1, "stick_to_shard": True},
        {"num_shards": 3, "shard_id": 2, "pad_last_batch": False},
        {"random_shuffle": False, "shuffle_after_epoch": True},
    ],
    ids=str,
)
def test_every_reader(reader: dict[str, Any]) -> None:
    compare = not reader.get("shuffle_after_epoch")  # whose order is another one with checkpointing on
    check_every_step(lambda: iterator(reader=reader), stride=2, compare=compare)


@pytest.mark.slow
@WARNED
@pytest.mark.filterwarnings("ignore:Please set `reader_name`:Warning")  # DALI's, of a size
@pytest.mark.parametrize("policy", list(LastBatchPolicy), ids=lambda policy: policy.name)
def test_a_size_instead_of_a_readers_name(policy: LastBatchPolicy) -> None:
    check_every_step(
        lambda: iterator(reader_name=None, size=FILES, last_batch_policy=policy, last_batch_padded=True), stride=2
    )


@WARNED
def test_early_executors_and_checkpointing() -> None:
    """Executors of early versions work, and so does checkpointing that the user turned on."""
    early = {"exec_dynamic": False, "exec_async": False, "exec_pipelined": False, "enable_checkpointing": True}
    run = check_every_step(lambda: iterator(pipeline=early), stride=3)
    loader = resumable.wrap(iterator())
    assert rest_of_run(loader, EPOCHS) == run, "the stream is the same in all of them"


def test_a_state_is_valid_under_other_threads_and_prefetching() -> None:
    run, states = run_and_states(resumable.wrap(iterator()))
    loader = resumable.wrap(
        iterator(pipeline={"num_threads": 1, "prefetch_queue_depth": 4, "exec_dynamic": False}, auto_reset=False)
    )
    loader.load_state_dict(states[7])
    assert rest_of_run(loader, EPOCHS) == run[7:]


def test_random_numbers_without_a_seed() -> None:
    """Without a seed, a resumed run continues with the random numbers of the first."""
    run, states = run_and_states(resumable.wrap(iterator(pipeline={"seed": None})))
    loader = resumable.wrap(iterator(pipeline={"seed": None}))
    loader.load_state_dict(states[6])
    assert rest_of_run(loader, EPOCHS) == run[6:]


def test_ragged_outputs() -> None:
    @pipeline_def(num_threads=1, device_id=None, batch_size=BATCH, seed=3)  # type: ignore[untyped-decorator]  # DALI's
    def encoded() -> Any:
        jpegs, labels = fn.readers.file(name="Reader", file_root=images(), random_shuffle=True, pad_last_batch=True)
        return jpegs, labels

    def make() -> Any:
        tags = [DALIRaggedIterator.SPARSE_LIST_TAG, DALIRaggedIterator.DENSE_TAG]
        return DALIRaggedIterator(
            encoded(), ["data", "label"], reader_name="Reader", output_types=tags, auto_reset=True,
            last_batch_policy=LastBatchPolicy.FILL,
        )  # fmt: skip

    with pytest.warns(PromiseWarning, match="FILL repeats"):
        run, states = run_and_states(resumable.wrap(make()))
    with pytest.warns(PromiseWarning, match="FILL repeats"):
        loader = resumable.wrap(make())
    loader.load_state_dict(states[4])
    assert rest_of_run(loader, EPOCHS) == run[4:]


@pytest.mark.slow
def test_random_cuts_in_a_chain() -> None:
    for seed in range(6):
        draw = random.Random(seed)
        expected = rest_of_run(resumable.wrap(iterator(2)), EPOCHS)
        got: Run = []
        loader = resumable.wrap(iterator(2))
        while len(got) < len(expected):
            cut = draw.randrange(0, 5)
            for epoch in loader.epochs(EPOCHS):
                for batch in epoch:
                    got.append((epoch.number, digest(batch)))
                    cut -= 1
                    if cut <= 0:
                        break
                if cut <= 0:
                    break
            state = pickle.loads(pickle.dumps(loader.state_dict()))  # noqa: S301  # our own
            loader = resumable.wrap(iterator(2))
            loader.load_state_dict(state)
        assert got == expected, f"seed {seed}"


# ---------------------------------------------------------------------------------------------- in place


def test_the_users_references_stay_valid() -> None:
    (pipeline,) = pipelines()
    inner = made(pipeline)
    loader = resumable.wrap(inner)
    first, states = [], []
    for batch in loader:
        first.append(digest(batch))
        states.append(loader.state_dict())
    loader.load_state_dict(states[1])
    assert digest(next(iter(loader))) == first[2]
    assert inner._pipes == [pipeline], "no second pipeline holds memory"
    assert pipeline.epoch_size("Reader") == FILES
    assert digest(next(inner)) == first[3], "the iterator that the user holds stands where the loader does"


@pytest.mark.slow
def test_old_pipelines_are_given_up_before_new_ones_are_built() -> None:
    """On a GPU two would not fit."""
    loader = resumable.wrap(iterator(2))
    state = loader.state_dict()
    next(iter(loader))
    gc.collect()
    before = _count(backend.Pipeline)
    for _ in range(3):
        loader.load_state_dict(state)
        next(iter(loader))
    gc.collect()
    assert _count(backend.Pipeline) == before == 2


def _count(kind: type) -> int:
    return sum(isinstance(one, kind) for one in _alive())


def _alive() -> Iterator[Any]:
    for one in gc.get_objects():
        if type(one).__name__ == "Pipeline" and hasattr(one, "_pipe"):
            yield one._pipe


# ---------------------------------------------------------------------------------------------- made by a function


class Numbers:
    """A stateless source: its result depends on the sample's number only."""

    def __init__(self, epoch_length: int) -> None:
        self.epoch_length = epoch_length

    def __call__(self, info: Any) -> Any:
        if info.iteration >= self.epoch_length:
            raise StopIteration
        return np.array([info.epoch_idx * 1000 + info.idx_in_epoch], np.int64)


@pipeline_def(num_threads=2, device_id=None, batch_size=BATCH, seed=5, enable_checkpointing=True)  # type: ignore[untyped-decorator]  # DALI's
def numbers(epoch_length: int, parallel: bool = False) -> Any:
    drawn = fn.external_source(source=Numbers(epoch_length), batch=False, dtype=types.INT64, parallel=parallel)
    return drawn, fn.random.uniform(range=[0.0, 1.0])


def from_function(**options: Any) -> Callable[[list[bytes] | None], Any]:
    def make(checkpoints: list[bytes] | None) -> Any:
        pipeline = numbers(5, checkpoint=checkpoints[0] if checkpoints else None)
        return DALIGenericIterator(pipeline, ["number", "noise"], **options)

    return make


@WARNED
@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize("prepare", [True, False])
def test_python_sources_of_one_argument(auto: bool, prepare: bool) -> None:
    run = check_every_step(lambda: from_function(auto_reset=auto, prepare_first_batch=prepare), compare=False)
    assert len(run) == 5 * EPOCHS


@pipeline_def(num_threads=2, device_id=None, enable_checkpointing=True)  # type: ignore[untyped-decorator]  # DALI's
def with_function(reader: dict[str, Any]) -> Any:
    image, label = images_and_labels(reader)
    return fn.python_function(image, function=lambda values: values * 2, device="cpu"), label


@pytest.mark.slow
@WARNED
@pytest.mark.parametrize("prepare", [True, False])
@pytest.mark.parametrize("policy", ["FILL", "DROP", "PARTIAL"])
def test_python_functions(policy: str, prepare: bool) -> None:
    def make(checkpoints: list[bytes] | None) -> Any:
        checkpoint = checkpoints[0] if checkpoints else None
        return made(
            with_function({}, batch_size=BATCH, seed=4, checkpoint=checkpoint),
            last_batch_policy=LastBatchPolicy[policy],
            prepare_first_batch=prepare,
        )

    check_every_step(lambda: make, compare=False, stride=2)


@WARNED
@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize("prepare", [True, False])
def test_state_before_the_end_was_known(auto: bool, prepare: bool) -> None:
    """A state of an epoch's last batch resumes even if its end was not known yet.

    As a signal handler would, while the Loader draws: the new iterator may pass the end while it is made.
    """

    def make(checkpoints: list[bytes] | None) -> Any:
        checkpoint = checkpoints[0] if checkpoints else None
        return iterator(
            pipeline={"enable_checkpointing": True, "checkpoint": checkpoint},
            auto_reset=auto, prepare_first_batch=prepare,
        )  # fmt: skip

    for source in (lambda: make, lambda: iterator(auto_reset=auto, prepare_first_batch=prepare)):
        run, _ = run_and_states(resumable.wrap(source()))
        loader = resumable.wrap(source())
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        feed: Any = loader._fetcher
        feed._take_snapshot(feed._place)  # as before each draw
        feed._place.reached = False
        state = loader.state_dict()
        assert not state["source_state"]["ended"]
        again = resumable.wrap(source())
        again.load_state_dict(state)
        assert rest_of_run(again, EPOCHS) == run[5:]


# ---------------------------------------------------------------------------------------------- several in turn


@pytest.mark.slow
@WARNED
@pytest.mark.parametrize("order", ["batch", "epoch"])
@pytest.mark.parametrize("sizes", [(19, 19), (19, 8, 12)], ids=str)
def test_several_iterators_in_turn(order: Any, sizes: tuple[int, ...]) -> None:
    def parts() -> list[Any]:
        patterns = {19: ["*.jpg"], 8: ["000[0-7].jpg"], 12: ["000*.jpg", "001[0-1].jpg"]}
        return [
            iterator(reader={"file_filters": patterns[size]}, pipeline={"seed": number})
            for number, size in enumerate(sizes)
        ]

    run, states = run_and_states(resumable.wrap(in_turn(parts(), order=order)))
    assert run == list(_in_turn([raw_run(part) for part in parts()], order))
    for step, state in enumerate(states):
        loader = resumable.wrap(in_turn(parts(), order=order))
        loader.load_state_dict(state)
        assert rest_of_run(loader, EPOCHS) == run[step:], f"restored after {step} batches"


def _in_turn(runs: list[Run], order: str) -> Iterator[tuple[int, str]]:
    for epoch in range(EPOCHS):
        parts = [[one for one in run if one[0] == epoch] for run in runs]
        if order == "epoch":
            yield from itertools.chain(*parts)
        else:
            for row in itertools.zip_longest(*parts):
                yield from filter(None, row)


def test_the_length_is_that_of_all_in_turn() -> None:
    loader = resumable.wrap(in_turn([iterator(), iterator()]))
    assert len(loader) == 10
    assert len(list(loader)) == 10


# ---------------------------------------------------------------------------------------------- epochs


@WARNED
def test_the_length_is_told_where_it_stays_the_same() -> None:
    assert len(resumable.wrap(iterator())) == 5
    assert len(resumable.wrap(iterator(last_batch_policy=LastBatchPolicy.DROP))) == 4
    changing = iterator(reader={"pad_last_batch": False}, last_batch_policy=LastBatchPolicy.FILL)
    assert not resumable.wrap(changing).is_sized
    assert not resumable.wrap(from_function(auto_reset=True)).is_sized


@pytest.mark.slow
def test_an_epoch_that_is_left_goes_on_as_the_next_one() -> None:
    """DALI cannot end an epoch early: as with DALI alone, the rest comes first."""
    alone = [what for _, what in raw_run(iterator())]

    def left_early(loader: Loader, got: list[str]) -> None:
        for epoch in loader.epochs(5):
            for number, batch in enumerate(epoch):
                got.append(digest(batch))
                if number == 1:
                    break

    got: list[str] = []
    left_early(resumable.wrap(iterator()), got)
    assert got == [*alone[:5], *alone[5:9]], "2 + 2 + 1 batches of the first epoch, then 2 + 2 of the second"
    for cut in range(1, 9):
        first: list[str] = []
        loader = resumable.wrap(iterator())
        state = _run_left_early(loader, first, cut)
        again = resumable.wrap(iterator())
        again.load_state_dict(state)
        _run_left_early(again, first, 99)
        assert first == got, f"cut after {cut} batches"


def _run_left_early(loader: Loader, got: list[str], cut: int) -> dict[str, Any]:
    """Leave each epoch when its cursor stands after two batches; stop after `cut` batches in all."""
    taken = 0
    for epoch in loader.epochs(5):
        if loader.cursor.step == 2:
            continue
        for batch in epoch:
            got.append(digest(batch))
            taken += 1
            if taken == cut:
                return loader.state_dict()
            if loader.cursor.step == 2:
                break
    return loader.state_dict()


def test_a_user_pipeline_without_any_reader() -> None:
    @pipeline_def(num_threads=1, device_id=None, batch_size=BATCH, seed=3)  # type: ignore[untyped-decorator]  # DALI's
    def noise() -> Any:
        return fn.random.uniform(range=[0.0, 1.0]), fn.random.coin_flip(probability=0.5)

    def make() -> Any:
        return DALIGenericIterator(noise(), ["data", "label"], size=3 * BATCH, auto_reset=True)

    with pytest.warns(Warning, match="Please set `reader_name`"):
        check_every_step(make)


def test_training_pipelines_of_the_helper_module_differ_by_epoch() -> None:
    run = raw_run(made(training_pipeline({}, batch_size=BATCH, seed=1)))
    assert len(set(run)) == len(run) == 15
