from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from ds4trio.errors import ModelUnavailable
from ds4trio.models.dequantize import dequantize

MATRIX = np.random.default_rng(0).standard_normal((24, 512)).astype(np.float32)

QUANTISABLE = [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]
BY_LIBRARY = [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS]


@pytest.mark.parametrize("kind", [Kind.F32, *QUANTISABLE], ids=lambda kind: kind.name)
def test_bit_equal_to_the_gguf_library(kind: Kind) -> None:
    data = gguf.quants.quantize(MATRIX, kind)
    reference = gguf.quants.dequantize(data, kind)
    ours = dequantize(data.view(np.uint8).ravel(), kind.name)
    assert ours.dtype == np.float32
    assert np.array_equal(ours.view(np.uint32), reference.view(np.uint32).ravel())


@pytest.mark.parametrize("kind", [*QUANTISABLE[2:], *BY_LIBRARY], ids=lambda kind: kind.name)
def test_any_bytes_decode_as_the_library_decodes_them(kind: Kind) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(1).integers(0, 256, (16, 3 * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        reference = gguf.quants.dequantize(data, kind)
        ours = dequantize(data.ravel(), kind.name)
    assert ours.size == 16 * 3 * block
    np.testing.assert_array_equal(ours, reference.ravel())


def test_bytes_at_an_odd_address_are_read() -> None:
    data = np.arange(9, dtype=np.uint8)
    expected = np.frombuffer(bytes(range(1, 9)), dtype="<f4")
    np.testing.assert_array_equal(dequantize(data[1:], "F32"), expected)


def test_the_result_is_new_memory() -> None:
    raw = np.zeros(8, np.uint8)
    dequantize(raw, "F32")[:] = 1.0
    assert not raw.any()


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ModelUnavailable, match="type I8 cannot be decoded"):
        dequantize(np.zeros(32, np.uint8), "I8")
