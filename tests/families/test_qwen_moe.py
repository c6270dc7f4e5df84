from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import config_from_hf
from ds4trio.models.folder import open_folder
from tests.families.harness import agree, as_folder, as_gguf, randomise
from tests.tiny import tiny_config, write_tokenizer

SHAPE = {
    "num_experts": 10,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "tie_word_embeddings": False,
}


def shape_of(**overrides: Any) -> dict[str, Any]:
    shape = tiny_config(**SHAPE)
    shape.pop("model_type")
    return shape | overrides


def qwen2(**overrides: Any) -> PreTrainedModel:
    shape = shape_of(shared_expert_intermediate_size=80, **overrides)
    return randomise(Qwen2MoeForCausalLM(Qwen2MoeConfig(**shape)))


def qwen3(**overrides: Any) -> PreTrainedModel:
    return randomise(Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape_of(**overrides))))


Make = Callable[..., PreTrainedModel]


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
@pytest.mark.parametrize("make", [qwen2, qwen3])
def test_safetensors(tmp_path: Path, make: Make, plain: bool) -> None:
    model = make()
    agree(model, as_folder(model, tmp_path), plain=plain)


@pytest.mark.parametrize("make", [qwen2, qwen3])
def test_experts_in_some_layers_only_and_shares_that_are_normalised(
    tmp_path: Path, make: Make
) -> None:
    model = make(
        num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True
    )
    loaded = as_folder(model, tmp_path)
    assert [loaded.config.kind(i).experts for i in range(4)] == [False, True, False, False]
    agree(model, loaded)


@pytest.mark.parametrize("make", [qwen2, qwen3])
def test_windows(tmp_path: Path, make: Make) -> None:
    model = make(use_sliding_window=True, sliding_window=20, max_window_layers=28)
    loaded = as_folder(model, tmp_path)
    windows = [loaded.config.kind(i).window for i in range(2)]
    assert windows == ([20, 0] if make is qwen2 else [20, 20])
    agree(model, loaded)


@pytest.mark.parametrize("make", [qwen2, qwen3])
def test_safetensors_with_experts_in_one_tensor(tmp_path: Path, make: Make) -> None:
    model = make()
    model.save_pretrained(tmp_path, save_original_format=False)
    write_tokenizer(tmp_path)
    agree(model, open_folder("tiny", tmp_path))


@pytest.mark.parametrize(("make", "flat"), [(qwen2, True), (qwen2, False), (qwen3, True)])
def test_gguf(tmp_path: Path, make: Make, flat: bool) -> None:
    """Shares are normalised in one family and not in the other, which a file need not say; and a
    gate may have lost its first dimension."""
    model = make(norm_topk_prob=make is qwen3)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            tensors[f"{stem}gate_proj.weight"] = tensor[:, :48]
            tensors[f"{stem}up_proj.weight"] = tensor[:, 48:]
        elif name.endswith("experts.down_proj"):
            tensors[f"{name}.weight"] = tensor
        elif "shared_expert_gate" in name:
            tensors[name] = tensor.squeeze(0) if flat else tensor
        else:
            tensors[name] = tensor
    metadata = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "expert_count": 10,
        "expert_used_count": 3,
        "expert_feed_forward_length": 48,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    if make is qwen2:
        metadata["expert_shared_feed_forward_length"] = 80
    architecture = "qwen2moe" if make is qwen2 else "qwen3moe"
    agree(model, as_gguf(tensors, tmp_path / "x.gguf", architecture, metadata, layers=2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_experts_per_tok": 11}, "11 of 10 experts"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({"mlp_only_layers": 3}, "mlp_only_layers is 3"),
        ({"moe_intermediate_size": 0}, "width 0"),
        ({"num_hidden_layers": 10**9}, "more than any model has"),
    ],
)
def test_configs_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnavailable, match=message):
        config_from_hf({"model_type": "qwen3_moe", **shape_of(), **values})
