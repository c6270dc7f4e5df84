"""Sequences that are held to a grammar, among others that are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ds4trio.chat.formats import Choice, Format, JsonObject, JsonSchema, Lark, Regex
from ds4trio.chat.grammar import compose
from ds4trio.chat.grammar_tokens import make_grammar_tokens
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.engine.engine import Engine
from ds4trio.engine.sampler import Bias, Draw, sample
from ds4trio.engine.step import Evaluated, Refused, SampledToken, SamplingParams, StepItem
from tests.engine.builders import make_engine, make_pair
from tests.tiny import make_tiny_tokenizer

END = 2
PROMPT = (5, 70, 71, 72)
TOKENIZER = Tokenizer(make_tiny_tokenizer().to_str())
TOKENS = make_grammar_tokens(TOKENIZER, size=320, ends={END})
LOADED: list[int] = []


def load_tokens() -> Any:
    LOADED.append(1)
    return TOKENS


@pytest.fixture(scope="module")
def engine() -> Engine:
    return make_engine(make_pair(), pages=2000, grammar_tokens=load_tokens)


def held(wanted: Format, **sampling: Any) -> SamplingParams:
    settings = {"temperature": 1.0, "prompt_length": len(PROMPT), **sampling}
    return SamplingParams(grammar=compose("start: @answer", answer=wanted), **settings)


def answers(
    engine: Engine,
    asked: Sequence[SamplingParams],
    *,
    most: int = 120,
    draft: int = 0,
    disturb: Callable[[int, Mapping[int, list[int]]], None] = lambda step, said: None,
) -> list[list[int]]:
    """What each says until its end token, all of them in one batch."""
    said: dict[int, list[int]] = {}
    for number, params in enumerate(asked):
        engine.open(number, params)
        said[number] = []
    running = set(said)
    step = 0
    while running:
        items = [
            StepItem(n, () if engine.length(n) else (*PROMPT, *said[n]), draft=draft)
            if engine.length(n)
            else StepItem(n, (*PROMPT, *said[n]))
            for n in sorted(running)
        ]
        for outcome in engine.eval_batch(items).outcomes:
            assert isinstance(outcome, Evaluated), outcome
            n = outcome.sequence
            for token in outcome.sampled:
                said[n].append(token.token)
                if token.token == END or len(said[n]) == most:
                    running.discard(n)
                    engine.close(n)
                    break
        step += 1
        disturb(step, {n: said[n] for n in running})
    return [said[n] for n in sorted(said)]


def text(tokens: Sequence[int]) -> str:
    assert tokens[-1] == END
    return b"".join(map(TOKENIZER.token_bytes, tokens)).decode()


SHORT = {"type": "string", "maxLength": 5}
PERSON = {
    "type": "object",
    "properties": {"name": SHORT, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Of values that end: a random model would not end a string or a number by itself."""
    leaves = st.one_of(
        st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 6)),
        st.builds(
            lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
            st.integers(-1000, 1000),
            st.integers(0, 1000),
        ),
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"const": {"a": [1, "\n"]}}]),
        st.builds(lambda texts: {"enum": texts}, st.lists(st.text(max_size=4), min_size=1)),
        st.sampled_from([{"type": "string", "pattern": "^[a-c]{2,4}$"}]),
    )
    names = st.text('abcdé"\\ ', min_size=1, max_size=4)

    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
        objects = st.builds(
            lambda properties, some: {
                "type": "object",
                "properties": properties,
                "required": list(properties)[:some],
                "additionalProperties": False,
            },
            st.dictionaries(names, inner, max_size=3),
            st.integers(0, 3),
        )
        arrays = st.builds(
            lambda items, least: {
                "type": "array",
                "items": items,
                "minItems": least,
                "maxItems": least + 1,
            },
            inner,
            st.integers(0, 2),
        )
        either = st.builds(
            lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)
        )
        return st.one_of(objects, arrays, either)

    return st.recursive(leaves, larger, max_leaves=6)


@settings(max_examples=40, deadline=None)
@given(schema=schemas(), seed=st.integers(0, 2**32), temperature=st.sampled_from([0.0, 0.7, 2.0]))
def test_a_random_model_fills_any_schema(
    engine: Engine, schema: dict[str, Any], seed: int, temperature: float
) -> None:
    wanted = held(JsonSchema(schema), seed=seed, temperature=temperature)
    # Some go round in white space, or in lists without end, until their tokens are up.
    (said,) = answers(engine, [wanted], most=450)
    assume(said[-1] == END)
    jsonschema.validate(json.loads(text(said)), schema)


MIXED = [
    SamplingParams(temperature=0.0, prompt_length=len(PROMPT)),
    held(JsonSchema(PERSON), seed=3),
    SamplingParams(temperature=1.0, seed=9, prompt_length=len(PROMPT), logprobs=True),
    held(Regex("(ab|cd){3,9}"), temperature=0.0, logit_bias={100: 5.0}, frequency_penalty=0.5),
    held(Choice(("one", "two", "twofold")), top_k=3, seed=5),
    held(Lark('start: "[" x+ "]"\nx: /[0-9]/ | "(" x ")"'), min_p=0.1, top_p=0.9, seed=11),
    SamplingParams(temperature=0.7, top_k=20, seed=4, prompt_length=len(PROMPT)),
]


@pytest.fixture(scope="module")
def alone(engine: Engine) -> list[list[int]]:
    return [answers(engine, [params], most=60)[0] for params in MIXED]


@pytest.mark.parametrize("draft", [0, 3])
def test_rows_say_the_same_in_company(engine: Engine, alone: list[list[int]], draft: int) -> None:
    assert answers(engine, MIXED, most=60, draft=draft) == alone


def test_preempted_answers_go_on_where_they_were(engine: Engine, alone: list[list[int]]) -> None:
    def preempt(step: int, said: Mapping[int, list[int]]) -> None:
        for n in said:
            if (step + n) % 4 == 0:
                engine.close(n)
                engine.open(n, MIXED[n])

    assert answers(engine, MIXED, most=60, draft=2, disturb=preempt) == alone


def test_answers_go_on_after_a_failed_step(
    engine: Engine, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = type(engine.runner.decoder)
    evaluate = decoder.__call__

    def broken(*_: Any) -> Any:
        raise RuntimeError("planted fault")

    def fail(step: int, said: Mapping[int, list[int]]) -> None:
        if step % 3 or not said:
            return
        with monkeypatch.context() as patched:
            patched.setattr(decoder, "__call__", broken)
            with pytest.raises(RuntimeError, match="planted"):
                engine.eval_batch([StepItem(n) for n in said])

    assert answers(engine, MIXED, most=60, disturb=fail) == alone
    assert decoder.__call__ is evaluate


def test_the_vocabulary_is_made_once(engine: Engine, alone: list[list[int]]) -> None:
    assert alone
    assert len(LOADED) == 1


def test_only_ends_follow_a_complete_answer(engine: Engine) -> None:
    engine.open(0, held(Choice(("ab",)), temperature=2.0, seed=1))
    items, said = [StepItem(0, PROMPT)], []
    for _ in range(6):
        (outcome,) = engine.eval_batch(items).outcomes
        assert isinstance(outcome, Evaluated)
        said += [token.token for token in outcome.sampled]
        items = [StepItem(0)]
    engine.close(0)
    first = said.index(END)
    assert b"".join(map(TOKENIZER.token_bytes, said[:first])) == b"ab"
    assert set(said[first:]) == {END}


@pytest.mark.parametrize(
    "grammar",
    [
        compose("start: @answer", answer=JsonObject()).replace("object", "objekt"),
        compose(
            "start: a0\n" + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(60)) + 'a60: "a"'
        ),
        "no grammar at all",
    ],
)
def test_a_grammar_that_fails_ends_its_own_sequence(engine: Engine, grammar: str) -> None:
    free = MIXED[0]
    (expected,) = answers(engine, [free], most=8)
    engine.open(0, free)
    engine.open(1, SamplingParams(grammar=grammar, prompt_length=len(PROMPT)))
    items = [StepItem(0, PROMPT), StepItem(1, PROMPT)]
    said: list[int] = []
    fault: Refused | None = None
    for _ in range(8):
        outcomes = engine.eval_batch(items).outcomes
        assert isinstance(outcomes[0], Evaluated)
        said += [token.token for token in outcomes[0].sampled]
        if isinstance(outcomes[-1], Refused):
            fault = outcomes[-1]
            engine.close(1)
            items = [StepItem(0)]
        else:
            items = [StepItem(item.sequence) for item in items]
    engine.close(0)
    assert fault is not None
    assert fault.error.code == "grammar_failed"
    assert said == expected


def test_an_engine_without_a_vocabulary_says_so() -> None:
    engine = make_engine(make_pair())
    engine.open(0, held(JsonObject()))
    (outcome,) = engine.eval_batch([StepItem(0, PROMPT)]).outcomes
    assert isinstance(outcome, Refused)
    assert "vocabulary" in outcome.error.message


LOGITS = torch.randn(2, 320, generator=torch.Generator().manual_seed(0))


def drawn(params: SamplingParams, allowed: Sequence[int]) -> SampledToken:
    from array import array

    mask = torch.zeros(320, dtype=torch.bool)
    mask[list(allowed)] = True
    draw = Draw(params, array("q", [1, 2, 3]), Bias.of(params), mask)
    return sample(LOGITS[:1], [draw])[0]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1e-4),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=2.0, top_p=0.01),
        SamplingParams(temperature=2.0, top_p=0.0),
        SamplingParams(temperature=1.0, min_p=1.0),
        SamplingParams(temperature=1.0, logit_bias={7: -100.0, 9: -100.0, 8: 100.0}),
        SamplingParams(temperature=1.0, repetition_penalty=10.0, presence_penalty=2.0),
    ],
)
def test_a_mask_holds_however_tokens_are_drawn(params: SamplingParams) -> None:
    assert drawn(params, [7]).token == 7
    assert drawn(params, [7, 9]).token in (7, 9)


def test_logprobs_stay_the_models_own() -> None:
    params = SamplingParams(temperature=0.0, logprobs=True, top_logprobs=3)
    own = LOGITS[0].log_softmax(-1)
    token = drawn(params, [7])
    assert token.logprob == pytest.approx(float(own[7]))
    assert [top for top, _ in token.top_logprobs] == own.topk(3).indices.tolist()


def test_a_free_greedy_row_keeps_its_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from array import array

    from ds4trio.engine.native import greedy

    looked_at: list[int] = []
    own = greedy.likeliest_of_rows

    def watched(logits: torch.Tensor) -> list[int]:
        looked_at.append(len(logits))
        return own(logits)

    monkeypatch.setattr(greedy, "likeliest_of_rows", watched)
    mask = torch.zeros(320, dtype=torch.bool)
    mask[5] = True
    history = array("q", [1])
    plain = SamplingParams(temperature=0.0)
    tokens = sample(LOGITS, [Draw(plain, history, None, mask), Draw(plain, history, None)])
    assert [token.token for token in tokens] == [5, int(LOGITS[1].argmax())]
    assert looked_at == [2, 1]  # all of them, then the one whose likeliest token is not allowed


def thought(engine: Engine, **sampling: Any) -> list[int]:
    params = {"temperature": 0.0, "prompt_length": len(PROMPT), **sampling}
    (said,) = answers(engine, [SamplingParams(**params)], most=12)
    return said


def test_reasoning_ends_at_its_limit(engine: Engine) -> None:
    free = thought(engine)
    ended = thought(engine, reasoning_limit=4, reasoning_end=(50, 51, 50))
    assert ended[:7] == [*free[:4], 50, 51, 50]
    again = thought(engine, reasoning_limit=4, reasoning_end=(50, 51, 50), seed=1)
    assert again == ended
    assert thought(engine, reasoning_limit=0, reasoning_end=(50,))[0] == 50


def test_reasoning_that_ended_in_time_is_left_alone(engine: Engine) -> None:
    free = thought(engine)
    assert thought(engine, reasoning_limit=4, reasoning_end=tuple(free[1:3])) == free
    # The end has begun when the limit is reached: it goes on.
    assert thought(engine, reasoning_limit=4, reasoning_end=(free[3], 51))[:5] == [*free[:4], 51]


def test_reasoning_ends_alike_after_preemption_and_with_guesses(engine: Engine) -> None:
    asked = [
        SamplingParams(
            temperature=1.0, seed=n, prompt_length=4, reasoning_limit=n, reasoning_end=(50, 51, 52)
        )
        for n in range(4)
    ]

    def preempt(step: int, said: Mapping[int, list[int]]) -> None:
        for n in said:
            if (step + n) % 3 == 0:
                engine.close(n)
                engine.open(n, asked[n])

    expected = [answers(engine, [params], most=12)[0] for params in asked]
    assert answers(engine, asked, most=12, draft=3, disturb=preempt) == expected


def test_reasoning_and_then_a_grammar(engine: Engine) -> None:
    grammar = compose("start: /(?s:.)*/ <[1]> @answer", answer=JsonSchema(PERSON))
    params = SamplingParams(
        grammar=grammar,
        temperature=1.0,
        seed=2,
        prompt_length=len(PROMPT),
        reasoning_limit=5,
        reasoning_end=(1,),
    )
    (said,) = answers(engine, [params])
    assert 1 in said[:6]
    jsonschema.validate(json.loads(text(said[said.index(1) + 1 :])), PERSON)
