"""A small convolutional network, trained with random dropout and mixup."""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .digits import Digits

__all__ = ["Classifier", "digest", "evaluate", "images_and_labels", "make_optimizer", "score", "training_loss"]


class Classifier(nn.Module):
    """Images with shape `(N, 1, 8, 8)` to logits with shape `(N, 10)`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(32 * 4 * 4, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits."""
        logits: Tensor = self.layers(images)
        return logits


def make_optimizer(model: Classifier) -> torch.optim.Optimizer:
    """Create the optimizer; its momenta also belong in the checkpoint."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def images_and_labels(batch: Any) -> tuple[Tensor, Tensor]:
    """Return images and labels of a batch, which is a pair or a dict."""
    if isinstance(batch, dict):
        return batch["data"], batch["label"].squeeze(-1).long()
    images, labels = batch
    return images, labels


def training_loss(model: Classifier, images: Tensor, labels: Tensor) -> Tensor:
    """Compute the loss of a batch; every other one is mixed with itself.

    The coin comes from `random`, the weight from `numpy.random`, the partners and the dropout from torch, so the
    weights are the same only if all three RNGs are restored.
    """
    weight = np.random.beta(0.4, 0.4) if random.random() < 0.5 else 1.0  # noqa: NPY002  # a fair coin
    partners = torch.randperm(len(labels))
    logits = model(weight * images + (1.0 - weight) * images[partners])
    losses = [functional.cross_entropy(logits, wanted) for wanted in (labels, labels[partners])]
    return weight * losses[0] + (1.0 - weight) * losses[1]


def score(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Compute loss and accuracy."""
    accuracy = (logits.argmax(dim=1) == labels).double().mean()
    return {"loss": functional.cross_entropy(logits, labels), "accuracy": accuracy}


@torch.no_grad()
def evaluate(model: Classifier, digits: Digits) -> dict[str, float]:
    """Compute loss and accuracy on images that were held out."""
    model.eval()
    logits = model(torch.from_numpy(digits.images)[:, None])
    model.train()
    return {name: value.item() for name, value in score(logits, torch.from_numpy(digits.labels)).items()}


def digest(tensors: Iterable[Tensor]) -> str:
    """Hash the types, shapes and bytes of tensors."""
    hashed = blake2b(digest_size=16)
    for tensor in tensors:
        hashed.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        hashed.update(tensor.detach().contiguous().numpy().tobytes())
    return hashed.hexdigest()
