"""gpt-oss (arXiv:2508.10925): experts with biases and bounded gates, attention with sinks, and in
every other layer a window."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ds4trio.models.architecture import Experts, ModelConfig
from ds4trio.models.families.family import Family
from ds4trio.models.families.gguf_file import GgufFile, gguf_config
from ds4trio.models.families.hf_file import HfFile, hf_config
from ds4trio.models.families.layers import hf_windows
from ds4trio.models.families.mixtures import (
    split_expert,
    with_experts,
    with_windows,
)
from ds4trio.models.families.names import gguf_source
from ds4trio.models.fields import refuse
from ds4trio.models.sources import Source

__all__ = ["GPT_OSS"]

DEFAULTS = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
    "sliding_window": 128,
    "bos_token_id": None,
    "eos_token_id": None,
}
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Of transformers, where a config does not say."""

BOUNDS = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}
"""What the ``clamped`` activation has."""


def _from_hf(file: HfFile) -> ModelConfig:
    values = {**DEFAULTS, **file.values}
    if not (values.get("rope_parameters") or values.get("rope_scaling")):
        values["rope_parameters"] = YARN
    file = HfFile(values, file.ends)
    read = file.read
    for key, known in BOUNDS.items():
        if (found := read.number(key, known)) != known:
            refuse(f"{key} is {found}; known: {known}")
    config = hf_config(file, theta=150000.0)
    return _built(
        config,
        count=read.integer("num_local_experts", 128),
        used=read.integer("num_experts_per_tok", 4),
        width=config.intermediate_size,
        window=read.integer("sliding_window", 128),
        windowed=hf_windows(file, config.layers, _every_other),
    )


def _from_gguf(file: GgufFile) -> ModelConfig:
    read, config = file.read, gguf_config(file, theta=150000.0)
    rope = config.ropes[0]
    if rope.scaling is not None:
        rope = replace(rope, scaling=replace(rope.scaling, truncate=False))
    return _built(
        replace(config, ropes=(rope,)),
        count=read.integer("expert_count"),
        used=read.integer("expert_used_count"),
        width=read.integer("expert_feed_forward_length", config.intermediate_size),
        window=read.integer("attention.sliding_window"),
        windowed=[_every_other(layer) for layer in range(config.layers)],
    )


def _built(
    config: ModelConfig,
    *,
    count: int,
    used: int,
    width: int,
    window: int,
    windowed: Sequence[bool],
) -> ModelConfig:
    if window < 1:
        refuse(f"a window of {window} positions cannot be")
    config = replace(config, activation="clamped", sinks=True)
    experts = Experts(
        count=count, used=used, width=width, scoring="chosen", router_bias=True, bias=True
    )
    return with_experts(with_windows(config, window, windowed), experts)


def _every_other(layer: int) -> bool:
    return layer % 2 == 0


def _hf_source(config: ModelConfig, name: str) -> Source:
    """Experts of a layer lie in one tensor, [experts, in, out]; gates and ups take turns."""
    parts = split_expert(name)
    if parts is None:
        return Source(name)
    experts, number, part = parts
    both, down = f"{experts}.gate_up_proj", f"{experts}.down_proj"
    return {
        "gate_proj.weight": Source(both, index=number, transposed=True, step=2),
        "up_proj.weight": Source(both, index=number, transposed=True, start=1, step=2),
        "down_proj.weight": Source(down, index=number, transposed=True),
        "gate_proj.bias": Source(f"{both}_bias", index=number, step=2),
        "up_proj.bias": Source(f"{both}_bias", index=number, start=1, step=2),
        "down_proj.bias": Source(f"{down}_bias", index=number),
    }[part]


def _gguf_source(config: ModelConfig, name: str) -> Source:
    source = gguf_source(config, name)
    # What is called after attention there stands before the MLP.
    return replace(source, name=source.name.replace(".ffn_norm.", ".post_attention_norm."))


GPT_OSS = Family(
    from_hf={"gpt_oss": _from_hf},
    from_gguf={"gpt-oss": _from_gguf},
    hf_source=_hf_source,
    gguf_source=_gguf_source,
)
