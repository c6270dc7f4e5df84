"""Phi-3 (arXiv:2404.14219) and Phi-4-mini (arXiv:2503.01743): a llama whose files hold queries,
keys and values as one tensor, and gates and ups as another; long contexts by LongRoPE."""

from __future__ import annotations

from msgspec.structs import replace

from ds4trio.models.architecture import ModelConfig
from ds4trio.models.families.family import Family
from ds4trio.models.families.gguf_file import GgufFile, gguf_config
from ds4trio.models.families.hf_file import HfFile, hf_config
from ds4trio.models.families.layers import hf_window, hf_windows, kinds_of
from ds4trio.models.families.names import gguf_source, hf_source
from ds4trio.models.fields import refuse
from ds4trio.models.rotary import Rope
from ds4trio.models.sources import Source

__all__ = ["PHI3"]

DEFAULTS = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 32000,
}
"""Of transformers, where a config does not say."""


def _from_hf(file: HfFile) -> ModelConfig:
    file = file.with_defaults(DEFAULTS)
    config = hf_config(file, partly=True)
    _known(config.ropes[0])
    window = hf_window(file)
    windowed = hf_windows(file, config.layers, lambda layer: window is not None)
    return replace(config, kinds=kinds_of(windowed, window, config.context_length))


def _from_gguf(file: GgufFile) -> ModelConfig:
    config = gguf_config(file)
    _known(config.ropes[0])
    # Zero is what Phi-4 says, which has none.
    window = file.read.integer("attention.sliding_window", 0) or None
    windowed = [window is not None] * config.layers
    return replace(config, kinds=kinds_of(windowed, window, config.context_length))


def _known(rope: Rope) -> None:
    if rope.scaling is not None and rope.scaling.kind != "longrope":
        refuse(f"rotary scaling {rope.scaling.kind!r} is not known of Phi-3; known: longrope")


def _cut(config: ModelConfig, source: Source, joined: str, doubled: str) -> Source:
    """The rows of a tensor within the one that it is part of.

    Args:
        config: of the model.
        source: where it would be by itself.
        joined, doubled: names of the two tensors that hold several, less ``.weight``.
    """
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    width = config.intermediate_size
    rows = {
        ("q_proj", "attn_q"): (joined, 0, queries),
        ("k_proj", "attn_k"): (joined, queries, queries + keys),
        ("v_proj", "attn_v"): (joined, queries + keys, queries + 2 * keys),
        ("gate_proj", "ffn_gate"): (doubled, 0, width),
        ("up_proj", "ffn_up"): (doubled, width, 2 * width),
    }
    *front, part, kind = source.name.split(".")
    for names, (whole, start, stop) in rows.items():
        if part in names:
            return Source(".".join([*front, whole, kind]), start=start, stop=stop)
    return source


def _hf_source(config: ModelConfig, name: str) -> Source:
    return _cut(config, hf_source(config, name), "qkv_proj", "gate_up_proj")


def _gguf_source(config: ModelConfig, name: str) -> Source:
    return _cut(config, gguf_source(config, name), "attn_qkv", "ffn_up")


PHI3 = Family(
    from_hf={"phi3": _from_hf},
    from_gguf={"phi3": _from_gguf},
    hf_source=_hf_source,
    gguf_source=_gguf_source,
)
