"""How much of a device's memory the cache gets, when the weights are there too."""

from __future__ import annotations

import math

import torch

from ds4trio.engine.linear import ROUNDED, activation_dtype
from ds4trio.engine.machine import machine_memory
from ds4trio.engine.memory import MemoryPlan, plan_memory
from ds4trio.models.config import ModelConfig
from ds4trio.models.tensors import tensor_shapes

__all__ = ["plan_room", "weights_size"]

ROUNDED_BITS = 9
"""Of a weight of eight bits with its part of what its group has; one of four bits takes less."""

EMBEDDING = "model.embed_tokens.weight"
EXACT = ("router.weight", "router.bias", "shared_gate.weight", "streams.fn", "position_bias")
"""Ends of names of tensors that are kept in float32, or hardly take any room."""
BY_TOKEN = "router.by_token"


def weights_size(config: ModelConfig, dtype: str) -> int:
    """Bytes that the weights of a model take at most, without those of adapters.

    What is looked up and what must be exact (``EXACT``) is rounded in no dtype; an embedding that
    is the output head too is.
    """
    size = activation_dtype(dtype).itemsize
    bits = 0
    for name, shape in tensor_shapes(config).items():
        if name.endswith(BY_TOKEN):
            each = 64
        elif name.endswith(EXACT):
            each = 32
        elif dtype in ROUNDED and len(shape) > 1 and (config.tied_head or name != EMBEDDING):
            each = ROUNDED_BITS
        else:
            each = 8 * size
        bits += math.prod(shape) * each
    return bits // 8


def plan_room(
    config: ModelConfig,
    device: torch.device,
    *,
    dtype: str,
    numbers: torch.dtype,
    page_size: int,
    kv_memory: int | None,
    context_length: int | None,
) -> MemoryPlan:
    """Choose memory for keys and values, and a context that it holds, before weights are read.

    Args:
        config: of the model.
        device: where everything is to be.
        dtype: of the products.
        numbers: of keys and values.
        page_size: positions in a page.
        kv_memory, context_length: what the user has chosen; None for what suits.

    Raises:
        ModelUnavailable: it does not fit.
    """
    if device.type == "cuda":
        available, total = torch.cuda.mem_get_info(device)
    else:
        memory = machine_memory()
        available, total = memory.available, memory.total
    return plan_memory(
        total=total,
        available=available,
        weights=weights_size(config, dtype),
        position_bytes=config.position_size * numbers.itemsize,
        model_context=config.context_length,
        page_size=page_size,
        shared=device.type != "cuda",
        kv_memory=kv_memory,
        context=context_length,
    )
