from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    PreTrainedModel,
)

from tests.families.converted import keys_of, tensors_of
from tests.families.harness import agree, as_folder, as_gguf, randomise

YARN = {
    "rope_type": "yarn",
    "rope_theta": 5e5,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "attention_factor": 1.3,
    "beta_fast": 32,
    "beta_slow": 1,
}


def shape(**overrides: Any) -> dict[str, Any]:
    return {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **overrides,
    }


def olmo2(**overrides: Any) -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 5e5}
    config = Olmo2Config(**shape(rope_parameters=rope, **overrides))
    return randomise(Olmo2ForCausalLM(config))


def olmo3(**overrides: Any) -> PreTrainedModel:
    near = {"rope_type": "default", "rope_theta": 5e5}
    ropes = {"full_attention": YARN, "sliding_attention": near}
    settings = shape(num_hidden_layers=5, rope_parameters=ropes, sliding_window=10, **overrides)
    return randomise(Olmo3ForCausalLM(Olmo3Config(**settings)))


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_olmo2_safetensors(tmp_path: Path, tied: bool, plain: bool) -> None:
    model = olmo2(attention_bias=not tied, tie_word_embeddings=tied)
    agree(model, as_folder(model, tmp_path), plain=plain)


def test_olmo2_gguf(tmp_path: Path) -> None:
    model = olmo2(tie_word_embeddings=False)
    keys = keys_of(model, rope__freq_base=5e5)
    agree(model, as_gguf(tensors_of(model), tmp_path / "x.gguf", "olmo2", keys, layers=2))


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_olmo3_safetensors(tmp_path: Path, plain: bool) -> None:
    model = olmo3(tie_word_embeddings=False)
    opened = as_folder(model, tmp_path)
    assert [opened.config.kind(i).window for i in range(5)] == [10, 10, 10, 0, 10]
    agree(model, opened, plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_olmo3_gguf(tmp_path: Path, plain: bool) -> None:
    model = olmo3(tie_word_embeddings=False)
    keys = keys_of(
        model,
        rope__freq_base=5e5,
        rope__scaling__type="yarn",
        rope__scaling__factor=8.0,
        rope__scaling__original_context_length=64,
        rope__scaling__yarn_attn_factor=1.3,
        rope__scaling__yarn_beta_fast=32.0,
        rope__scaling__yarn_beta_slow=1.0,
        attention__sliding_window=10,
        attention__sliding_window_pattern=[True, True, True, False, True],
    )
    opened = as_gguf(tensors_of(model), tmp_path / "x.gguf", "olmo2", keys, layers=5)
    agree(model, opened, plain=plain)
