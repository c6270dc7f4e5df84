"""Mixtral (arXiv:2401.04088): a llama with experts in every layer. GGUF files say ``llama``."""

from __future__ import annotations

from ds4trio.models.architecture import Experts, ModelConfig
from ds4trio.models.families.family import Family
from ds4trio.models.families.gguf_file import GgufFile, gguf_config
from ds4trio.models.families.hf_file import HfFile, hf_config
from ds4trio.models.families.mixtures import (
    split_expert,
    stacked,
    with_experts,
    with_windows,
)
from ds4trio.models.families.names import renamed
from ds4trio.models.sources import Source

__all__ = ["MIXTRAL", "mixtral_from_gguf"]

DEFAULTS = {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}
"""Of transformers, where a config does not say."""

PARTS = {"gate_proj.weight": "w1", "down_proj.weight": "w2", "up_proj.weight": "w3"}


def _from_hf(file: HfFile) -> ModelConfig:
    file = HfFile({**DEFAULTS, **file.values}, file.ends)
    read, config = file.read, hf_config(file, theta=1e6)
    experts = Experts(
        count=read.integer("num_local_experts", 8),
        used=read.integer("num_experts_per_tok", 2),
        width=config.intermediate_size,
    )
    return with_experts(with_windows(config, read.integer("sliding_window", 0)), experts)


def mixtral_from_gguf(file: GgufFile) -> ModelConfig:
    """Of a file that says ``llama`` and has experts."""
    config = gguf_config(file)
    experts = Experts(
        count=file.read.integer("expert_count"),
        used=file.read.integer("expert_used_count"),
        width=file.read.integer("expert_feed_forward_length", config.intermediate_size),
    )
    return with_experts(config, experts)


def _hf_source(config: ModelConfig, name: str) -> Source:
    parts = split_expert(name)
    if parts is None:
        return renamed(name, {"mlp.router": "block_sparse_moe.gate"})
    experts, number, part = parts
    place = experts.replace(".mlp.", ".block_sparse_moe.")
    return Source(f"{place}.{number}.{PARTS[part]}.weight")


def _hf_stacked(config: ModelConfig, name: str) -> Source:
    return stacked(config, name, lambda name: renamed(name, {"mlp.router": "mlp.gate"}))


MIXTRAL = Family(
    from_hf={"mixtral": _from_hf}, from_gguf={}, hf_source=_hf_source, hf_stacked=_hf_stacked
)
