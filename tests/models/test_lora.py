from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import config_from_hf
from ds4trio.models.lora import open_adapter
from tests.engine.builders import make_pair
from tests.lora_files import make_adapter
from tests.tiny import tiny_config

PAIR = make_pair()


def test_a_folder_of_peft_is_read_with_its_scale(tmp_path: Path) -> None:
    make_adapter(tmp_path, PAIR.weights, seed=0, rank=4)
    adapter = open_adapter("x", tmp_path, PAIR.config)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    name = "model.layers.1.self_attn.k_proj"
    pair = adapter.pairs[name]
    assert len(adapter.pairs) == 14
    assert torch.equal(pair.down, tensors[f"base_model.model.{name}.lora_A.weight"])
    assert torch.equal(pair.up, 2 * tensors[f"base_model.model.{name}.lora_B.weight"])


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"use_rslora": True}, 4.0),
        ({"lora_alpha": 1}, 0.25),
        ({"alpha_pattern": {"k_proj": 12}}, 3.0),
        ({"alpha_pattern": {"layers.0.self_attn.k_proj": 12}}, 2.0),
    ],
)
def test_scales(tmp_path: Path, config: dict[str, Any], scale: float) -> None:
    make_adapter(tmp_path, PAIR.weights, seed=0, rank=4, **config)
    adapter = open_adapter("x", tmp_path, PAIR.config)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    name = "model.layers.1.self_attn.k_proj"
    up = tensors[f"base_model.model.{name}.lora_B.weight"] * scale
    assert torch.allclose(adapter.pairs[name].up, up)


def test_a_gguf_file_is_read_with_rows_in_order(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    down = torch.randn(4, 64, generator=generator)
    up = torch.randn(64, 4, generator=generator)  # as Hugging Face has its rows
    pairs = up.view(4, 2, 8, 4).transpose(1, 2).reshape(64, 4)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    writer.add_tensor("blk.1.attn_q.weight.lora_a", np.ascontiguousarray(down.numpy()))
    writer.add_tensor("blk.1.attn_q.weight.lora_b", np.ascontiguousarray(pairs.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    adapter = open_adapter("x", tmp_path / "a.gguf", PAIR.config)
    (name,) = adapter.pairs
    assert name == "model.layers.1.self_attn.q_proj"
    assert torch.equal(adapter.pairs[name].down, down)
    assert torch.equal(adapter.pairs[name].up, 2 * up)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"peft_type": "IA3"}, "kind 'IA3'"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"r": 5}, "has rank 4, its config says 5"),
        ({"lora_alpha": "x"}, "must be a number"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    make_adapter(tmp_path, PAIR.weights, seed=0, rank=4, **config)
    with pytest.raises(ModelUnavailable, match=says):
        open_adapter("x", tmp_path, PAIR.config)


def test_damaged_or_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="no adapter"):
        open_adapter("x", tmp_path / "none", PAIR.config)
    with pytest.raises(ModelUnavailable, match=r"it has no adapter_config\.json\.$"):
        open_adapter("x", tmp_path, PAIR.config)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelUnavailable, match=r"it is a model, not an adapter for one\.$"):
        open_adapter("x", tmp_path, PAIR.config)
    make_adapter(tmp_path, PAIR.weights, seed=0)
    wide = config_from_hf(tiny_config(intermediate_size=128))
    with pytest.raises(ModelUnavailable, match="is for another model"):
        open_adapter("x", tmp_path, wide)
    path = tmp_path / "adapter_model.safetensors"
    with pytest.raises(ModelUnavailable, match="safetensors file; name the folder it is in"):
        open_adapter("x", path, PAIR.config)
    tensors = load_file(path)
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_"
    for changed, says in (
        ({**tensors, "base_model.model.lm_head.lora_A.weight": torch.ones(4, 64)}, "counterpart"),
        ({k: v for k, v in tensors.items() if k != f"{name}A.weight"}, "counterpart"),
        ({**tensors, f"{name}A.weight": torch.full((4, 64), torch.nan)}, "not finite"),
        ({**tensors, f"{name}A.weight": torch.ones(3, 64)}, "do not fit"),
        ({**tensors, "base_model.model.x.lora_embedding_A": torch.ones(1)}, "not part of"),
        (
            {
                **tensors,
                "base_model.model.lm_head.lora_A.weight": torch.ones(4, 64),
                "base_model.model.lm_head.lora_B.weight": torch.ones(320, 4),
            },
            "'lm_head'",
        ),
        ({}, "changes nothing"),
    ):
        save_file(changed, path)
        with pytest.raises(ModelUnavailable, match=says):
            open_adapter("x", tmp_path, PAIR.config)
    path.write_bytes(path.read_bytes()[:5])
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        open_adapter("x", tmp_path, PAIR.config)
    (tmp_path / "adapter_config.json").write_text(json.dumps([1]))
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        open_adapter("x", tmp_path, PAIR.config)
