from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import GraniteConfig, GraniteForCausalLM, PreTrainedModel

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import config_from_hf
from tests.families.converted import in_pairs, keys_of, tensors_of
from tests.families.harness import agree, as_folder, as_gguf, randomise


def shape(**overrides: Any) -> dict[str, Any]:
    return {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.4,
        "residual_multiplier": 0.22,
        "logits_scaling": 0.5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **overrides,
    }


def reference(**overrides: Any) -> PreTrainedModel:
    return randomise(GraniteForCausalLM(GraniteConfig(**shape(**overrides))))


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_safetensors(tmp_path: Path, tied: bool, plain: bool) -> None:
    model = reference(attention_bias=not tied, mlp_bias=not tied, tie_word_embeddings=tied)
    agree(model, as_folder(model, tmp_path), plain=plain)


def test_gguf(tmp_path: Path) -> None:
    model = reference(tie_word_embeddings=True)
    keys = keys_of(
        model,
        rope__freq_base=1e5,
        rope__dimension_count=16,
        attention__scale=0.4,
        embedding_scale=12.0,
        residual_scale=0.22,
        logit_scale=0.5,
    )
    tensors = in_pairs(tensors_of(model), 4, 2)
    agree(model, as_gguf(tensors, tmp_path / "x.gguf", "granite", keys, layers=2))


def test_logits_cannot_be_divided_by_zero() -> None:
    with pytest.raises(ModelUnavailable, match="divided by zero"):
        config_from_hf(shape(model_type="granite", logits_scaling=0))
