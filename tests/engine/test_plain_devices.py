"""Devices without kernels of ours, such as MPS: plain operations, real numbers, 32 bits at most.

Tensors on the meta device have shapes and no content. It is none of the devices that the engine
knows, so it takes the path of those that are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ds4trio.engine.attention import Span, make_attention
from ds4trio.engine.decoder import Decoder
from ds4trio.engine.rope import Rotary
from tests.engine.builders import CPU, make_pair

META = torch.device("meta")
UNKNOWN_TO_MPS = {torch.float64, torch.complex32, torch.complex64, torch.complex128}


class PlainNumbers(TorchDispatchMode):
    """Collects operations that make tensors on the device of dtypes it may not have."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wrong: set[str] = set()
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device == META:
                self.count += 1
                if tensor.dtype in UNKNOWN_TO_MPS:
                    self.wrong.add(f"{func}: {tensor.dtype}")
        return result


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_network_is_of_plain_numbers(dtype: str, batch_invariant: bool) -> None:
    """A prefill, a chunk over a past, short chunks and decode rows of unequal lengths."""
    pair = make_pair()
    rows = 40 + 20 + 3 + 1 + 1
    with PlainNumbers() as seen, torch.no_grad():
        decoder = Decoder(
            pair.config, pair.weights, dtype=dtype, device=META, batch_invariant=batch_invariant
        )
        attention = make_attention(
            pair.config,
            context_length=128,
            pages=16,
            page_size=16,
            dtype=dtype,
            device=META,
            batch_invariant=batch_invariant,
        )
        spans = [
            Span([1, 2, 3], 40, 1),
            Span([4], 5, 1),
            Span([5, 6], 17, 3),
            Span([7, 8, 9], 20, 20),
            Span([10, 11, 12], 0, 40),
        ]
        plan = attention.plan(spans)
        tokens = torch.zeros(rows, dtype=torch.int64, device=META)
        logits = decoder(tokens, plan, attention, torch.tensor([0, 3, rows - 1], device=META))
    assert logits.shape == (3, pair.config.vocab_size)
    assert logits.dtype == torch.float32
    assert seen.count > 100
    assert seen.wrong == set()


def test_a_rotation_in_real_numbers_is_that_in_complex_ones() -> None:
    config = make_pair().config
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(7, 3, config.head_dim, generator=generator)
    positions = torch.tensor([0, 1, 5, 40, 77, 100, 127])
    turned = []
    for complex_numbers in (True, False):
        rotary = Rotary(config.ropes[0], 128, CPU, complex_numbers=complex_numbers)
        turned.append(rotary.turn(heads, rotary.at(positions)))
    assert torch.allclose(turned[0], turned[1], atol=1e-6)
