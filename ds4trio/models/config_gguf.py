"""The metadata keys of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

from ds4trio.models.architecture import (
    ARCHITECTURES,
    FieldReader,
    ModelConfig,
    RopeScaling,
    refuse,
    token_ids,
)

__all__ = ["config_from_gguf"]

END_MARKERS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<|end_of_turn|>",
        "<|return|>",
        "<EOT>",
        "</s>",
    }
)
"""Control tokens that end an answer in the chat formats in use. A GGUF file names one end token,
often only one of the two that its model writes, so these are added when they are control tokens."""


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensor_names: Container[str],
    *,
    vocab_size: int,
    rope_factors: Sequence[float] | None = None,
) -> ModelConfig:
    """Read the metadata of a GGUF file.

    Args:
        metadata: its keys and values.
        tensor_names: its tensors; they tell a tied head and biases.
        vocab_size: rows of ``token_embd.weight``.
        rope_factors: the content of ``rope_freqs.weight``, if the file has it.

    Raises:
        ModelUnavailable: a family or rotary kind that is not known, or a key missing or of the
            wrong type.
    """
    kind = metadata.get("general.architecture")
    if kind not in ARCHITECTURES:
        refuse(f"unknown architecture {kind!r}; known: {', '.join(ARCHITECTURES)}")
    read = FieldReader(metadata, prefix=f"{kind}.")
    if read.integer("expert_count", 0):
        refuse("mixture-of-experts models are not known; known: dense llama")
    heads = read.integer("attention.head_count")
    hidden = read.integer("embedding_length")
    head_dim = read.integer("attention.key_length", hidden // max(heads, 1))
    if read.integer("attention.value_length", head_dim) != head_dim:
        refuse("keys and values of different head sizes are not supported")
    if read.integer("rope.dimension_count", head_dim) != head_dim:
        refuse("rotary embeddings over a part of the head are not supported")
    context = read.integer("context_length")
    return ModelConfig(
        architecture=str(kind),
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=read.integer("feed_forward_length"),
        layers=read.integer("block_count"),
        heads=heads,
        kv_heads=read.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=read.number("attention.layer_norm_rms_epsilon"),
        rope_theta=read.number("rope.freq_base", 10000.0),
        rope_scaling=None if rope_factors else _gguf_rope(read, context),
        rope_factors=tuple(float(value) for value in rope_factors) if rope_factors else None,
        context_length=context,
        tied_head="output.weight" not in tensor_names,
        attention_bias="blk.0.attn_q.bias" in tensor_names,
        mlp_bias="blk.0.ffn_gate.bias" in tensor_names,
        bos_token_id=next(iter(token_ids(metadata.get("tokenizer.ggml.bos_token_id"))), None),
        eos_token_ids=_gguf_ends(metadata),
    )


def _gguf_rope(read: FieldReader, context: int) -> RopeScaling | None:
    linear = read.number("rope.scale_linear", 1.0)  # what files had before rope.scaling.*
    kind = read.values.get(f"{read.prefix}rope.scaling.type", "linear" if linear != 1.0 else "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        refuse(f"unknown rotary scaling {kind!r}; known: none, linear, yarn")
    factor = read.number("rope.scaling.factor", linear)
    if factor == 1.0:
        return None
    # llama.cpp multiplies yarn's derived attention factor by this one.
    extra = read.number("rope.scaling.attn_factor", 1.0)
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_context_length=read.integer("rope.scaling.original_context_length", context),
        beta_fast=read.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=read.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=None if extra == 1.0 else extra * (0.1 * math.log(factor) + 1.0),
    )


def _gguf_ends(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    ends: list[int] = []
    for name in ("eos", "eot", "eom"):
        ends += token_ids(metadata.get(f"tokenizer.ggml.{name}_token_id"))
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    kinds = metadata.get("tokenizer.ggml.token_type") or []
    control = 3
    ends += [
        index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == control and token in END_MARKERS
    ]
    return tuple(dict.fromkeys(ends))
