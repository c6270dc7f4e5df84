from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.errors import ModelUnavailable
from ds4trio.models.gguf.header import read_header
from tests.models.gguf_files import write_gguf


@pytest.fixture(scope="module")
def file(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(
        tmp_path_factory.mktemp("gguf") / "tiny.gguf",
        tiny_model,
        kind=gguf.GGMLQuantizationType.Q4_1,
    )


def test_reads_what_the_gguf_library_reads(file: Path) -> None:
    theirs = gguf.GGUFReader(file)
    ours = read_header(file)
    assert ours.metadata == {
        key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")
    }
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.kind == tensor.tensor_type.name
        assert info.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert (info.offset, info.size) == (tensor.data_offset, tensor.n_bytes)


def test_every_scalar_type_and_arrays_of_them(tmp_path: Path) -> None:
    path = tmp_path / "types.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_int8("i8", -5)
    writer.add_uint16("u16", 65535)
    writer.add_int64("i64", -(2**40))
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_array("floats", [0.5, 1.5])
    writer.add_array("flags", [True, False])
    writer.add_array("words", ["", "ü", "🎉"])
    writer.add_tensor("x", np.zeros((2, 3), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(path)
    assert header.metadata == {
        "general.architecture": "llama",
        "i8": -5,
        "u16": 65535,
        "i64": -(2**40),
        "f64": 0.1,
        "yes": True,
        "floats": [0.5, 1.5],
        "flags": [True, False],
        "words": ["", "ü", "🎉"],
    }
    assert header.tensors["x"].shape == (2, 3)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_file_cut_anywhere_is_refused(file: Path, data: st.DataObject) -> None:
    content = file.read_bytes()
    length = data.draw(st.integers(0, len(content) - 1))
    cut = file.with_name("cut.gguf")
    cut.write_bytes(content[:length])
    with pytest.raises(ModelUnavailable):
        read_header(cut)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_never_crash(file: Path, data: st.DataObject) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(4, 12_000))
        content[place] = data.draw(st.integers(0, 255))
    damaged = file.with_name("damaged.gguf")
    damaged.write_bytes(content)
    try:
        header = read_header(damaged)
    except ModelUnavailable as error:
        assert "\n" not in str(error)  # noqa: PT017  (it may as well be read)
    else:
        assert all(info.offset + info.size <= len(content) for info in header.tensors.values())


def test_other_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        read_header(other)
    other.write_bytes(b"")
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        read_header(other)
    other.write_bytes(b"GUFG" * 10)
    with pytest.raises(ModelUnavailable, match="magic"):
        read_header(other)
    other.write_bytes(b"GGUF" + (3).to_bytes(4, "big") + bytes(16))
    with pytest.raises(ModelUnavailable, match="big-endian"):
        read_header(other)
    other.write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(16))
    with pytest.raises(ModelUnavailable, match="version 1"):
        read_header(other)


def test_arrays_nested_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nested.gguf"
    key = (1).to_bytes(8, "little") + b"k"
    level = (9).to_bytes(4, "little") + (1).to_bytes(8, "little")
    counts = bytes(8) + (1).to_bytes(8, "little")
    content = b"GGUF" + (3).to_bytes(4, "little") + counts + key + (9).to_bytes(4, "little")
    path.write_bytes(content + level * 50_000)
    with pytest.raises(ModelUnavailable, match="nested too deeply"):
        read_header(path)
