"""Checks, refusals and the transaction of a step, at the engine's public edge."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ds4trio.engine.engine import Engine
from ds4trio.engine.interface import EngineLike
from ds4trio.engine.step import Evaluated, Refused, SamplingParams, StepItem
from ds4trio.errors import (
    ContextLengthExceeded,
    EngineMisuse,
    InternalError,
    ModelUnavailable,
    ServerBusy,
    TokenOutOfVocabulary,
    WireError,
)
from tests.engine.builders import GREEDY, Pair, generate, make_engine, make_pair, prompts, sampled


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_pair()


@pytest.fixture
def engine(pair: Pair) -> Engine:
    return make_engine(pair, pages=16)


def refusal(engine: Engine, *items: StepItem) -> dict[int, WireError]:
    """The errors of a step, by place."""
    outcomes = engine.eval_batch(items).outcomes
    assert [outcome.sequence for outcome in outcomes] == [item.sequence for item in items]
    return {i: o.error for i, o in enumerate(outcomes) if isinstance(o, Refused)}


def test_the_engine_has_the_interface_that_batching_knows(engine: Engine) -> None:
    stand_in: EngineLike = engine
    assert stand_in.info.total_pages == stand_in.free_pages == 16
    assert (engine.info.vocab_size, engine.info.context_length) == (320, 256)  # what the pages hold
    assert (engine.info.device, engine.info.dtype) == ("cpu", "float32")
    assert engine.info.longest_sequence == 256


def test_a_bad_item_is_refused_alone(engine: Engine) -> None:
    for sequence in range(6):
        engine.open(sequence, GREEDY)
    alone = generate(engine, [5, 6, 7], 1)
    errors = refusal(
        engine,
        StepItem(0, (5, 6, 7)),
        StepItem(1, (5, 320)),
        StepItem(2, (-1,)),
        StepItem(99, (5,)),
        StepItem(0, (8,)),
        StepItem(3),
        StepItem(4, (9,) * 257),
        StepItem(5, (5, 6, 7)),
    )
    assert {place: type(error) for place, error in errors.items()} == {
        1: TokenOutOfVocabulary,
        2: TokenOutOfVocabulary,
        3: InternalError,
        4: InternalError,
        5: InternalError,
        6: ContextLengthExceeded,
    }
    assert "257" in str(errors[6])
    assert "256" in str(errors[6])
    assert [engine.length(sequence) for sequence in range(6)] == [3, 0, 0, 0, 0, 3]
    assert engine.free_pages == 14
    assert [t.token for t in sampled(engine, StepItem(0), StepItem(5))] == [
        *generate(engine, [5, 6, 7, *alone], 1),
    ] * 2


def test_a_batch_of_bad_items_and_an_empty_one_evaluate_nothing(engine: Engine) -> None:
    assert isinstance(refusal(engine, StepItem(7, (1,)))[0], InternalError)
    assert engine.eval_batch([]).outcomes == ()


def test_pages_go_to_the_first_who_ask_and_the_rest_are_told_to_wait(engine: Engine) -> None:
    for sequence in range(3):
        engine.open(sequence, GREEDY)
    errors = refusal(
        engine, StepItem(0, (1,) * 200), StepItem(1, (1,) * 64), StepItem(2, (1,) * 48)
    )
    assert list(errors) == [1]
    assert isinstance(errors[1], ServerBusy)
    assert errors[1].retry_after
    assert engine.free_pages == 0
    engine.close(0)
    assert engine.free_pages == 13
    assert not refusal(engine, StepItem(1, (1,) * 64))


def test_a_sequence_ends_exactly_at_the_context(pair: Pair) -> None:
    engine = make_engine(pair, context_length=40)
    engine.open(0, GREEDY)
    assert not refusal(engine, StepItem(0, (3,) * 39))
    assert not refusal(engine, StepItem(0))
    assert isinstance(refusal(engine, StepItem(0))[0], ContextLengthExceeded)
    assert engine.length(0) == 40


def test_a_context_beyond_the_models_own_is_the_models_own(pair: Pair) -> None:
    assert make_engine(pair, context_length=100_000).info.context_length == 512


def test_chunks_without_a_draw_and_tokens_in_place_of_a_draw(engine: Engine) -> None:
    prompt = prompts(1, 320, seed=8)[0] * 3
    whole = generate(engine, prompt, 2)
    engine.open(0, GREEDY)
    cut = len(prompt) // 2
    first = engine.eval_batch([StepItem(0, tuple(prompt[:cut]), sample=False)]).outcomes[0]
    assert first == Evaluated(0, ())
    assert isinstance(refusal(engine, StepItem(0))[0], InternalError)
    assert sampled(engine, StepItem(0, tuple(prompt[cut:])))[0].token == whole[0]
    # The sampled token was not evaluated; tokens take its place, and it leaves no trace.
    engine.eval_batch([StepItem(0, (4, 4))])
    assert engine.length(0) == len(prompt) + 2
    assert sampled(engine, StepItem(0))[0].token == generate(engine, [*prompt, 4, 4], 2)[1]


def test_a_sequence_is_opened_once_and_closed_once(engine: Engine) -> None:
    engine.open(0, GREEDY)
    with pytest.raises(EngineMisuse):
        engine.open(0, GREEDY)
    engine.close(0)
    for call in (engine.close, engine.length):
        with pytest.raises(EngineMisuse):
            call(0)


@pytest.mark.parametrize("token", [-1, 320, 99999999])
def test_a_bias_outside_the_vocabulary_opens_nothing(engine: Engine, token: int) -> None:
    with pytest.raises(TokenOutOfVocabulary, match=str(token)):
        engine.open(0, SamplingParams(logit_bias={token: 5.0}))
    engine.open(0, GREEDY)


@pytest.mark.parametrize("broken", ["a product raises", "the logits are not finite"])
def test_a_step_that_fails_commits_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Third step of eight members, one of which needs a new page for it."""
    texts = prompts(7, 320, seed=2, longest=12)
    texts.append([7] * 15)
    expected = [generate(engine, text, 4) for text in texts]
    for i in range(8):
        engine.open(i, GREEDY)
    found = [[t.token] for t in sampled(engine, *(StepItem(i, tuple(texts[i])) for i in range(8)))]
    decodes = [StepItem(i) for i in range(8)]
    for tokens, token in zip(found, sampled(engine, *decodes), strict=True):
        tokens.append(token.token)
    before = (engine.free_pages, [engine.length(i) for i in range(8)])

    class Fault(Exception):
        """The device's."""

    def fail(rows: torch.Tensor, norm: object = None) -> torch.Tensor:
        if broken == "a product raises":
            raise Fault
        return torch.full_like(rows[:, :1], torch.nan).expand(-1, 320)

    with monkeypatch.context() as patch:
        name = "_head" if broken != "a product raises" else "_inputs"
        decoder: Any = engine.runner.decoder
        place = decoder if name == "_head" else decoder._blocks[1]._attention
        patch.setattr(place, name, fail)
        ninth = StepItem(8, (1,) * 20)
        engine.open(8, GREEDY)
        with pytest.raises(FloatingPointError if name == "_head" else Fault):
            engine.eval_batch([*decodes, ninth])
    assert engine.length(8) == 0
    assert (engine.free_pages, [engine.length(i) for i in range(8)]) == before
    engine._pool.check()
    for _ in range(2):
        for tokens, token in zip(found, sampled(engine, *decodes), strict=True):
            tokens.append(token.token)
    assert found == expected


def test_rounds_of_opening_and_closing_leave_the_full_capacity(engine: Engine) -> None:
    for round_ in range(50):
        engine.open(round_, GREEDY)
        engine.eval_batch([StepItem(round_, (1,) * (1 + round_ * 5))])
        engine.close(round_)
    assert engine.free_pages == 16
    engine._pool.check()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "float8"}, "float8"),
        ({"device": "quantum"}, "quantum"),
        ({"pages": 0}, "--kv-memory"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(
    pair: Pair, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelUnavailable, match=reason) as caught:
        make_engine(pair, **settings)
    assert "\n" not in str(caught.value)


def test_results_name_the_time_and_the_pool(engine: Engine) -> None:
    engine.open(0, GREEDY)
    result = engine.eval_batch([StepItem(0, (1, 2, 3))])
    assert result.free_pages == engine.free_pages == 15
    assert result.seconds > 0
