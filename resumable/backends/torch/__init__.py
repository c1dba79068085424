"""PyTorch `DataLoader`s, map-style and iterable-style, with every option of their constructor."""

from resumable.backends.torch.adapter import adapt

__all__ = ["adapt"]
