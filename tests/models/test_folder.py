from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ds4trio.errors import ModelUnavailable
from ds4trio.models.folder import open_folder


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    copy = tmp_path / "copy"
    shutil.copytree(tiny_model, copy)
    return copy


def change(path: Path, **keys: Any) -> None:
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(content | keys))


def shard(folder: Path) -> dict[str, torch.Tensor]:
    """Split the weights over two files, as the hub does."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    change(folder / "model.safetensors.index.json", weight_map=weight_map)
    (folder / "model.safetensors").unlink()
    return tensors


def test_sharded_weights_are_the_same_weights(folder: Path) -> None:
    tensors = shard(folder)
    model = open_folder("x", folder)
    assert set(model.weights) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(model.weights[name], tensor)


def test_weights_keep_the_dtype_of_the_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)
    weights = open_folder("x", folder).weights
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


def test_a_head_saved_although_tied_is_left_out(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    head = tensors["model.embed_tokens.weight"].clone()
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file({**tensors, "lm_head.weight": head, **old}, path)
    assert set(open_folder("x", folder).weights) == set(tensors)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has no tokenizer.json"),
        ("model.safetensors", "neither model.safetensors nor"),
    ],
)
def test_a_missing_file_is_named(folder: Path, name: str, says: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelUnavailable, match=says):
        open_folder("x", folder)


def test_pickled_weights_are_said_to_be_left_alone(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelUnavailable, match=r"its pytorch_model\.bin is not read"):
        open_folder("x", folder)


def test_a_missing_shard_or_one_elsewhere_is_named(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match=r"00002-of-00002\.safetensors is missing"):
        open_folder("x", folder)
    change(folder / "model.safetensors.index.json", weight_map={"x": "../outside.safetensors"})
    with pytest.raises(ModelUnavailable, match="outside its folder"):
        open_folder("x", folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_damaged_file_is_named(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ModelUnavailable, match=f"{name} cannot be read"):
        open_folder("x", folder)


def test_quantised_or_foreign_tensors_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "model.norm.weight": torch.ones(64, dtype=torch.int8)}, path)
    with pytest.raises(ModelUnavailable, match="type I8; known: F64, F32, F16, BF16"):
        open_folder("x", folder)
    save_file({**tensors, "model.layers.0.self_attn.q_norm.weight": torch.ones(16)}, path)
    with pytest.raises(ModelUnavailable, match="unknown tensor"):
        open_folder("x", folder)


def test_where_the_template_comes_from(folder: Path) -> None:
    settings = folder / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    change(settings, chat_template=named)
    assert open_folder("x", folder).chat_template == "D"
    (folder / "chat_template.jinja").write_text("ü file", encoding="utf-8")
    assert open_folder("x", folder).chat_template == "ü file"
    (folder / "chat_template.jinja").unlink()
    change(settings, chat_template=None)
    assert open_folder("x", folder).chat_template is None


def test_special_tokens_in_each_form(folder: Path) -> None:
    settings = folder / "tokenizer_config.json"
    change(settings, bos_token={"content": "<|endoftext|>", "lstrip": False}, eos_token=None)
    change(folder / "special_tokens_map.json", eos_token="<|im_start|>")
    model = open_folder("x", folder)
    assert (model.bos_token, model.eos_token) == ("<|endoftext|>", "<|im_start|>")
    assert model.config.eos_token_ids == (2, 1)  # the config's, then the tokenizer's


def test_whether_prompts_begin_with_bos(folder: Path) -> None:
    settings, tokenizer = folder / "tokenizer_config.json", folder / "tokenizer.json"
    adds = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {},
    }
    change(settings, add_bos_token=True)
    assert open_folder("x", folder).add_bos
    change(settings, add_bos_token=None)
    assert not open_folder("x", folder).add_bos
    change(tokenizer, post_processor={"type": "Sequence", "processors": [adds]})
    assert open_folder("x", folder).add_bos
    change(settings, add_bos_token=False)
    assert not open_folder("x", folder).add_bos
