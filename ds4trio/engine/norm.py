"""RMSNorm (arXiv:1910.07467), as a value that products take along."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

__all__ = ["RMSNorm"]


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """``x / sqrt(mean(x^2) + epsilon) * weight`` for rows; weight is [hidden]."""

    weight: torch.Tensor
    epsilon: float

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(rows, self.weight.shape, self.weight, self.epsilon)
