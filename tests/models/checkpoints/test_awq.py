from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ds4trio.errors import ModelUnavailable
from tests.models.checkpoints.packing import opened, pack

OUTPUTS, INPUTS, GROUP = 40, 96, 32
RANDOM = np.random.default_rng(12)
PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Where in its word each of eight outputs lies: the even ones first."""


def interleaved(matrix: np.ndarray) -> torch.Tensor:
    """[n, outputs] -> int32 [n, outputs / 8]."""
    rows: list[list[int]] = []
    for line in matrix:
        words: list[int] = []
        for begin in range(0, len(line), 8):
            word = [0] * 8
            for output, place in enumerate(PLACES):
                word[place] = int(line[begin + output])
            words += pack(word, 4)
        rows.append(words)
    return torch.tensor(rows, dtype=torch.int32)


def checkpoint(group: int = GROUP) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    groups = INPUTS // group
    levels = RANDOM.integers(0, 16, (INPUTS, OUTPUTS))
    zeros = RANDOM.integers(0, 16, (groups, OUTPUTS))
    scales = torch.from_numpy(RANDOM.standard_normal((groups, OUTPUTS))).half()
    weight = torch.empty(OUTPUTS, INPUTS)
    for row in range(INPUTS):
        of = row // group
        weight[:, row] = scales[of].float() * torch.from_numpy(levels[row] - zeros[of]).float()
    stored = {
        "x.qweight": interleaved(levels),
        "x.qzeros": interleaved(zeros),
        "x.scales": scales,
        "norm.weight": torch.ones(3).half(),
    }
    return stored, weight


@pytest.mark.parametrize("group", [GROUP, 48, INPUTS])
@pytest.mark.parametrize("version", ["gemm", "GEMM", None])
def test_levels_zeros_and_scales(tmp_path: Path, group: int, version: str | None) -> None:
    stored, weight = checkpoint(group)
    weights = opened(
        tmp_path, "awq", stored, bits=4, group_size=group, version=version, zero_point=True
    )
    assert dict(weights.shapes) == {"x.weight": (OUTPUTS, INPUTS), "norm.weight": (3,)}
    assert torch.equal(weights["x.weight"], weight)
    assert torch.equal(weights.part("x.weight", 39), weight[39])


def test_the_public_unpacking_order_is_the_inverse(tmp_path: Path) -> None:
    # As published: taken apart from the lowest bits on, levels are reordered by 0 4 1 5 2 6 3 7.
    stored, weight = checkpoint()
    words = stored["x.qweight"][:, :1]
    flat = torch.cat([(words >> (4 * place)) & 15 for place in range(8)], dim=1)
    levels = flat[:, [0, 4, 1, 5, 2, 6, 3, 7]]
    zero = stored["x.qzeros"][:, :1]
    zeros = torch.cat([(zero >> (4 * place)) & 15 for place in range(8)], dim=1)[:, PLACES]
    spread = (levels - zeros.repeat_interleave(GROUP, 0)).float()
    expected = spread * stored["x.scales"][:, :8].float().repeat_interleave(GROUP, 0)
    assert torch.equal(expected.T, weight[:8])
    assert torch.equal(opened(tmp_path, "awq", stored)["x.weight"][:8], expected.T)


def test_weights_longer_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds4trio.models.checkpoints.awq.CHUNK", 16 * INPUTS)
    stored, weight = checkpoint()
    assert torch.equal(opened(tmp_path, "awq", stored)["x.weight"], weight)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    stored, _ = checkpoint()
    for key, value, says in (
        ("version", "gemv", "AWQ version 'gemv' is not known; known: gemm"),
        ("bits", 3, "AWQ with 3 bits is not known; known: 4"),
    ):
        with pytest.raises(ModelUnavailable, match=says):
            opened(tmp_path, "awq", stored, **{key: value})
    for name, tensor, says in (
        ("x.scales", stored["x.scales"][:, :8].contiguous(), r"'x\.scales': its shape is"),
        ("x.qzeros", stored["x.qzeros"][:1].contiguous(), r"'x\.qzeros': its shape is"),
        ("x.qweight", stored["x.qweight"][:95].contiguous(), "3 groups for 95 inputs"),
        ("x.qweight", stored["x.qweight"].float(), "has type F32; known: I32"),
    ):
        with pytest.raises(ModelUnavailable, match=says):
            opened(tmp_path, "awq", {**stored, name: tensor})
