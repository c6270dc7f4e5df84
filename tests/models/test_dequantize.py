"""Every format's decoder against the gguf library's, bit for bit."""

from __future__ import annotations

import tracemalloc

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.errors import ModelUnavailable
from ds4trio.models.gguf.dequantize import CHUNK, dequantize

MATRIX = np.random.default_rng(0).standard_normal((24, 512)).astype(np.float32)

DENSE = [Kind.F32, Kind.F16, Kind.BF16]
OWN = [
    *(Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.IQ4_NL, Kind.MXFP4),
    *(Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS),
]
BY_LIBRARY = [
    *(Kind.IQ1_S, Kind.IQ1_M, Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S, Kind.IQ3_XXS, Kind.IQ3_S),
    *(Kind.TQ1_0, Kind.TQ2_0, Kind.NVFP4),
]
QUANTISABLE = [*DENSE, *OWN[:5], Kind.MXFP4]

SCALES = {
    Kind.Q4_0: (0,),
    Kind.Q4_1: (0, 2),
    Kind.Q5_0: (0,),
    Kind.Q5_1: (0, 2),
    Kind.Q8_0: (0,),
    Kind.IQ4_NL: (0,),
    Kind.Q2_K: (80, 82),
    Kind.Q3_K: (108,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
    Kind.IQ4_XS: (0,),
}
"""Where the float16 scales of a block lie."""

EDGES = [0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 1.0, -65504.0, float("inf"), float("-inf"), float("nan")]


def assert_same_bits(data: np.ndarray, kind: Kind) -> None:
    with np.errstate(all="ignore"):
        reference = gguf.quants.dequantize(data.copy(), kind).ravel()
        ours = dequantize(data.ravel(), kind.name)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours.view(np.uint32), reference.view(np.uint32))


@pytest.mark.parametrize("kind", QUANTISABLE, ids=lambda kind: kind.name)
def test_what_the_library_has_quantised(kind: Kind) -> None:
    assert_same_bits(gguf.quants.quantize(MATRIX, kind).view(np.uint8), kind)


@pytest.mark.parametrize("kind", [*DENSE, *OWN, *BY_LIBRARY], ids=lambda kind: kind.name)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 9))
def test_any_bytes(kind: Kind, seed: int, blocks: int) -> None:
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(seed).integers(0, 256, (4, blocks * size), dtype=np.uint8)
    assert_same_bits(data, kind)


@pytest.mark.parametrize("kind", SCALES, ids=lambda kind: kind.name)
def test_scales_that_are_zero_denormal_infinite_or_no_number(kind: Kind) -> None:
    _, size = gguf.GGML_QUANT_SIZES[kind]
    pairs = [(a, b) for a in EDGES for b in EDGES]
    data = np.random.default_rng(2).integers(0, 256, (len(pairs), size), dtype=np.uint8)
    for row, pair in zip(data, pairs, strict=True):
        for place, value in zip(SCALES[kind], pair, strict=False):
            row[place : place + 2] = np.array([value], "<f2").view(np.uint8)
    assert_same_bits(data, kind)


def test_every_scale_of_mxfp4() -> None:
    data = np.random.default_rng(3).integers(0, 256, (256, 17), dtype=np.uint8)
    data[:, 0] = np.arange(256)
    assert_same_bits(data, Kind.MXFP4)


@pytest.mark.parametrize("kind", [Kind.BF16, *OWN, Kind.IQ2_XXS], ids=lambda kind: kind.name)
def test_tensors_longer_than_a_chunk_are_whole_and_need_little_beside_them(kind: Kind) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    once = np.random.default_rng(4).integers(0, 64, (3, size), dtype=np.uint8)
    data = np.tile(once, (8 * CHUNK // block // 3, 1))
    dequantize(once.ravel(), kind.name)  # what the library makes once does not count
    tracemalloc.start()
    try:
        ours = dequantize(data.ravel(), kind.name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    expected = np.tile(dequantize(once.ravel(), kind.name), len(data) // 3)
    np.testing.assert_array_equal(ours.view(np.uint32), expected.view(np.uint32))
    beside = 12 if kind in BY_LIBRARY else 3
    assert peak < ours.nbytes + beside * 4 * CHUNK


def test_bytes_at_an_odd_address_are_read() -> None:
    data = np.arange(9, dtype=np.uint8)
    expected = np.frombuffer(bytes(range(1, 9)), dtype="<f4")
    np.testing.assert_array_equal(dequantize(data[1:], "F32"), expected)


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.name)
def test_blocks_at_an_odd_address_are_read(kind: Kind) -> None:
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(5).integers(0, 64, 2 * size + 1, dtype=np.uint8)
    even = dequantize(data[1:].copy(), kind.name)
    np.testing.assert_array_equal(dequantize(data[1:], kind.name), even)


def test_the_result_is_new_memory() -> None:
    raw = np.zeros(8, np.uint8)
    dequantize(raw, "F32")[:] = 1.0
    assert not raw.any()


@pytest.mark.parametrize("kind", ["I8", "I32", "Q8_K", "nonsense"])
def test_an_unknown_type_is_refused(kind: str) -> None:
    with pytest.raises(ModelUnavailable, match=f"type {kind} cannot be decoded"):
        dequantize(np.zeros(32, np.uint8), kind)
