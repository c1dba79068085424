"""DALI's private names that the adapter uses: a version that changes one fails here, and not in somebody's run."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from dali_pipelines import BATCH, iterator, legacy_iterator
from nvidia.dali import Pipeline
from nvidia.dali.plugin.base_iterator import _DaliBaseIterator
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

from resumable.backends.dali import private
from resumable.loader.registry import _adapters

NAMES = (
    "_pipes", "_reader_name", "_size", "_counter", "_auto_reset", "_last_batch_policy", "_last_batch_padded",
    "_prepare_first_batch", "_enable_checkpointing", "_ever_consumed", "_first_batch", "output_map",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_an_iterator_has_the_attribute(name: str) -> None:
    assert hasattr(iterator(), name)


@pytest.mark.parametrize("name", ["_input_callbacks", "_ops", "_shutdown", *private._OPTIONS])
def test_a_pipeline_has_the_attribute(name: str) -> None:
    assert hasattr(iterator()._pipes[0], name)


def test_the_constructors_take_what_they_are_given() -> None:
    pipeline = inspect.signature(Pipeline.__init__).parameters
    assert set(private._OPTIONS) | {"batch_size", "enable_checkpointing", "checkpoint"} <= set(pipeline)
    base = inspect.signature(_DaliBaseIterator.__init__).parameters
    assert {"size", "reader_name", "auto_reset", "last_batch_padded", "last_batch_policy", "prepare_first_batch"} < set(
        base
    )
    dry = inspect.signature(_DaliBaseIterator._advance_and_check_drop_last).parameters
    assert {"dry_run", "end_iteration"} < set(dry)


def test_every_pipeline_option_is_known() -> None:
    """Every option of a pipeline is passed on or known not to matter."""
    elsewhere = {"self", "batch_size", "enable_checkpointing", "checkpoint"}
    in_the_definition = {"output_dtype", "output_ndim", "output_layout"}
    of_python_sources = {"py_num_workers", "py_start_method", "py_callback_pickler"}  # such pipelines are made again
    without_effect = {"max_streams", "default_cuda_stream_priority", "experimental_exec_dynamic", "bytes_per_sample"}
    known = elsewhere | in_the_definition | of_python_sources | without_effect | set(private._OPTIONS)
    assert set(inspect.signature(Pipeline.__init__).parameters) == known


def test_options_survive_being_built_again() -> None:
    options: dict[str, Any] = {"num_threads": 1, "prefetch_queue_depth": 3, "exec_dynamic": False, "set_affinity": True}
    inner = iterator(pipeline=options)
    (pipeline,) = inner._pipes
    before = {name: getattr(pipeline, name) for name in private._OPTIONS}
    private.rebuild(inner, [private.Blueprint(pipeline)], [None])
    assert inner._pipes == [pipeline]
    after = {name: getattr(pipeline, name) for name in private._OPTIONS}
    given = {name: value for name, value in before.items() if value is not None}  # else DALI's default is there now
    assert given.items() <= after.items()
    assert {"num_threads", "prefetch_queue_depth", "exec_dynamic", "set_affinity", "seed"} <= set(given)
    assert pipeline.max_batch_size == BATCH


def test_the_operators_are_told_with_their_arguments() -> None:
    for inner in (iterator(), legacy_iterator()):
        reader, *others = private.operators(inner._pipes[0])
        assert reader.name == "Reader"
        assert reader.schema in {"readers__File", "FileReader"}
        assert reader.arguments["random_shuffle"] is True
        assert "    random_shuffle: True\n" in reader.text
        assert {"crop_mirror", "CropMirrorNormalize"} & {one.schema for one in others}


def test_where_an_epoch_ends_is_told() -> None:
    inner = iterator(last_batch_policy=LastBatchPolicy.DROP, prepare_first_batch=False)
    assert [private.at_end(inner) for _ in inner] == [False, False, False, True]


def test_the_registry_names_the_base_of_all_iterators() -> None:
    name = f"{_DaliBaseIterator.__module__}.{_DaliBaseIterator.__qualname__}"
    assert name in _adapters
    assert _DaliBaseIterator in DALIGenericIterator.__mro__
