"""In the shape of PyTorch Geometric's examples: samples are graphs, and a batch is one graph of several.

Made resumable as docs/frameworks/pytorch.md says.
"""

from __future__ import annotations

import os.path as osp
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import resumable


class Data:
    """A graph: its nodes, edges and label."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.__dict__.update(tensors)

    def __getattr__(self, name: str) -> torch.Tensor:
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"Data({', '.join(f'{key}={list(value.shape)}' for key, value in self.__dict__.items())})"


class Batch(Data):
    """Graphs side by side."""

    @classmethod
    def from_data_list(cls, graphs: list[Data]) -> Batch:
        sizes = [len(graph.x) for graph in graphs]
        first = np.cumsum([0, *sizes[:-1]])
        return cls(
            x=torch.cat([graph.x for graph in graphs]),
            edge_index=torch.cat([graph.edge_index + at for graph, at in zip(graphs, first, strict=True)], dim=1),
            y=torch.stack([graph.y for graph in graphs]),
            batch=torch.repeat_interleave(torch.arange(len(graphs)), torch.tensor(sizes)),
        )


class TUDataset(Dataset[Data]):
    """Graphs from a raw file, kept in a processed one."""

    def __init__(self, root: str, *, drop_edges: float = 0.0) -> None:
        raw, processed = osp.join(root, "raw", "graphs.npz"), osp.join(root, "processed", "data.pt")
        self.drop_edges = drop_edges
        if not osp.exists(processed):
            print("Processing...")
            with np.load(raw) as arrays:
                sizes, labels = arrays["sizes"], arrays["labels"]
                nodes = np.split(arrays["nodes"], np.cumsum(sizes)[:-1])
            kept = [
                {"x": torch.from_numpy(x), "y": torch.tensor(int(y)), "edge_index": ring(len(x))}
                for x, y in zip(nodes, labels, strict=True)
            ]
            torch.save(kept, processed)
            print("Done!")
        self.graphs: list[dict[str, torch.Tensor]] = torch.load(processed)

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Data:
        data = Data(**self.graphs[index])
        kept = torch.rand(data.edge_index.shape[1]) >= self.drop_edges
        return Data(x=data.x, y=data.y, edge_index=data.edge_index[:, kept])


def ring(size: int) -> torch.Tensor:
    one = torch.arange(size)
    return torch.stack([torch.cat([one, one.roll(1)]), torch.cat([one.roll(1), one])])


class GIN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Linear(4, 16), nn.Linear(16, 16)
        self.norm, self.dropout, self.classifier = nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 2)

    def forward(self, data: Any) -> torch.Tensor:
        source, target = data.edge_index
        x = self.conv1(data.x.index_add(0, target, data.x[source])).relu()
        x = self.norm(self.conv2(x.index_add(0, target, x[source]))).relu()
        pooled = x.new_zeros(len(data.y), x.shape[1]).index_add(0, data.batch, x)
        return self.classifier(self.dropout(pooled))


torch.manual_seed(12345)
path = osp.join("data", "TU", "MUTAG")
dataset = TUDataset(path, drop_edges=0.2)
held_out = TUDataset(path)
train_loader = resumable.wrap(
    DataLoader(dataset, batch_size=6, shuffle=True, collate_fn=Batch.from_data_list, num_workers=1), seed=12345
)
test_loader = DataLoader(held_out, batch_size=12, collate_fn=Batch.from_data_list)
model = GIN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": train_loader, "rng": resumable.rng}
store = resumable.CheckpointStore("checkpoints", keep=2)
last = store.latest() or {}
best_acc: float = last.pop("best_acc", 0.0)
for name, state in last.items():
    parts[name].load_state_dict(state)


def save() -> None:
    store.save(
        train_loader.global_step, {"best_acc": best_acc, **{name: part.state_dict() for name, part in parts.items()}}
    )


def train() -> float:
    model.train()
    total_loss = 0.0
    for data in train_loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(data), data.y)
        loss.backward()
        optimizer.step()
        total_loss += float(loss) * len(data.y)
        if train_loader.global_step % 3 == 0:
            save()
    return total_loss / len(dataset)


@torch.no_grad()
def test() -> float:
    model.eval()
    return sum(int((model(data).argmax(dim=-1) == data.y).sum()) for data in test_loader) / len(held_out)


for epoch in train_loader.epochs(4):
    loss = train()
    acc = test()
    best_acc = max(best_acc, acc)
    print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Test: {acc:.4f}")
    save()
