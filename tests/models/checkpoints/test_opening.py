from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ds4trio.errors import ModelUnavailable
from ds4trio.models.checkpoints.assembly import DecodedWeights
from ds4trio.models.checkpoints.opening import METHODS, open_checkpoint
from ds4trio.models.gguf.blocks import BLOCKS
from ds4trio.models.gguf.dequantize import DENSE
from ds4trio.models.gguf.superblocks import SUPERBLOCKS
from ds4trio.models.safetensors import SafetensorsWeights

FP8 = {"quant_method": "fp8"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One weight in float8, one that is not, and bytes."""
    stored = {
        "x.weight": torch.ones(4, 2).to(torch.float8_e4m3fn),
        "x.weight_scale_inv": torch.tensor(2.0),
        "norm.weight": torch.ones(3).bfloat16(),
        "ids": torch.arange(3, dtype=torch.uint8),
    }
    save_file(stored, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("config", [{}, {"quantization_config": None}, {"quantization_config": {}}])
def test_what_is_not_quantised_is_as_it_lies(folder: Path, config: dict[str, Any]) -> None:
    weights = open_checkpoint(folder, config)
    assert isinstance(weights, SafetensorsWeights)
    assert weights["norm.weight"].dtype == torch.bfloat16
    with pytest.raises(ModelUnavailable, match=r"'x\.weight' has type F8_E4M3; known: F64"):
        weights.keep(["x.weight"])


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": FP8},
        {"quantization_config": {"quant_method": "FP8"}},
        {"compression_config": FP8},
        {"text_config": {"quantization_config": FP8}},
    ],
)
def test_where_the_settings_lie(folder: Path, config: dict[str, Any]) -> None:
    weights = open_checkpoint(folder, config)
    assert weights["x.weight"].tolist() == [[2.0, 2.0]] * 4
    assert weights["norm.weight"].dtype == torch.bfloat16
    assert torch.equal(weights.part("norm.weight", 1), torch.tensor(1.0).bfloat16())
    for name, index in (("x.weight", 4), ("x.weight", -1), ("norm.weight", 3)):
        with pytest.raises(IndexError):
            weights.part(name, index)


def test_only_what_is_wanted_is_kept(folder: Path) -> None:
    weights = open_checkpoint(folder, {"quantization_config": FP8})
    assert isinstance(weights, DecodedWeights)
    assert set(weights) == {"x.weight", "norm.weight", "ids"}
    with pytest.raises(ModelUnavailable, match="'ids' has type U8"):
        weights.keep(["ids"])
    weights = open_checkpoint(folder, {"quantization_config": FP8})
    weights.keep(["norm.weight", "x.weight"])
    assert list(weights) == ["norm.weight", "x.weight"]
    assert dict(weights.shapes) == {"norm.weight": (3,), "x.weight": (4, 2)}
    with pytest.raises(KeyError):
        weights["ids"]
    with pytest.raises(KeyError):
        weights["absent"]


def test_bitsandbytes_by_its_older_keys(folder: Path) -> None:
    weights = open_checkpoint(folder, {"quantization_config": {"load_in_4bit": True}})
    assert isinstance(weights, DecodedWeights)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"quant_method": "hqq"}, "by 'hqq'; known: awq, bitsandbytes, compressed-tensors, fbgemm"),
        ({"bits": 4}, "does not say its quant_method"),
        (["gptq"], "quantization_config is not an object"),
        ("gptq", "quantization_config is not an object"),
    ],
)
def test_what_is_not_known_is_refused(folder: Path, settings: Any, says: str) -> None:
    with pytest.raises(ModelUnavailable, match=says):
        open_checkpoint(folder, {"quantization_config": settings})


def test_tensors_of_a_product_may_lie_in_several_files(folder: Path) -> None:
    save_file({"x.weight": torch.ones(4, 2).to(torch.float8_e4m3fn)}, folder / "a.safetensors")
    save_file({"x.weight_scale_inv": torch.tensor(3.0)}, folder / "b.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"x.weight": "a.safetensors", "x.weight_scale_inv": "b.safetensors"}
    content = json.dumps({"weight_map": index})
    (folder / "model.safetensors.index.json").write_text(content)
    weights = open_checkpoint(folder, {"quantization_config": FP8})
    assert weights["x.weight"].tolist() == [[3.0, 3.0]] * 4


def test_the_documentation_names_every_method_and_every_type_of_gguf() -> None:
    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert set(METHODS) <= named
    assert {*BLOCKS, *SUPERBLOCKS, *DENSE, "BF16"} - {"F64"} <= named
