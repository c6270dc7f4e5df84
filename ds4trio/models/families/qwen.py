"""Qwen2 and 2.5 (arXiv:2407.10671, arXiv:2412.15115): a llama whose queries, keys and values have
biases; and Qwen3 (arXiv:2505.09388): without those, and every head's queries and keys normalised.
"""

from __future__ import annotations

from msgspec.structs import replace

from ds4trio.models.architecture import LayerKind, ModelConfig
from ds4trio.models.families.family import Family
from ds4trio.models.families.gguf_file import GgufFile, gguf_config
from ds4trio.models.families.hf_file import HfFile, hf_config
from ds4trio.models.families.layers import hf_window, hf_windows, kinds_of

__all__ = ["QWEN2", "QWEN3"]

DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""Of transformers, where a config does not say."""


def _kinds(file: HfFile, config: ModelConfig) -> tuple[LayerKind, ...]:
    """Windows are in the upper layers, and only where the config turns them on."""
    read = file.read
    window = hf_window(file, 4096) if read.flag("use_sliding_window", False) else None
    first = read.integer("max_window_layers", 28)
    windowed = hf_windows(file, config.layers, lambda layer: window is not None and layer >= first)
    return kinds_of(windowed, window, config.context_length)


def _qwen2_from_hf(file: HfFile) -> ModelConfig:
    file = file.with_defaults(DEFAULTS)
    config = hf_config(file)
    return replace(config, attention_bias=True, output_bias=False, kinds=_kinds(file, config))


def _qwen3_from_hf(file: HfFile) -> ModelConfig:
    file = file.with_defaults({**DEFAULTS, "head_dim": 128})
    config = hf_config(file)
    return replace(config, head_norm="head", kinds=_kinds(file, config))


def _qwen3_from_gguf(file: GgufFile) -> ModelConfig:
    return replace(gguf_config(file), head_norm="head")


QWEN2 = Family(from_hf={"qwen2": _qwen2_from_hf}, from_gguf={"qwen2": gguf_config})
QWEN3 = Family(from_hf={"qwen3": _qwen3_from_hf}, from_gguf={"qwen3": _qwen3_from_gguf})
