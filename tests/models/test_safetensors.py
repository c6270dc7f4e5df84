"""Reading tensors from safetensors files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ds4trio.errors import ModelUnavailable
from ds4trio.models.safetensors import SafetensorsWeights

TENSORS = {
    "f64": torch.randn(3, dtype=torch.float64),
    "f32": torch.randn(2, 3),
    "f16": torch.randn(2, 3).half(),
    "bf16": torch.randn(5, 2).bfloat16(),
    "e4m3": torch.randn(4, 4).to(torch.float8_e4m3fn),
    "e5m2": torch.randn(4, 4).to(torch.float8_e5m2),
    "e8m0": torch.tensor([0.5, 1.0, 2.0]).to(torch.float8_e8m0fnu),
    "i8": torch.arange(-3, 4, dtype=torch.int8),
    "u8": torch.arange(7, dtype=torch.uint8),
    "i32": torch.arange(6, dtype=torch.int32).view(3, 2),
    "i64": torch.tensor([2**40, -1]),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
}


def write_raw(path: Path, entries: dict[str, Any], data: bytes) -> None:
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture
def weights(tmp_path: Path) -> SafetensorsWeights:
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return SafetensorsWeights(tmp_path)


def test_every_type_is_read_as_it_was_written(weights: SafetensorsWeights) -> None:
    assert set(weights) == set(TENSORS)
    assert len(weights) == len(TENSORS)
    for name, tensor in TENSORS.items():
        assert weights.shapes[name] == tensor.shape
        assert weights[name].dtype == tensor.dtype
        assert weights[name].shape == tensor.shape
        assert bits(weights[name]) == bits(tensor), name


def test_parts_are_slices_along_the_first_dimension(weights: SafetensorsWeights) -> None:
    for name, tensor in TENSORS.items():
        for index in range(tensor.shape[0] if tensor.ndim else 0):
            part = weights.part(name, index)
            assert part.shape == tensor[index].shape
            assert bits(part) == bits(tensor[index]), name
    for name, index in (("f32", 2), ("f32", -1), ("scalar", 0), ("empty", 0)):
        with pytest.raises(IndexError):
            weights.part(name, index)


def test_integers_for_numpy(weights: SafetensorsWeights) -> None:
    for name in ("i8", "u8", "i32", "i64"):
        np.testing.assert_array_equal(weights.integers(name), TENSORS[name].numpy())
    with pytest.raises(ModelUnavailable, match="'f16' has type F16; known: I8"):
        weights.integers("f16")


def test_writing_to_a_tensor_changes_neither_the_file_nor_the_next_one(
    weights: SafetensorsWeights, tmp_path: Path
) -> None:
    before = (tmp_path / "model.safetensors").read_bytes()
    weights["f32"].zero_()
    assert torch.equal(weights["f32"], TENSORS["f32"])
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_tensor_at_an_odd_address_is_read(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0], "<f4")
    entries = {
        "odd": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "x": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    write_raw(tmp_path / "model.safetensors", entries, b"\0" + values.tobytes())
    assert SafetensorsWeights(tmp_path)["x"].tolist() == [1.5, -2.0]


@pytest.mark.skipif(sys.platform == "win32", reason="holes in files are asked for there")
def test_one_access_reads_one_tensor_however_large_the_file(tmp_path: Path) -> None:
    # A hole of a terabyte: reading it, or reserving memory for it, would fail.
    hole = 1 << 40
    path = tmp_path / "model.safetensors"
    entries = {
        "huge": {"dtype": "F32", "shape": [1 << 28, 1 << 10], "data_offsets": [0, hole]},
        "small": {"dtype": "F32", "shape": [2], "data_offsets": [hole, hole + 8]},
    }
    write_raw(path, entries, b"")
    try:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size + hole)
            file.write(np.array([1.0, 2.0], "<f4").tobytes())
    except OSError:
        pytest.skip("this file system has no files of that size")
    weights = SafetensorsWeights(tmp_path)
    assert weights["small"].tolist() == [1.0, 2.0]
    assert not weights.part("huge", 12345).any()


def test_a_type_that_is_not_known_is_refused_when_it_is_read(tmp_path: Path) -> None:
    entries = {
        "b": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]},
        "x": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]},
    }
    write_raw(tmp_path / "model.safetensors", entries, b"\1\2")
    weights = SafetensorsWeights(tmp_path)
    assert weights["x"].tolist() == [2]
    with pytest.raises(ModelUnavailable, match="'b' has type BOOL; known: F64"):
        weights["b"]
    with pytest.raises(ModelUnavailable, match="'x' has type U8; known: F64, F32, F16, BF16"):
        weights.keep(["x"])


def test_a_file_that_shrank_is_named(weights: SafetensorsWeights, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(ModelUnavailable, match=r"model\.safetensors cannot be read"):
        [weights[name] for name in weights]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_bytes_never_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    path = folder / "model.safetensors"
    save_file(TENSORS, path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, 900))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(len(content) - 40, len(content)))])
    try:
        weights = SafetensorsWeights(folder)
        for name in weights:
            weights[name]
    except ModelUnavailable as error:
        assert str(path) in str(error)  # noqa: PT017  (it may as well be read)
