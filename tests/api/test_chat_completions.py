"""``POST /v1/chat/completions``: what a client sends, and what it gets for it.

Numbers in names and comments are those of the known faults of servers like this one.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import trio
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.api.helpers import (
    ENDLESS,
    SECRET,
    USER,
    Api,
    ScriptedEngine,
    assert_openai_error,
    delta_text,
    logprob_entries,
    serving_script,
    serving_tiny,
    tiny_tokenizer,
    until,
)

EMOJI = "a\N{GRINNING FACE}\N{CJK UNIFIED IDEOGRAPH-65E5}\N{WAVING HAND SIGN}é!"
FOX = "The quick brown fox jumps over the lazy dog"


# -- the two forms of an answer


async def test_whole_answer_has_the_shape_of_openai() -> None:
    async with serving_script(ScriptedEngine("Hello there")) as api:
        body = await api.completion()
    ChatCompletion.model_validate(body)
    assert body["object"] == "chat.completion"
    assert body["model"] == "scripted"
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == "Hello there"
    assert choice["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_stream_begins_with_the_role_and_ends_with_done() -> None:
    async with serving_script(ScriptedEngine("Hello there")) as api:
        chunks = await api.streamed()
    assert chunks.pop() == "[DONE]"
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        assert chunk["object"] == "chat.completion.chunk"
        assert len(chunk["choices"]) == 1
        assert chunk.get("usage") is None
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert delta_text(chunks) == "Hello there"


async def test_text_arrives_while_the_answer_is_being_made() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine) as api:
        async with api.chunks(max_tokens=100_000) as chunks:
            text = ""
            while len(text) < 3:
                text += delta_text([await anext(chunks)])
            assert ENDLESS.startswith(text[:3])
        await api.at_rest()


async def test_usage_comes_only_when_asked_for() -> None:  # 18
    async with serving_script(ScriptedEngine("HELLO")) as api:
        await api.completion()  # fills the prefix cache, so that the next ones are all alike
        whole = (await api.completion())["usage"]
        for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
            unasked = await api.streamed(**options)
            assert all(chunk == "[DONE]" or chunk.get("usage") is None for chunk in unasked)
            assert all(chunk == "[DONE]" or len(chunk["choices"]) == 1 for chunk in unasked)
        *chunks, usage_chunk, done = await api.streamed(stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert usage_chunk["choices"] == []
    assert usage_chunk["usage"] == whole
    assert all(chunk["usage"] is None for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


# -- where an answer ends


@pytest.mark.parametrize("limit", range(1, 9))
async def test_limit_never_splits_a_character(limit: int) -> None:  # 13
    async with serving_script(ScriptedEngine(EMOJI)) as api:
        whole = await api.completion(max_tokens=limit)
        chunks = await api.streamed(max_tokens=limit)
    text = whole["choices"][0]["message"]["content"]
    assert text == EMOJI.encode()[:limit].decode(errors="ignore")  # a token of EMOJI is a byte
    assert delta_text(chunks) == text
    assert "\N{REPLACEMENT CHARACTER}" not in text
    assert whole["usage"]["completion_tokens"] == limit
    assert whole["choices"][0]["finish_reason"] == "length"


async def test_newer_name_of_the_limit() -> None:
    async with serving_script() as api:
        body = await api.completion(max_completion_tokens=3)
    assert body["choices"][0]["message"]["content"] == ENDLESS[:3]


async def test_answer_without_a_limit_gets_the_servers() -> None:
    async with serving_script(ScriptedEngine(repeat=True), max_output_tokens=5) as api:
        body = await api.completion(max_tokens=None)
    assert body["usage"]["completion_tokens"] == 5
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("stop", "expected", "reason"),
    [
        ("fox", "The quick brown ", "stop"),
        (["own fox"], "The quick br", "stop"),
        (["lazy cat", "own fox", "dog"], "The quick br", "stop"),
        (["absent", "dogs"], FOX, "stop"),
        (["The"], "", "stop"),
        ([], FOX, "stop"),
        (None, FOX, "stop"),
    ],
)
async def test_stop_texts(stop: Any, expected: str, reason: str) -> None:  # 14
    async with serving_script(ScriptedEngine(FOX)) as api:
        choice = (await api.completion(stop=stop))["choices"][0]
        chunks = await api.streamed(stop=stop)
        await api.at_rest()
    assert (choice["message"]["content"], choice["finish_reason"]) == (expected, reason)
    assert delta_text(chunks) == expected
    assert chunks[-1] == "[DONE]"


@pytest.mark.parametrize("stop", ["", [""], ["dog", ""]])
async def test_empty_stop_text_is_refused(stop: Any) -> None:  # 14
    async with serving_script() as api:
        assert_openai_error(await api.chat(stop=stop), 400, param="stop")


async def test_prompt_at_the_edge_of_the_context(tiny_model: Path) -> None:  # 7
    async with serving_tiny(tiny_model, ctx=64) as api:
        short = await api.completion(messages=[{"role": "user", "content": "z"}], max_tokens=1)
        others = short["usage"]["prompt_tokens"] - 1  # every z is a token

        def question(tokens: int) -> list[dict[str, str]]:
            return [{"role": "user", "content": "z" * (tokens - others)}]

        below = await api.completion(messages=question(63), max_tokens=10**12)
        assert below["usage"]["prompt_tokens"] == 63
        assert below["usage"]["completion_tokens"] == 1
        assert below["choices"][0]["finish_reason"] in ("length", "stop")
        for tokens in (64, 65, 5000):
            refusal = await api.chat(messages=question(tokens))
            error = assert_openai_error(refusal, 400, code="context_length_exceeded")
            assert str(tokens) in error["message"]
            assert "64" in error["message"]
        assert (await api.chat(max_tokens=1)).status_code == 200


async def test_prompt_larger_than_the_cache_is_refused_at_once(tiny_model: Path) -> None:  # 9
    async with serving_tiny(tiny_model, kv_memory="64KiB") as api:  # 128 positions of 512
        large = await api.chat(messages=[{"role": "user", "content": "z" * 200}])
        error = assert_openai_error(large, 400, code="context_length_exceeded")
        assert "128" in error["message"]
        assert (await api.chat(max_tokens=1)).status_code == 200
        await api.at_rest()


# -- messages


async def test_parts_of_a_message_are_joined() -> None:  # 15
    async with serving_script() as api:
        parts = [
            {"type": "text", "text": "Say "},
            {"type": "text", "text": "something.", "prompt_cache_breakpoint": {}},
        ]
        body = await api.completion(messages=[{"role": "user", "content": parts}])
        assert body["usage"]["prompt_tokens"] == (await api.completion())["usage"]["prompt_tokens"]


CALLS = [{"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Be brief."}, *USER],
        [{"role": "developer", "content": "Be brief."}, *USER],
        [*USER, {"role": "assistant", "content": None, "tool_calls": CALLS}, *USER],
        [*USER, {"role": "assistant", "tool_calls": CALLS}, *USER],
        [*USER, {"role": "assistant", "content": None}, *USER],
        [*USER, {"role": "assistant", "content": "Well."}, {"role": "user", "content": "And?"}],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": "\N{GRINNING FACE} \u0000 \ufeff"}],
        [{"role": "user", "content": "Hi", "name": "Ada"}],
    ],
)
async def test_messages_that_are_understood(messages: Any) -> None:  # 8, 15
    async with serving_script() as api:
        assert (await api.chat(messages=messages, max_tokens=2)).status_code == 200


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "Hi",
        [None],
        ["Hi"],
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "robot", "content": "Hi"}],
        [{"content": "Hi"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": {"type": "text", "text": "Hi"}}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
        [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "video"}]}],
        [{"role": "user", "content": "Hi", "colour": "red"}],
    ],
)
async def test_messages_that_are_refused(messages: Any) -> None:  # 8, 15
    async with serving_script() as api:
        error = assert_openai_error(await api.chat(messages=messages), 400)
        assert "messages" in error["param"]
        assert (await api.chat(max_tokens=1)).status_code == 200


# -- fields


async def test_unknown_field_is_refused_by_name() -> None:
    async with serving_script() as api:
        error = assert_openai_error(await api.chat(max_tokenz=5), 400, param="max_tokenz")
        assert "max_tokenz" in error["message"]


async def test_model_may_be_named_and_must_be_the_one_that_is_served() -> None:
    async with serving_script() as api:
        assert (await api.chat(model="scripted", max_tokens=1)).status_code == 200
        error = assert_openai_error(
            await api.chat(model="gpt-4o"), 404, code="model_not_found", param="model"
        )
        assert "scripted" in error["message"]


OUT_OF_RANGE = [
    ("temperature", -1),
    ("temperature", 1e9),
    ("temperature", 2.01),
    ("temperature", "hot"),
    ("top_p", -0.1),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", 10**30),
    ("top_k", 1.5),
    ("min_p", 1.5),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("frequency_penalty", 2.5),
    ("presence_penalty", -2.5),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("max_tokens", "5"),
    ("max_tokens", True),
    ("max_completion_tokens", 0),
    ("logit_bias", {"99999999": 5}),
    ("logit_bias", {"-1": 5}),
    ("logit_bias", {"320": 5}),
    ("logit_bias", {"five": 5}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"5": "much"}),
    ("logit_bias", [5]),
    ("top_logprobs", 21),
    ("top_logprobs", -1),
    ("seed", 0.5),
    ("seed", 10**40),
    ("n", 0),
    ("n", 17),
    ("stream", "yes"),
    ("stop", [1]),
    ("stop", {"a": 1}),
]


async def test_values_out_of_range_are_refused_by_name(tiny_model: Path) -> None:  # 4, 5, 7
    async with serving_tiny(tiny_model) as api:
        for name, value in OUT_OF_RANGE:
            fields = {name: value, **({"logprobs": True} if name == "top_logprobs" else {})}
            error = assert_openai_error(await api.chat(**fields), 400)
            assert (error["param"] or "").startswith(name), (name, value, error)
        assert (await api.chat(max_tokens=1)).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 1e-4},
        {"temperature": 1e-10},
        {"temperature": 2},
        {"top_p": 0},
        {"top_p": 1e-4},
        {"top_k": 0},
        {"top_k": -1},
        {"top_k": 1},
        {"top_k": 10**9},
        {"min_p": 1},
        {"frequency_penalty": 2, "presence_penalty": -2, "repetition_penalty": 1.3},
        {"logit_bias": {"5": -100, "6": 100}},
        {"seed": -1},
        {"max_tokens": 10**12, "stop": "2"},
        {"temperature": None, "top_p": None, "stop": None, "seed": None, "logit_bias": None},
    ],
    ids=str,
)
async def test_values_at_the_edge_are_served(tiny_model: Path, fields: Any) -> None:  # 5, 7
    async with serving_tiny(tiny_model) as api:
        body = await api.completion(**{"max_tokens": 6, **fields})
        assert body["usage"]["completion_tokens"] >= 1


async def test_nearly_no_freedom_is_greedy(tiny_model: Path) -> None:  # 5
    async with serving_tiny(tiny_model) as api:
        greedy = await _text(api, temperature=0)
        for fields in ({"temperature": 1e-10}, {"top_k": 1}, {"top_p": 0}, {"min_p": 1}):
            assert await _text(api, **fields) == greedy
        assert await _text(api, temperature=2, seed=1) != greedy


async def test_bias_decides_the_token(tiny_model: Path) -> None:
    async with serving_tiny(tiny_model) as api:
        (token,) = tiny_tokenizer().encode("D", special=False)
        assert await _text(api, logit_bias={f"{token}": 100}, max_tokens=4) == "DDDD"


async def test_refused_requests_do_not_touch_a_bystander(tiny_model: Path) -> None:  # 3, 4
    async with serving_tiny(tiny_model) as api:
        alone = await _text(api, max_tokens=60, temperature=1, seed=3)
        together: list[str] = []

        async def bystander() -> None:
            chunks = await api.streamed(max_tokens=60, temperature=1, seed=3)
            together.append(delta_text(chunks))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(bystander)
            await until(lambda: api.coalescer.sessions == 3)
            for name, value in OUT_OF_RANGE[:12]:
                assert (await api.chat(**{name: value})).status_code == 400
        assert together == [alone] * 3


# -- random streams and company


async def _text(api: Api, **fields: Any) -> str:
    body = await api.completion(**{"max_tokens": 16, **fields})
    text: str = body["choices"][0]["message"]["content"]
    return text


async def test_stream_and_whole_say_the_same(tiny_model: Path) -> None:
    async with serving_tiny(tiny_model) as api:
        for seed in range(4):
            fields = {"seed": seed, "temperature": 1.5, "max_tokens": 24}
            assert delta_text(await api.streamed(**fields)) == await _text(api, **fields)


async def test_seed_gives_the_same_text_alone_and_in_company(tiny_model: Path) -> None:
    async with serving_tiny(tiny_model) as api:
        alone = [await _text(api, seed=seed, max_tokens=24) for seed in range(6)]
        assert len(set(alone)) > 3
        assert alone[0] == await _text(api, seed=0, max_tokens=24)
        together = [""] * len(alone)

        async def ask(seed: int) -> None:
            together[seed] = await _text(api, seed=seed, max_tokens=24)

        async with trio.open_nursery() as nursery:
            for seed in range(len(alone)):
                nursery.start_soon(ask, seed)
        assert together == alone
        assert api.coalescer.stats.mean_batch_size > 1


async def test_without_a_seed_answers_differ(tiny_model: Path) -> None:
    async with serving_tiny(tiny_model) as api:
        assert len({await _text(api, temperature=2) for _ in range(4)}) > 1


async def test_short_prompt_does_not_notice_a_long_neighbour(tiny_model: Path) -> None:  # 6
    async with serving_tiny(tiny_model) as api:
        wanted = {"temperature": 0, "logprobs": True, "max_tokens": 12}
        alone = (await api.completion(**wanted))["choices"][0]
        neighbour = [{"role": "user", "content": "a long tale " * 25}]
        together: dict[str, Any] = {}

        async def ask(name: str, fields: Any) -> None:
            together[name] = (await api.completion(**wanted, **fields))["choices"][0]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "neighbour", {"messages": neighbour})
            await until(lambda: api.coalescer.sessions == 1)
            nursery.start_soon(ask, "short", {})
        assert api.coalescer.stats.mean_batch_size > 1
        assert together["short"]["message"] == alone["message"]
        assert _logprobs(together["short"]) == pytest.approx(_logprobs(alone), abs=1e-4)
        assert together["neighbour"]["message"] != alone["message"]


def _logprobs(choice: Any) -> list[float]:
    return [entry["logprob"] for entry in choice["logprobs"]["content"]]


# -- log-probabilities


@pytest.mark.parametrize("temperature", [0, 1])
async def test_logprobs(tiny_model: Path, temperature: float) -> None:  # 16
    fields = {
        "temperature": temperature,
        "seed": 5,
        "max_tokens": 10,
        "logprobs": True,
        "top_logprobs": 5,
    }
    async with serving_tiny(tiny_model) as api:
        body = await api.completion(**fields)
        chunks = await api.streamed(**fields)
    ChatCompletion.model_validate(body)
    choice = body["choices"][0]
    entries = choice["logprobs"]["content"]
    assert len(entries) == body["usage"]["completion_tokens"]
    for entry in entries:
        top = entry["top_logprobs"]
        values = [other["logprob"] for other in top]
        assert len(top) == 5
        assert all(math.isfinite(value) and value <= 0 for value in (*values, entry["logprob"]))
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1.0001
        assert entry["logprob"] < 0  # no token of a random model is certain
        if temperature == 0:
            assert {name: top[0][name] for name in ("token", "bytes")} == {
                name: entry[name] for name in ("token", "bytes")
            }
    said = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert said.decode(errors="replace").startswith(choice["message"]["content"])
    assert logprob_entries(chunks) == entries


async def test_logprobs_only_when_asked_for(tiny_model: Path) -> None:
    async with serving_tiny(tiny_model) as api:
        assert (await api.completion(max_tokens=1))["choices"][0]["logprobs"] is None
        body = await api.completion(max_tokens=2, logprobs=True)
        assert [e["top_logprobs"] for e in body["choices"][0]["logprobs"]["content"]] == [[], []]
        refusal = await api.chat(top_logprobs=3)
        assert_openai_error(refusal, 400, param="top_logprobs")


# -- failures and partings


async def test_engine_fault_in_the_middle_of_a_stream() -> None:  # 17
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, on_batch_failure="fail") as api:
        engine.fault = lambda items: len(engine.batches) == 4
        chunks = await api.streamed(max_tokens=1000)
        assert "[DONE]" not in chunks
        assert [chunk["error"]["code"] for chunk in chunks if "error" in chunk] == ["batch_failed"]
        assert "error" in chunks[-1]
        assert SECRET not in str(chunks)
        assert len(delta_text(chunks)) == 4
        await api.at_rest()
        assert delta_text(await api.streamed(max_tokens=5)) == ENDLESS[:5]


async def test_engine_fault_before_a_whole_answer() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, on_batch_failure="fail") as api:
        engine.fault = lambda items: len(engine.batches) == 4
        assert_openai_error(await api.chat(max_tokens=50), 500, code="batch_failed")
        assert (await api.completion(max_tokens=5))["usage"]["completion_tokens"] == 5


async def test_engine_fault_that_does_not_come_back_goes_unnoticed() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine) as api:
        engine.fault = lambda items: len(engine.batches) in (0, 4, 20)
        chunks = await api.streamed(max_tokens=60)
        assert chunks[-1] == "[DONE]"
        assert delta_text(chunks) == (ENDLESS * 3)[:60]
        await api.at_rest()


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_has_no_row_in_further_steps(stream: bool) -> None:  # 1
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine) as api:
        client = await api.raw()
        await client.send(api.post_bytes(stream=stream, max_tokens=40_000))
        await until(lambda: len(engine.batches) > 3)
        async with api.step_held(engine):
            steps = len(engine.batches)
            await client.stream.aclose()
        await api.at_rest()
        assert len(engine.batches) <= steps + 2  # one ran, and one was prepared
        assert (await api.completion(max_tokens=1))["usage"]["completion_tokens"] == 1


async def test_client_that_leaves_during_its_prompt_stops_the_prefill() -> None:  # 2
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, step_tokens=64, prefill_chunk=64) as api:
        long = [{"role": "user", "content": "z" * 10_000}]
        for stream in (True, False, True):
            client = await api.raw()
            before = len(engine.batches)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send, api.post_bytes(stream=stream, messages=long))
                async with api.step_held(engine):
                    await client.stream.aclose()
            await api.at_rest()
            assert len(engine.batches) <= before + 3  # the last one may be of the client before
        assert sum(engine.drawn.values()) == 0


async def test_full_server_says_when_to_come_again() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, max_sessions=1, max_waiting=0) as api:
        async with api.chunks(max_tokens=40_000) as chunks:
            await anext(chunks)
            refusal = await api.chat()
            assert_openai_error(refusal, 503, code="server_busy")
            assert int(refusal.headers["retry-after"]) >= 1
        await api.at_rest()
        assert (await api.chat(max_tokens=1)).status_code == 200
