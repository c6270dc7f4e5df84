"""Perplexity, divergence and agreement: known values, and real decoders."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.engine.quality import compare, logits_of, windows
from tests.engine.builders import CPU, make_pair


def saying(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def test_known_distributions_have_their_known_figures() -> None:
    def reference(tokens: Sequence[int]) -> torch.Tensor:
        return saying(0.5, 0.25, 0.25).expand(len(tokens), -1)

    def candidate(tokens: Sequence[int]) -> torch.Tensor:
        # The second row has another favourite; the last row predicts nothing and must not count.
        return torch.cat(
            [saying(0.5, 0.25, 0.25), saying(0.25, 0.5, 0.25), saying(0.9, 0.05, 0.05)]
        )

    found = compare(reference, candidate, [[0, 0, 1], [2]])
    assert found.positions == 2
    assert found.reference_perplexity == pytest.approx(math.sqrt(2 * 4))
    assert found.perplexity == pytest.approx(math.sqrt(2 * 2))
    second = 0.5 * math.log(0.5 / 0.25) + 0.25 * math.log(0.25 / 0.5)
    assert found.divergence == pytest.approx(second / 2, rel=1e-6)
    assert found.agreement == 0.5


def test_a_decoder_agrees_with_itself_and_with_the_reference_implementation() -> None:
    pair = make_pair()
    texts = [torch.randint(0, 320, (length,)).tolist() for length in (100, 2, 40)]
    ours = logits_of(pair.config, pair.weights, dtype="float32", device=CPU, longest=100)
    same = compare(ours, ours, texts)
    assert same.positions == 99 + 1 + 39
    assert (same.divergence, same.agreement) == (0.0, 1.0)
    assert same.perplexity == same.reference_perplexity
    theirs = compare(pair.expected, ours, texts)
    assert theirs.divergence < 1e-9
    assert theirs.agreement == 1.0


def test_a_coarser_format_is_found_to_differ_a_little() -> None:
    pair = make_pair()
    texts = [torch.randint(0, 320, (120,)).tolist()]
    reference, *others = (
        logits_of(pair.config, pair.weights, dtype=dtype, device=CPU, longest=120)
        for dtype in ("float32", "int8", "w8a16", "bfloat16")
    )
    with_int8, with_w8a16, with_bfloat16 = (compare(reference, other, texts) for other in others)
    assert 0 < with_w8a16.divergence <= with_int8.divergence < 0.02
    assert 0 < with_bfloat16.divergence < 0.1
    assert with_int8.perplexity != with_int8.reference_perplexity


def test_nothing_to_predict_is_an_error() -> None:
    with pytest.raises(ValueError, match="too short"):
        compare(lambda tokens: saying(1.0), lambda tokens: saying(1.0), [[1]])


@given(
    length=st.integers(0, 60),
    size=st.integers(2, 20),
    limit=st.integers(1, 80),
    first=st.none() | st.just(99),
)
def test_windows_are_the_text_up_to_the_limit(
    length: int, size: int, limit: int, first: int | None
) -> None:
    found = list(windows(range(length), size=size, limit=limit, first=first))
    assert all(2 <= len(window) <= size for window in found)
    if first is not None:
        assert all(window.pop(0) == first for window in found)
    said = [token for window in found for token in window]
    left_out = min(length, limit) - len(said)
    assert said == list(range(len(said)))
    assert left_out in ((0, 1) if first is None else (0,))


def test_a_window_that_predicts_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to predict"):
        next(windows([1, 2, 3], size=1, limit=3))
