"""What an MLP makes of its gates and ups, in the framework's operations."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

__all__ = ["CLAMP_SHARPNESS", "CLAMP_TO", "LIMIT", "Activation", "gated"]

Activation = Literal["silu", "gelu_tanh", "clamped", "limited"]

CLAMP_TO, CLAMP_SHARPNESS = 7.0, 1.702
"""Of gpt-oss: how large gates and ups may be, and the factor inside its sigmoid."""

LIMIT = 10.0
"""Of DeepSeek V4: how large gates and ups may be."""


def gated(activation: Activation, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Combine them; the result may lie in memory of the gates.

    ``silu``: SwiGLU (arXiv:2002.05202). ``gelu_tanh``: GeGLU, with the GELU's approximation by tanh
    (arXiv:1606.08415). ``clamped``: gpt-oss's SwiGLU, whose ups begin at one. ``limited``: SwiGLU
    of gates and ups that are not too large.
    """
    if activation == "silu":
        return functional.silu(gate).mul_(up)
    if activation == "gelu_tanh":
        return functional.gelu(gate, approximate="tanh").mul_(up)
    if activation == "limited":
        return functional.silu(gate.clamp(max=LIMIT)).mul_(up.clamp(-LIMIT, LIMIT))
    gate, up = gate.clamp(max=CLAMP_TO), up.clamp(-CLAMP_TO, CLAMP_TO)
    return torch.sigmoid(gate * CLAMP_SHARPNESS).mul_(gate).mul_(up + 1)
