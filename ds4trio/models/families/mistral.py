"""Mistral 7B (arXiv:2310.06825) and what followed it: a llama that may see a window only.

GGUF files of these models say ``llama``; those of Mistral Small 3.1 and Ministral 3 ``mistral3``.
"""

from __future__ import annotations

from msgspec.structs import replace

from ds4trio.models.architecture import ModelConfig
from ds4trio.models.families.family import Family
from ds4trio.models.families.gguf_file import GgufFile, gguf_config
from ds4trio.models.families.hf_file import HfFile, hf_config
from ds4trio.models.families.layers import hf_window, hf_windows, kinds_of
from ds4trio.models.families.names import in_pairs
from ds4trio.models.families.text_part import TEXT_ROOTS, TEXT_UNUSED, text_part
from ds4trio.models.fields import FieldReader, refuse

__all__ = ["MISTRAL"]

DEFAULTS = {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
NEWER_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
"""Of transformers, where a config does not say: of Mistral, and of Ministral 3."""


def _from_hf(file: HfFile) -> ModelConfig:
    file = file.with_defaults(DEFAULTS)
    return _windowed(file, hf_window(file, 4096))


def _ministral3_from_hf(file: HfFile) -> ModelConfig:
    file = file.with_defaults(NEWER_DEFAULTS)
    config = _windowed(file, hf_window(file))
    growth = FieldReader(file.mapping("rope_parameters")).number("llama_4_scaling_beta", 0.0)
    return _before_scores_grow(config) if growth else config


def _windowed(file: HfFile, window: int | None) -> ModelConfig:
    config = hf_config(file)
    windowed = hf_windows(file, config.layers, lambda layer: window is not None)
    return replace(config, kinds=kinds_of(windowed, window, config.context_length))


def _before_scores_grow(config: ModelConfig) -> ModelConfig:
    """Ministral 3 multiplies queries by a number that grows with the position, and is one within
    the context that was there before stretching. Only that context is served."""
    scaling = config.ropes[0].scaling
    if scaling is None:
        refuse("queries grow with the position, and nothing says from which on")
    context = min(config.context_length, scaling.original_context_length)
    return replace(config, context_length=context)


def _from_pictures(file: HfFile) -> ModelConfig:
    text = text_part(file)
    kind = text.values.get("model_type", "mistral")
    read = {"mistral": _from_hf, "ministral3": _ministral3_from_hf}.get(str(kind))
    if read is None:
        refuse(f"a text part of type {kind!r} is not known; known: mistral, ministral3")
    return replace(read(text), architecture=str(kind))


def _from_gguf(file: GgufFile) -> ModelConfig:
    if file.read.integer("expert_count", 0):
        refuse("mixture-of-experts models of this kind are not known")
    config = gguf_config(file)
    rope, weight = config.ropes[0], file.read.number("rope.scaling.yarn_log_multiplier", 0.0)
    if rope.scaling is not None and weight:
        scaling = replace(rope.scaling, mscale=1.0, mscale_all_dim=weight)
        config = replace(config, ropes=(replace(rope, scaling=scaling),))
    growth = file.read.number("attention.temperature_scale", 0.0)
    return _before_scores_grow(config) if growth else config


MISTRAL = Family(
    from_hf={
        "mistral": _from_hf,
        "ministral3": _ministral3_from_hf,
        "mistral3": _from_pictures,
    },
    from_gguf={"mistral3": _from_gguf},
    gguf_source=in_pairs,
    hf_roots=TEXT_ROOTS,
    hf_unused=TEXT_UNUSED,
)
