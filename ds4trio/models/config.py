"""A model's configuration, whatever file it comes from: the names that other rooms use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ds4trio.models.architecture import Compressed, Experts, Latent, LayerKind, ModelConfig, Streams
from ds4trio.models.families import (
    FAMILIES,
    Family,
    GgufFile,
    HfFile,
    gguf_family,
    hf_family,
)
from ds4trio.models.fields import refuse, token_ids
from ds4trio.models.rotary import ROPE_KINDS, Rope, RopeScaling
from ds4trio.models.sources import Source
from ds4trio.models.tensors import find_tensors, tensor_shapes

__all__ = [
    "ROPE_DIVISORS",
    "ROPE_KINDS",
    "Compressed",
    "Experts",
    "GgufFile",
    "Latent",
    "LayerKind",
    "ModelConfig",
    "Rope",
    "RopeScaling",
    "Streams",
    "config_from_gguf",
    "config_from_hf",
    "family_of",
    "find_gguf_tensors",
    "find_hf_tensors",
    "gguf_sources",
]

ROPE_DIVISORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors of a GGUF file that belong to its config."""


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
        extra_eos: further end tokens, such as the tokenizer's own; they come last.

    Raises:
        ModelUnavailable: a family, activation, rotary kind or weight format that is not known, or a
            value of the wrong type.
    """
    kind = config.get("model_type")
    read = hf_family(kind).from_hf[str(kind)]
    own = read(HfFile(config, token_ids((generation_config or {}).get("eos_token_id"))))
    ends = dict.fromkeys([*own.eos_token_ids, *extra_eos])
    return replace(own, eos_token_ids=tuple(ends))


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Read the header of a GGUF file.

    Raises:
        ModelUnavailable: a family or rotary kind that is not known, or a key missing or of the
            wrong type.
    """
    kind = file.metadata.get("general.architecture")
    return gguf_family(kind).from_gguf[str(kind)](file)


def find_hf_tensors(
    config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Source]:
    """Where each tensor of the decoder is in safetensors of these shapes.

    Raises:
        ModelUnavailable: as ``find_tensors`` does.
    """
    family = hf_family(config.architecture)
    return find_tensors(config, shapes, family.hf_source_in(shapes), family.hf_unused)


def find_gguf_tensors(
    config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Source]:
    """The same for a GGUF file."""
    family = gguf_family(config.architecture)
    return find_tensors(config, shapes, family.gguf_source, family.gguf_unused)


def family_of(config: ModelConfig) -> Family:
    """The family of a model, whichever kind of file its config came from."""
    for family in FAMILIES:
        if config.architecture in family.from_hf or config.architecture in family.from_gguf:
            return family
    refuse(f"unknown architecture {config.architecture!r}")


def gguf_sources(config: ModelConfig) -> dict[str, Source]:
    """The same for a file that was looked at before."""
    family = gguf_family(config.architecture)
    return {name: family.gguf_source(config, name) for name in tensor_shapes(config)}
