"""FFCV: what is refused or warned about, operations of the user's own, failures, and memory."""

from __future__ import annotations

import gc
import random
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ffcv_data
import numpy as np
import pytest
import torch
from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.pipeline.operation import Operation
from ffcv.transforms import ImageMixup, Squeeze, ToDevice, ToTensor
from ffcv.traversal_order.base import TraversalOrder
from numba import njit

import resumable
from resumable.backends.ffcv import source
from resumable.backends.ffcv.identity import describe_pipelines
from resumable.backends.ffcv.keyed import generator_words, seed_generator
from resumable.backends.ffcv.pipeline import Memory
from resumable.errors import ConfigurationError, PromiseWarning, UnsupportedError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

pytestmark = pytest.mark.slow


class Noise(Operation):  # type: ignore[misc]  # FFCV ships no types
    """An operation of a user: random, per sample, in place."""

    def generate_code(self) -> Any:
        def noise(images: Any, memory: Any) -> Any:
            for i in range(len(images)):
                images[i] += np.uint8(np.random.randint(0, 100))
            return images

        return noise

    def declare_state_and_memory(self, previous_state: Any) -> Any:
        return previous_state, None


class PythonNoise(Noise):
    """The same from Python's generator, which compiled code has, too, as another one."""

    def generate_code(self) -> Any:
        def noise(images: Any, memory: Any) -> Any:
            for i in range(len(images)):
                images[i] += np.uint8(random.randint(0, 50)) + np.uint8(np.random.randint(0, 50))
            return images

        return noise


class Fails(Operation):  # type: ignore[misc]  # FFCV ships no types
    """Python code that fails in the third batch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def generate_code(self) -> Any:
        def fail(tensor: Any, memory: Any) -> Any:
            self.calls += 1
            if self.calls == 3:
                raise ValueError("boom")
            return tensor

        return fail

    def declare_state_and_memory(self, previous_state: Any) -> Any:
        return previous_state, None


class Keeps(torch.nn.Module):
    """A module with a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, images: Any) -> Any:
        return images


class Backwards(TraversalOrder):  # type: ignore[misc]  # FFCV ships no types
    def __call__(self, loader: Any) -> Backwards:
        super().__init__(loader)
        return self

    def __init__(self) -> None:
        pass

    def sample_order(self, epoch: int) -> Any:
        return self.indices[::-1]


def make_loader(*operations: Any, **options: Any) -> Loader:
    pipelines = {"raw": [SimpleRGBImageDecoder(), *operations], "label": [IntDecoder(), ToTensor()]}
    given: dict[str, Any] = {"batch_size": 10, "num_workers": 1, "order": OrderOption.RANDOM, "pipelines": pipelines}
    return Loader(ffcv_data.beton(), **given | options)


def pixels(loader: resumable.Loader) -> dict[int, bytes]:
    return {
        int(label): image.numpy().tobytes()
        for images, labels in loader
        for image, label in zip(images, labels, strict=True)
    }


@pytest.mark.parametrize("noise", [Noise, PythonNoise])
def test_own_operation_is_keyed_per_batch(noise: type[Noise]) -> None:
    """A user's operation is keyed per batch, and the user is told."""
    loader = make_loader(noise(), ToTensor())
    with pytest.warns(PromiseWarning, match="Noise uses random numbers and may mix the samples"):
        first = pixels(resumable.wrap(loader))
    assert pixels(resumable.wrap(loader, randomness="batch")) == first
    assert pixels(resumable.wrap(loader, randomness="batch", seed=1)) != first
    with pytest.warns(PromiseWarning, match="Noise"):
        assert pixels(resumable.wrap(loader)) == first


@pytest.mark.parametrize("noise", [Noise, PythonNoise])
def test_per_sample_operation_in_other_batches(noise: type[Noise]) -> None:
    """An operation declared as per sample gives the same in other batch sizes."""
    made = [
        make_loader(noise(), ToTensor(), batch_size=size, num_workers=workers) for size, workers in ((10, 1), (7, 2))
    ]
    first, second = (pixels(resumable.wrap(source(loader, keyed={noise: "sample"}))) for loader in made)
    assert first == second
    plain = pixels(resumable.wrap(source(make_loader(ToTensor()))))
    assert sum(first[i] != plain[i] for i in plain) > 60


def test_without_keys_the_order_alone_is_exact() -> None:
    loader = make_loader(Noise(), ToTensor())
    off = resumable.wrap(source(loader, keyed=False), seed=1)
    assert off.state_dict()["randomness"]["mode"] == "off"
    assert list(pixels(off)) == list(pixels(resumable.wrap(loader, seed=1, randomness="off")))
    with pytest.raises(ConfigurationError, match="keyed=False was passed"):
        resumable.wrap(source(loader, keyed=False), randomness="sample")
    with pytest.raises(UnsupportedError, match='randomness="passed" does not fit an FFCV Loader'):
        resumable.wrap(loader, randomness="passed")


def test_mixing_is_said_to_depend_on_the_batch() -> None:
    with pytest.warns(PromiseWarning, match="ImageMixup mixes the samples of a batch"):
        resumable.wrap(make_loader(ImageMixup(0.5, same_lambda=True), ToTensor()))


class Drops(torch.nn.Module):
    """A module that draws from the global generator of torch."""

    def forward(self, images: Any) -> Any:
        return images * (torch.rand(len(images), 1, 1, 1) < 0.5)


class Halves(torch.nn.Module):
    """A module that draws nothing."""

    def forward(self, images: Any) -> Any:
        return images // 2


def test_drawing_module_is_told_once() -> None:
    """A module that draws is told once, and one that does not never."""
    with pytest.warns(ResourceWarning):
        loader = make_loader(ToTensor(), Halves(), Drops())
    wrapped = resumable.wrap(loader)
    with pytest.warns(PromiseWarning, match="Drops uses random numbers where the batch is delivered") as told:
        first = pixels(wrapped)
    assert len(told) == 1
    assert pixels(resumable.wrap(loader, randomness="batch")) == first


def test_compiled_randomness_at_the_handover() -> None:
    """Compiled randomness at the batch's handover is rejected."""
    told = source(make_loader(Noise(), ToTensor()), keyed={Noise: "late"})
    with pytest.raises(UnsupportedError, match="Noise is compiled and uses random numbers"):
        resumable.wrap(told)
    resumable.wrap(told, randomness="off")


def test_generators_that_no_key_reaches_are_refused_by_name() -> None:
    with pytest.warns(ResourceWarning):
        loader = make_loader(ToTensor(), Keeps())
    with pytest.raises(UnsupportedError, match="Keeps uses its own random generators .generator."):
        resumable.wrap(loader)
    with pytest.warns(PromiseWarning, match="Keeps"):
        resumable.wrap(source(loader, on_nondeterministic="warn"))
    resumable.wrap(loader, randomness="off")


@pytest.mark.parametrize("options", [{"batch_size": 3}, {"shuffle": True}, {"transform": len}, {"collate": len}])
def test_options_of_the_loader_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="does not fit an FFCV Loader"):
        resumable.wrap(make_loader(ToTensor()), **options)


def test_an_order_of_the_users_own_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="a custom order, Backwards"):
        resumable.wrap(make_loader(ToTensor(), order=Backwards()))


@pytest.mark.parametrize(
    "options", [{"keyed": {Noise: "often"}}, {"keyed": {"Noise": "sample"}}, {"on_nondeterministic": "?"}]
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="must"):
        source(make_loader(ToTensor()), **options)


def test_error_of_the_pipeline_comes_out(
    own_threads: Callable[[], list[threading.Thread]],
) -> None:
    """An error of the pipeline comes out, and the run can continue."""
    loader = resumable.wrap(make_loader(ToTensor(), Fails()), seed=2)
    count = 0
    with pytest.raises(ValueError, match=r"boom\n.*raised by FFCV's pipeline\.\n.*epoch 0, step 2, rank 0") as caught:
        for _ in loader:
            count += 1
    assert str(caught.value) == "boom"
    assert (count, loader.cursor.step) == (2, 2)
    assert not own_threads()
    assert len(list(loader)) == 5


def test_a_failure_in_the_thread_that_makes_batches_comes_out(
    own_threads: Callable[[], list[threading.Thread]],
) -> None:
    loader = resumable.wrap(source(make_loader(ToTensor(), Fails()), keyed={Fails: "plain"}))
    with pytest.raises(ValueError, match="boom"):
        list(loader)
    assert not own_threads()


def test_batches_that_are_kept_stay_as_they_are() -> None:
    loader = resumable.wrap(make_loader(ToTensor(), batch_size=5), seed=1)
    kept, copies = [], []
    for batch in loader:
        kept.append(batch[0][1:3])  # a view: the batch itself is dropped
        copies.append(batch[0][1:3].clone())
    assert all(a.equal(b) for a, b in zip(kept, copies, strict=True))
    assert len({part.data_ptr() for part in kept}) == 14


def test_memory_is_used_again_when_nobody_refers_to_it() -> None:
    from ffcv.pipeline.allocation_query import AllocationQuery  # noqa: PLC0415  # only here

    for dtype in (np.dtype("<f4"), torch.float32):
        memory = Memory(AllocationQuery((3,), dtype), samples=4, keep=2, pinned=False)
        first = memory.lend(4)
        address = np.asarray(first).ctypes.data
        assert address % 64 == 0
        view = first[1:2]
        del first
        second = memory.lend(2)
        assert second.shape == (2, 3)
        assert np.asarray(second).ctypes.data != address, "a view is left"
        del view
        assert np.asarray(memory.lend(4)).ctypes.data == address


def test_the_generator_is_seeded_as_said() -> None:
    @njit  # type: ignore[untyped-decorator]  # Numba ships no types
    def draw(key: Any) -> Any:
        seed_generator(np.uint64(key))
        numbers = np.empty(700)
        for i in range(700):
            numbers[i] = np.random.random()
        return numbers

    generator = np.random.MT19937()
    generator.state = {
        "bit_generator": "MT19937",
        "state": {"key": generator_words(0x0123456789ABCDEF).astype(np.uint32), "pos": 0},
    }
    assert np.array_equal(draw(0x0123456789ABCDEF), np.random.RandomState(generator).random_sample(700))


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


def test_garbage_is_collected_in_its_own_thread(
    own_threads: Callable[[], list[threading.Thread]],
) -> None:
    """A loader that is garbage may be collected in its thread."""
    pipelines = {"raw": None, "label": [IntDecoder(), ToTensor(), CollectsGarbage()]}
    made = Loader(ffcv_data.beton(), batch_size=8, num_workers=2, pipelines=pipelines)
    failed, hook = list[Any](), sys.unraisablehook
    holder: dict[str, Any] = {"batches": iter(resumable.wrap(source(made, keyed={CollectsGarbage: "plain"})))}
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
