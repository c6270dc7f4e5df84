"""``config.json`` and ``generation_config.json`` of transformers, releases 4 and 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ds4trio.models.architecture import (
    ARCHITECTURES,
    ROPE_KINDS,
    FieldReader,
    ModelConfig,
    RopeScaling,
    refuse,
    token_ids,
)

__all__ = ["config_from_hf"]


def config_from_hf(
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any] | None = None,
    *,
    extra_eos: Sequence[int] = (),
) -> ModelConfig:
    """Read a transformers configuration, with that library's defaults for what is left out.

    Args:
        config: the content of ``config.json``.
        generation_config: the content of ``generation_config.json``, whose end tokens come first.
        extra_eos: further end tokens, such as the tokenizer's own.

    Raises:
        ModelUnavailable: a family, activation, rotary kind or weight format that is not known, or a
            value of the wrong type.
    """
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        refuse(f"unknown architecture {kind!r}; known: {', '.join(ARCHITECTURES)}")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        refuse(f"activation {config['hidden_act']!r} is not known; known: silu")
    if method := (config.get("quantization_config") or {}).get("quant_method"):
        refuse(
            f"weights quantised by {method!r} cannot be read; use plain safetensors or a GGUF file"
        )
    read = FieldReader(config)
    heads = read.integer("num_attention_heads", 32)
    hidden = read.integer("hidden_size", 4096)
    context = read.integer("max_position_embeddings", 2048)
    theta, scaling = _hf_rope(config, context)
    ends = [*token_ids((generation_config or {}).get("eos_token_id"))]
    ends += [*token_ids(config.get("eos_token_id", 2)), *extra_eos]
    return ModelConfig(
        architecture=str(kind),
        vocab_size=read.integer("vocab_size", 32000),
        hidden_size=hidden,
        intermediate_size=read.integer("intermediate_size", 11008),
        layers=read.integer("num_hidden_layers", 32),
        heads=heads,
        kv_heads=read.integer("num_key_value_heads", heads),
        head_dim=read.integer("head_dim", hidden // max(heads, 1)),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        context_length=context,
        tied_head=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        bos_token_id=next(iter(token_ids(config.get("bos_token_id", 1))), None),
        eos_token_ids=tuple(dict.fromkeys(ends)),
    )


def _hf_rope(config: Mapping[str, Any], context: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from ``rope_parameters`` or the older pair of keys."""
    parameters = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = FieldReader({**config, **parameters}).number("rope_theta", 10000.0)
    partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1, 1.0):
        refuse("rotary embeddings over a part of the head are not supported")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind not in ROPE_KINDS:
        refuse(f"unknown rotary scaling {kind!r}; known: {', '.join(ROPE_KINDS)}")
    read = FieldReader(parameters)
    original = read.integer(
        "original_max_position_embeddings",
        FieldReader(config).integer("original_max_position_embeddings", context),
    )
    default_factor = context / max(original, 1) if kind == "yarn" else None
    return theta, RopeScaling(
        kind=kind,
        factor=read.number("factor", default_factor),
        original_context_length=original,
        low_freq_factor=read.number("low_freq_factor", 1.0),
        high_freq_factor=read.number("high_freq_factor", 4.0),
        beta_fast=read.number("beta_fast", 32.0),
        beta_slow=read.number("beta_slow", 1.0),
        attention_factor=read.optional("attention_factor"),
        mscale=read.optional("mscale"),
        mscale_all_dim=read.optional("mscale_all_dim"),
        truncate=bool(parameters.get("truncate", True)),
    )
