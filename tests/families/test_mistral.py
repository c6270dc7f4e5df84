from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Ministral3Config,
    Ministral3ForCausalLM,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import config_from_hf
from tests.families.converted import in_pairs, keys_of, tensors_of
from tests.families.harness import agree, as_folder, as_gguf, randomise

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 2.0,
    "original_max_position_embeddings": 256,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""Its original context is longer than the tests' texts."""


def shape(**overrides: Any) -> dict[str, Any]:
    return {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "bos_token_id": 1,
        "eos_token_id": 2,
        **overrides,
    }


def reference(**overrides: Any) -> PreTrainedModel:
    return randomise(MistralForCausalLM(MistralConfig(**shape(**overrides))))


def ministral3(**overrides: Any) -> PreTrainedModel:
    config = Ministral3Config(**shape(rope_parameters=dict(YARN), **overrides))
    return randomise(Ministral3ForCausalLM(config))


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
@pytest.mark.parametrize("window", [None, 11])
def test_safetensors(tmp_path: Path, window: int | None, plain: bool) -> None:
    model = reference(sliding_window=window, tie_word_embeddings=window is None)
    opened = as_folder(model, tmp_path)
    assert opened.config.kind(0).window == (window or 0)
    agree(model, opened, plain=plain)


def test_gguf_says_llama(tmp_path: Path) -> None:
    model = reference(sliding_window=None)
    keys = keys_of(model, rope__freq_base=1e6, rope__dimension_count=32)
    tensors = in_pairs(tensors_of(model), 4, 2)
    agree(model, as_gguf(tensors, tmp_path / "x.gguf", "llama", keys, layers=2))


def test_ministral3_safetensors(tmp_path: Path) -> None:
    model = ministral3()
    opened = as_folder(model, tmp_path)
    assert opened.config.context_length == 256  # farther on, its queries grow
    agree(model, opened)


def test_ministral3_gguf(tmp_path: Path) -> None:
    model = ministral3()
    keys = keys_of(
        model,
        rope__freq_base=1e6,
        rope__dimension_count=32,
        rope__scaling__type="yarn",
        rope__scaling__factor=2.0,
        rope__scaling__original_context_length=256,
        rope__scaling__yarn_log_multiplier=1.0,
        attention__temperature_scale=0.1,
    )
    tensors = in_pairs(tensors_of(model), 4, 2)
    opened = as_gguf(tensors, tmp_path / "x.gguf", "mistral3", keys, layers=2)
    assert opened.config.context_length == 256
    agree(model, opened)


def test_the_text_part_of_one_that_sees(tmp_path: Path) -> None:
    text = shape(model_type="mistral", sliding_window=None)
    pictures = {
        "model_type": "pixtral",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    whole = Mistral3ForConditionalGeneration(
        Mistral3Config(text_config=text, vision_config=pictures, tie_word_embeddings=False)
    )
    randomise(whole)
    alone = MistralForCausalLM(MistralConfig(**text))
    alone.model.load_state_dict(whole.model.language_model.state_dict())
    with torch.no_grad():
        alone.lm_head.weight.copy_(whole.lm_head.weight)
    alone.train(False)
    agree(alone, as_folder(whole, tmp_path))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"sliding_window": "wide"}, "sliding_window is 'wide'"),
        ({"sliding_window": 0}, "its width is 0"),
        ({"layer_types": ["full_attention", 7]}, "layers of type 7"),
        ({"layer_types": ["full_attention"]}, "not a list of 2 layers"),
        ({"model_type": "mistral3"}, "no text_config"),
        ({"model_type": "mistral3", "text_config": {"model_type": "mamba"}}, "type 'mamba'"),
        ({"hidden_act": ["silu"]}, "activation"),
        ({"rope_parameters": [1]}, "must be an object"),
    ],
)
def test_what_is_not_known_is_refused(overrides: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelUnavailable, match=says):
        config_from_hf(shape(**{"model_type": "mistral", **overrides}))
