"""The network."""

from __future__ import annotations

from typing import Any

from torch import nn


def build(width: int, dropout: float) -> Any:
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 16))
