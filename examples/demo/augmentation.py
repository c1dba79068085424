"""An augmentation that uses the global RNGs of `random`, `numpy.random` and torch."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from .digits import Digits

__all__ = ["augment", "sample"]

_NOISE = 0.05


def augment(image: np.ndarray[Any, Any]) -> torch.Tensor:
    """Shift an image by up to a pixel, add noise, and change its brightness; `(8, 8)` becomes `(1, 8, 8)`."""
    shift = (random.randint(-1, 1), random.randint(-1, 1))
    noise = np.random.normal(0.0, _NOISE, image.shape)  # noqa: NPY002  # what augmentation code draws from
    brightness = 0.75 + 0.5 * torch.rand(())
    return torch.from_numpy(np.roll(image, shift, axis=(0, 1)) + noise).float()[None] * brightness


def sample(digits: Digits, index: int) -> tuple[torch.Tensor, int]:
    """Return an augmented image and its label."""
    return augment(digits.images[index]), int(digits.labels[index])
