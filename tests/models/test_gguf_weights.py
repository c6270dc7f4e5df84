"""Stacked tensors, and slices of tensors."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from ds4trio.models.gguf import weights as gguf_weights
from ds4trio.models.gguf.dequantize import dequantize
from ds4trio.models.gguf.header import read_header
from ds4trio.models.gguf.weights import GgufWeights

EXPERTS = np.random.default_rng(3).standard_normal((5, 6, 64)).astype(np.float32)
NAME = "blk.0.ffn_gate_exps.weight"


@pytest.fixture
def stacked(tmp_path: Path) -> GgufWeights:
    """Experts in one tensor, and a vector, in a file of their own."""
    path = tmp_path / "experts.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    data = gguf.quants.quantize(EXPERTS, Kind.Q4_1)
    writer.add_tensor(NAME, data, raw_dtype=Kind.Q4_1)
    vector = gguf.quants.quantize(EXPERTS[0, 0], Kind.Q8_0)
    writer.add_tensor("blk.0.vector.weight", vector, raw_dtype=Kind.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufWeights([path], read_header(path).tensors)


def reference(kind: Kind = Kind.Q4_1) -> torch.Tensor:
    values = gguf.quants.dequantize(gguf.quants.quantize(EXPERTS, kind), kind)
    return torch.from_numpy(values)


def test_a_stack_of_experts_reads_outermost_first(stacked: GgufWeights) -> None:
    assert stacked.shapes[NAME] == (5, 6, 64)
    assert torch.equal(stacked[NAME], reference())


def test_a_part_is_that_slice_and_only_it_is_decoded(
    stacked: GgufWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def counting(raw: np.ndarray, kind: str) -> np.ndarray:
        sizes.append(raw.size)
        return dequantize(raw, kind)

    monkeypatch.setattr(gguf_weights, "dequantize", counting)
    for index in (3, 0, 4):
        assert torch.equal(stacked.part(NAME, index), reference()[index])
    assert sizes == [6 * 64 // 32 * 20] * 3


def test_a_part_of_a_vector_is_a_number(stacked: GgufWeights) -> None:
    vector = stacked["blk.0.vector.weight"]
    assert torch.equal(stacked.part("blk.0.vector.weight", 33), vector[33])


@pytest.mark.parametrize("index", [-1, 5])
def test_a_part_that_is_not_there(stacked: GgufWeights, index: int) -> None:
    with pytest.raises(IndexError, match="no part"):
        stacked.part(NAME, index)
    with pytest.raises(KeyError):
        stacked.part("absent.weight", 0)
