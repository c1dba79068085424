"""FSDP2, model, optimizer and Loader in one checkpoint: two ranks save it, one resumes: python examples/fsdp2.py."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing import start_processes
from torch.utils.data import DataLoader, TensorDataset

import resumable
from resumable.checkpoint import mark_complete, newest_complete


def train(rank: int, size: int, root: str, until: int) -> None:
    """Resume from the newest checkpoint, train up to a step, and save."""
    dist.init_process_group("gloo", init_method=f"file://{root}/ranks-{size}", rank=rank, world_size=size)
    torch.manual_seed(0)
    model: Any = fully_shard(torch.nn.Linear(1, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    data = TensorDataset(torch.arange(40.0)[:, None] / 40)
    loader = resumable.wrap(DataLoader(data, batch_size=8 // size, shuffle=True), seed=0)

    def content() -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "loader": loader.dcp()}

    if (newest := newest_complete(f"{root}/checkpoints")) is not None:
        dcp.load(loaded := content(), checkpoint_id=newest)
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    for (inputs,) in loader.steps(until):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    dcp.save(content(), checkpoint_id=f"{root}/checkpoints/{until}")
    mark_complete(f"{root}/checkpoints/{until}", until)
    dist.destroy_process_group()


def weights_after(*starts: tuple[int, int]) -> torch.Tensor:
    """Return the weights after several runs, each with a number of ranks and a last step."""
    with tempfile.TemporaryDirectory() as root:
        for ranks, until in starts:
            start_processes(train, (ranks, root, until), nprocs=ranks, start_method="fork")  # type: ignore[no-untyped-call]  # torch's
        dcp_to_torch_save(f"{root}/checkpoints/12", f"{root}/whole.pt")
        weight: torch.Tensor = torch.load(f"{root}/whole.pt")["model"]["weight"]
    return weight


if __name__ == "__main__":
    assert torch.allclose(weights_after((2, 7), (1, 12)), weights_after((1, 12)), atol=1e-6)
    print("Two ranks to step 7, then one to step 12: the weights of one rank in 12 steps.")
