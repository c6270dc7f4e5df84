from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.families.converted import keys_of, tensors_of
from tests.families.harness import agree, as_folder, as_gguf, randomise

WINDOWS = {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1}


def shape(**overrides: Any) -> dict[str, Any]:
    return {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "bos_token_id": 1,
        "eos_token_id": 2,
        **overrides,
    }


def qwen2(**overrides: Any) -> PreTrainedModel:
    return randomise(Qwen2ForCausalLM(Qwen2Config(**shape(**overrides))))


def qwen3(**overrides: Any) -> PreTrainedModel:
    # Heads wider than the hidden state has room for, as in the small ones.
    return randomise(Qwen3ForCausalLM(Qwen3Config(**shape(head_dim=32, **overrides))))


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_qwen2_safetensors(tmp_path: Path, plain: bool) -> None:
    model = qwen2(tie_word_embeddings=False)
    agree(model, as_folder(model, tmp_path), plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_qwen2_with_windows_in_its_upper_layers(tmp_path: Path, plain: bool) -> None:
    model = qwen2(tie_word_embeddings=True, **WINDOWS)
    opened = as_folder(model, tmp_path)
    assert [opened.config.kind(layer).window for layer in range(3)] == [0, 11, 11]
    agree(model, opened, plain=plain)


def test_windows_that_are_turned_off_are_none(tmp_path: Path) -> None:
    model = qwen2(**WINDOWS | {"use_sliding_window": False})
    assert as_folder(model, tmp_path).config.kinds == ()


def test_qwen2_gguf(tmp_path: Path) -> None:
    model = qwen2(tie_word_embeddings=True)
    keys = keys_of(model, rope__freq_base=1e6)
    agree(model, as_gguf(tensors_of(model), tmp_path / "x.gguf", "qwen2", keys, layers=3))


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_qwen3_safetensors(tmp_path: Path, plain: bool) -> None:
    model = qwen3(attention_bias=True, tie_word_embeddings=True)
    agree(model, as_folder(model, tmp_path), plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_qwen3_with_windows(tmp_path: Path, plain: bool) -> None:
    model = qwen3(tie_word_embeddings=False, **WINDOWS)
    agree(model, as_folder(model, tmp_path), plain=plain)


def test_qwen3_gguf(tmp_path: Path) -> None:
    model = qwen3(tie_word_embeddings=False)
    keys = keys_of(model, rope__freq_base=1e6)
    agree(model, as_gguf(tensors_of(model), tmp_path / "x.gguf", "qwen3", keys, layers=3))
