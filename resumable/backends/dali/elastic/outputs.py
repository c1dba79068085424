"""What DALI hands out, as tensors that nobody overwrites."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from nvidia.dali.plugin.pytorch.torch_utils import to_torch_tensor
from nvidia.dali.tensors import TensorGPU

from resumable.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["tensors"]


def tensors(outputs: Sequence[Any], names: Sequence[str], *, copy: bool) -> dict[str, torch.Tensor]:
    """Return one tensor per output, on the device of the output.

    Args:
        outputs: lists of tensors as `Pipeline.share_outputs` returns them.
        names: their names.
        copy: DALI uses the memory again; otherwise it belongs to whoever holds it.

    Raises:
        BackendError: the samples of an output differ in shape.
    """
    return {name: _tensor(output, name, copy=copy) for name, output in zip(names, outputs, strict=True)}


def _tensor(output: Any, name: str, *, copy: bool) -> torch.Tensor:
    if not output.is_dense_tensor():
        shapes = sorted({tuple(shape) for shape in output.shape()})[:4]
        raise BackendError(
            f"the samples of the output {name!r} differ in shape: {', '.join(map(str, shapes))} and so on.\n"
            "They make no tensor. Resize, crop or pad them to one size in the graph (fn.resize, fn.crop, fn.pad)."
        )
    dense = output.as_tensor()
    on_gpu = isinstance(dense, TensorGPU)
    with torch.cuda.device(dense.device_id()) if on_gpu else nullcontext():
        tensor: torch.Tensor = to_torch_tensor(dense, copy)
    return tensor
