from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM, PreTrainedModel

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import config_from_hf
from tests.families.harness import agree, as_folder, as_gguf, randomise
from tests.tiny import tiny_config

YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}


def shape_of(**overrides: Any) -> dict[str, Any]:
    shape = tiny_config(
        num_hidden_layers=3,
        num_local_experts=6,
        num_experts_per_tok=2,
        head_dim=32,
        sliding_window=20,
        rope_parameters=YARN,
        tie_word_embeddings=False,
        attention_bias=True,
    )
    shape.pop("model_type")
    return shape | overrides


def reference(**overrides: Any) -> PreTrainedModel:
    # Large enough that gates and ups meet their bounds.
    return randomise(GptOssForCausalLM(GptOssConfig(**shape_of(**overrides))), scale=0.25)


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_safetensors(tmp_path: Path, plain: bool) -> None:
    model = reference()
    loaded = as_folder(model, tmp_path)
    assert [loaded.config.kind(i).window for i in range(3)] == [20, 0, 20]
    agree(model, loaded, plain=plain)


def test_gguf(tmp_path: Path) -> None:
    model = reference()
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if "gate_up_proj" in name:
            stem = name.split("gate_up_proj")[0]
            kind = "bias" if name.endswith("_bias") else "weight"
            tensor = tensor if kind == "bias" else tensor.transpose(1, 2)
            tensors[f"{stem}gate_proj.{kind}"] = tensor[:, ::2]
            tensors[f"{stem}up_proj.{kind}"] = tensor[:, 1::2]
        elif name.endswith("experts.down_proj"):
            tensors[f"{name}.weight"] = tensor.transpose(1, 2)
        elif name.endswith("experts.down_proj_bias"):
            tensors[name.replace("_bias", ".bias")] = tensor
        elif name.endswith("sinks"):
            tensors[f"{name}.weight"] = tensor
        else:
            tensors[name] = tensor
    metadata = {
        "block_count": 3,
        "context_length": 512,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "expert_count": 6,
        "expert_used_count": 2,
        "expert_feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 20,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 150000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 64,
    }
    agree(model, as_gguf(tensors, tmp_path / "x.gguf", "gpt-oss", metadata, layers=3))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"swiglu_limit": 9.0}, "swiglu_limit is 9.0; known: 7.0"),
        ({"layer_types": ["full_attention"]}, "not a list of 3 layers"),
        ({"layer_types": ["full_attention", [], "linear"]}, r"type \[\] are not known"),
        ({"sliding_window": 0}, "a window of 0 positions"),
        ({"num_hidden_layers": 10**9}, "more than any model has"),
    ],
)
def test_configs_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnavailable, match=message):
        config_from_hf({"model_type": "gpt_oss", **shape_of(), **values})
