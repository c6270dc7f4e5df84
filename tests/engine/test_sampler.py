"""How tokens are drawn from logits."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.engine.sampler import Bias, Draw, sample
from ds4trio.engine.step import SampledToken, SamplingParams
from ds4trio.engine.stream import philox4x32, uniform

FLOATS = st.floats(-30, 30, width=32)


def drawn(
    logits: torch.Tensor, *params: SamplingParams, history: Sequence[int] = ()
) -> list[SampledToken]:
    return sample(logits, [Draw(p, array("q", history), Bias.of(p)) for p in params])


def frequencies(logits: Sequence[float], **settings: float) -> dict[int, float]:
    """How often each token comes, over the first draws of many streams."""
    count = 4000 if len(logits) < 1000 else 100
    rows = torch.tensor([list(logits)]).expand(count, -1)
    draws = [Draw(SamplingParams(seed=n, **settings), array("q"), None) for n in range(count)]  # type: ignore[arg-type]
    counts = Counter(token.token for token in sample(rows, draws))
    return {token: number / count for token, number in sorted(counts.items())}


@pytest.mark.parametrize("top_k", [0, 2, 128, 129, 200, 2999])
@pytest.mark.parametrize("cut", [{"top_p": 0.1}, {"top_p": 1e-9}, {"top_p": 0.9, "min_p": 1.0}])
def test_where_few_tokens_have_any_probability_the_cuts_hold(
    top_k: int, cut: dict[str, float]
) -> None:
    """As with a strong bias or a low temperature: the likeliest 128 are all that there is."""
    logits = [-1000.0] * 3000
    logits[7], logits[2000] = math.log(0.6), math.log(0.4)
    assert frequencies(logits, top_k=top_k, **cut) == {7: 1.0}


@settings(deadline=None)  # the first call loads the kernel
@given(
    width=st.integers(1, 90),
    rows=st.integers(1, 5),
    levels=st.integers(1, 50),
    seed=st.integers(0, 2**16),
)
def test_greedy_takes_the_first_of_the_likeliest(
    width: int, rows: int, levels: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, levels, (rows, width), generator=generator).float() - levels
    greedy = SamplingParams(temperature=0.0)
    found = [token.token for token in drawn(logits, *[greedy] * rows)]
    assert found == [row.index(max(row)) for row in logits.tolist()]


def test_row_by_row_the_same_is_drawn() -> None:
    logits = torch.randn(24, 3000, generator=torch.Generator().manual_seed(0))
    draws = [
        Draw(
            SamplingParams(
                temperature=i % 3 * 0.6,
                top_p=1.0 if i % 2 else 0.9,
                top_k=50 if i % 5 == 0 else 0,
                seed=i,
                logprobs=i % 4 > 0,
                top_logprobs=i % 4,
            ),
            array("q", range(i)),
            None,
        )
        for i in range(len(logits))
    ]
    assert sample(logits, draws, row_by_row=True) == sample(logits, draws)


def near(found: dict[int, float], expected: dict[int, float]) -> bool:
    return found.keys() == expected.keys() and all(
        abs(found[token] - share) < 0.03 for token, share in expected.items()
    )


LOGITS = [math.log(share) for share in (0.5, 0.25, 0.125, 0.0625, 0.0625)]


def test_draws_follow_the_distribution_and_its_temperature() -> None:
    shares = (0.5, 0.25, 0.125, 0.0625, 0.0625)
    assert near(frequencies(LOGITS), dict(enumerate(shares)))
    squares = [share**2 for share in shares]
    sharp = {token: square / sum(squares) for token, square in enumerate(squares)}
    assert near(frequencies(LOGITS, temperature=0.5), sharp)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"top_k": 2}, {0: 2 / 3, 1: 1 / 3}),
        ({"top_k": 4}, {0: 8 / 15, 1: 4 / 15, 2: 2 / 15, 3: 1 / 15}),  # of two equals, the first
        ({"top_p": 0.75}, {0: 2 / 3, 1: 1 / 3}),
        ({"top_p": 0.76}, {0: 4 / 7, 1: 2 / 7, 2: 1 / 7}),
        ({"top_k": 3, "top_p": 0.8}, {0: 2 / 3, 1: 1 / 3}),  # top_p over what top_k left
        ({"min_p": 0.2}, {0: 4 / 7, 1: 2 / 7, 2: 1 / 7}),
        ({"min_p": 0.3, "top_p": 0.99, "top_k": 4}, {0: 2 / 3, 1: 1 / 3}),
        ({"top_k": 1}, {0: 1.0}),
        ({"top_p": 0.0}, {0: 1.0}),
        ({"top_p": 1e-4}, {0: 1.0}),
        ({"min_p": 1.0}, {0: 1.0}),
        ({"temperature": 1e-4}, {0: 1.0}),
        ({"temperature": 1e-10}, {0: 1.0}),
        ({"temperature": 0.0}, {0: 1.0}),
        ({"temperature": 1e9}, dict.fromkeys(range(5), 0.2)),
        ({"top_k": 10**9}, dict(enumerate((0.5, 0.25, 0.125, 0.0625, 0.0625)))),
    ],
)
def test_filters_keep_what_they_say(settings: dict[str, float], expected: dict[int, float]) -> None:
    assert near(frequencies(LOGITS, **settings), expected)


def reference(logits: torch.Tensor, params: SamplingParams) -> int:
    """The token, the plain way: sort everything, filter, invert, all in float64."""
    shares = (logits.double() / params.temperature).softmax(-1).tolist()
    order = sorted(range(len(shares)), key=lambda token: (-shares[token], token))
    least = params.min_p * shares[order[0]]
    if params.top_k:
        order = order[: params.top_k]
    part = params.top_p * sum(shares[token] for token in order)
    kept, reached = [], 0.0
    for token in order:
        kept.append(token)
        reached += shares[token]
        if reached >= part:
            break
    kept = [token for token in kept if shares[token] >= least]
    left = uniform(params.seed, 0) * sum(shares[token] for token in kept)
    for token in kept:
        left -= shares[token]
        if left < 0:
            return token
    return kept[-1]


@pytest.mark.parametrize("spread", [0.05, 1.0, 4.0])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_p=0.9),
        SamplingParams(top_p=0.5, top_k=3000),
        SamplingParams(top_k=100, temperature=2.0),
        SamplingParams(top_k=500, top_p=0.99, min_p=0.001),
        SamplingParams(top_k=4000, top_p=0.7, min_p=0.02),
        SamplingParams(min_p=0.1),
        SamplingParams(top_p=0.9999),
        SamplingParams(top_k=3000, temperature=1e-3),
    ],
)
def test_large_vocabularies_are_cut_as_a_full_sort_would(
    spread: float, params: SamplingParams
) -> None:
    """From the candidates alone, from more of them, or from the sorted whole."""
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(1)) * spread
    wishes = [_seeded(params, seed) for seed in range(40)]
    found = [token.token for token in drawn(logits.expand(40, -1), *wishes)]
    expected = [reference(logits[0], wish) for wish in wishes]
    # Where a draw falls on a border, rounding may decide otherwise.
    assert sum(a != b for a, b in zip(found, expected, strict=True)) <= 1


def _seeded(params: SamplingParams, seed: int) -> SamplingParams:
    return SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=seed,
    )


WISHES = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-10, 1e-4, 0.3, 1.0, 2.0, 1e9, 1e300]),
    top_k=st.sampled_from([0, 1, 3, 10**9]),
    top_p=st.sampled_from([1e-4, 0.5, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1e-3, 0.5, 1.0, 2.0, 1e30]),
    frequency_penalty=st.sampled_from([-2.0, 0.0, 2.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 2.0]),
    logit_bias=st.dictionaries(
        st.integers(0, 6), st.sampled_from([-100.0, 100.0, 3e38]), max_size=3
    ),
    seed=st.integers(-(2**70), 2**70),
    logprobs=st.booleans(),
    top_logprobs=st.integers(0, 9),
    prompt_length=st.integers(0, 6),
)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_valid_wish_gives_a_token_and_the_same_one_in_company(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    rows = st.lists(FLOATS, min_size=7, max_size=7)
    logits = torch.tensor(data.draw(st.lists(rows, min_size=count, max_size=count)))
    before = logits.clone()
    wishes = data.draw(st.lists(WISHES, min_size=count, max_size=count))
    history = data.draw(st.lists(st.integers(0, 6), max_size=8))
    together = drawn(logits, *wishes, history=history)
    assert torch.equal(logits, before)
    for row, wish, token in zip(logits, wishes, together, strict=True):
        assert 0 <= token.token < 7
        assert drawn(row.unsqueeze(0), wish, history=history) == [token]
        assert (token.logprob is not None) == wish.logprobs
        if token.logprob is not None:
            assert math.isfinite(token.logprob)
            assert len(token.top_logprobs) == min(wish.top_logprobs, 7)


def test_penalties_follow_their_definitions() -> None:
    """Bans, in effect: with these logits each penalty alone decides the likeliest token."""
    logits = torch.tensor([[2.0, 1.9, -1.0, -1.1]])
    greedy = {"temperature": 0.0}

    def likeliest(history: list[int], **settings: float) -> int:
        params = SamplingParams(**greedy, **settings)  # type: ignore[arg-type]
        return drawn(logits, params, history=history)[0].token

    assert likeliest([0], repetition_penalty=1.1) == 1  # 2.0 / 1.1
    assert likeliest([0, 0, 0], repetition_penalty=1.04) == 0  # once, however often it was said
    assert likeliest([0], presence_penalty=0.2) == 1
    assert likeliest([0], presence_penalty=0.2, prompt_length=1) == 0  # a prompt is not output
    assert likeliest([0, 0], presence_penalty=0.06) == 0  # once, however often
    assert likeliest([0, 0], frequency_penalty=0.06) == 1  # each time
    assert likeliest([0, 0], frequency_penalty=0.06, prompt_length=1) == 0
    negative = torch.tensor([[-1.0, -1.05]])
    params = SamplingParams(temperature=0.0, repetition_penalty=1.1)
    assert drawn(negative, params, history=[0])[0].token == 1  # -1.0 * 1.1


def test_biases_add_to_logits() -> None:
    logits = torch.tensor([[5.0, 0.0, 1.0]])
    for bias, token in (({0: -100.0}, 2), ({1: 5.5}, 1), ({0: -4.5, 1: 0.25}, 2)):
        params = SamplingParams(temperature=0.0, logit_bias=bias)
        assert drawn(logits, params)[0].token == token


def test_logprobs_are_the_models_own_whatever_the_draw() -> None:
    logits = torch.tensor([LOGITS, LOGITS])
    plain = SamplingParams(temperature=0.0, logprobs=True, top_logprobs=3)
    bent = SamplingParams(
        temperature=0.1, logprobs=True, top_logprobs=2, logit_bias={4: 100.0}, top_k=1
    )
    first, second = drawn(logits, plain, bent)
    assert first.token == 0
    assert first.logprob == pytest.approx(math.log(0.5))
    assert [token for token, _ in first.top_logprobs] == [0, 1, 2]
    assert [p for _, p in first.top_logprobs] == pytest.approx(LOGITS[:3])
    assert second.token == 4
    assert second.logprob == pytest.approx(math.log(0.0625))
    assert [token for token, _ in second.top_logprobs] == [0, 1]
    assert drawn(logits[:1], SamplingParams(temperature=0.0)) == [SampledToken(0)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_an_error_that_names_the_rows(bad: float) -> None:
    logits = torch.zeros(3, 5)
    logits[1, 2] = bad
    params = SamplingParams(temperature=0.0)
    with pytest.raises(FloatingPointError, match=r"\[1\]"):
        drawn(logits, params, params, params)


def test_draws_of_one_stream_differ_and_repeat() -> None:
    logits = torch.zeros(64, 1000)
    params = SamplingParams(seed=3, prompt_length=2)
    draws = [Draw(params, array("q", [0] * (2 + n)), None) for n in range(64)]
    tokens = [token.token for token in sample(logits, draws)]
    assert len(set(tokens)) > 50
    assert [token.token for token in sample(logits, draws)] == tokens
    alone = drawn(logits[:1], params, history=[0] * (2 + 9))
    assert alone[0].token == tokens[9] == int(uniform(3, 9) * 1000)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_generator_gives_its_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert philox4x32(counter, key) == expected


@given(st.integers(), st.integers())
def test_uniform_numbers_are_below_one(seed: int, number: int) -> None:
    assert 0.0 <= uniform(seed, number) < 1.0
    assert uniform(seed, number) == uniform(seed % 2**64, number % 2**64)
