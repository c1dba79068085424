"""What does not fit a Loader is refused with the reason, and what of Accelerate is used is there in this version."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate import accelerator as accelerator_module
from accelerate.state import DistributedType
from accelerate.utils import ParallelismConfig
from accelerate_state import alone  # noqa: F401  # a fixture of all tests here
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import resumable
from resumable.errors import ConfigurationError, ResumableError, UnsupportedError
from resumable.integrations.accelerate import prepare, private
from resumable.integrations.accelerate.session import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA = TensorDataset(torch.arange(21.0))


def loader(**options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(DataLoader(DATA, batch_size=4), **options)


# ---------------------------------------------------------------------- given to Accelerate by itself


@pytest.mark.parametrize(
    "give",
    [
        lambda one, loader: one.prepare(loader),
        lambda one, loader: one.prepare(torch.nn.Linear(1, 1), loader),
        lambda one, loader: one.prepare_data_loader(loader),
        lambda one, loader: one._prepare_one(loader, first_pass=True),
    ],
)
def test_loader_given_to_prepare(give: Callable[..., Any]) -> None:
    """A Loader that is given to Accelerate's `prepare` is rejected."""
    with pytest.raises(UnsupportedError, match=r"integrations.accelerate.prepare\(accelerator, loader\)"):
        give(Accelerator(cpu=True), loader())


def test_anything_else_may_ask_a_loader_for_its_class() -> None:
    one = loader()
    assert one.__class__ is resumable.Loader
    assert isinstance(one, resumable.Loader)
    assert not isinstance(one, DataLoader)
    assert not hasattr(one, "_is_anything_else")


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


@pytest.mark.parametrize("dataset", [DATA, Numbers()])
@pytest.mark.parametrize("dispatch", [None, True])
def test_a_wrap_around_a_prepared_dataloader_is_refused(dataset: Any, dispatch: bool | None) -> None:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    prepared = accelerator.prepare(DataLoader(dataset, batch_size=2))
    with pytest.raises(UnsupportedError, match="that Accelerate has prepared"):
        resumable.wrap(prepared)


# ---------------------------------------------------------------------- given to ours


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"split_batches": True}, "has split_batches=True"),
        ({"dispatch_batches": True}, "has dispatch_batches=True"),
        ({"data_seed": 7}, "data_seed:   7\n  loader.seed: 0"),
    ],
)
def test_settings_that_do_not_fit(config: Any, message: str) -> None:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))
    with pytest.raises(UnsupportedError, match=message):
        prepare(accelerator, loader())


def test_what_is_given() -> None:
    accelerator = Accelerator(cpu=True)
    with pytest.raises(UnsupportedError, match="expects an Accelerator, but got an object of type Loader"):
        prepare(loader(), accelerator)
    with pytest.raises(UnsupportedError, match="expects a Loader, but got an object of type DataLoader"):
        prepare(accelerator, DataLoader(DATA))  # type: ignore[arg-type]  # that is refused
    with pytest.raises(ConfigurationError, match="rank 1 of 2\n.*rank 0 of 1"):
        prepare(accelerator, loader(world=resumable.World(1, 2)))


@pytest.mark.parametrize("kind", ["DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA"])
def test_engines_that_were_not_tried(kind: str) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = DistributedType[kind]
    with pytest.raises(UnsupportedError, match=f"with {kind}, which has not been tested for exact resumes"):
        prepare(accelerator, loader())


def test_a_model_that_is_divided_was_not_tried() -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.state.parallelism_config = ParallelismConfig(cp_size=2)
    with pytest.raises(UnsupportedError, match="over 2 processes"):
        prepare(accelerator, loader())


class Ranks:
    """An Accelerator that says how many ranks there are; `test_two_ranks` is with real ones."""

    def __init__(self, accelerator: Accelerator, size: int) -> None:
        self.num_processes, self.process_index, self._accelerator = size, 0, accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)


EVEN = [{"tail": tail} for tail in ("drop", "pad", "carry", "pad_ranks", "drop_ranks")]


@pytest.mark.parametrize("options", EVEN)
@pytest.mark.parametrize("evaluation", [False, True])
def test_even_batches(options: Any, evaluation: bool) -> None:
    """What Accelerate would fill up by itself has to be even here, by any tail but the default."""
    accelerator, world = Ranks(Accelerator(cpu=True), 2), resumable.World(0, 2)
    check(accelerator, loader(world=world, evaluation=evaluation, **options))
    with pytest.raises(
        ConfigurationError, match=r"has 5 samples, which 2 ranks cannot .*even_batches=True(.|\n)*pad_ranks"
    ):
        check(accelerator, loader(world=world, evaluation=evaluation))
    accelerator._accelerator.dataloader_config.even_batches = False
    check(accelerator, loader(world=world, evaluation=evaluation))


def test_a_global_batch_that_is_uneven_itself() -> None:
    accelerator, world = Ranks(Accelerator(cpu=True), 2), resumable.World(0, 2)
    odd = loader(world=resumable.World(0, 3), tail="drop")
    state = odd.state_dict()
    two = loader(world=world, tail="drop")
    two.load_state_dict({**state})
    check(accelerator, two)
    assert two.global_batch_size == 12


def test_padding_that_is_dealt_out_could_not_be_left_out() -> None:
    from torch.utils.data import DistributedSampler  # noqa: PLC0415  # only here

    accelerator, world = Ranks(Accelerator(cpu=True), 4), resumable.World(0, 4)
    sampler: Any = DistributedSampler(DATA, num_replicas=4, rank=0)
    strided = DataLoader(DATA, batch_size=2, sampler=sampler)
    check(accelerator, resumable.wrap(strided, world=world, order="torch"))
    with pytest.raises(UnsupportedError, match="padded with 3 samples"):
        check(accelerator, resumable.wrap(strided, world=world, order="torch", evaluation=True))
    check(accelerator, resumable.wrap(strided, world=world, evaluation=True))


# ---------------------------------------------------------------------- Accelerate itself


def test_another_accelerate_is_refused() -> None:
    class Other:
        step = 0

    with pytest.raises(UnsupportedError, match="has no _custom_objects, _dataloaders, _models"):
        private.check_names(Other())
    private.check_names(Accelerator(cpu=True))


def source(name: str) -> str:
    return inspect.getsource(getattr(Accelerator, name))


def test_what_is_relied_on_in_this_version_of_accelerate() -> None:
    """Registered objects are saved and loaded last; the end of a loader steps; zero_grad needs sync_gradients."""
    save, load = source("save_state"), source("load_state")
    assert save.index("_save_model_state_pre_hook.values()") < save.index("save_accelerator_state(")
    assert save.index("save_accelerator_state(") < save.index("enumerate(self._custom_objects)")
    assert load.index("self.step = override_attributes") < load.index("enumerate(self._custom_objects)")
    assert r"^custom_checkpoint_\d+\.pkl$" in load
    assert "len(custom_checkpoints) != len(self._custom_objects)" in load
    step = source("_do_sync")
    assert "self.gradient_state.end_of_dataloader" in step
    assert "self.step = 0" in step
    assert "if self.gradient_state.sync_gradients" in inspect.getsource(
        accelerator_module.AcceleratedOptimizer.zero_grad
    )
    assert "isinstance(obj, torch.utils.data.DataLoader)" in source("_prepare_one")
    assert "tensor[: self.gradient_state.remainder]" in source("gather_for_metrics")


@pytest.mark.slow
def test_import_imports_no_accelerate() -> None:
    script = (
        "import sys, resumable, resumable.integrations.accelerate\n"
        "assert not {'accelerate', 'accelerate.accelerator'} & set(sys.modules)\n"
        "sys.modules['accelerate'] = None\n"
        "try: resumable.integrations.accelerate.prepare(None, None)\n"
        "except resumable.errors.MissingDependencyError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert 'pip install "resumable-data[accelerate]"' in done.stdout, done.stderr
    assert issubclass(resumable.errors.MissingDependencyError, ResumableError)
