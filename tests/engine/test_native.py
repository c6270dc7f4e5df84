"""The CPU's own products: what they round, and what they do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ds4trio.engine.linear import make_gated, make_linear
from ds4trio.engine.native import packed as packing
from ds4trio.engine.native.attention import (
    attend,
    attend_units,
    prepare,
    store,
    store_rows,
)
from ds4trio.engine.native.grid import bytes_of, levels_of
from ds4trio.engine.native.groups import FORM, GROUP, Form, forms, pack_groups
from ds4trio.engine.native.linear import NativeLinear
from ds4trio.engine.native.packed import pack_weight
from ds4trio.engine.native.products import (
    EIGHT_BITS,
    FOUR_BITS,
    STORE,
    WIDENED,
    make_multiply_groups,
    multiply,
    multiply_panels,
    read_rows,
)
from ds4trio.engine.norm import RMSNorm
from tests.engine.builders import CPU

needs_bytes = pytest.mark.skipif(
    FORM is None or not FORM.dots, reason="this processor has no sums of products of bytes"
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def on_grid(outputs: int, inputs: int, kind: str) -> torch.Tensor:
    """Weights as a four-bit file would have them."""
    generator = torch.Generator().manual_seed(1)
    shape = (outputs, inputs // GROUP)
    levels = torch.randint(0, 16, (*shape, GROUP), generator=generator).float()
    scales = (torch.rand(shape, generator=generator) / 8 + 0.02).half().float()
    if kind == "Q4_0":  # symmetric: a level of 8 is zero, and one end need not be reached
        levels.clamp_(0, 12)
        levels[..., 0] = 0
        return (scales[..., None] * (levels - 8)).view(outputs, inputs)
    levels[..., 0], levels[..., 1] = 0, 15
    leasts = -torch.rand(shape, generator=generator).half().float()
    if kind == "Q4_K":  # a product of two scales, exact in no float16
        scales, leasts = scales * 0.739, leasts * 0.417
    return (scales[..., None] * levels + leasts[..., None]).view(outputs, inputs)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_weights_on_a_grid_of_sixteen_levels_lose_nothing(kind: str) -> None:
    weight = on_grid(40, 96, kind)
    found = levels_of(weight)
    assert found is not None
    levels, scales, leasts = found
    again = scales.repeat_interleave(GROUP, 1) * levels + leasts.repeat_interleave(GROUP, 1)
    tolerance = 0.02 if kind == "Q4_K" else 1e-5
    assert bool(((again - weight).abs() <= tolerance * scales.repeat_interleave(GROUP, 1)).all())


def test_a_constant_group_and_zeros_are_on_the_grid() -> None:
    weight = torch.cat((torch.zeros(4, 32), torch.full((4, 32), 0.5)))
    found = levels_of(weight)
    assert found is not None
    assert not found[0].any()
    assert torch.equal(found[2].flatten(), torch.tensor([0.0] * 4 + [0.5] * 4))


def test_other_weights_are_on_no_grid() -> None:
    assert levels_of(random(64, 64)) is None
    assert levels_of(on_grid(16, 96, "Q4_1")[:, :80]) is None
    spoiled = on_grid(8192, 64, "Q4_1")
    spoiled[5001, 3] += 0.004
    assert levels_of(spoiled) is None


def test_a_constant_group_tiny_ones_and_zeros_can_be_rounded_to_bytes() -> None:
    weight = torch.cat([torch.full((1, 32), size) for size in (0.0, 127 / 256, 1e-9, -3e-5)])
    found = bytes_of(weight)
    assert found is not None
    levels, scales, leasts = found
    again = scales * levels + leasts
    assert torch.equal(again[:3], weight[:3].where(weight[:3] > 1e-8, 0.0))
    assert torch.allclose(again[3], weight[3], rtol=0.2)
    assert bytes_of(weight * 1e7) is None  # float16 would not hold the scale
    assert bytes_of(random(4, 40)) is None


def test_what_an_eight_bit_file_has_is_not_rounded() -> None:
    generator = torch.Generator().manual_seed(1)
    levels = torch.randint(-127, 128, (24, 3, GROUP), generator=generator)
    levels[..., 5] = 127  # files make the largest the last level
    scales = (torch.rand(24, 3, 1, generator=generator) / 50).half().float()
    weight = (levels * scales).view(24, 96)
    found = bytes_of(weight)
    assert found is not None
    assert torch.equal(found[0].view(24, 3, GROUP).int() - 128, levels.int())
    assert torch.equal(found[1], scales.view(24, 3))


def rounded_activations(rows: torch.Tensor, steps: int) -> torch.Tensor:
    """To so many steps of the largest in each group, float64."""
    groups = rows.view(len(rows), -1, GROUP).double()
    step = groups.abs().amax(-1, keepdim=True) / steps
    return ((groups / step.clamp_min(1e-300)).round() * step).view(len(rows), -1)


def assert_product(
    found: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, steps: int
) -> None:
    """Of rounded activations with these weights, to the accuracy of float32."""
    exact = rounded_activations(rows, steps) @ weight.double().T + bias.double()
    size = rows.double().abs() @ weight.double().abs().T + 1
    assert float(((found.double() - exact).abs() / size).max()) < 2e-5  # a half goes either way


@pytest.mark.parametrize("outputs", [16, 24, 77])
@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=needs_bytes)])
@pytest.mark.parametrize("fine", [False, True])
def test_products_of_groups_round_the_activations_and_nothing_else(
    outputs: int, bits: int, fine: bool
) -> None:
    weight, bias = on_grid(outputs, 192, "Q4_1"), random(outputs)
    if bits == 8:
        found = bytes_of(random(outputs, 192, seed=4))
        assert found is not None
        levels, scales, leasts = found
        weight = levels * scales.repeat_interleave(GROUP, 1) + leasts.repeat_interleave(GROUP, 1)
    rows = random(33, 192)
    rows[5] = 0.0
    rows[6] *= 1e6
    rows[7, 3] = 500.0
    packed = pack_weight(weight, bias, rounded=True)
    assert packed.kind == (FOUR_BITS if bits == 4 else EIGHT_BITS)
    result = NativeLinear(packed, fine=fine)(rows)
    assert_product(result, rows, weight, bias, 127 * 254 if fine else 127)
    assert torch.equal(result[5], bias)


@pytest.mark.parametrize("form", forms()[1:])
@pytest.mark.parametrize("fine", [False, True])
def test_every_form_that_the_processor_has_gives_the_same_bits(form: Form, fine: bool) -> None:
    product = make_multiply_groups(form, fine=fine)
    rows = random(2 * form.rows + 1, 96, seed=3)
    none = np.empty(0, np.float32)
    for bits in (4, 8) if form.dots else (4,):
        weight = on_grid(40, 96, "Q4_1") if bits == 4 else random(40, 96)
        parts = levels_of(weight) if bits == 4 else bytes_of(weight)
        assert parts is not None
        packed = pack_groups(*(part.numpy() for part in parts), bits=bits, form=form)
        out = np.empty((len(rows), 40), np.float32)
        counter = np.array((0, 2))
        product(rows.numpy(), packed, bits, none, out, STORE, counter)
        expected = NativeLinear(pack_weight(weight, None, rounded=True), fine=fine)(rows)
        assert np.array_equal(out, expected.numpy())


@pytest.mark.parametrize("form", [None, Form(lanes=8, dots=False, rows=4, fine_rows=2)])
def test_where_bytes_are_not_multiplied_weights_are_rounded_and_nothing_else(
    form: Form | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "FORM", form)
    weight, bias, rows = random(96, 64), random(96, seed=1), random(33, 64, seed=2)
    rows[5] = 0.0
    rows[6] *= 1e6
    packed = pack_weight(weight, bias, rounded=True)
    linear = NativeLinear(packed)
    assert packed.kind == WIDENED
    scales = weight.abs().amax(1, keepdim=True) / 127
    exact = rows.double() @ (torch.round(weight / scales) * scales).double().T + bias
    found = linear(rows).double()
    assert float(((found - exact).abs() / exact.abs().clamp_min(1.0)).max()) < 1e-4
    assert torch.equal(found[5].float(), bias)


@pytest.mark.parametrize("dtype", ["float32", "w8a16", "int8"])
@pytest.mark.parametrize("grid", [False, True])
def test_what_is_not_finite_shows_in_its_own_row_alone(dtype: str, grid: bool) -> None:
    weight = on_grid(64, 64, "Q4_1") if grid else random(64, 64)
    linear = make_linear(lambda: (weight, None), dtype=dtype, device=CPU)
    rows = random(20, 64)
    clean = linear(rows).clone()
    rows[3, 40], rows[11, 0] = torch.nan, torch.inf
    found = linear(rows)
    for row in range(20):
        if row in (3, 11):
            assert not found[row].isfinite().all()
        else:
            assert torch.equal(found[row], clean[row])


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("width", [64, 77])
def test_the_norm_before_and_what_follows_are_part_of_a_product(count: int, width: int) -> None:
    rows = random(count, 60)
    norm = RMSNorm(random(60, seed=3), 1e-5)
    gate, up, down = random(width, 60), random(width, 60, seed=1), random(60, width, seed=2)
    biases = random(width, seed=4), random(width, seed=5)
    gated = make_gated(lambda: ((gate, up), biases), width, "silu", dtype="float32", device=CPU)
    linear = make_linear(lambda: (down, None), dtype="float32", device=CPU)
    normed = norm(rows)
    inner = torch.nn.functional.silu(normed @ gate.T + biases[0]) * (normed @ up.T + biases[1])
    assert torch.allclose(gated(rows, norm), inner, rtol=1e-4, atol=1e-4)
    onto = rows.clone()
    assert linear.add_to(onto, inner) is onto
    assert torch.allclose(onto, rows + inner @ down.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("inputs", [48, 64])
def test_rows_of_a_tied_embedding_are_read_back(inputs: int) -> None:
    weight = random(37, inputs)
    numbers = torch.tensor([36, 0, 17, 17])
    exact = make_linear(lambda: (weight, None), dtype="float32", device=CPU, readable=True)
    assert torch.equal(exact.rows(numbers), weight[numbers])
    rounded = make_linear(lambda: (weight, None), dtype="int8", device=CPU, readable=True)
    step = weight[numbers].abs().amax(1, keepdim=True) / 127
    assert bool(((rounded.rows(numbers) - weight[numbers]).abs() <= step * 0.501).all())


@pytest.mark.parametrize("number", [-1, 37, 47])  # the panels end at 48
def test_rows_that_are_not_there_are_refused(number: int) -> None:
    linear = NativeLinear(pack_weight(random(37, 48), None, rounded=False, readable=True))
    assert linear.rows(torch.tensor([], dtype=torch.int64)).shape == (0, 48)
    with pytest.raises(IndexError):
        linear.rows(torch.tensor([0, number]))


def test_kernels_are_compiled_before_they_are_called_and_for_nothing_else() -> None:
    prepare(halves=False)
    for kernel in (multiply, multiply_panels, read_rows, store, store_rows, attend, attend_units):
        assert kernel.signatures
        with pytest.raises(TypeError, match="No matching definition"):
            kernel(*[None] * len(kernel.signatures[0]))


def test_tiny_activations_count_as_zeros_and_spoil_nothing() -> None:
    linear = NativeLinear(pack_weight(on_grid(16, 64, "Q4_1"), None, rounded=True))
    rows = torch.zeros(4, 64)
    for row, size in enumerate((1e-30, 1e-36, 1e-38, 1e-44)):
        rows[row, 40] = size
    found = linear(rows)
    assert found[0].any()
    assert torch.equal(found[1:], torch.zeros(3, 16))
