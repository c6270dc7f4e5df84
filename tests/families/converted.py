"""What llama.cpp's converter makes of a checkpoint, for tests that write GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

__all__ = ["in_pairs", "keys_of", "tensors_of"]


def keys_of(model: PreTrainedModel, **more: Any) -> dict[str, Any]:
    """The keys that every decoder has, less their prefix.

    Args:
        model: whose config says the numbers.
        more: further keys, with ``__`` for dots.
    """
    config = model.config
    head_dim = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    return keys | {key.replace("__", "."): value for key, value in more.items()}


def tensors_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """By transformers' names; without the head where it is the embedding."""
    tensors = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def in_pairs(
    tensors: Mapping[str, torch.Tensor], heads: int, kv_heads: int
) -> dict[str, torch.Tensor]:
    """Queries and keys in the order in which neighbours turn together."""
    counts = {"q_proj": heads, "k_proj": kv_heads}
    done = {}
    for name, tensor in tensors.items():
        count = counts.get(name.split(".")[-2])
        if count is not None:
            halves = tensor.reshape(count, 2, -1, *tensor.shape[1:])
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        done[name] = tensor
    return done
