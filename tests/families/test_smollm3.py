from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel, SmolLM3Config, SmolLM3ForCausalLM

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import config_from_hf
from tests.families.converted import in_pairs, keys_of, tensors_of
from tests.families.harness import agree, as_folder, as_gguf, randomise


def shape(**overrides: Any) -> dict[str, Any]:
    return {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **overrides,
    }


def reference(**overrides: Any) -> PreTrainedModel:
    return randomise(SmolLM3ForCausalLM(SmolLM3Config(**shape(**overrides))))


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
@pytest.mark.parametrize(
    ("overrides", "turned"),
    [
        ({"no_rope_layer_interval": 2}, [1, 0, 1, 0, 1]),
        (
            {
                "no_rope_layers": [0, 1, 1, 0, 1],
                "attention_bias": True,
                "mlp_bias": True,
                "tie_word_embeddings": False,
            },
            [0, 1, 1, 0, 1],
        ),
    ],
)
def test_safetensors(
    tmp_path: Path, overrides: dict[str, Any], turned: list[int], plain: bool
) -> None:
    model = reference(**overrides)
    opened = as_folder(model, tmp_path)
    assert [int(opened.config.kind(i).rope is not None) for i in range(5)] == turned
    agree(model, opened, plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_windows_where_nothing_turns(tmp_path: Path, plain: bool) -> None:
    model = reference(use_sliding_window=True, sliding_window=9)
    opened = as_folder(model, tmp_path)
    assert [opened.config.kind(i).window for i in range(5)] == [0, 0, 0, 9, 0]
    agree(model, opened, plain=plain)


def test_gguf(tmp_path: Path) -> None:
    model = reference()
    keys = keys_of(model, rope__freq_base=5e6, rope__dimension_count=16)
    tensors = in_pairs(tensors_of(model), 4, 2)  # those of layers that do not turn, too
    agree(model, as_gguf(tensors, tmp_path / "x.gguf", "smollm3", keys, layers=5))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"no_rope_layers": [1, 1]}, "not a list of 5 layers"),
        ({"layer_types": ["full_attention"] * 4 + ["chunked_attention"]}, "'chunked_attention'"),
        ({"layer_types": ["sliding_attention"] * 5}, "its width is None"),
    ],
)
def test_what_is_not_known_is_refused(overrides: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelUnavailable, match=says):
        config_from_hf(shape(model_type="smollm3", **overrides))
