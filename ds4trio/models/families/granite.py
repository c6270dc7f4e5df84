"""Granite 3: a llama whose embedding, scores, halves of blocks and logits are multiplied by numbers
of its own (arXiv:2408.13359 says what for)."""

from __future__ import annotations

from msgspec.structs import replace

from ds4trio.models.architecture import LayerKind, ModelConfig
from ds4trio.models.families.family import Family
from ds4trio.models.families.gguf_file import GgufFile, gguf_config
from ds4trio.models.families.hf_file import HfFile, hf_config
from ds4trio.models.families.names import in_pairs
from ds4trio.models.fields import refuse

__all__ = ["GRANITE"]


def _from_hf(file: HfFile) -> ModelConfig:
    read = file.read
    return replace(
        hf_config(file),
        embedding_scale=read.number("embedding_multiplier", 1.0),
        attention_scale=read.number("attention_multiplier", 1.0),
        residual_scale=read.number("residual_multiplier", 1.0),
        logit_scale=_inverse(read.number("logits_scaling", 1.0)),
    )


def _from_gguf(file: GgufFile) -> ModelConfig:
    read = file.read
    if read.integer("expert_count", 0):
        refuse("mixture-of-experts models of this kind are not known")
    config = gguf_config(file)
    # Zero stands for nothing here, and a file that is not made for positions says so in this key.
    turned = read.flag("rope.scaling.finetuned", True)
    return replace(
        config,
        embedding_scale=read.number("embedding_scale", 0.0) or 1.0,
        attention_scale=read.number("attention.scale", 0.0) or None,
        residual_scale=read.number("residual_scale", 0.0) or 1.0,
        logit_scale=_inverse(read.number("logit_scale")),
        kinds=() if turned else (LayerKind(rope=None),) * config.layers,
    )


def _inverse(divisor: float) -> float:
    if not divisor:
        refuse("logits cannot be divided by zero")
    return 1.0 / divisor


GRANITE = Family(
    from_hf={"granite": _from_hf}, from_gguf={"granite": _from_gguf}, gguf_source=in_pairs
)
