from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ds4trio.errors import ModelUnavailable
from tests.models.checkpoints.packing import opened, pack_along

OUTPUTS, INPUTS, GROUP = 64, 96, 32
RANDOM = np.random.default_rng(11)


def checkpoint(
    bits: int, *, less: int = 1, order: np.ndarray | None = None, group: int = GROUP
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Stored tensors, and the weight that they mean by the format's definition."""
    groups = -(-INPUTS // group)
    levels = RANDOM.integers(0, 1 << bits, (INPUTS, OUTPUTS))
    zeros = RANDOM.integers(0, 1 << bits, (groups, OUTPUTS))
    scales = torch.from_numpy(RANDOM.standard_normal((groups, OUTPUTS))).half()
    of_input = np.arange(INPUTS) // group if order is None else order
    weight = torch.empty(OUTPUTS, INPUTS)
    for row in range(INPUTS):
        of = of_input[row]
        weight[:, row] = scales[of].float() * torch.from_numpy(levels[row] - zeros[of]).float()
    stored = {
        "x.qweight": pack_along(levels, bits, 0),
        "x.qzeros": pack_along((zeros - less) % (1 << bits), bits, 1),
        "x.scales": scales,
        "x.g_idx": torch.from_numpy(of_input).int(),
        "x.bias": torch.randn(OUTPUTS).half(),
    }
    return stored, weight


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("form", "less"), [(None, 1), ("gptq", 1), ("gptq_v2", 0)])
def test_levels_zeros_and_scales(tmp_path: Path, bits: int, form: str | None, less: int) -> None:
    stored, weight = checkpoint(bits, less=less)
    weights = opened(tmp_path, "gptq", stored, bits=bits, group_size=GROUP, checkpoint_format=form)
    assert dict(weights.shapes) == {"x.weight": (OUTPUTS, INPUTS), "x.bias": (OUTPUTS,)}
    assert weights["x.weight"].dtype == torch.float32
    assert torch.equal(weights["x.weight"], weight)
    assert torch.equal(weights.part("x.weight", 5), weight[5])
    assert torch.equal(weights["x.bias"], stored["x.bias"])


@pytest.mark.parametrize("bits", [3, 4])
def test_inputs_in_the_order_of_their_activations(tmp_path: Path, bits: int) -> None:
    order = RANDOM.permutation(np.arange(INPUTS) // GROUP)
    stored, weight = checkpoint(bits, order=order)
    weights = opened(tmp_path, "gptq", stored, bits=bits, group_size=GROUP, desc_act=True)
    assert torch.equal(weights["x.weight"], weight)


@pytest.mark.parametrize(("size", "group"), [(-1, INPUTS), (None, INPUTS), (48, 48), (40, 40)])
def test_groups_of_other_sizes(tmp_path: Path, size: int | None, group: int) -> None:
    stored, weight = checkpoint(4, group=group)
    assert torch.equal(
        opened(tmp_path, "gptq", stored, bits=4, group_size=size)["x.weight"], weight
    )
    del stored["x.g_idx"]
    assert torch.equal(
        opened(tmp_path, "gptq", stored, bits=4, group_size=size)["x.weight"], weight
    )


def test_a_product_with_other_bits_than_the_rest(tmp_path: Path) -> None:
    stored, weight = checkpoint(8)
    assert torch.equal(opened(tmp_path, "gptq", stored, bits=4, group_size=32)["x.weight"], weight)


def test_weights_longer_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds4trio.models.checkpoints.gptq.CHUNK", 5 * INPUTS)
    stored, weight = checkpoint(4)
    assert torch.equal(opened(tmp_path, "gptq", stored, bits=4, group_size=32)["x.weight"], weight)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    stored, _ = checkpoint(4)

    def refused(says: str, settings: Mapping[str, Any] | None = None, **tensors: Any) -> None:
        changed = {**stored, **{f"x.{name}": value for name, value in tensors.items()}}
        present = {name: value for name, value in changed.items() if value is not None}
        chosen = {"bits": 4, "group_size": GROUP, **(settings or {})}
        with pytest.raises(ModelUnavailable, match=says):
            opened(tmp_path, "gptq", present, **chosen)["x.weight"]

    refused("no tensor 'x.scales'", scales=None)
    refused("no tensor 'x.qzeros'", qzeros=None)
    refused("'x.scales': its shape is", scales=stored["x.scales"][:, :8].contiguous())
    refused("'x.qzeros': its shape is", qzeros=stored["x.qzeros"][:2].contiguous())
    refused("no matrix of 5 bits", {"bits": 5}, g_idx=None)
    refused("no matrix of 0 bits", {"bits": 0}, g_idx=None)
    refused("no matrix of", qweight=torch.zeros(0, OUTPUTS, dtype=torch.int32), g_idx=None)
    refused("has 3 groups for 96 inputs", {"group_size": 16}, g_idx=None)
    refused("names groups that are not among 3", g_idx=torch.full((INPUTS,), 3, dtype=torch.int32))
    refused("names groups that are not", g_idx=torch.full((INPUTS,), -1, dtype=torch.int32))
    refused("has type F32; known: I32", qzeros=stored["x.qzeros"].float())
    refused("bits is 'four'", {"bits": "four"})
    refused("'marlin' is not known; known: gptq, gptq_v2", {"checkpoint_format": "marlin"})
    refused("'marlin' is not known; known: gptq, gptq_v2", {"is_marlin_format": True})
