from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ds4trio.errors import ModelUnavailable
from ds4trio.models.weights import Weights
from tests.models.checkpoints.make_data import DATA, digest
from tests.models.checkpoints.packing import opened, pack_along

FILE = DATA / "compressed.safetensors"
NAMES = ("group", "zeros", "channel", "int8", "float8")
OUTPUTS, INPUTS, GROUPS = 20, 96, 3


def compressed(folder: Path, stored: dict[str, torch.Tensor], **weights: Any) -> Weights:
    args = {"num_bits": 4, "type": "int", **weights}
    return opened(
        folder,
        "compressed-tensors",
        stored,
        format="mixed-precision",
        config_groups={"group_0": {"targets": ["Linear"], "weights": args}},
    )


@pytest.mark.parametrize("name", NAMES)
def test_bit_for_bit_as_the_library_makes_them(tmp_path: Path, name: str) -> None:
    weights = compressed(tmp_path, load_file(FILE))
    assert set(weights) == {f"{each}.weight" for each in NAMES}
    with safe_open(FILE, framework="pt") as file:
        assert digest(weights[f"{name}.weight"]) == file.metadata()[name]


def packed(
    bits: int, *, zeros: bool, order: np.ndarray | None = None
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Stored tensors, and the weight that they mean by the format's definition."""
    random = np.random.default_rng(14)
    levels = random.integers(0, 1 << bits, (OUTPUTS, INPUTS))
    offsets = np.full((OUTPUTS, GROUPS), 1 << (bits - 1))
    if zeros:
        offsets = random.integers(0, 1 << bits, (OUTPUTS, GROUPS))
    scales = torch.from_numpy(random.standard_normal((OUTPUTS, GROUPS))).bfloat16()
    of_input = np.arange(INPUTS) // (INPUTS // GROUPS) if order is None else order
    weight = torch.from_numpy(levels - offsets[:, of_input]).float() * scales.float()[:, of_input]
    stored = {
        "x.weight_packed": pack_along(levels, bits, 1),
        "x.weight_scale": scales,
        "x.weight_shape": torch.tensor([OUTPUTS, INPUTS]),
    }
    if zeros:
        stored["x.weight_zero_point"] = pack_along(offsets, bits, 0)
    if order is not None:
        stored["x.weight_g_idx"] = torch.from_numpy(order).int()
    return stored, weight


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("chunk", [1 << 20, 7 * INPUTS])
def test_packed_levels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int, zeros: bool, chunk: int
) -> None:
    monkeypatch.setattr("ds4trio.models.checkpoints.compressed.CHUNK", chunk)
    stored, weight = packed(bits, zeros=zeros)
    weights = compressed(tmp_path, stored, num_bits=bits, symmetric=not zeros)
    assert dict(weights.shapes) == {"x.weight": (OUTPUTS, INPUTS)}
    assert torch.equal(weights["x.weight"], weight)


def test_inputs_in_the_order_of_their_activations(tmp_path: Path) -> None:
    order = np.random.default_rng(15).permutation(np.arange(INPUTS) // (INPUTS // GROUPS))
    stored, weight = packed(4, zeros=True, order=order)
    assert torch.equal(compressed(tmp_path, stored)["x.weight"], weight)
    stored, weight = packed(4, zeros=True)
    stored["x.weight_g_idx"] = torch.full((INPUTS,), -1, dtype=torch.int32)
    assert torch.equal(compressed(tmp_path, stored)["x.weight"], weight)


def test_eight_bits_with_zeros_and_in_blocks(tmp_path: Path) -> None:
    levels = torch.randint(-128, 128, (6, 8), dtype=torch.int8)
    scales, zeros = torch.rand(6, 1), torch.randint(-9, 9, (6, 1), dtype=torch.int8)
    blocks = torch.randn(6, 8).to(torch.float8_e4m3fn)
    of_blocks = torch.rand(2, 3)
    stored = {
        "i.weight": levels,
        "i.weight_scale": scales,
        "i.weight_zero_point": zeros,
        "f.weight": blocks,
        "f.weight_scale": of_blocks,
        "f.input_scale": torch.tensor(2.0),
        "f.bias": torch.ones(6),
    }
    weights = compressed(tmp_path, stored, num_bits=8, block_structure=[4, 3])
    assert set(weights) == {"i.weight", "f.weight", "f.bias"}
    assert torch.equal(weights["i.weight"], (levels.float() - zeros.float()) * scales)
    rows, columns = torch.arange(6) // 4, torch.arange(8) // 3
    assert torch.equal(weights["f.weight"], blocks.float() * of_blocks[rows][:, columns])


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"x.weight_scale": None}, "no tensor 'x.weight_scale'"),
        ({"x.weight_shape": None}, "no tensor 'x.weight_shape'"),
        ({"x.weight_shape": torch.tensor([OUTPUTS, 7])}, "12 words do not fit 7 inputs"),
        ({"x.weight_shape": torch.tensor([1, INPUTS])}, "12 words do not fit"),
        ({"x.weight_shape": torch.tensor([OUTPUTS, -INPUTS])}, "12 words do not fit -96 inputs"),
        (
            {"x.weight_scale": torch.ones(OUTPUTS, 5), "x.weight_zero_point": None},
            "it has 5 groups for 96 inputs",
        ),
        ({"x.weight_zero_point": torch.ones(9, 3).int()}, r"its shape is \[9, 3\]"),
        ({"x.weight_g_idx": torch.full((INPUTS,), 3).int()}, "groups that are not among 3"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, tensors: dict[str, Any], says: str) -> None:
    stored = {**packed(4, zeros=True)[0], **tensors}
    present = {key: value for key, value in stored.items() if value is not None}
    with pytest.raises(ModelUnavailable, match=says):
        compressed(tmp_path, present)["x.weight"]


@pytest.mark.parametrize(
    "settings",
    [
        {"format": "nvfp4-pack-quantized"},
        {"format": None, "config_groups": {"group_0": {"format": "marlin-24"}}},
        {"format": "pack-quantized", "sparsity_config": {"format": "sparse-24-bitmask"}},
    ],
)
def test_other_formats_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ModelUnavailable, match=r"format '.*' is not known; known: dense, float-"):
        opened(tmp_path, "compressed-tensors", packed(4, zeros=False)[0], **settings)
