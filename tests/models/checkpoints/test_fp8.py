from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from ds4trio.errors import ModelUnavailable
from tests.models.checkpoints.packing import opened

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu


def spread(scales: torch.Tensor, block: tuple[int, int], shape: tuple[int, ...]) -> torch.Tensor:
    """One scale for each block -> one for each weight."""
    rows = [scales[row // block[0]] for row in range(shape[0])]
    return torch.stack([torch.stack([row[i // block[1]] for i in range(shape[1])]) for row in rows])


@pytest.mark.parametrize("shape", [(256, 384), (130, 200), (1, 128), (129, 64)])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_a_scale_for_each_block(tmp_path: Path, shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = (torch.randn(shape) * 100).to(dtype)
    scales = torch.rand(-(-shape[0] // 128), -(-shape[1] // 128)) + 0.1
    stored = {"x.weight": weight, "x.weight_scale_inv": scales, "norm.weight": torch.ones(4)}
    weights = opened(tmp_path, "fp8", stored, weight_block_size=[128, 128])
    assert dict(weights.shapes) == {"x.weight": shape, "norm.weight": (4,)}
    expected = weight.float() * spread(scales, (128, 128), shape)
    assert torch.equal(weights["x.weight"], expected)


def test_as_transformers_makes_them(tmp_path: Path) -> None:
    weight, scales = torch.randn(256, 384).to(E4M3), torch.rand(2, 3) + 0.1
    stored = {"x.weight": weight, "x.weight_scale_inv": scales}
    ours = opened(tmp_path, "fp8", stored, weight_block_size=[128, 128])["x.weight"]
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scales)  # type: ignore[no-untyped-call]
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, E8M0, torch.uint8])
def test_scales_of_other_types(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = torch.randn(8, 8).to(E4M3)
    powers = torch.tensor([[0.5, 2.0], [1.0, 2.0**-127]])
    exponents = torch.tensor([[126, 128], [127, 0]], dtype=torch.uint8)
    scales = exponents if dtype == torch.uint8 else powers.to(dtype)
    stored = {"x.weight": weight, "x.weight_scale_inv": scales}
    ours = opened(tmp_path, "fp8", stored, weight_block_size=[4, 4])["x.weight"]
    assert torch.equal(ours, weight.float() * spread(powers, (4, 4), (8, 8)))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (6,), (6, 1)])
@pytest.mark.parametrize("method", ["fp8", "fbgemm_fp8"])
@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_one_scale_for_all_or_for_each_output(
    tmp_path: Path, shape: tuple[int, ...], method: str, name: str
) -> None:
    weight = torch.randn(6, 10).to(E4M3)
    scales = torch.rand(shape)
    stored = {
        "x.weight": weight,
        f"x.{name}": scales,
        "x.input_scale": torch.tensor(3.0),
        "x.activation_scale": torch.tensor(3.0),
        "k_proj.k_scale": torch.tensor(3.0),
    }
    weights = opened(tmp_path, method, stored, weight_block_size=None)
    assert list(weights) == ["x.weight"]
    assert torch.equal(weights["x.weight"], weight.float() * scales.reshape(-1, 1))


@pytest.mark.parametrize("shape", [(3, 2, 2), (3, 1, 1), (3, 5, 1), (3, 5)])
def test_stacks_of_experts(tmp_path: Path, shape: tuple[int, ...]) -> None:
    weight = torch.randn(3, 5, 8).to(E4M3)
    scales = torch.rand(shape)
    stored = {"experts.up": weight, "experts.up_scale_inv": scales}
    weights = opened(tmp_path, "fp8", stored, weight_block_size=[4, 4])
    for index in range(3):
        block = {2: (4, 4), 1: (5, 8), 5: (1, 8)}[shape[1]]
        grid = scales[index].reshape(len(scales[index]), -1)
        expected = weight[index].float() * spread(grid, block, (5, 8))
        assert torch.equal(weights["experts.up"][index], expected)
        assert torch.equal(weights.part("experts.up", index), expected)


def test_weights_longer_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds4trio.models.checkpoints.grid.CHUNK", 7 * 64)
    weight, scales = torch.randn(50, 64).to(E4M3), torch.rand(4, 4)
    stored = {"x.weight": weight, "x.weight_scale_inv": scales}
    ours = opened(tmp_path, "fp8", stored, weight_block_size=[16, 16])["x.weight"]
    assert torch.equal(ours, weight.float() * spread(scales, (16, 16), (50, 64)))


@pytest.mark.parametrize(
    ("tensors", "block", "says"),
    [
        ({"x.weight_scale_inv": None}, [4, 4], r"no tensor 'x\.weight_scale_inv'"),
        (
            {"x.weight_scale_inv": torch.ones(3, 2)},
            [4, 4],
            r"\[3, 2\] scales do not fit .*\[8, 8\]",
        ),
        ({"x.weight_scale_inv": torch.ones(3, 2)}, None, r"\[3, 2\] scales do not fit .*\[8, 8\]"),
        ({"x.weight_scale_inv": torch.ones(2, 2, 2)}, [4, 4], "scales do not fit"),
        ({"x.weight_scale_inv": torch.ones(0)}, [4, 4], "scales do not fit"),
        ({"x.weight_scale_inv": torch.ones(2, 2).int()}, [4, 4], "has type I32; known: F32"),
        ({"x.weight": torch.zeros(8).to(E4M3)}, [4, 4], r"its shape is \[8\]"),
        ({}, "4", "weight_block_size is '4'"),
        ({}, [4], "weight_block_size is"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, tensors: dict[str, Any], block: Any, says: str
) -> None:
    stored = {"x.weight": torch.randn(8, 8).to(E4M3), "x.weight_scale_inv": torch.ones(2, 2)}
    present = {key: value for key, value in {**stored, **tensors}.items() if value is not None}
    with pytest.raises(ModelUnavailable, match=says):
        opened(tmp_path, "fp8", present, weight_block_size=block)
