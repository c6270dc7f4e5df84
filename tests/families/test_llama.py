from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from ds4trio.models.loaded import LoadedModel
from tests.families.converted import in_pairs, keys_of, tensors_of
from tests.families.harness import agree, as_folder, as_gguf, randomise
from tests.tiny import tiny_config


def reference(**overrides: Any) -> PreTrainedModel:
    return randomise(LlamaForCausalLM(LlamaConfig(**tiny_config(**overrides))))


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_safetensors(tmp_path: Path, plain: bool) -> None:
    model = reference(attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    agree(model, as_folder(model, tmp_path), plain=plain)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "rope",
    [
        LLAMA3,
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        {
            "rope_type": "dynamic",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 64,  # which nobody looks at
        },
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_stretched_rotations(tmp_path: Path, rope: dict[str, Any]) -> None:
    model = reference(rope_parameters=dict(rope))
    agree(model, as_folder(model, tmp_path))


def written(model: PreTrainedModel, path: Path, **more: Any) -> LoadedModel:
    factors = more.pop("factors", None)
    tensors = in_pairs(tensors_of(model), 4, 2)
    extra = {} if factors is None else {"rope_freqs.weight": factors}
    return as_gguf(tensors, path, "llama", keys_of(model, **more), layers=2, extra=extra)


def test_gguf(tmp_path: Path) -> None:
    model = reference(tie_word_embeddings=False, attention_bias=True, mlp_bias=True)
    agree(model, written(model, tmp_path / "x.gguf", rope__freq_base=1e4))


def test_gguf_with_divisors_of_its_rotations(tmp_path: Path) -> None:
    model = reference(rope_parameters=dict(LLAMA3))
    waves = 2 * torch.pi * 5e5 ** (torch.arange(0, 16, 2) / 16)
    mix = (64 / waves - 1) / (4 - 1)
    divisors = 1 / ((1 - mix) / 8 + mix)
    divisors[waves < 64 / 4] = 1
    divisors[waves > 64 / 1] = 8
    assert len(set(divisors.tolist())) > 2  # there are waves in between
    agree(model, written(model, tmp_path / "x.gguf", rope__freq_base=5e5, factors=divisors))


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_gguf_stretched(tmp_path: Path, kind: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    keys = {"rope__scaling__type": kind, "rope__scaling__factor": 4.0}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = 128
        keys["rope__scaling__original_context_length"] = 128
    model = reference(rope_parameters=rope)
    agree(model, written(model, tmp_path / "x.gguf", rope__freq_base=1e4, **keys))
