"""``POST /v1/completions``, and several answers at once at both doors.

Numbers in comments are those of the known faults of servers like this one.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import BadRequestError, OpenAI
from openai.types import Completion

from tests.api.helpers import (
    ENDLESS,
    Api,
    ScriptedEngine,
    assert_openai_error,
    serving_script,
    serving_tiny,
    tiny_tokenizer,
    until,
)


async def _post(api: Api, prompt: Any = "Say", **fields: Any) -> httpx.Response:
    return await api.http.post("/v1/completions", json={"prompt": prompt, **fields})


async def _completion(api: Api, prompt: Any = "Say", **fields: Any) -> dict[str, Any]:
    response = await _post(api, prompt, **fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    checked: dict[str, Any] = response.json()
    for choice in checked["choices"]:
        told = choice["logprobs"]
        if fields.get("echo") and told is not None:
            # The first token of a prompt has null at OpenAI, though the types do not know it.
            told["token_logprobs"][0], told["top_logprobs"][0] = 0.0, {}
    Completion.model_validate(checked)
    return body


async def _chunks(api: Api, prompt: Any = "Say", **fields: Any) -> list[Any]:
    text = (await _post(api, prompt, stream=True, **fields)).text
    data = [
        block.removeprefix("data: ")
        for block in text.split("\n\n")
        if block and not block.startswith(":")
    ]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def _streamed(chunks: list[Any]) -> dict[int, str]:
    """The text of each choice of a stream."""
    assert chunks[-1] == "[DONE]"
    texts: dict[int, str] = {}
    for chunk in chunks[:-1]:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


def _texts(body: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in body["choices"]] == list(range(len(body["choices"])))
    return [choice["text"] for choice in body["choices"]]


# -- the prompt


async def test_a_prompt_goes_on_without_a_template(tiny_model: Path) -> None:
    ids = tiny_tokenizer().encode("the user", special=True)
    fields = {"seed": 1, "max_tokens": 8}
    async with serving_tiny(tiny_model) as api:
        text = await _completion(api, "the user", **fields)
        from_ids = await _completion(api, ids, **fields)
        assert _texts(text) == _texts(from_ids)
        assert from_ids["usage"]["prompt_tokens"] in (len(ids), len(ids) + 1)
        assert text["choices"][0]["finish_reason"] in ("length", "stop")
        several = await _completion(api, ["the user", "is"], **fields)
        assert _texts(several) == [*_texts(text), *_texts(await _completion(api, "is", **fields))]
        lists = await _completion(api, [ids, ids[:1]], n=2, **fields)
        assert _texts(lists)[0] == _texts(text)[0]
        assert len(set(_texts(lists))) == 4
        assert _streamed(await _chunks(api, [ids, ids[:1]], n=2, **fields)) == dict(
            enumerate(_texts(lists))
        )
        await api.at_rest()


async def test_without_a_limit_there_are_sixteen_tokens() -> None:
    async with serving_script(ScriptedEngine(repeat=True)) as api:
        body = await _completion(api)
    assert _texts(body) == [ENDLESS[:16]]
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == body["timings"]["predicted_n"] == 16


async def test_echo_repeats_the_prompt() -> None:
    ids = tiny_tokenizer().encode("<|im_start|>Hé", special=True)
    async with serving_script(ScriptedEngine("XYZ")) as api:
        for prompt, told in (("Say ", "Say "), (ids, "<|im_start|>Hé")):
            assert _texts(await _completion(api, prompt, echo=True)) == [told + "XYZ"]
            assert _streamed(await _chunks(api, prompt, echo=True)) == {0: told + "XYZ"}
        alone = await _completion(api, ["Say ", "it"], echo=True, max_tokens=0)  # 7
        assert _texts(alone) == ["Say ", "it"]
        assert alone["choices"][0]["finish_reason"] == "length"
        assert alone["usage"]["completion_tokens"] == 0
        assert alone["usage"]["prompt_tokens"] == len(
            tiny_tokenizer().encode("Say ", special=True)
        ) + len(tiny_tokenizer().encode("it", special=True))
        chunks = await _chunks(api, "Say ", echo=True, max_tokens=0)
        assert _streamed(chunks) == {0: "Say "}
        assert chunks[-2]["choices"][0]["finish_reason"] == "length"


REFUSED: list[tuple[str, Any, dict[str, Any]]] = [
    ("prompt", "", {}),
    ("prompt", [], {}),
    ("prompt", [""], {}),
    ("prompt", [[]], {}),
    ("prompt", None, {}),
    ("prompt", [-1], {}),
    ("prompt", [99999999], {}),
    ("prompt", [10**30], {}),
    ("prompt", [1.5], {}),
    ("prompt", [True], {}),
    ("prompt", ["a", 1], {}),
    ("prompt", ["a", [1]], {}),
    ("prompt", [[1], 1], {}),
    ("prompt[1]", ["a", ""], {}),
    ("prompt[1]", [[5], [99999999]], {}),
    ("prompt", ["a"] * 129, {}),
    ("prompt", ["a"] * 10, {"n": 13}),
    ("prompt", "z" * 600, {}),
    ("max_tokens", "a", {"max_tokens": 0}),
    ("max_tokens", "a", {"max_tokens": -1}),
    ("max_tokens", "a", {"max_tokens": 1.5}),
    ("logprobs", "a", {"logprobs": 6}),
    ("logprobs", "a", {"logprobs": -1}),
    ("logprobs", "a", {"logprobs": True}),
    ("logprobs", "a", {"logprobs": 6, "echo": True}),
    ("suffix", "a", {"suffix": "z"}),
    ("best_of", "a", {"best_of": 2}),
    ("n", "a", {"n": 0}),
    ("n", "a", {"n": 17}),
    ("stop", "a", {"stop": ""}),
    ("stop", "a", {"stop": ["z", ""]}),
    ("logit_bias", "a", {"logit_bias": {"99999999": 5}}),
    ("temperature", "a", {"temperature": -1}),
    ("messages", "a", {"messages": []}),
]


async def test_what_is_refused_is_named(tiny_model: Path) -> None:  # 3, 4, 5, 7, 8, 14
    async with serving_tiny(tiny_model) as api:
        for param, prompt, fields in REFUSED:
            error = assert_openai_error(await _post(api, prompt, **fields), 400)
            assert error["param"].startswith(param), (prompt, fields, error)
        assert_openai_error(await api.http.post("/v1/completions", json={}), 400, param="prompt")
        await _completion(api, best_of=2, n=2, max_tokens=1, suffix="")
        await _completion(api, max_tokens=10**12, stop="2")
        await api.at_rest()


# -- the answer


async def test_logprobs_have_the_shape_of_this_api(tiny_model: Path) -> None:  # 16
    async with serving_tiny(tiny_model) as api:
        for temperature in (0, 1):
            fields = {"seed": 3, "temperature": temperature, "max_tokens": 12, "logprobs": 3}
            (choice,) = (await _completion(api, **fields))["choices"]
            chunks = await _chunks(api, **fields)
            told = choice["logprobs"]
            places = [told[name] for name in told]
            assert len({len(place) for place in places}) == 1
            for token, logprob, top in zip(
                told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
            ):
                assert math.isfinite(logprob)
                assert logprob <= 0
                assert top[token] == logprob
                assert 1 <= len(top) <= 4  # tokens beyond the vocabulary share the empty name
                assert temperature or logprob == max(top.values())
            offsets = told["text_offset"]
            assert offsets[0] == 0
            assert offsets == sorted(offsets)
            for place, token in zip(offsets, told["tokens"], strict=True):
                if not token.startswith("bytes:"):
                    assert choice["text"][place:].startswith(token) or "\ufffd" in choice["text"]
            streamed: dict[str, list[Any]] = {name: [] for name in told}
            for chunk in chunks[:-1]:
                for name, more in chunk["choices"][0]["logprobs"].items():
                    streamed[name] += more
            assert streamed == told
        assert (await _completion(api, max_tokens=1))["choices"][0]["logprobs"] is None
        zero = (await _completion(api, max_tokens=1, logprobs=0))["choices"][0]["logprobs"]
        assert [len(top) for top in zero["top_logprobs"]] == [1]


def _joined_logprobs(chunks: list[Any], index: int) -> dict[str, list[Any]]:
    joined: dict[str, list[Any]] = {}
    for chunk in chunks[:-1]:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                for name, more in choice["logprobs"].items():
                    joined.setdefault(name, []).extend(more)
    return joined


async def test_echo_with_logprobs_tells_of_the_prompt_too(tiny_model: Path) -> None:
    given = "<|im_start|>the user is h\N{GRINNING FACE}re"
    ids = tiny_tokenizer().encode(given, special=True)
    fields = {"temperature": 0, "max_tokens": 3, "logprobs": 2}
    async with serving_tiny(tiny_model, prefill_chunk=4) as api:
        bare = await _completion(api, given, **fields)
        for prompt in (given, ids):
            (choice,) = (await _completion(api, prompt, echo=True, **fields))["choices"]
            told = choice["logprobs"]
            assert choice["text"] == given + _texts(bare)[0]
            answered = bare["choices"][0]["logprobs"]
            assert told["token_logprobs"][len(ids) :] == answered["token_logprobs"]
            assert told["token_logprobs"][0] is None
            assert told["top_logprobs"][0] is None
            assert told["text_offset"][len(ids) :] == [
                len(given) + place for place in answered["text_offset"]
            ]
            assert len({len(own) for own in told.values()}) == 1
            for place in range(len(ids)):
                name, offset = told["tokens"][place], told["text_offset"][place]
                assert given[offset:].startswith(name) or name.startswith("bytes:")
                if place:
                    assert told["top_logprobs"][place][name] == told["token_logprobs"][place] < 0
                    assert 1 <= len(told["top_logprobs"][place]) <= 3
            chunks = await _chunks(api, prompt, echo=True, **fields)
            assert _streamed(chunks) == {0: choice["text"]}
            assert _joined_logprobs(chunks, 0) == told
        # A token's place tells what it is worth, whatever the company: several, and each twice.
        both = await _completion(api, [given, "the"], echo=True, n=2, **fields)
        assert [one["logprobs"] for one in both["choices"][:2]] == [told, told]
        chunks = await _chunks(api, [given, "the"], echo=True, n=2, **fields)
        assert _streamed(chunks) == dict(enumerate(_texts(both)))
        for index, one in enumerate(both["choices"]):
            assert _joined_logprobs(chunks, index) == one["logprobs"]
        await api.at_rest()


async def test_a_token_that_was_added_has_no_place_in_the_text(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "begins"
    shutil.copytree(tiny_model, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "add_bos_token": True}))
    ids = tiny_tokenizer().encode("the user", special=True)
    async with serving_tiny(folder) as api:
        body = await _completion(api, "the user", echo=True, logprobs=0, max_tokens=0)
    (told,) = [choice["logprobs"] for choice in body["choices"]]
    assert _texts(body) == ["the user"]
    assert len(told["tokens"]) == len(ids) + 1 == body["usage"]["prompt_tokens"]
    assert told["text_offset"][:2] == [0, 0]
    for name, offset in zip(told["tokens"][1:], told["text_offset"][1:], strict=True):
        assert "the user"[offset:].startswith(name)


async def test_a_prompt_alone_can_be_measured(tiny_model: Path) -> None:
    """As harnesses do that compare continuations."""
    fields = {"echo": True, "logprobs": 1, "temperature": 0}
    async with serving_tiny(tiny_model) as api:
        one = await _completion(api, ["the user", "is"], max_tokens=1, **fields)
        none = await _completion(api, ["the user", "is"], max_tokens=0, **fields)
        assert _texts(none) == ["the user", "is"]
        assert none["usage"]["completion_tokens"] == 0
        for measured, answered in zip(none["choices"], one["choices"], strict=True):
            assert measured["finish_reason"] == "length"
            for name, told in measured["logprobs"].items():
                assert told == answered["logprobs"][name][: len(told)]
        chunks = await _chunks(api, "the user", max_tokens=0, **fields)
        assert _streamed(chunks) == {0: "the user"}
        assert _joined_logprobs(chunks, 0) == none["choices"][0]["logprobs"]
        # Each continuation's own sum, from token ids, is what the whole says of it.
        ids = tiny_tokenizer().encode("the user", special=True)
        (again,) = (await _completion(api, [ids], max_tokens=1, **fields))["choices"]
        assert again["logprobs"] == one["choices"][0]["logprobs"]
        await api.at_rest()


async def test_no_stop_text_leaks_and_usage_comes_when_asked_for() -> None:  # 14, 18
    async with serving_script(ScriptedEngine("The quick brown fox")) as api:
        whole = await _completion(api, stop=["own fox"], max_tokens=100)
        assert _texts(whole) == ["The quick br"]
        unasked = await _chunks(api, stop=["own fox"], max_tokens=100)
        assert _streamed(unasked) == {0: "The quick br"}
        assert all(chunk == "[DONE]" or len(chunk["choices"]) == 1 for chunk in unasked)
        assert all(chunk == "[DONE]" or "usage" not in chunk for chunk in unasked)
        asked = await _chunks(
            api, stop=["own fox"], max_tokens=100, stream_options={"include_usage": True}
        )
        assert asked[-2]["choices"] == []
        assert asked[-2]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


@pytest.mark.parametrize("limit", range(1, 9))
async def test_limit_never_splits_a_character(limit: int) -> None:  # 13
    said = "a\N{GRINNING FACE}\N{CJK UNIFIED IDEOGRAPH-65E5}é!"
    async with serving_script(ScriptedEngine(said)) as api:
        (text,) = _texts(await _completion(api, max_tokens=limit))
        assert text == said.encode()[:limit].decode(errors="ignore")
        assert _streamed(await _chunks(api, max_tokens=limit)) == {0: text}


async def test_a_failure_in_a_stream_is_its_last_event() -> None:  # 17
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, on_batch_failure="fail") as api:
        engine.fault = lambda items: len(engine.batches) == 4
        chunks = await _chunks(api, ["a", "b"], max_tokens=1000)
        assert chunks[-1]["error"]["code"] == "batch_failed"
        assert "[DONE]" not in chunks
        await api.at_rest()
        assert _texts(await _completion(api, max_tokens=3)) == ["ABC"]


async def test_the_official_client_understands_all_of_it() -> None:
    async with serving_script(ScriptedEngine("Hello there")) as api:
        await trio.to_thread.run_sync(_ask_with_the_official_client, f"{api.server.url}/v1")


def _ask_with_the_official_client(url: str) -> None:
    with OpenAI(base_url=url, api_key="any") as client:
        whole = client.completions.create(model="scripted", prompt=["a", "b"], logprobs=2)
        assert [choice.text for choice in whole.choices] == ["Hello there"] * 2
        stream = client.completions.create(model="scripted", prompt="a", stream=True)
        assert "".join([chunk.choices[0].text for chunk in stream]) == "Hello there"
        with pytest.raises(BadRequestError):
            client.completions.create(model="scripted", prompt="a", suffix="z")
        messages: Any = [{"role": "user", "content": "Hi"}]
        chat = client.chat.completions.create(model="scripted", messages=messages, n=3)
        assert [one.message.content for one in chat.choices] == ["Hello there"] * 3


# -- several answers at once


def _contents(body: dict[str, Any]) -> list[str]:
    return [choice["message"]["content"] for choice in body["choices"]]


async def test_choices_differ_and_are_the_same_again(tiny_model: Path) -> None:
    fields = {"seed": 7, "max_tokens": 12}
    async with serving_tiny(tiny_model) as api:
        one = await api.completion(**fields)
        four = await api.completion(n=4, **fields)
        again = await api.completion(n=4, **fields)
        assert _contents(four) == _contents(again)
        assert len(set(_contents(four))) == 4
        assert _contents(four)[0] == _contents(one)[0]
        usage = four["usage"]
        assert usage["prompt_tokens"] == one["usage"]["prompt_tokens"]
        assert usage["completion_tokens"] > one["usage"]["completion_tokens"]
        texts = ["", "", "", ""]
        chunks = await api.streamed(n=4, **fields)
        for chunk in chunks[:-1]:
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["delta"].get("content") or ""
        assert texts == _contents(four)


async def test_choices_of_one_request_take_what_slots_there_are() -> None:
    async with serving_script(ScriptedEngine("Hello"), max_sessions=2, max_waiting=0) as api:
        assert _contents(await api.completion(n=5)) == ["Hello"] * 5
        await api.at_rest()


async def test_choices_begin_when_the_prompt_has_been_evaluated() -> None:
    engine = ScriptedEngine("Hello")
    async with serving_script(engine) as api:
        await api.completion(messages=[{"role": "user", "content": "z" * 400}], n=8)
    evaluated = sum(len(item.tokens) for batch in engine.batches for item in batch)
    assert evaluated < 2 * 500


async def test_one_that_fails_ends_the_others() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, on_batch_failure="fail") as api:
        engine.fault = lambda items: len(engine.batches) == 20
        chunks = await api.streamed(n=3, max_tokens=40_000)
        assert chunks[-1]["error"]["code"] == "batch_failed"
        assert sum("error" in chunk for chunk in chunks) == 1
        await api.at_rest()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_all_its_choices(stream: bool) -> None:  # 1
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine) as api:
        client = await api.raw()
        await client.send(api.post_bytes(stream=stream, max_tokens=40_000, n=4))
        await until(lambda: api.coalescer.sessions == 4)
        await client.stream.aclose()
        await api.at_rest()


async def test_choices_that_nobody_reads_rest() -> None:
    engine = ScriptedEngine("w" * 16_384, repeat=True)
    async with serving_script(engine) as api:
        client = await api.raw(receive_buffer=4096)
        await client.send(api.post_bytes(stream=True, max_tokens=40_000, n=4))
        drawn = -1
        with trio.fail_after(20):
            while drawn != sum(engine.drawn.values()) or drawn < 4:
                drawn = sum(engine.drawn.values())
                await trio.sleep(0.3)
        assert drawn < 4 * 1200  # what is sent, and 512 unread ones of each
        await client.stream.aclose()
        await api.at_rest()


# -- anything at all

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 400) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        "n",
        "stop",
        "echo",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "response_format",
        "tools",
        "tool_choice",
        "reasoning",
        "reasoning_effort",
        "max_tokens",
        "seed",
        "temperature",
        "top_k",
        "stream",
        "stream_options",
        "grammar",
        "json_schema",
        "structured_outputs",
        "chat_template_kwargs",
        "continue_final_message",
        "return_progress",
        "ignore_eos",
        "prompt",
        "messages",
        "functions",
        "suffix",
        "best_of",
        "parallel_tool_calls",
        "user",
        "cache_salt",
    ]
)


async def test_no_body_makes_the_server_fail() -> None:
    async with serving_script(ScriptedEngine("Hi")) as api:
        send = trio.lowlevel.current_trio_token()

        @settings(
            max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None
        )
        @given(
            path=st.sampled_from(["/v1/completions", "/v1/chat/completions"]),
            fields=st.dictionaries(NAMES, ANYTHING, max_size=3),
            usual=st.booleans(),
        )
        def sweep(path: str, fields: dict[str, Any], usual: bool) -> None:
            field = "messages" if path.endswith("chat/completions") else "prompt"
            given = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi"}[field]
            body = json.dumps({**({field: given} if usual else {}), **fields})
            response = trio.from_thread.run(_raw_post, api, path, body, trio_token=send)
            assert response.status_code in (200, 400), (body, response.text)

        await trio.to_thread.run_sync(sweep)
        await api.at_rest()


async def _raw_post(api: Api, path: str, body: str) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    return await api.http.post(path, content=body, headers=headers)
