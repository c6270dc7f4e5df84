from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.families.harness import agree, as_folder, as_gguf, randomise
from tests.tiny import tiny_config


def reference(**overrides: Any) -> PreTrainedModel:
    return randomise(LlamaForCausalLM(LlamaConfig(**tiny_config(**overrides))))


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_safetensors(tmp_path: Path, plain: bool) -> None:
    model = reference(attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    agree(model, as_folder(model, tmp_path), plain=plain)


def test_gguf(tmp_path: Path) -> None:
    model = reference(tie_word_embeddings=False)
    heads = {"q_proj": 4, "k_proj": 2}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        count = heads.get(name.split(".")[-2])
        if count is not None:  # neighbours turn together there
            tensor = tensor.view(count, 2, 8, -1).transpose(1, 2).reshape(tensor.shape)
        tensors[name] = tensor
    metadata = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    agree(model, as_gguf(tensors, tmp_path / "x.gguf", "llama", metadata, layers=2))
