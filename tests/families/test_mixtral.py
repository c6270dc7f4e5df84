from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedModel

from ds4trio.models.folder import open_folder
from tests.families.harness import agree, as_folder, as_gguf, randomise
from tests.tiny import tiny_config, write_tokenizer


def reference(**overrides: Any) -> PreTrainedModel:
    shape = tiny_config(num_local_experts=6, num_experts_per_tok=2, tie_word_embeddings=False)
    shape.pop("model_type")
    return randomise(MixtralForCausalLM(MixtralConfig(**shape | overrides)))


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_safetensors(tmp_path: Path, plain: bool) -> None:
    model = reference()
    agree(model, as_folder(model, tmp_path), plain=plain)


def test_safetensors_with_experts_in_one_tensor(tmp_path: Path) -> None:
    model = reference()
    model.save_pretrained(tmp_path, save_original_format=False)
    write_tokenizer(tmp_path)
    agree(model, open_folder("tiny", tmp_path))


def test_gguf(tmp_path: Path) -> None:
    model = reference()
    heads = {"q_proj": 4, "k_proj": 2}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            tensors[f"{stem}gate_proj.weight"] = tensor[:, :96]
            tensors[f"{stem}up_proj.weight"] = tensor[:, 96:]
            continue
        if name.endswith("experts.down_proj"):
            tensors[f"{name}.weight"] = tensor
            continue
        count = heads.get(name.split(".")[-2])
        if count is not None:  # neighbours turn together there
            tensor = tensor.view(count, 2, 8, -1).transpose(1, 2).reshape(tensor.shape)
        tensors[name.replace("mlp.gate.", "block_sparse_moe.gate.")] = tensor
    metadata = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "expert_count": 6,
        "expert_used_count": 2,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    agree(model, as_gguf(tensors, tmp_path / "x.gguf", "llama", metadata, layers=2))
