"""Qwen1.5-MoE and Qwen2-57B-A14B (arXiv:2407.10671): Qwen2 with experts, and an MLP beside them
that has a gate of its own. Qwen3-MoE (arXiv:2505.09388): Qwen3 with experts.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ds4trio.models.architecture import Experts, ModelConfig
from ds4trio.models.families.family import Family
from ds4trio.models.families.gguf_file import GgufFile, gguf_config
from ds4trio.models.families.hf_file import HfFile, hf_config
from ds4trio.models.families.layers import hf_windows
from ds4trio.models.families.mixtures import (
    gguf_sparse,
    sparse_layers,
    stacked,
    with_experts,
    with_windows,
)
from ds4trio.models.families.names import renamed
from ds4trio.models.sources import Source

__all__ = ["QWEN2_MOE", "QWEN3_MOE"]

DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "max_position_embeddings": 32768,
    "bos_token_id": None,
    "eos_token_id": None,
}
QWEN2_DEFAULTS = {
    **DEFAULTS,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
}
QWEN3_DEFAULTS = {
    **DEFAULTS,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}
"""Of transformers, where a config does not say."""

NAMES = {
    "mlp.router": "mlp.gate",
    "mlp.shared.gate_proj": "mlp.shared_expert.gate_proj",
    "mlp.shared.up_proj": "mlp.shared_expert.up_proj",
    "mlp.shared.down_proj": "mlp.shared_expert.down_proj",
    "mlp.shared_gate": "mlp.shared_expert_gate",
}


def _qwen2_from_hf(file: HfFile) -> ModelConfig:
    file = HfFile({**QWEN2_DEFAULTS, **file.values}, file.ends)
    read, config = file.read, hf_config(file)
    experts = Experts(
        count=read.integer("num_experts", 60),
        used=read.integer("num_experts_per_tok", 4),
        width=read.integer("moe_intermediate_size", 1408),
        shared_width=read.integer("shared_expert_intermediate_size", 5632),
        shared_gate=True,
        normalise=read.flag("norm_topk_prob", False),
    )
    config = replace(config, attention_bias=read.flag("qkv_bias", True), output_bias=False)
    highest = read.integer("max_window_layers", 28)
    windowed = hf_windows(file, config.layers, lambda i: i % 2 == 0 and i < highest)
    config = with_windows(config, _window(file), windowed)
    return with_experts(config, experts, sparse_layers(file))


def _qwen3_from_hf(file: HfFile) -> ModelConfig:
    file = HfFile({**QWEN3_DEFAULTS, **file.values}, file.ends)
    read, config = file.read, hf_config(file)
    experts = Experts(
        count=read.integer("num_experts", read.integer("num_local_experts", 128)),
        used=read.integer("num_experts_per_tok", 8),
        width=read.integer("moe_intermediate_size", 768),
        normalise=read.flag("norm_topk_prob", False),
    )
    config = with_windows(replace(config, head_norm="head"), _window(file))
    return with_experts(config, experts, sparse_layers(file))


def _window(file: HfFile) -> int:
    on = file.read.flag("use_sliding_window", False)
    return file.read.integer("sliding_window", 4096) if on else 0


def _qwen2_from_gguf(file: GgufFile) -> ModelConfig:
    read = file.read
    experts = replace(
        _experts(file, normalise=False),
        shared_width=read.integer("expert_shared_feed_forward_length"),
        shared_gate=True,
    )
    return with_experts(gguf_config(file), experts, gguf_sparse(file))


def _qwen3_from_gguf(file: GgufFile) -> ModelConfig:
    config = replace(gguf_config(file), head_norm="head")
    return with_experts(config, _experts(file, normalise=True), gguf_sparse(file))


def _experts(file: GgufFile, *, normalise: bool) -> Experts:
    """A file need not say whether shares are normalised: llama.cpp knows it of the family."""
    read = file.read
    return Experts(
        count=read.integer("expert_count"),
        used=read.integer("expert_used_count"),
        width=read.integer("expert_feed_forward_length"),
        normalise=read.flag("expert_weights_norm", normalise),
    )


def _hf_source(config: ModelConfig, name: str) -> Source:
    source = renamed(name, NAMES)
    return replace(source, flat=source.name.endswith("shared_expert_gate.weight"))


def _hf_stacked(config: ModelConfig, name: str) -> Source:
    return stacked(config, name, lambda name: _hf_source(config, name))


def _family(
    hf: str,
    gguf: str,
    from_hf: Callable[[HfFile], ModelConfig],
    from_gguf: Callable[[GgufFile], ModelConfig],
) -> Family:
    return Family(
        from_hf={hf: from_hf},
        from_gguf={gguf: from_gguf},
        hf_source=_hf_source,
        hf_stacked=_hf_stacked,
    )


QWEN2_MOE = _family("qwen2_moe", "qwen2moe", _qwen2_from_hf, _qwen2_from_gguf)
QWEN3_MOE = _family("qwen3_moe", "qwen3moe", _qwen3_from_hf, _qwen3_from_gguf)
