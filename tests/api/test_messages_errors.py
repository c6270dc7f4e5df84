"""Errors of Anthropic's Messages, and bodies that nobody should send."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import msgspec
import pytest
import trio
from anthropic.types import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.api.schemas.messages import MessageRequest
from ds4trio.errors import BatchFailed
from tests.api.helpers import ScriptedEngine, serving_script
from tests.api.messages_client import HELLO, MODEL, PATH, ask, assert_error, client_of, events_of
from tests.api.speaking import Script, serving_events, text


async def test_errors_as_the_client_shows_them() -> None:
    fields: Any = {"max_tokens": 5, "messages": HELLO}
    async with serving_script(api_key=("right",), max_body_bytes=5000) as api:
        async with client_of(api, api_key="wrong") as client:
            with pytest.raises(anthropic.AuthenticationError) as unknown:
                await client.messages.create(model=MODEL, **fields)
            assert unknown.value.type == "authentication_error"
            assert unknown.value.request_id
        async with client_of(api, api_key="right") as client:
            assert (await client.messages.create(model=MODEL, **fields)).content
            with pytest.raises(anthropic.NotFoundError) as missing:
                await client.messages.create(model="claude-opus", **fields)
            assert missing.value.type == "not_found_error"
            assert missing.value.error_code == "model_not_found"
            with pytest.raises(anthropic.NotFoundError) as missing:
                await client.messages.batches.list()
            assert missing.value.type == "not_found_error"
            with pytest.raises(anthropic.BadRequestError) as refused:
                await client.messages.create(model=MODEL, extra_body={"top_p": 2}, **fields)
            assert "top_p" in (refused.value.api_message or "")
            with pytest.raises(anthropic.ContentTooLargeError):
                await client.messages.create(model=MODEL, system="x" * 6000, **fields)
        for headers in ({"x-api-key": "right"}, {"x-api-key": "right", "authorization": "Basic x"}):
            found = await api.http.get("/v1/models", headers=headers)
            assert found.status_code == 200
        wrong = await api.http.post(PATH, json={}, headers={"x-api-key": "wrong"})
        assert_error(wrong, 401, "authentication_error", "invalid_api_key")


async def test_a_page_may_send_its_key_as_anthropics_client_does() -> None:
    asked = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-api-key, anthropic-version",
    }
    async with serving_script(api_key=("k",), allow_origin=("https://app.example",)) as api:
        allowed = await api.http.options(PATH, headers=asked)
        assert allowed.status_code == 204
        assert "x-api-key" in allowed.headers["access-control-allow-headers"]
        headers = {"Origin": "https://app.example", "x-api-key": "wrong"}
        refusal = await api.http.post(PATH, json={}, headers=headers)
        assert_error(refusal, 401, "authentication_error")
        assert "request-id" in refusal.headers["access-control-expose-headers"]


async def test_errors_in_the_middle_of_a_stream() -> None:
    answer: Script = [text("so far"), BatchFailed("the step failed")]
    async with serving_events(answer, answer, answer) as (api, _):
        events = await events_of(api)
        assert events[-1]["type"] == "error"
        assert events[-1]["error"]["type"] == "api_error"

        def read() -> None:
            client = anthropic.Anthropic(base_url=api.server.url, api_key="any", max_retries=0)
            with (
                client,
                client.messages.stream(model=MODEL, max_tokens=9, messages=HELLO) as stream,
            ):
                stream.until_done()

        with pytest.raises(anthropic.APIStatusError, match="the step failed"):
            await trio.to_thread.run_sync(read)
        assert_error(await ask(api), 500, "api_error", "batch_failed")


async def test_a_full_server_is_overloaded_and_still_counts() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, max_sessions=1, max_waiting=0) as api:
        async with client_of(api) as client, api.chunks(max_tokens=100_000) as running:
            await anext(running)
            await anext(running)
            with pytest.raises(anthropic.APIStatusError) as refused:
                await client.messages.create(
                    model=MODEL,
                    max_tokens=5,
                    messages=HELLO,
                )
            assert refused.value.status_code == 529
            assert refused.value.type == "overloaded_error"
            assert (await client.messages.count_tokens(model=MODEL, messages=HELLO)).input_tokens


async def test_models_in_the_clients_shape() -> None:
    async with serving_script() as api, client_of(api) as client:
        (model,) = [model async for model in client.models.list()]
        assert model.id == MODEL
        assert model.max_input_tokens == 50_000
        assert (await client.models.retrieve(MODEL)).created_at == model.created_at
        with pytest.raises(anthropic.NotFoundError):
            await client.models.retrieve("other")
        with pytest.raises(anthropic.BadRequestError):
            await client.models.list(limit=0)
        assert [m async for m in client.models.list(after_id=MODEL)] == []
        ours = await api.http.get("/v1/models")
        assert ours.json()["object"] == "list"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(
        ["text", "tool_use", "tool_result", "thinking", "user", "assistant", "auto", "any", "tool"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "text",
                    "content",
                    "role",
                    "name",
                    "id",
                    "input",
                    "tool_use_id",
                    "thinking",
                ]
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
FIELDS = [field.name for field in msgspec.structs.fields(MessageRequest)]
BLOCKS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=9)}),
    st.fixed_dictionaries(
        {
            "type": st.just("tool_use"),
            "id": st.text(max_size=3),
            "name": st.text(max_size=3),
            "input": st.dictionaries(st.text(max_size=3), VALUES, max_size=2),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("tool_result"),
            "tool_use_id": st.text(max_size=3),
            "content": st.text(max_size=5) | VALUES,
        }
    ),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": st.text(max_size=3)}),
    VALUES,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system"]),
            "content": st.text(max_size=9) | st.lists(BLOCKS, max_size=3),
        }
    ),
    max_size=4,
)
BODIES = st.builds(
    lambda messages, fields: {"model": MODEL, "max_tokens": 2, "messages": messages, **fields},
    MESSAGES,
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=2),
)


async def test_no_body_makes_it_fail() -> None:
    async with serving_script(ScriptedEngine("ok")) as api:
        outside = trio.lowlevel.current_trio_token()

        async def post(path: str, body: Any) -> httpx.Response:
            return await api.http.post(path, json=body)

        @settings(max_examples=120, deadline=None, derandomize=True, database=None)
        @given(BODIES, st.sampled_from([PATH, f"{PATH}/count_tokens"]))
        def attack(body: Any, path: str) -> None:
            response = trio.from_thread.run(post, path, body, trio_token=outside)
            assert response.status_code < 500, (body, response.text)
            if response.status_code != 200:
                assert_error(response, response.status_code, response.json()["error"]["type"])
            elif not response.text.startswith("event:") and path == PATH:
                Message.model_validate(response.json())

        await trio.to_thread.run_sync(attack)
        for raw in (b"", b"{", b"[]", b"null", b"[" * 100_000, b'"\xff"', b"\xff\xfe"):
            for path in (PATH, f"{PATH}/count_tokens"):
                response = await api.http.post(path, content=raw)
                assert_error(response, 400, "invalid_request_error")
        assert_error(await api.http.get(PATH), 405, "invalid_request_error")
        assert (await ask(api)).status_code == 200
