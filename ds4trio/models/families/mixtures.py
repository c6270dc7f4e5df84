"""What families with experts have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ds4trio.models.architecture import Experts, ModelConfig
from ds4trio.models.families.gguf_file import GgufFile
from ds4trio.models.families.hf_file import HfFile
from ds4trio.models.families.layers import kinds_of
from ds4trio.models.fields import refuse
from ds4trio.models.sources import Source

__all__ = [
    "gguf_sparse",
    "sparse_layers",
    "split_expert",
    "stacked",
    "with_experts",
    "with_windows",
]

EXPERT = re.compile(r"(?P<experts>model\.layers\.\d+\.mlp\.experts)\.(?P<number>\d+)\.(?P<part>.+)")


def with_experts(
    config: ModelConfig, experts: Experts, sparse: Callable[[int], bool] = lambda layer: True
) -> ModelConfig:
    """The same model with experts in layers of which ``sparse`` says so."""
    kinds = (replace(config.kind(i), experts=sparse(i)) for i in range(config.layers))
    return replace(config, experts=experts, kinds=tuple(kinds))


def with_windows(
    config: ModelConfig, window: int, windowed: Sequence[bool] | None = None
) -> ModelConfig:
    """The same model with a window in these layers, or in all; a window of 0 is none."""
    marks = [True] * config.layers if windowed is None else windowed
    kinds = kinds_of(marks, window, config.context_length) if window else ()
    return replace(config, kinds=kinds)


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
