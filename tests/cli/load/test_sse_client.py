"""The Chat Completions client, against a server on loopback."""

from __future__ import annotations

import json

import pytest
import trio

from ds4trio.cli.load.client import Asking, RequestFailed
from ds4trio.cli.load.sse_client import first_model, sse_client
from ds4trio.cli.terminal.connection import ServerUnreachable
from ds4trio.cli.terminal.endpoint import Endpoint
from tests.cli.load.sse_server import DONE, Reply, delta, event, sse_server, usage

ASKING = Asking("m", 12, 0.5)


async def test_an_answer_is_timed_and_counted() -> None:
    async with sse_server() as server:
        began = trio.current_time()
        endpoint = Endpoint.parse(server.url, "secret")
        async with sse_client(endpoint, ASKING) as client:
            client.begin()
            answer = await client.ask("hello")
        assert (answer.input_tokens, answer.cached_tokens, answer.output_tokens) == (11, 3, 7)
        assert len(answer.pieces) == 2
        assert began < answer.pieces[0] <= answer.pieces[1] < trio.current_time()
        assert server.paths == ["/v1/chat/completions"]
        assert server.headers[0][b"authorization"] == b"Bearer secret"
        assert server.bodies == [
            {
                "messages": [{"role": "user", "content": "hello"}],
                "model": "m",
                "max_tokens": 12,
                "temperature": 0.5,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ]


async def test_turns_send_the_whole_conversation_over_one_connection() -> None:
    async with sse_server() as server:
        async with sse_client(Endpoint.parse(server.url), ASKING) as client:
            for text in ("first", "second"):
                await client.ask(text)
            client.begin()
            await client.ask("anew")
        said = [[message["content"] for message in body["messages"]] for body in server.bodies]
        assert said == [["first"], ["first", "one two", "second"], ["anew"]]
        assert server.connections == 1


async def test_a_server_that_keeps_no_connection_gets_a_new_one_each_time() -> None:
    async with sse_server() as server:
        server.replies = [Reply(closes=True), Reply(closes=True)]
        async with sse_client(Endpoint.parse(server.url), ASKING) as client:
            for text in ("first", "second", "third"):
                await client.ask(text)
        assert server.connections == 3
        assert len(server.bodies[2]["messages"]) == 5


async def test_what_brings_no_text_is_no_piece_and_thinking_is() -> None:
    pieces = (delta(""), delta("", reasoning_content="hm"), delta("x"), event({"choices": []}))
    async with sse_server() as server:
        server.replies = [Reply((*pieces, DONE))]
        async with sse_client(Endpoint.parse(server.url), ASKING) as client:
            answer = await client.ask("hello")
    assert len(answer.pieces) == 2
    assert answer.output_tokens is None


OVERFULL = {"error": {"code": "server_busy", "type": "server_error", "message": "full"}}
NUMBERED = {"error": {"code": 503, "type": "unavailable_error", "message": "Loading model"}}


@pytest.mark.parametrize(
    ("reply", "code", "message"),
    [
        (Reply((json.dumps(OVERFULL).encode(),), status=503), "server_busy", "full"),
        (Reply((json.dumps(NUMBERED).encode(),), status=503), "unavailable_error", "Loading"),
        (Reply((b"<html>oops",), status=502), "http_502", "HTTP status 502"),
        (Reply((delta("x"), event(OVERFULL))), "server_busy", "full"),
        (Reply((delta("x"), usage())), "bad_answer", "without"),
        (Reply((b"data: {nonsense\n\n",)), "bad_answer", "not as expected"),
        (Reply((delta("x"),), breaks=True), "connection_closed", "broke HTTP|closed"),
    ],
    ids=["refused", "numbered", "no-json", "error-event", "no-done", "garbage", "broken"],
)
async def test_failures_have_the_servers_code_or_one_of_ours(
    reply: Reply, code: str, message: str
) -> None:
    async with sse_server() as server:
        server.replies = [reply]
        async with sse_client(Endpoint.parse(server.url), ASKING) as client:
            with pytest.raises(RequestFailed, match=message) as caught:
                await client.ask("hello")
            assert caught.value.code == code
            client.begin()
            assert (await client.ask("again")).output_tokens == 7


async def test_the_first_listed_model_is_found() -> None:
    async with sse_server() as server:
        endpoint = Endpoint.parse(server.url)
        assert await first_model(endpoint) == "fake-model"
        server.models = []
        assert await first_model(endpoint) is None
        server.models = None
        assert await first_model(endpoint) is None
        assert server.paths[0] == "/v1/models"
    with pytest.raises(ServerUnreachable, match=r"no server reachable at http://.*refused"):
        await first_model(endpoint)
