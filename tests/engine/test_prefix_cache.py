"""Beginnings that are evaluated once: found by those who may, and never changing what is said."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.engine.engine import Engine
from ds4trio.engine.prefix_cache import PrefixCache
from ds4trio.engine.step import Evaluated, SamplingParams, StepItem
from tests.engine.builders import GREEDY, Pair, make_engine, make_pair

PROMPT = [7 + (index * 31) % 300 for index in range(70)]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_pair()


def say(
    engine: Engine,
    prompt: list[int],
    count: int,
    *,
    sequence: int = 1,
    salt: str = "",
    sampling: SamplingParams = GREEDY,
) -> tuple[int, list[int]]:
    """Open, reuse, evaluate the rest, decode and close; how much was reused, and the tokens."""
    engine.open(sequence, sampling, cache_salt=salt)
    reused = engine.reuse(sequence, prompt)
    items = [StepItem(sequence, tuple(prompt[reused:]))] + [StepItem(sequence)] * (count - 1)
    tokens: list[int] = []
    for item in items:
        (outcome,) = engine.eval_batch([item]).outcomes
        assert isinstance(outcome, Evaluated)
        tokens.extend(sampled.token for sampled in outcome.sampled)
    engine.close(sequence)
    return reused, tokens


def test_the_second_time_full_pages_are_there_and_the_answer_is_the_same(pair: Pair) -> None:
    engine = make_engine(pair)
    assert say(engine, PROMPT, 20)[0] == 0
    reused, tokens = say(engine, PROMPT, 20)
    assert reused == 64
    assert tokens == say(make_engine(pair, prefix_cache=False), PROMPT, 20)[1]
    assert engine.free_pages == engine.info.total_pages


def test_a_conversation_goes_on_where_it_was(pair: Pair) -> None:
    """The answer's own pages are found too when it comes back as part of the next prompt."""
    engine = make_engine(pair)
    _, answer = say(engine, PROMPT, 30)
    follow_up = [*PROMPT, *answer, 9, 8, 7]
    reused, tokens = say(engine, follow_up, 5)
    assert reused == 96  # the last answer token was never evaluated
    assert tokens == say(make_engine(pair, prefix_cache=False), follow_up, 5)[1]


@pytest.mark.parametrize("length", [16, 17, 32, 33])
def test_the_last_token_is_always_left_to_evaluate(pair: Pair, length: int) -> None:
    engine = make_engine(pair)
    say(engine, PROMPT[:length], 2)
    assert say(engine, PROMPT[:length], 2)[0] == (length - 1) // 16 * 16


def test_other_salts_and_other_beginnings_find_nothing(pair: Pair) -> None:
    engine = make_engine(pair)
    say(engine, PROMPT, 2, salt="one")
    assert say(engine, PROMPT, 2, salt="two")[0] == 0
    assert say(engine, PROMPT, 2)[0] == 0
    assert say(engine, [5, *PROMPT[1:]], 2, salt="one")[0] == 0
    assert say(engine, [*PROMPT[:40], 5, *PROMPT[41:]], 2, salt="one")[0] == 32
    assert say(engine, PROMPT, 2, salt="one")[0] == 64


def test_one_that_waits_finds_what_came_into_the_cache_meanwhile(pair: Pair) -> None:
    engine = make_engine(pair)
    for sequence in (1, 2):
        engine.open(sequence, GREEDY)
        assert engine.reuse(sequence, PROMPT) == 0
    engine.eval_batch([StepItem(1, tuple(PROMPT[:40]))])  # the runner has been told of both
    assert engine.reuse(2, PROMPT) == 32
    engine.eval_batch([StepItem(1, tuple(PROMPT[40:]))])
    assert engine.reuse(2, PROMPT) == 64
    assert engine.reuse(2, PROMPT) == 64
    step = engine.prepare([StepItem(2, tuple(PROMPT[64:]))])
    assert engine.reuse(2, [*PROMPT, *PROMPT]) == 0  # it has begun
    engine.commit(step, engine.run(step))
    tokens: list[int] = []
    for _ in range(19):
        (outcome,) = engine.eval_batch([StepItem(2)]).outcomes
        assert isinstance(outcome, Evaluated)
        tokens.extend(sampled.token for sampled in outcome.sampled)
    assert tokens == say(make_engine(pair, prefix_cache=False), PROMPT, 20)[1][1:]
    engine.close(1)
    engine.close(2)
    assert engine.free_pages == engine.info.total_pages


def test_two_share_pages_at_the_same_time_and_part_ways(pair: Pair) -> None:
    engine = make_engine(pair)
    say(engine, PROMPT, 1)
    for sequence in (1, 2):
        engine.open(sequence, GREEDY)
        assert engine.reuse(sequence, PROMPT) == 64
    assert engine.free_pages == engine.info.total_pages - 4
    assert engine.free_pages_without([1]) == engine.info.total_pages - 4
    assert engine.free_pages_without([1, 2]) == engine.info.total_pages
    endings = {1: (3, 4), 2: (5, 6)}
    drawn: dict[int, list[int]] = {1: [], 2: []}
    items = [StepItem(s, (*PROMPT[64:], *ending)) for s, ending in endings.items()]
    for _ in range(20):
        for outcome in engine.eval_batch(items).outcomes:
            assert isinstance(outcome, Evaluated)
            drawn[outcome.sequence].extend(sampled.token for sampled in outcome.sampled)
        items = [StepItem(1), StepItem(2)]
    plain = make_engine(pair, prefix_cache=False)
    for sequence, ending in endings.items():
        assert drawn[sequence] == say(plain, [*PROMPT, *ending], 20)[1]


def test_after_a_failed_step_nothing_is_trusted(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(pair)
    say(engine, PROMPT, 2)
    engine.open(2, GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr("ds4trio.engine.runner.sample", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.eval_batch([StepItem(2, (1, 2, 3))])
    engine.close(2)
    assert engine.free_pages == engine.info.total_pages
    assert say(engine, PROMPT, 2)[0] == 0
    assert say(engine, PROMPT, 2)[0] == 64


def test_turned_off_it_keeps_nothing(pair: Pair) -> None:
    engine = make_engine(pair, prefix_cache=False)
    say(engine, PROMPT, 2)
    assert say(engine, PROMPT, 2)[0] == 0


@settings(max_examples=25, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(0, 1), st.integers(0, 9)),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_was_asked_before_the_answer_is_the_same(
    turns: list[tuple[int, int, int, int]],
) -> None:
    """Prompts with common beginnings, two salts, and a pool that holds two of them at most."""
    pair = _PAIR
    engine = make_engine(pair, pages=10)
    plain = make_engine(pair, pages=10, prefix_cache=False)
    sampling = SamplingParams(temperature=0.7, seed=5)
    for start, length, salt, ending in turns:
        prompt = [*PROMPT[start : start + length], ending]
        _, tokens = say(engine, prompt, 6, salt=str(salt), sampling=sampling)
        assert tokens == say(plain, prompt, 6, sampling=sampling)[1]
        assert engine.free_pages == 10
        engine._pool.check()


_PAIR = make_pair(seed=4)


def test_names_depend_on_every_token_and_on_where_pages_end() -> None:
    cache = PrefixCache(2)
    root = cache.root("")
    first = cache.extend(root, [1, 2])
    assert cache.remember(first, 10)
    assert cache.remember(cache.extend(first, [3, 4]), 11)
    assert not cache.remember(first, 12)
    assert cache.find(root, [1, 2, 3, 4, 5])[0] == [10, 11]
    assert cache.find(root, [1, 2, 3])[0] == [10]
    assert cache.find(root, [3, 4])[0] == []
    assert cache.find(cache.root("x"), [1, 2])[0] == []
    cache.forget(10)
    assert cache.find(root, [1, 2, 3, 4])[0] == []
