"""Gemma 2 (arXiv:2408.00118) and Gemma 3 (arXiv:2503.19786).

Both have norms around attention and MLP, embeddings multiplied by the root of their width, and
layers that see a window between those that see everything. Gemma 2 caps scores and logits; Gemma 3
normalises queries and keys instead, and turns far and near layers with bases of their own.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from ds4trio.models.architecture import LayerKind, ModelConfig
from ds4trio.models.families.family import Family
from ds4trio.models.families.gguf_file import GgufFile, gguf_config
from ds4trio.models.families.hf_file import HfFile, hf_activation, hf_config, hf_rope
from ds4trio.models.families.layers import every, gguf_windows, hf_window, hf_windows, kinds_of
from ds4trio.models.families.names import renamed
from ds4trio.models.families.text_part import TEXT_ROOTS, TEXT_UNUSED, text_part
from ds4trio.models.fields import refuse
from ds4trio.models.rotary import Rope
from ds4trio.models.sources import Source

__all__ = ["GEMMA2", "GEMMA3"]

DEFAULTS: dict[str, Any] = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
}
"""Of transformers, where a config does not say. Published ones of Gemma 3 leave most of it out."""

NEWER_DEFAULTS = {**DEFAULTS, "vocab_size": 262208, "max_position_embeddings": 131072}

FAR, NEAR = 1e6, 1e4
"""Bases of Gemma 3's rotary embeddings, for layers that see everything and the others."""

STEP = {"gemma2": 2, "gemma3": 6}
"""Of so many layers, the last sees everything."""

LARGEST = {"gemma2": 46, "gemma3": 62}
"""Layers of the models of 27 billion weights, whose scores are scaled by what a head would have of
the hidden state. A GGUF file does not say so; the others' are scaled by the width of a head."""

NAMES = {
    "self_attn.output_norm": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "mlp.output_norm": "post_feedforward_layernorm",
}


def _common(config: ModelConfig) -> ModelConfig:
    return replace(config, norms="around", embedding_scale=math.sqrt(config.hidden_size))


def _hf_common(file: HfFile) -> ModelConfig:
    read = file.read
    scalar = read.number("query_pre_attn_scalar", 256)
    if scalar <= 0:
        refuse(f"query_pre_attn_scalar is {scalar}; it must be positive")
    return replace(
        _common(hf_config(file)),
        activation=hf_activation(file.values, "gelu_pytorch_tanh"),
        norm_offset=1.0,
        attention_scale=scalar**-0.5,
    )


def _gemma2_from_hf(file: HfFile) -> ModelConfig:
    file = file.with_defaults(DEFAULTS)
    config = _hf_common(file)
    windowed = hf_windows(file, config.layers, every(STEP["gemma2"]))
    return replace(
        config,
        kinds=kinds_of(windowed, hf_window(file, 4096), config.context_length),
        attention_soft_cap=_cap(file, "attn_logit_softcapping", 50.0),
        logit_soft_cap=_cap(file, "final_logit_softcapping", 30.0),
    )


def _cap(file: HfFile, key: str, default: float) -> float:
    """Null says that there is none."""
    if file.values.get(key, default) is None:
        return 0.0
    return file.read.number(key, default)


def _gemma3_from_hf(file: HfFile) -> ModelConfig:
    file = file.with_defaults(NEWER_DEFAULTS)
    if file.values.get("attn_logit_softcapping") is not None:
        refuse("Gemma 3 with soft caps of its scores is not known")
    config = _hf_common(file)
    step = file.read.integer("sliding_window_pattern", STEP["gemma3"])
    windowed = hf_windows(file, config.layers, every(step))
    return replace(
        config,
        head_norm="head",
        ropes=_ropes(file, config.head_dim),
        kinds=kinds_of(windowed, hf_window(file, 4096), config.context_length, local=1),
        logit_soft_cap=_cap(file, "final_logit_softcapping", 0.0),
    )


def _ropes(file: HfFile, head_dim: int) -> tuple[Rope, Rope]:
    """Older configs have two bases side by side, and scaling of the far one; newer ones parameters
    for each type of layer."""
    near = file.read.number("rope_local_base_freq", NEAR)
    local = Rope(theta=near, dims=head_dim)
    if file.mapping("rope_parameters").get("sliding_attention") is not None:
        local = hf_rope(
            HfFile({**file.values, "rope_theta": near}), head_dim, kind="sliding_attention"
        )
    return hf_rope(file, head_dim, theta=FAR, kind="full_attention"), local


def _from_gguf(file: GgufFile) -> ModelConfig:
    config = _common(gguf_config(file))
    largest = config.layers == LARGEST[config.architecture]
    scalar = config.hidden_size // config.heads if largest else config.head_dim
    return replace(config, activation="gelu_tanh", attention_scale=scalar**-0.5)


def _gemma2_from_gguf(file: GgufFile) -> ModelConfig:
    read, config = file.read, _from_gguf(file)
    windowed = gguf_windows(file, config.layers, every(STEP["gemma2"]))
    window = read.integer("attention.sliding_window", 4096)
    return replace(
        config,
        kinds=kinds_of(windowed, window, config.context_length),
        attention_soft_cap=read.number("attn_logit_softcapping", 50.0),
        logit_soft_cap=read.number("final_logit_softcapping", 30.0),
    )


def _gemma3_from_gguf(file: GgufFile) -> ModelConfig:
    read, config = file.read, _from_gguf(file)
    full = config.ropes[0]
    local = Rope(theta=read.number("rope.freq_base_swa", NEAR), dims=full.dims)
    window = read.integer("attention.sliding_window", 0)
    kinds: tuple[LayerKind, ...] = ()
    if window:
        windowed = gguf_windows(file, config.layers, every(STEP["gemma3"]))
        kinds = kinds_of(windowed, window, config.context_length, local=1)
    return replace(
        config,
        head_norm="head",
        ropes=(full, local),
        kinds=kinds,
        logit_soft_cap=read.number("final_logit_softcapping", 0.0),
    )


def _hf_source(config: ModelConfig, name: str) -> Source:
    return renamed(name, NAMES)


GEMMA2 = Family(
    from_hf={"gemma2": _gemma2_from_hf},
    from_gguf={"gemma2": _gemma2_from_gguf},
    hf_source=_hf_source,
)
GEMMA3 = Family(
    from_hf={
        "gemma3_text": _gemma3_from_hf,
        "gemma3": lambda file: replace(
            _gemma3_from_hf(text_part(file)), architecture="gemma3_text"
        ),
    },
    from_gguf={"gemma3": _gemma3_from_gguf},
    hf_source=_hf_source,
    hf_roots=TEXT_ROOTS,
    hf_unused=TEXT_UNUSED,
)
