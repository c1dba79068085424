"""A small GPT in plain PyTorch that reads packed documents: a token sees only earlier tokens of its own document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import default_collate

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GPT", "Shape", "collate", "mask_of"]


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a GPT.

    Args:
        vocabulary: number of different tokens.
        length: tokens per window, which is also the largest position in a document.
        width: numbers per token.
        heads: number of attention heads; divides the width.
        layers: number of blocks, each with attention and a two-layer network.
        dropout: dropout rate in training.
    """

    vocabulary: int = 128
    length: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 2
    dropout: float = 0.1


class GPT(nn.Module):
    """A decoder with learned positions, whose last layer shares its weights with the embedding.

    Args:
        shape: its size.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        for weights in (self.tokens.weight, self.positions.weight):
            nn.init.normal_(weights, std=0.02)

    def forward(self, tokens: Tensor, position: Tensor, document: Tensor) -> Tensor:
        """Return the logits of the next token after each of these.

        Args:
            tokens: integers with shape `(batch, length)`, like `position` and `document`.
            position: of each token in its document.
            document: its number; tokens with different numbers do not see each other.

        Returns:
            Logits with shape `(batch, length, vocabulary)`.
        """
        mask = mask_of(document)
        x = self.dropout(self.tokens(tokens) + self.positions(position))
        for block in self.blocks:
            x = block(x, mask)
        return functional.linear(self.norm(x), self.tokens.weight)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the mean cross entropy of a batch of `Packed`; targets of -100 do not count."""
        logits = self(batch["input"], batch["position"], batch["document"])
        return functional.cross_entropy(logits.flatten(0, 1), batch["target"].flatten())


class _Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._heads, self._rate = shape.heads, shape.dropout
        self.before, self.between = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attention, self.joined = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)
        wide = nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        self.network = nn.Sequential(*wide, nn.Dropout(shape.dropout))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.joined(self._attend(self.before(x), mask))
        changed: Tensor = x + self.network(self.between(x))
        return changed

    def _attend(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.attention(x).unflatten(-1, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
        rate = self._rate if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate)
        return mixed.transpose(1, 2).flatten(2)


def mask_of(document: Tensor) -> Tensor:
    """Return the attention mask `(batch, 1, length, length)`: true for a token and those before it in its document."""
    same = document[:, :, None] == document[:, None, :]
    return torch.tril(same)[:, None]


def collate(samples: list[Any]) -> dict[str, Tensor]:
    """Create a batch for `loss` from samples of `Packed` or `Tokens`; a window of `Tokens` is one document."""
    batch: dict[str, Tensor] = default_collate([one if isinstance(one, dict) else _as_packed(*one) for one in samples])
    return batch


def _as_packed(tokens: Any, target: Any) -> dict[str, Any]:
    position = np.arange(len(tokens))
    return {"input": tokens, "target": target, "position": position, "document": np.zeros_like(position)}
