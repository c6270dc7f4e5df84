"""The Responses WebSocket client, against a server on loopback."""

from __future__ import annotations

import pytest
import trio

from ds4trio.cli.load.client import Asking, RequestFailed
from ds4trio.cli.load.websocket_client import websocket_client
from ds4trio.cli.terminal.endpoint import Endpoint
from tests.cli.terminal.fake_server import Peer, fake_server

ASKING = Asking(None, 12, 0.5)


def ignore(why: str) -> None:
    raise AssertionError(why)


async def test_an_answer_is_timed_and_counted() -> None:
    async with fake_server() as server:
        began = trio.current_time()
        async with websocket_client(Endpoint.parse(server.url), ASKING, ignore) as client:
            client.begin()
            answer = await client.ask("hello there")
        assert (answer.input_tokens, answer.output_tokens) == (5, 7)
        assert answer.cached_tokens is None
        assert len(answer.pieces) == 4  # You said: hello there
        assert began < answer.pieces[0] <= answer.pieces[-1] < trio.current_time()
        assert server.frames == [
            {
                "type": "response.create",
                "input": [{"type": "message", "role": "user", "content": "hello there"}],
                "max_output_tokens": 12,
                "temperature": 0.5,
                "store": False,
            }
        ]


async def test_turns_go_on_with_what_the_connection_holds() -> None:
    async with fake_server() as server:
        async with websocket_client(Endpoint.parse(server.url), ASKING, ignore) as client:
            for text in ("first", "second"):
                await client.ask(text)
            client.begin()
            await client.ask("anew")
        assert [len(said) for said in server.seen] == [1, 3, 1]
        assert server.seen[1][0] == ("user", "first")
        assert all(len(frame["input"]) == 1 for frame in server.frames)


async def test_an_answer_cut_at_its_longest_counts() -> None:
    async def long(peer: Peer) -> None:
        await peer.begin()
        await peer.say("a", "b")
        await peer.finish("max_output_tokens")

    async with fake_server() as server:
        server.model = long
        async with websocket_client(Endpoint.parse(server.url), ASKING, ignore) as client:
            assert (await client.ask("x")).output_tokens == 7


async def refuses(peer: Peer) -> None:
    await peer.error("context_length_exceeded", "too long")


async def fails(peer: Peer) -> None:
    await peer.begin()
    await peer.say("half")
    await peer.fail("batch_failed", "the step failed")


async def babbles(peer: Peer) -> None:
    await peer.websocket.send_message("{nonsense")


async def vanishes(peer: Peer) -> None:
    await peer.begin()
    await peer.vanish()


@pytest.mark.parametrize(
    ("model", "code", "lost"),
    [
        (refuses, "context_length_exceeded", False),
        (fails, "batch_failed", False),
        (babbles, "bad_answer", True),
        (vanishes, "connection_closed", True),
    ],
)
async def test_failures_have_a_code_and_say_whether_to_go_on(
    model: object, code: str, lost: bool
) -> None:
    async with fake_server() as server:
        server.answers = [model]  # type: ignore[list-item]
        async with websocket_client(Endpoint.parse(server.url), ASKING, ignore) as client:
            with pytest.raises(RequestFailed) as caught:
                await client.ask("hello")
            assert (caught.value.code, caught.value.lost) == (code, lost)
            if not lost:
                assert (await client.ask("again")).output_tokens == 7
