"""SmolLM3: a llama in which every fourth layer does not turn its queries and keys
(arXiv:2501.18795)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ds4trio.models.architecture import LayerKind, ModelConfig
from ds4trio.models.families.family import Family
from ds4trio.models.families.gguf_file import GgufFile, gguf_config
from ds4trio.models.families.hf_file import HfFile, hf_config
from ds4trio.models.families.layers import every, hf_window, hf_windows, kinds_of
from ds4trio.models.families.names import in_pairs
from ds4trio.models.fields import refuse

__all__ = ["SMOLLM3"]

DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "tie_word_embeddings": True,
}
"""Of transformers, where a config does not say."""

STEP = 4
"""GGUF files do not say it: one layer of so many does not turn."""


def _from_hf(file: HfFile) -> ModelConfig:
    file = file.with_defaults(DEFAULTS)
    config = hf_config(file, theta=2e6)
    turned = _turned(file, config.layers)
    window = hf_window(file) if file.read.flag("use_sliding_window", False) else None
    # Where nothing says it, windows are in the layers that do not turn.
    windowed = hf_windows(
        file, config.layers, lambda layer: window is not None and not turned[layer]
    )
    kinds = kinds_of(windowed, window, config.context_length)
    return _still(replace(config, kinds=kinds), turned)


def _turned(file: HfFile, layers: int) -> list[bool]:
    """``no_rope_layers`` has a 1 for each layer that turns, whatever its name says."""
    marks = file.values.get("no_rope_layers")
    if marks is None:
        turns = every(file.read.integer("no_rope_layer_interval", STEP))
        return [turns(layer) for layer in range(layers)]
    if not isinstance(marks, list) or len(marks) < layers:
        refuse(f"no_rope_layers is not a list of {layers} layers")
    return [bool(mark) for mark in marks[:layers]]


def _still(config: ModelConfig, turned: Sequence[bool]) -> ModelConfig:
    """Layers that are not marked do not turn."""
    kinds = [config.kind(layer) for layer in range(config.layers)]
    done = [
        kind if mark else replace(kind, rope=None) for kind, mark in zip(kinds, turned, strict=True)
    ]
    return replace(config, kinds=tuple(done) if any(k != LayerKind() for k in done) else ())


def _from_gguf(file: GgufFile) -> ModelConfig:
    config = gguf_config(file)
    return _still(config, [every(STEP)(layer) for layer in range(config.layers)])


SMOLLM3 = Family(
    from_hf={"smollm3": _from_hf}, from_gguf={"smollm3": _from_gguf}, gguf_source=in_pairs
)
