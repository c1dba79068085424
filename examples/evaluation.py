"""Evaluation during training: each pass yields the same batches, even if the previous one was left early.

python examples/evaluation.py
"""

from __future__ import annotations

from itertools import islice

import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable

torch.manual_seed(0)
inputs = torch.randn(96, 8)
targets = (inputs.sum(dim=1) > 0).long()
training = TensorDataset(inputs[:64], targets[:64])
held_out = TensorDataset(inputs[64:], targets[64:])

model = torch.nn.Sequential(torch.nn.LazyLinear(16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
loader = resumable.wrap(DataLoader(training, batch_size=8, shuffle=True), seed=0)
evaluation = resumable.wrap(DataLoader(held_out, batch_size=8, shuffle=True), seed=0, evaluation=True)

model(loader.peek()[0])  # initializes the lazy layer without taking a batch from the training
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
print("Peeking did not move the loader:", loader.cursor)


@torch.no_grad()
def accuracy(data: resumable.Loader, batches: int | None = None) -> tuple[float, list[int]]:
    """Return the accuracy over some batches, and the labels of the first batch."""
    right, total, labels = 0, 0, list[int]()
    for samples, wanted in islice(data, batches):
        labels = labels or wanted.tolist()
        right += int((model(samples).argmax(dim=1) == wanted).sum())
        total += len(wanted)
    return right / total, labels


for epoch in loader.epochs(3):
    for samples, wanted in epoch:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(samples), wanted).backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
    quick, labels = accuracy(evaluation, batches=2)
    whole, again = accuracy(evaluation)
    trained, _ = accuracy(loader.for_evaluation())  # a loop over `loader` would take the next epoch, so it raises
    print(
        f"Epoch {epoch}: {quick:.0%} of two batches, {whole:.0%} of all, {trained:.0%} of the training data; ", end=""
    )
    print("the same batches:", labels == again)
