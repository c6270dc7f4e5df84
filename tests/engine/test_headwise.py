"""Products of every head with a matrix of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ds4trio.engine.headwise import make_headwise
from ds4trio.engine.linear import activation_dtype
from ds4trio.engine.native.packed import PackedFile
from ds4trio.errors import ModelUnavailable
from tests.engine.builders import CPU

# Largest error beside the largest result, and whether batch invariance has to be asked for.
DTYPES = {
    "float32": (1e-6, False),
    "w8a16": (0.01, False),
    "int8": (0.02, False),
    "bfloat16": (0.01, True),
    "float16": (0.001, True),
}
SHAPES = [(4, 24, 16), (3, 64, 32), (16, 128, 96)]
"""Heads, outputs and inputs: those of a head fill no panel, whole panels, and several groups."""


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("invariant", [False, True])
def test_each_head_is_multiplied_by_its_own_matrix(
    dtype: str, shape: tuple[int, int, int], invariant: bool
) -> None:
    """Rows and results being parts of wider ones, whose other numbers are left alone."""
    heads, outputs, inputs = shape
    weight = random(*shape)
    product = make_headwise(
        lambda: weight, heads, dtype=dtype, device=CPU, batch_invariant=invariant
    )
    kind = activation_dtype(dtype)
    rows = random(33, heads, inputs + 8)
    out = torch.full((33, heads, outputs + 5), 7.0, dtype=kind)
    product(rows.to(kind)[..., 8:], out[..., 5:])
    expected = torch.einsum("rhi,hoi->rho", rows[..., 8:], weight)
    error = (out[..., 5:].float() - expected).abs().max() / expected.abs().max()
    assert float(error) < DTYPES[dtype][0]
    assert torch.equal(out[..., :5].float(), torch.full((33, heads, 5), 7.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_and_in_a_batch(dtype: str) -> None:
    weight = random(16, 128, 96)
    product = make_headwise(
        lambda: weight, 16, dtype=dtype, device=CPU, batch_invariant=DTYPES[dtype][1]
    )
    rows = random(129, 16, 96).to(activation_dtype(dtype))
    together = rows.new_empty((129, 16, 128))
    product(rows, together)
    for first, count in ((0, 1), (77, 1), (5, 2), (0, 8), (60, 33), (100, 29)):
        alone = rows.new_empty((count, 16, 128))
        product(rows[first : first + count], alone)
        assert torch.equal(alone, together[first : first + count])


def test_the_packed_form_is_kept(tmp_path: Path) -> None:
    """The weights are not asked for a second time."""
    weight, rows = random(3, 64, 32), random(5, 3, 32)
    asked = []

    def read() -> torch.Tensor:
        asked.append(1)
        return weight

    found = []
    for _ in range(2):
        with PackedFile(tmp_path / "packed") as kept:
            product = make_headwise(read, 3, dtype="int8", device=CPU, name="k_b_proj", kept=kept)
        found.append(rows.new_empty((5, 3, 64)))
        product(rows, found[-1])
    assert asked == [1]
    assert torch.equal(*found)


def test_rounded_weights_are_refused_where_there_are_no_such_products() -> None:
    with pytest.raises(ModelUnavailable, match="int8"):
        make_headwise(lambda: random(2, 16, 32), 2, dtype="int8", device=torch.device("meta"))
