"""Whatever a client sends, the answer is an error in OpenAI's shape, and the next one is served."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ds4trio.api.description.operations import OPERATIONS
from ds4trio.api.requests import refuse_unsupported
from ds4trio.api.schemas.chat import ChatRequest
from ds4trio.api.schemas.responses import ClientEvent, ResponseCreate
from ds4trio.api.valid_values import valid_values
from ds4trio.api.wire import decode
from ds4trio.errors import InvalidRequest
from ds4trio.prompting import PromptWriter
from tests.api.helpers import (
    FINAL_EVENTS,
    SECRET,
    USER,
    Api,
    ScriptedEngine,
    assert_error_event,
    assert_openai_error,
    serving_script,
)
from tests.api.transport_harness import UPGRADE

CHAT = "/v1/chat/completions"
GOOD = json.dumps({"messages": USER, "max_tokens": 1}).encode()


async def usable(api: Api) -> None:
    """The server answers and holds nothing of what was before."""
    assert (await api.chat(max_tokens=1)).status_code == 200
    await api.at_rest()


# -- paths and methods


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nothing"),
        ("GET", "/v1"),
        ("GET", "/v1/nothing"),
        ("POST", "/v1/nothing"),
        ("GET", "/static/main.js"),
        ("GET", "/../pyproject.toml"),
        ("GET", "/..%2fpyproject.toml"),
        ("GET", "/%2e%2e/pyproject.toml"),
        ("GET", "/%00"),
        ("GET", "/" + "x" * 5000),
    ],
)
async def test_unknown_path(method: str, path: str) -> None:
    async with serving_script() as api:
        assert_openai_error(await api.http.request(method, path), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", CHAT, "POST"),
        ("DELETE", CHAT, "POST"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/health", "GET"),
        ("POST", "/", "GET"),
        ("BREW", "/v1/models", "GET"),
    ],
)
async def test_wrong_method_names_the_right_one(method: str, path: str, allowed: str) -> None:
    async with serving_script() as api:
        response = await api.http.request(method, path)
        assert_openai_error(response, 405)
        assert allowed in response.headers["allow"]


async def test_no_path_takes_a_method_that_it_does_not_have() -> None:
    async with serving_script() as api:
        paths = [operation.path.replace("<file:name>", "docs.html") for operation in OPERATIONS]
        for path in sorted(set(paths)):
            url = re.sub(r"<[^>]+>", "any", path)
            allowed = {
                operation.method
                for operation, path in zip(OPERATIONS, paths, strict=True)
                if re.fullmatch(re.sub(r"<[^>]+>", "[^/]+", path), url)
            }
            for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - allowed:
                response = await api.http.request(method, url)
                assert response.status_code == 405, (method, url, response.text)
                named = set(response.headers["allow"].split(", "))
                assert named - {"HEAD", "OPTIONS"} == allowed
                if not url.startswith("/v1/messages"):  # whose errors are Anthropic's
                    assert_openai_error(response, 405, code="method_not_allowed")


async def test_nothing_at_a_path_leads_to_what_there_is() -> None:
    async with serving_script() as api:
        for path in ("/v1/tokenize", "/nothing"):
            response = await api.http.post(path, json={"content": "Hello"})
            error = assert_openai_error(response, 404, code="not_found")
            (page,) = re.findall(r"GET (/\w+)", error["message"])
            assert (await api.http.get(page)).status_code == 200


async def test_head_is_get_without_a_body() -> None:
    async with serving_script() as api:
        for path in ("/health", "/", "/v1/models"):
            response = await api.http.head(path)
            assert (response.status_code, response.content) == (200, b"")


async def test_websocket_path_without_a_handshake() -> None:
    async with serving_script() as api:
        for method in ("GET", "DELETE"):
            response = await api.http.request(method, "/v1/responses")
            assert 400 <= response.status_code < 500
            assert_openai_error(response, response.status_code)


@pytest.mark.parametrize("path", ["/nothing", CHAT, "/v1/models", "/", "/health"])
async def test_handshake_at_a_path_that_is_no_websocket(path: str) -> None:
    async with serving_script() as api:
        client = await api.raw()
        await client.send(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode() + UPGRADE + b"\r\n"
        )
        status = (await client.exactly(len("HTTP/1.1 404"))).split(b" ")[1]
        assert status[:1] == b"4"
        await usable(api)


# -- bodies


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (ChatRequest, "", "the body is empty, where JSON is expected"),
        (
            ChatRequest,
            '{"messages": [{"role": "usr"}]}',
            "messages[0].role: 'usr' is not valid; "
            "it can be assistant, developer, system, tool, user",
        ),
        (
            ClientEvent,
            '{"type": "nonsense"}',
            "type: 'nonsense' is not valid; "
            "it can be response.create, response.cancel, response.steer",
        ),
        (
            ClientEvent,
            '{"type": "response.create", "input": "Hi", "truncation": "no"}',
            "truncation: 'no' is not valid; it can be auto, disabled",
        ),
    ],
)
def test_a_value_that_is_none_of_a_few_is_told_them(kind: Any, body: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(body, kind)
    assert refused.value.message == said


def test_values_that_depend_on_the_rest_of_a_request_are_not_told() -> None:
    class One(msgspec.Struct, tag="one"):
        size: Literal["small", "large"]

    class Other(msgspec.Struct, tag="other"):
        size: Literal["thin", "wide"]

    assert valid_values(One | Other, "$.size") == []
    assert valid_values(dict[str, list[One]], "$[...][1].size") == ["large", "small"]


def test_a_refused_field_says_what_to_use() -> None:
    with pytest.raises(InvalidRequest) as refused:
        refuse_unsupported({"functions": True})
    assert refused.value.message == (
        "this server does not support this value of functions; use tools, the newer name"
    )


BAD_JSON = [
    b"",
    b" ",
    b"{",
    b"}",
    b"nonsense",
    b"{'messages': []}",
    b'{"messages": [{"role": "user", "content": "Hi"}]',
    GOOD + b"x",
    GOOD + GOOD,
    b'{"messages": [], "temperature": NaN}',
    b'{"messages": [], "temperature": Infinity}',
    b'{"messages": [], "temperature": 01}',
    b'{"messages": "\xff\xfe"}',
    b"\xef\xbb\xbf" + GOOD,
    GOOD.decode().encode("utf-16"),
    b"\x1f\x8b\x08\x00",
    b"\x00" * 100,
    b'{"messages": "\\ud800"}',
    b'{"messages": "\n"}',
    b"messages=Hi&stream=true",
    b"[" * 100_000,
    b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b'{"tools": ' + b"[" * 100_000 + b"]" * 100_000 + b', "messages": []}',
]
NOT_AN_OBJECT = [b"null", b"5", b'"text"', b"true", b"[]", b"[" + GOOD + b"]"]


async def test_bodies_that_are_no_request() -> None:
    async with serving_script() as api:
        for body in (*BAD_JSON, *NOT_AN_OBJECT):
            response = await api.http.post(CHAT, content=body)
            assert_openai_error(response, 400)
            assert len(response.content) < 2000
        await usable(api)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400, "1e-999", "0." + "1" * 5000])
async def test_numbers_that_no_machine_holds(number: str) -> None:
    async with serving_script() as api:
        for name in ("temperature", "max_tokens", "seed", "top_logprobs"):
            body = GOOD[:-1] + f', "{name}": {number}}}'.encode()
            assert (await api.http.post(CHAT, content=body)).status_code in (200, 400)
        await usable(api)


async def test_half_a_surrogate_is_text_like_any_other() -> None:
    async with serving_script() as api:
        body = b'{"max_tokens": 1, "messages": [{"role": "user", "content": "a\\ud83d b\\udc00"}]}'
        response = await api.http.post(CHAT, content=body)
        if response.status_code != 200:
            assert_openai_error(response, 400)
        await usable(api)


async def test_value_of_a_client_is_not_thrown_back_at_length() -> None:
    async with serving_script() as api:
        long = "x" * 100_000
        for fields in ({"model": long}, {long: 1}, {"tool_choice": long}, {"stop": [long, ""]}):
            response = await api.chat(**fields)
            assert_openai_error(response, response.status_code)
            assert 400 <= response.status_code < 500
            assert len(response.content) < 2000


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", "application/json", "text/plain", "APPLICATION/JSON", None],
)
async def test_content_type_of_json_does_not_matter(content_type: str | None) -> None:
    async with serving_script() as api:
        headers = {} if content_type is None else {"Content-Type": content_type}
        response = await api.http.post(CHAT, content=GOOD, headers=headers)
        assert response.status_code == 200


async def test_forms_are_not_json() -> None:
    async with serving_script() as api:
        fields = {"messages": "Hi", "model": "scripted"}
        assert_openai_error(await api.http.post(CHAT, data=fields), 400)
        files = {"file": ("a.json", GOOD)}
        assert_openai_error(await api.http.post(CHAT, data=fields, files=files), 400)
        await usable(api)


LIMIT = 10_000


async def test_body_beyond_the_limit() -> None:
    async with serving_script(max_body_bytes=LIMIT) as api:
        message = [{"role": "user", "content": "z" * LIMIT}]
        assert_openai_error(await api.chat(messages=message), 413, code="payload_too_large")

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"z" * 1000

        chunked = await api.http.post(CHAT, content=parts())
        assert_openai_error(chunked, 413, code="payload_too_large")

        # refused by its announcement alone
        client = await api.raw()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000000\r\n\r\n"
        await client.send(head.encode() + b"{")
        with trio.fail_after(5):
            assert (await client.exactly(12)).endswith(b"413")
        await usable(api)


async def test_body_just_within_the_limit() -> None:
    async with serving_script(max_body_bytes=LIMIT) as api:
        body = GOOD + b" " * (LIMIT - len(GOOD))
        assert (await api.http.post(CHAT, content=body)).status_code == 200
        assert (await api.http.post(CHAT, content=body + b" ")).status_code == 413


# -- defects of our own


async def test_defect_is_told_without_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: Any) -> list[int]:
        raise ZeroDivisionError(SECRET)

    async with serving_script() as api, api.socket() as socket:
        with monkeypatch.context() as patch:
            patch.setattr(PromptWriter, "_encoded", defect)
            assert_openai_error(await api.chat(), 500, code="internal_error")
            assert_openai_error(await api.chat(stream=True), 500, code="internal_error")
            await socket.create()
            assert_error_event(await socket.event(), 500, "internal_error")
        assert (await socket.answer(max_output_tokens=1))["error"] is None
        await usable(api)


async def test_defect_in_the_middle_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client must not take half an answer for a whole one, and hears of it."""

    def defect(*_: Any) -> Any:
        raise ZeroDivisionError(SECRET)

    async with serving_script() as api, api.socket() as socket:
        with monkeypatch.context() as patch:
            patch.setattr("ds4trio.generate._finished", defect)
            assert_openai_error(await api.chat(max_tokens=3), 500, code="internal_error")
            chunks = await api.streamed(max_tokens=3)
            assert "[DONE]" not in chunks
            assert chunks[-1]["error"]["code"] == "internal_error"
            assert SECRET not in str(chunks)
            await socket.create(max_output_tokens=3)
            events = await socket.until_type("response.failed")
            assert events[-1]["response"]["error"]["code"] == "internal_error"
            assert SECRET not in str(events)
        assert (await socket.answer(max_output_tokens=1))["error"] is None
        await usable(api)


# -- random requests

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**30), max_value=10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["", "user", "text", "auto", "HELLO", "resp_1", "scripted"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
CHAT_FIELDS = [*ChatRequest.__struct_fields__, "anything"]
RESPONSE_FIELDS = [*ResponseCreate.__struct_fields__, "type", "anything"]
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "developer", "tool", "robot"])
        | JSON,
        "content": st.text(max_size=30)
        | JSON
        | st.lists(
            st.dictionaries(st.sampled_from(["type", "text", "image_url"]), JSON, max_size=3),
            max_size=3,
        ),
        "type": st.sampled_from(["message", "reasoning"]) | JSON,
        "name": JSON,
        "tool_calls": JSON,
    },
)


def requests(base: dict[str, Any], names: list[str], messages: str) -> st.SearchStrategy[Any]:
    """A good request in which some fields are spoilt, or anything at all."""
    changed = st.dictionaries(st.sampled_from(names), JSON, max_size=3).map(
        lambda fields: {**base, **fields}
    )
    written = st.lists(MESSAGE, max_size=3).map(lambda items: {**base, messages: items})
    return changed | written | JSON


SWEEP = hypothesis_settings(
    max_examples=6, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@SWEEP
@given(
    bodies=st.lists(requests({"messages": USER}, CHAT_FIELDS, "messages"), min_size=30, max_size=40)
)
async def test_random_bodies_never_break_the_server(bodies: list[Any]) -> None:
    async with serving_script(ScriptedEngine("HELLO")) as api:
        for body in bodies:
            response = await api.http.post(CHAT, content=json.dumps(body).encode())
            if response.status_code != 200:
                assert 400 <= response.status_code < 500, (body, response.text)
                assert_openai_error(response, response.status_code)
        await usable(api)


CREATE = {"type": "response.create", "input": "Say something."}


@SWEEP
@given(messages=st.lists(requests(CREATE, RESPONSE_FIELDS, "input"), min_size=30, max_size=40))
async def test_random_messages_never_break_the_socket(messages: list[Any]) -> None:
    async with serving_script(ScriptedEngine("HELLO")) as api, api.socket() as socket:
        for message in messages:
            await socket.send(json.dumps(message))
            event = await socket.event()
            while event["type"] not in (*FINAL_EVENTS, "error"):
                event = await socket.event()
            if event["type"] == "error":
                assert event["status"] < 500, (message, event)
                assert_error_event(event, event["status"])
            else:
                assert event["response"]["error"] is None
        assert (await socket.answer())["status"] == "completed"
        await usable(api)
