"""Random low-rank adapters, as the peft library writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

__all__ = ["EVERYTHING", "make_adapter", "merged"]

EVERYTHING = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_adapter(
    folder: Path,
    weights: Mapping[str, torch.Tensor],
    *,
    seed: int,
    rank: int = 4,
    modules: Sequence[str] = EVERYTHING,
    **config: Any,
) -> Path:
    """Write an adapter for the products of these names in a model of these weights."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in weights.items():
        parts = name.split(".")
        if parts[-1] != "weight" or parts[-2] not in modules:
            continue
        outputs, inputs = weight.shape
        own = f"base_model.model.{name.removesuffix('.weight')}"
        tensors[f"{own}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * 0.3
        tensors[f"{own}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.3
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    written = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(modules),
        "bias": "none",
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(written), encoding="utf-8")
    return folder


def merged(
    weights: Mapping[str, torch.Tensor], pairs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The weights of the model that an adapter makes of these."""
    changed = dict(weights)
    for name, pair in pairs.items():
        changed[f"{name}.weight"] = weights[f"{name}.weight"].float() + pair.up @ pair.down
    return changed
