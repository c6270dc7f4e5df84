"""Writes checkpoints as their formats are defined, one number at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from ds4trio.models.checkpoints.opening import open_checkpoint
from ds4trio.models.weights import Weights

__all__ = ["opened", "pack", "pack_along"]


def pack(numbers: Sequence[int], bits: int) -> list[int]:
    """Numbers in 32-bit words: one long whole number, the first in its lowest bits."""
    whole = sum(int(number) << (bits * place) for place, number in enumerate(numbers))
    size = -(-len(numbers) * bits // 32) * 4
    words: list[int] = np.frombuffer(whole.to_bytes(size, "little"), "<i4").tolist()
    return words


def pack_along(matrix: np.ndarray, bits: int, axis: int) -> torch.Tensor:
    """Pack each row (axis 1) or each column (axis 0) of a matrix; int32."""
    lines = matrix if axis == 1 else matrix.T
    packed = torch.tensor([pack(line.tolist(), bits) for line in lines], dtype=torch.int32)
    return packed if axis == 1 else packed.T.contiguous()


def opened(
    folder: Path, method: str, tensors: Mapping[str, torch.Tensor], **settings: Any
) -> Weights:
    """Write tensors as a checkpoint that is quantised in this way, and open it."""
    save_file(dict(tensors), folder / "model.safetensors")
    return open_checkpoint(folder, {"quantization_config": {"quant_method": method, **settings}})
