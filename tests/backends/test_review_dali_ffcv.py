"""What users do beside the loader with DALI and FFCV: it is told, or changes nothing."""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dali_images
import dali_pipelines
import ffcv_data
import pytest
import torch
from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader
from ffcv.pipeline.operation import Operation
from ffcv.transforms import Squeeze, ToDevice, ToTensor
from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy

import resumable
from resumable.backends.dali import source
from resumable.backends.ffcv import source as ffcv_source
from resumable.backends.ffcv.identity import describe_pipelines
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path


@pipeline_def(batch_size=4, num_threads=1, device_id=None, seed=3)  # type: ignore[untyped-decorator]  # DALI types none
def images() -> Any:
    return dali_pipelines.images_and_labels({})


def classification(*, checkpointing: bool, prepare: bool = False, auto_reset: bool = True) -> Any:
    """The iterator of NVIDIA's ImageNet scripts."""
    return DALIClassificationIterator(
        images(enable_checkpointing=checkpointing),
        reader_name="Reader",
        last_batch_policy=LastBatchPolicy.PARTIAL,
        auto_reset=auto_reset,
        prepare_first_batch=prepare,
    )


def labels(batch: Any) -> list[int]:
    return list(map(int, batch[0]["label"].flatten()))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("prepare", [False, True])
def test_batches_that_somebody_else_draws_are_told_of_before_the_first_one(
    *, checkpointing: bool, prepare: bool
) -> None:
    iterator = classification(checkpointing=checkpointing, prepare=prepare)
    loader = resumable.wrap(iterator)
    next(iterator)
    with pytest.raises(UnsupportedError, match="somebody else has drawn batches"):
        next(iter(loader))


def test_batches_that_somebody_else_draws_are_told_of_in_an_epoch() -> None:
    iterator = classification(checkpointing=False)
    loader = resumable.wrap(iterator)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    next(iterator)
    with pytest.raises(UnsupportedError, match="4 samples of the epoch\n.* 8 samples"):
        next(batches)
    expected = list(map(labels, resumable.wrap(classification(checkpointing=False))))
    loader.load_state_dict(state)  # the way back
    assert list(map(labels, loader)) == expected[1:]


def test_a_reset_behind_a_loop_that_counts_batches_is_told_of() -> None:
    iterator = classification(checkpointing=False, auto_reset=False)
    loader = resumable.wrap(iterator)
    for _ in zip(range(len(loader)), loader, strict=False):  # stops without asking for the end of the epoch
        pass
    iterator.reset()
    with pytest.raises(UnsupportedError, match="or reset it"):
        next(iter(loader))


@pytest.mark.parametrize("auto_reset", [False, True])
def test_a_reset_behind_an_epoch_and_a_new_iter_are_harmless(*, auto_reset: bool) -> None:
    alone = resumable.wrap(classification(checkpointing=False, auto_reset=auto_reset))
    iterator = classification(checkpointing=False, auto_reset=auto_reset)
    loader = resumable.wrap(iterator)
    for _ in range(2):
        assert list(map(labels, loader)) == list(map(labels, alone))
        iterator.reset()
        iter(iterator)


def test_an_iterator_that_two_loaders_have_is_told_of() -> None:
    iterator = classification(checkpointing=False)
    resumable.wrap(iterator)
    with pytest.raises(UnsupportedError, match="was wrapped before"):
        resumable.wrap(iterator)
    own = classification(checkpointing=True)
    one, other = resumable.wrap(own), resumable.wrap(own)
    next(iter(one))
    with pytest.raises(UnsupportedError, match="somebody else"):
        next(iter(other))


def test_a_bad_file_that_dali_read_ahead_does_not_stop_a_run_that_went_elsewhere(tmp_path: Path) -> None:
    def decode(raw: Any, label: Any) -> Any:
        return fn.resize(fn.decoders.image(raw), size=(8, 8)), label

    files = sorted(dali_images.write(tmp_path).rglob("*.jpg"))
    make: Callable[[], resumable.Loader] = lambda: resumable.wrap(  # noqa: E731  # twice the same
        source(list(map(str, files)), pipeline=decode), batch_size=2
    )
    expected = make()
    expected.seek(epoch=0, step=5)
    whole = [batch["label"].flatten().tolist() for batch in expected]
    files[5].write_bytes(b"no image at all")
    loader = make()
    next(iter(loader))  # of step 0, while DALI works on steps 1 and 2
    loader.seek(epoch=0, step=5)
    assert [batch["label"].flatten().tolist() for batch in loader] == whole


@pytest.mark.slow
def test_every_rank_has_its_own_gpu_and_all_have_one_state() -> None:
    told = {describe_pipelines(on_device(device)) for device in (torch.device("cuda:0"), torch.device("cuda:1"))}
    assert len(told) == 1
    assert describe_pipelines(on_device(torch.device("cpu"))) not in told


def on_device(device: Any) -> Loader:
    pipeline = [IntDecoder(), ToTensor(), Squeeze(), ToDevice(device, non_blocking=True)]
    decoder = [SimpleRGBImageDecoder(), ToTensor(), ToDevice(device)]
    return Loader(ffcv_data.beton(), batch_size=8, num_workers=1, pipelines={"raw": decoder, "label": pipeline})


class CollectsGarbage(Operation):  # type: ignore[misc]  # FFCV ships no types
    """Collects garbage in the thread that makes batches."""

    def generate_code(self) -> Any:
        def collect(labels: Any, _memory: Any) -> Any:
            time.sleep(0.03)
            gc.collect()
            return labels

        return collect

    def declare_state_and_memory(self, previous_state: Any) -> Any:
        return replace(previous_state, jit_mode=False), None


@pytest.mark.slow
def test_a_loader_that_is_garbage_may_be_collected_in_its_own_thread(
    own_threads: Callable[[], list[threading.Thread]],
) -> None:
    pipelines = {"raw": None, "label": [IntDecoder(), ToTensor(), CollectsGarbage()]}
    made = Loader(ffcv_data.beton(), batch_size=8, num_workers=2, pipelines=pipelines)
    failed, hook = list[Any](), sys.unraisablehook
    holder: dict[str, Any] = {"batches": iter(resumable.wrap(ffcv_source(made, keyed={CollectsGarbage: "plain"})))}
    holder["itself"] = holder
    next(holder["batches"])
    assert own_threads()
    sys.unraisablehook = failed.append
    gc.disable()
    try:
        del holder  # a cycle, which the other thread finds
        deadline = time.monotonic() + 10
        while own_threads() and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        gc.enable()
        sys.unraisablehook = hook
    assert (failed, own_threads()) == ([], [])
