from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from ds4trio.errors import ModelUnavailable
from tests.models.checkpoints.packing import opened

EXPERTS, OUTPUTS, GROUPS = 3, 5, 2
NAME = "model.layers.0.mlp.experts.gate_up_proj"
VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def checkpoint() -> dict[str, torch.Tensor]:
    random = np.random.default_rng(13)
    blocks = random.integers(0, 256, (EXPERTS, OUTPUTS, GROUPS, 16), dtype=np.uint8)
    scales = random.integers(100, 150, (EXPERTS, OUTPUTS, GROUPS), dtype=np.uint8)
    scales.flat[:4] = (0, 1, 251, 252)
    return {
        f"{NAME}_blocks": torch.from_numpy(blocks),
        f"{NAME}_scales": torch.from_numpy(scales),
        f"{NAME}_bias": torch.randn(EXPERTS, OUTPUTS).bfloat16(),
        "model.layers.0.self_attn.q_proj.weight": torch.randn(4, 4).bfloat16(),
    }


def test_values_by_definition(tmp_path: Path) -> None:
    stored = checkpoint()
    weights = opened(tmp_path, "mxfp4", stored, modules_to_not_convert=["self_attn"])
    assert set(weights) == {NAME, f"{NAME}_bias", "model.layers.0.self_attn.q_proj.weight"}
    assert weights.shapes[NAME] == (EXPERTS, GROUPS * 32, OUTPUTS)
    weight = weights[NAME]
    blocks, scales = stored[f"{NAME}_blocks"], stored[f"{NAME}_scales"]
    for expert in range(EXPERTS):
        assert torch.equal(weights.part(NAME, expert), weight[expert])
        for output in range(OUTPUTS):
            for place in range(GROUPS * 32):
                byte = int(blocks[expert, output, place // 32, place % 32 // 2])
                code = byte >> 4 if place % 2 else byte & 15
                value = VALUES[code & 7] * (-1 if code & 8 else 1)
                exponent = int(scales[expert, output, place // 32]) - 127
                assert weight[expert, place, output] == value * 2.0**exponent


def test_bit_for_bit_as_transformers_converts_them(tmp_path: Path) -> None:
    stored = checkpoint()
    stored[f"{NAME}_scales"][2, 3] = torch.tensor([253, 254], dtype=torch.uint8)
    theirs = convert_moe_packed_tensors(stored[f"{NAME}_blocks"], stored[f"{NAME}_scales"])
    ours = opened(tmp_path, "mxfp4", stored)[NAME]
    assert theirs.dtype == torch.bfloat16
    bits = [tensor.contiguous().view(torch.int32) for tensor in (ours, theirs.float())]
    assert torch.equal(*bits)


def test_a_scale_that_is_no_number_gives_none(tmp_path: Path) -> None:
    stored = checkpoint()
    stored[f"{NAME}_scales"][1, 2, 1] = 255
    weight = opened(tmp_path, "mxfp4", stored)[NAME]
    assert weight[1, 32:, 2].isnan().all()
    assert int(weight.isnan().sum()) == 32


def test_experts_longer_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = opened(tmp_path, "mxfp4", checkpoint())[NAME]
    monkeypatch.setattr("ds4trio.models.checkpoints.mxfp4.CHUNK", 2 * GROUPS * 32)
    assert torch.equal(opened(tmp_path, "mxfp4", checkpoint())[NAME], whole)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({f"{NAME}_scales": None}, "no tensor '.*_scales'"),
        ({f"{NAME}_scales": torch.zeros(3, 5, 3, dtype=torch.uint8)}, r"is \[3, 5, 3\] and not"),
        (
            {f"{NAME}_blocks": torch.zeros(3, 5, 2, 8, dtype=torch.uint8)},
            r"not \[any, any, any, 16",
        ),
        ({f"{NAME}_blocks": torch.zeros(3, 5, 2, 16)}, "has type F32; known: U8"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, tensors: dict[str, Any], says: str) -> None:
    present = {
        key: value for key, value in {**checkpoint(), **tensors}.items() if value is not None
    }
    with pytest.raises(ModelUnavailable, match=says):
        opened(tmp_path, "mxfp4", present)
