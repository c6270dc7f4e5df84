"""What families with experts have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from ds4trio.models.architecture import Experts, ModelConfig
from ds4trio.models.families.gguf_file import GgufFile
from ds4trio.models.families.hf_file import HfFile
from ds4trio.models.fields import refuse
from ds4trio.models.sources import Source

__all__ = [
    "gguf_sparse",
    "hf_windowed",
    "sparse_layers",
    "split_expert",
    "stacked",
    "with_experts",
    "with_windows",
]

MOST_LAYERS = 10_000
"""More than any model has. A number of layers that is a mistake must not become a list of them."""

EXPERT = re.compile(r"(?P<experts>model\.layers\.\d+\.mlp\.experts)\.(?P<number>\d+)\.(?P<part>.+)")


def with_experts(
    config: ModelConfig, experts: Experts, sparse: Callable[[int], bool] = lambda layer: True
) -> ModelConfig:
    """The same model with experts in layers of which ``sparse`` says so.

    Raises:
        ModelUnavailable: it has too many layers.
    """
    if config.layers > MOST_LAYERS:
        refuse(f"{config.layers} layers are more than any model has")
    kinds = (replace(config.kind(i), experts=sparse(i)) for i in range(config.layers))
    return replace(config, experts=experts, kinds=tuple(kinds))


def with_windows(
    config: ModelConfig, window: int, windowed: Callable[[int], bool] = lambda layer: True
) -> ModelConfig:
    """The same model with a window in layers of which ``windowed`` says so; 0 is none.

    Raises:
        ModelUnavailable: it has too many layers.
    """
    if config.layers > MOST_LAYERS:
        refuse(f"{config.layers} layers are more than any model has")
    if not 0 < window < config.context_length:
        return config
    kinds = (
        replace(config.kind(i), window=window if windowed(i) else 0) for i in range(config.layers)
    )
    return replace(config, kinds=tuple(kinds))


def hf_windowed(
    file: HfFile, layers: int, otherwise: Callable[[int], bool]
) -> Callable[[int], bool]:
    """Which layers have a window, by ``layer_types``, or by ``otherwise`` where that is missing.

    Raises:
        ModelUnavailable: a type that is not known, or not one for each layer.
    """
    types = file.values.get("layer_types")
    if types is None:
        return otherwise
    if not isinstance(types, list) or len(types) != layers:
        refuse(f"layer_types is not a list of {layers} layers")
    known = ("full_attention", "sliding_attention")
    if unknown := [kind for kind in types if kind not in known]:
        refuse(f"layers of type {unknown[0]!r} are not known; known: {', '.join(known)}")
    return lambda layer: types[layer] == "sliding_attention"


def sparse_layers(file: HfFile) -> Callable[[int], bool]:
    """Which layers have experts, by ``decoder_sparse_step`` and ``mlp_only_layers``.

    Raises:
        ModelUnavailable: those are not a number and a list of numbers.
    """
    step = file.read.integer("decoder_sparse_step", 1)
    if step < 1:
        refuse(f"decoder_sparse_step is {step}; it must be positive")
    without: Any = file.values.get("mlp_only_layers") or []
    if not isinstance(without, list) or not all(isinstance(layer, int) for layer in without):
        refuse(f"mlp_only_layers is {without!r}; it must be a list of numbers")
    return lambda layer: layer not in without and (layer + 1) % step == 0


def gguf_sparse(file: GgufFile) -> Callable[[int], bool]:
    """Which layers have experts: those that have a router."""
    return lambda layer: file.has(f"blk.{layer}.ffn_gate_inp.weight")


def split_expert(name: str) -> tuple[str, int, str] | None:
    """How the name of a layer's experts begins, an expert's number, and its own name for a tensor
    of it; None for other tensors."""
    match = EXPERT.fullmatch(name)
    return None if match is None else (match["experts"], int(match["number"]), match["part"])


def stacked(config: ModelConfig, name: str, own: Callable[[str], Source]) -> Source:
    """For files in which the experts of a layer lie in one tensor, gates before ups, as
    transformers keeps them in memory from release 5 on.

    Args:
        config: of the model.
        name: of the decoder's tensor.
        own: says where other tensors are.
    """
    parts = split_expert(name)
    if parts is None or config.experts is None:
        return own(name)
    experts, number, part = parts
    width = config.experts.width
    if part == "down_proj.weight":
        return Source(f"{experts}.down_proj", index=number)
    both = f"{experts}.gate_up_proj"
    rows: Mapping[str, Source] = {
        "gate_proj.weight": Source(both, index=number, stop=width),
        "up_proj.weight": Source(both, index=number, start=width),
    }
    return rows[part]
