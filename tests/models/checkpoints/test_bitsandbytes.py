from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ds4trio.errors import ModelUnavailable
from tests.models.checkpoints.make_data import DATA, digest
from tests.models.checkpoints.packing import opened

FILE = DATA / "bitsandbytes.safetensors"
SHAPES = {"nf4": (6, 64), "fp4": (6, 64), "double": (320, 64), "odd": (5, 63), "int8": (7, 48)}
STATE = "x.weight.quant_state.bitsandbytes__nf4"


@pytest.fixture
def stored() -> dict[str, torch.Tensor]:
    """What the library itself has quantised."""
    return load_file(FILE)


@pytest.mark.parametrize("name", SHAPES)
def test_bit_for_bit_as_the_library_makes_them(
    tmp_path: Path, stored: dict[str, torch.Tensor], name: str
) -> None:
    weights = opened(tmp_path, "bitsandbytes", stored)
    assert dict(weights.shapes) == {f"{key}.weight": shape for key, shape in SHAPES.items()}
    with safe_open(FILE, framework="pt") as file:
        expected = file.metadata()[name]
    weight = weights[f"{name}.weight"]
    assert weight.shape == SHAPES[name]
    assert digest(weight) == expected
    assert torch.equal(weights.part(f"{name}.weight", 4), weight[4])


@pytest.mark.parametrize("count", [1, 3])
def test_blocks_in_many_chunks(
    tmp_path: Path,
    stored: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    whole = {name: opened(tmp_path, "bitsandbytes", stored)[f"{name}.weight"] for name in SHAPES}
    monkeypatch.setattr("ds4trio.models.checkpoints.bitsandbytes.CHUNK", count * 64)
    again = opened(tmp_path, "bitsandbytes", stored)
    assert all(torch.equal(again[f"{name}.weight"], weight) for name, weight in whole.items())


def test_levels_may_be_stored_as_another_type(
    tmp_path: Path, stored: dict[str, torch.Tensor]
) -> None:
    weight = opened(tmp_path, "bitsandbytes", stored)["nf4.weight"]
    stored["nf4.weight"] = stored["nf4.weight"].view(1, -1).view(torch.bfloat16)
    assert torch.equal(opened(tmp_path, "bitsandbytes", stored)["nf4.weight"], weight)


def four_bits(**state: Any) -> dict[str, torch.Tensor]:
    """A weight [2, 6] in blocks of 4, of the levels 0 to 11."""
    says = {"shape": [2, 6], "blocksize": 4, "quant_type": "nf4", "dtype": "float16", **state}
    packed = [(level << 4) | (level + 1) for level in range(0, 12, 2)]
    return {
        "x.weight": torch.tensor(packed, dtype=torch.uint8)[:, None],
        "x.weight.quant_map": torch.linspace(-1, 1, 16),
        "x.weight.absmax": torch.tensor([1.0, 2.0, 3.0]),
        STATE: torch.tensor(list(json.dumps(says).encode()), dtype=torch.uint8),
    }


def test_values_by_definition(tmp_path: Path) -> None:
    stored = four_bits()
    levels = [
        level * factor
        for level, factor in zip(
            stored["x.weight.quant_map"][:12], [1.0] * 4 + [2.0] * 4 + [3.0] * 4, strict=True
        )
    ]
    weight = opened(tmp_path, "bitsandbytes", stored)["x.weight"]
    assert torch.equal(weight, torch.stack(levels).view(2, 6))


@pytest.mark.parametrize(
    ("state", "tensors", "says"),
    [
        ({}, {"x.weight.absmax": None}, r"no tensor 'x\.weight\.absmax'"),
        ({}, {"x.weight.quant_map": torch.ones(15)}, r"quant_map': its shape is \[15\]"),
        ({}, {"x.weight.absmax": torch.ones(4)}, r"absmax': its shape is \[4\] and not \[3\]"),
        ({}, {"x.weight": torch.zeros(5, 1).byte()}, "has 5 bytes for 12 weights"),
        ({}, {STATE: torch.zeros(5).byte()}, "nf4': it cannot be read"),
        ({"shape": []}, {}, "it cannot be read"),
        ({"shape": [2**40, 2**40]}, {}, "absmax': its shape is"),
        ({"shape": [-2, -6]}, {}, "its sizes cannot be"),
        ({"blocksize": 0}, {}, "its sizes cannot be"),
        ({"blocksize": 3}, {}, "its sizes cannot be"),
        ({"blocksize": 2**40}, {}, "its sizes cannot be"),
        ({"nested_blocksize": 2**40}, {}, "its sizes cannot be"),
        ({}, {"x.weight.absmax": torch.zeros(3).byte()}, "no tensor .*nested_quant_map"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, state: dict[str, Any], tensors: dict[str, Any], says: str
) -> None:
    stored = {**four_bits(**state), **tensors}
    present = {key: value for key, value in stored.items() if value is not None}
    with pytest.raises(ModelUnavailable, match=says):
        opened(tmp_path, "bitsandbytes", present)["x.weight"]


def test_nested_factors_need_their_sizes(tmp_path: Path) -> None:
    stored = four_bits() | {
        "x.weight.absmax": torch.zeros(3).byte(),
        "x.weight.nested_quant_map": torch.zeros(256),
        "x.weight.nested_absmax": torch.zeros(1),
    }
    with pytest.raises(ModelUnavailable, match="has no nested_blocksize"):
        opened(tmp_path, "bitsandbytes", stored)
