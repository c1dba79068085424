"""The buffers that are kept at each boundary: which ones, by which names, and that no later step changes them."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sources import indexed
from torch import distributed, nn
from trainer_runs import Model, PlannedError, SaveOnce, check_rest, fit

from resumable.integrations._buffers import Buffers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        self.register_buffer("table", torch.zeros(4), persistent=False)
        self.register_buffer("nothing", None)
        self.register_buffer("grid", torch.arange(6.0).reshape(2, 3).T)  # not contiguous


NAMES = ["grid", "net.1.running_mean", "net.1.running_var", "net.1.num_batches_tracked"]


def kept(buffers: Buffers, weights: dict[str, Any] | None = None) -> dict[str, Any]:
    into: dict[str, Any] = dict.fromkeys(NAMES) if weights is None else weights
    buffers.keep().put_into(into)
    return into


def test_what_a_checkpoint_holds_is_kept_and_nothing_else() -> None:
    module = Holder()
    assert list(Buffers(module).keep().names) == NAMES
    assert torch.equal(kept(Buffers(module))["grid"], torch.arange(6.0).reshape(2, 3).T)
    assert kept(Buffers(module), {"another": 1}) == {"another": 1}, "what the checkpoint leaves out stays out"


def test_a_buffer_that_changes_in_place_gets_other_storage() -> None:
    """The object stays the same; a copy into storage of another shape would be repeated over it, without an error."""
    module, seen = nn.Module(), torch.zeros(4)
    module.register_buffer("seen", seen)
    buffers = Buffers(module)
    for change in (
        lambda: seen.resize_(1),
        lambda: seen.fill_(7),
        lambda: setattr(seen, "data", seen.data.half()),
        int,
    ):
        for _ in range(3):  # both storages have the older form at first
            (now,) = buffers.keep().tensors
            assert (now.shape, now.dtype) == (seen.shape, seen.dtype)
            assert torch.equal(now, seen)
        change()


FORMS = [
    torch.tensor(5),
    torch.empty(0),
    torch.rand(3).bfloat16(),
    torch.rand(5).to(torch.float8_e4m3fn),
    torch.arange(5).to(torch.uint16),
    torch.tensor([True, False, True]),
    torch.rand(3, dtype=torch.complex64),
    torch.rand(2, dtype=torch.complex128).conj(),
    torch.arange(6.0).reshape(2, 3).T,
    torch.rand(1, 2, 3, 4).to(memory_format=torch.channels_last),
    torch.ones(1).expand(4),
    torch.ones(2, dtype=torch.float64, requires_grad=True),
    torch.eye(3).to_sparse(),
]


def test_all_forms_are_kept_side_by_side() -> None:
    """Those that lie in one piece are copied as bytes, one after the other, whatever their types."""
    module = nn.Module()
    for number, buffer in enumerate(FORMS * 2):
        module.register_buffer(f"b{number}", buffer.detach().clone().requires_grad_(buffer.requires_grad))
    buffers, names = Buffers(module), [f"b{number}" for number in range(2 * len(FORMS))]
    for _ in range(4):
        weights: dict[str, Any] = dict.fromkeys(names)
        buffers.keep().put_into(weights)
        for name, buffer in module.named_buffers():
            assert (weights[name].shape, weights[name].dtype) == (buffer.shape, buffer.dtype), name
            assert torch.equal(weights[name].to_dense().resolve_conj(), buffer.to_dense().resolve_conj()), name
        with torch.no_grad():
            for buffer in module.buffers():
                buffer.zero_()


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place": lambda buffer: buffer.add_(1),
    "through .data": lambda buffer: buffer.data.add_(1),
    "through NumPy": lambda buffer: np.add(buffer.numpy(), 1, out=buffer.numpy()),
    "through its storage": lambda buffer: buffer.untyped_storage().copy_(torch.ones(4).untyped_storage()),
    "resized, the same storage": lambda buffer: buffer.resize_(2),
    "another dimension": lambda buffer: buffer.unsqueeze_(0),
    "turned": lambda buffer: buffer.resize_(2, 2).t_(),
    "other data": lambda buffer: setattr(buffer, "data", torch.full((4,), 9.0)),
    "other data of the same bytes": lambda buffer: setattr(buffer, "data", buffer.data.view(torch.int32)),
    "another storage": lambda buffer: buffer.set_(torch.full((4,), 8.0).untyped_storage(), 0, (4,), (1,)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("others", [0, 3])
def test_no_change_of_a_buffer_is_missed(change: Callable[[torch.Tensor], Any], others: int) -> None:
    """Neither by torch's counts of changes, nor by storage that was made for what it was before."""
    module = nn.Module()
    for number in range(others + 1):
        module.register_buffer(f"b{number}", torch.arange(4.0) + number)
    buffers, changed = Buffers(module), module.get_buffer("b0")
    for step in range(6):
        if step == 3:
            change(changed)
        for now, buffer in zip(buffers.keep().tensors, module.buffers(), strict=True):
            assert (now.shape, now.dtype) == (buffer.shape, buffer.dtype)
            assert torch.equal(now, buffer)


@pytest.mark.parametrize("new", [lambda one: one + 1, lambda one: one.t().clone().t() + 1, lambda one: one.half()])
def test_one_that_is_assigned_at_every_step_and_those_beside_it(new: Callable[[torch.Tensor], torch.Tensor]) -> None:
    module = nn.Module()
    for number in range(3):
        module.register_buffer(f"b{number}", torch.rand(2, 3))
    buffers = Buffers(module)
    for _ in range(5):
        module.b1 = new(module.get_buffer("b1"))
        module.get_buffer("b2").add_(1)
        for now, buffer in zip(buffers.keep().tensors, module.buffers(), strict=True):
            assert now.dtype is buffer.dtype
            assert torch.equal(now, buffer)


def test_what_is_kept_can_be_saved_as_it_is(tmp_path: Path) -> None:
    """As in a checkpoint of each rank: torch refuses tensors of several types that share one storage."""
    kept = Buffers(Holder()).keep()
    assert len({tensor.dtype for tensor in kept.tensors}) == 2
    torch.save(dict(zip(kept.names, kept.tensors, strict=True)), tmp_path / "kept.pt")
    loaded = torch.load(tmp_path / "kept.pt")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in zip(kept.names, kept.tensors, strict=True))


def test_names_are_those_of_the_last_search() -> None:
    module, buffer = nn.Module(), torch.ones(2)
    module.register_buffer("before", buffer)
    buffers = Buffers(module)
    assert [list(buffers.keep().names) for _ in range(3)] == [["before"]] * 3
    del module.before
    module.register_buffer("after", buffer)
    buffers.find()
    assert [list(buffers.keep().names) for _ in range(3)] == [["after"]] * 3


def test_boundary_and_checkpoint_keep_their_values() -> None:
    """A boundary keeps its values while the next one is written, and a checkpoint keeps them forever."""
    module, saved = Holder(), {}
    buffers, mean = Buffers(module), module.net[1].running_mean
    before = buffers.keep()
    for step in (1.0, 2.0, 3.0):
        mean.fill_(step)  # type: ignore[operator]  # it is a tensor
        now = buffers.keep()
        weights: dict[str, Any] = dict.fromkeys(NAMES)
        before.put_into(weights)
        saved[step - 1] = weights["net.1.running_mean"]
        before = now
    assert {step: tensor.tolist() for step, tensor in saved.items()} == {step: [step] * 3 for step in (0, 1, 2)}


@pytest.mark.parametrize("new", [torch.ones(3), torch.ones(5), torch.ones(3, dtype=torch.float64), None])
def test_buffers_that_were_assigned_again_are_followed(new: Any) -> None:
    module = Holder()
    buffers = Buffers(module)
    kept(buffers)
    module.net[1].running_mean = new
    weights = kept(buffers)
    assert weights["net.1.running_mean"] is None if new is None else torch.equal(weights["net.1.running_mean"], new)
    assert weights["net.1.running_var"].tolist() == [1, 1, 1]


def test_a_module_that_was_added_is_found_at_the_next_epoch() -> None:
    module = Holder()
    buffers = Buffers(module)
    module.more = nn.BatchNorm1d(2)
    buffers.find()
    assert "more.running_mean" in buffers.keep().names


def test_one_that_is_not_initialised_yet() -> None:
    module = nn.LazyBatchNorm1d()
    buffers = Buffers(module)
    assert list(buffers.keep().names) == ["num_batches_tracked"]
    module(torch.zeros(2, 3))
    assert len(buffers.keep().names) == 3


def test_the_prefix_of_torch_compile_is_found_with_and_without() -> None:
    module = Holder()
    module.net = torch.compile(module.net, backend="eager")  # type: ignore[assignment]  # a module, wrapped
    inside = "net._orig_mod.1.running_mean"
    assert inside in module.state_dict()
    assert kept(Buffers(module), {inside: None})[inside].tolist() == [0, 0, 0]
    assert kept(Buffers(module), {"net.1.running_mean": None})["net.1.running_mean"].tolist() == [0, 0, 0]


@pytest.mark.slow
def test_the_prefix_of_fsdp_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: PLC0415  # it takes seconds

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        module = Holder()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has one rank
            cpu = torch.device("cpu")
            module.net = FullyShardedDataParallel(module.net, device_id=cpu)  # type: ignore[assignment]  # it is wrapped
            names = list(module.state_dict())
        buffers, net = Buffers(module), module.net
        assert "net._fsdp_wrapped_module.1.running_mean" in buffers.keep().names
        assert "net.1.running_mean" in names
        module.net(torch.ones(4, 2))
        weights = kept(buffers, dict.fromkeys(names))
        assert torch.equal(weights["net.1.running_mean"], net.get_buffer("1.running_mean"))
        assert weights.keys() == set(names)
    finally:
        distributed.destroy_process_group()


def test_a_run_that_assigns_its_running_means_again(tmp_path: Path) -> None:
    class Assigns(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            normalisation: Any = self.net[1]
            normalisation.running_mean = normalisation.running_mean * 0.9
            return super().training_step(batch, batch_idx)

    path, whole = tmp_path / "saved.ckpt", fit(Assigns(), indexed(), max_epochs=2)
    with suppress(PlannedError):
        saver = SaveOnce(path, "on_exception", lambda *_: True)
        fit(Assigns(fail_at=3), indexed(), callbacks=[saver], max_epochs=2)
    check_rest(whole, fit(Assigns(), indexed(), checkpoint=path, max_epochs=2), trained=3, begins="train")
