from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio_websocket import WebSocketConnection

from ds4trio.cli.terminal.connection import open_connection
from ds4trio.cli.terminal.conversation import (
    AnswerRefused,
    ConnectionLost,
    Conversation,
    RequestOptions,
    Turn,
)
from ds4trio.cli.terminal.endpoint import Endpoint
from tests.cli.terminal.fake_server import FakeServer, Peer, fake_server


@asynccontextmanager
async def connection(server: FakeServer) -> AsyncIterator[WebSocketConnection]:
    async with open_connection(Endpoint.parse(server.url), on_wait=print) as websocket:
        yield websocket


async def ask(conversation: Conversation, question: str) -> str:
    return "".join([piece async for piece in conversation.ask(question)])


async def test_an_answer_comes_in_the_pieces_the_server_sent() -> None:
    async with fake_server() as server, connection(server) as websocket:
        conversation = Conversation()
        conversation.attach(websocket)
        answer = conversation.ask("hello there")
        assert [piece async for piece in answer] == ["You ", "said: ", "hello ", "there "]
        assert answer.summary is not None
        assert answer.summary.ending == "completed"
        assert answer.summary.output_tokens == 7
        assert answer.summary.tokens_per_second == 21.5
        assert answer.summary.mean_batch_size == 3.25


async def test_the_next_question_sends_only_what_is_new() -> None:
    async with fake_server() as server, connection(server) as websocket:
        conversation = Conversation(RequestOptions(system="Be brief.", temperature=0.0))
        conversation.attach(websocket)
        await ask(conversation, "one")
        await ask(conversation, "two")
        first, second = server.frames
        assert "previous_response_id" not in first
        assert second["previous_response_id"] == "resp_1"
        assert second["input"] == [{"type": "message", "role": "user", "content": "two"}]
        for frame in server.frames:
            assert frame["instructions"] == "Be brief."
            assert frame["temperature"] == 0.0
            assert frame["store"] is False
            assert "model" not in frame
            assert "max_output_tokens" not in frame
        assert conversation.history == (
            Turn("user", "one"),
            Turn("assistant", "You said: one "),
            Turn("user", "two"),
            Turn("assistant", "You said: two "),
        )
        conversation.clear()
        await ask(conversation, "three")
        assert server.seen[-1] == [("user", "three")]


async def test_a_new_connection_is_told_the_whole_history() -> None:
    async with fake_server() as server:
        conversation = Conversation()
        async with connection(server) as websocket:
            conversation.attach(websocket)
            await ask(conversation, "one")
        async with connection(server) as websocket:
            conversation.attach(websocket)
            await ask(conversation, "two")
        assert server.seen[-1] == [
            ("user", "one"),
            ("assistant", "You said: one "),
            ("user", "two"),
        ]


async def test_a_chain_the_server_forgot_is_sent_anew() -> None:
    async with fake_server() as server, connection(server) as websocket:
        conversation = Conversation()
        conversation.attach(websocket)
        await ask(conversation, "one")
        server.peers[0].known.clear()
        assert await ask(conversation, "two") == "You said: two "
        assert len(server.frames) == 3
        assert server.seen[-1][:2] == [("user", "one"), ("assistant", "You said: one ")]
        await ask(conversation, "three")
        assert server.frames[-1]["previous_response_id"] == "resp_2"


async def test_a_server_that_knows_no_chain_at_all_is_believed_once() -> None:
    async def forgetful(peer: Peer) -> None:
        await peer.error("previous_response_not_found", "who?")

    async with fake_server() as server, connection(server) as websocket:
        server.model = forgetful
        conversation = Conversation()
        conversation.attach(websocket)
        with pytest.raises(AnswerRefused, match=r"who\?"):
            await ask(conversation, "one")
        assert len(server.frames) == 1


async def test_a_stopped_answer_keeps_what_was_said() -> None:
    async def endless(peer: Peer) -> None:
        await peer.begin()
        await peer.say("so far ")
        await peer.cancelled.wait()
        await peer.finish("cancelled")

    async with fake_server() as server, connection(server) as websocket:
        server.answers = [endless]
        conversation = Conversation()
        conversation.attach(websocket)
        answer = conversation.ask("one")
        async with trio.open_nursery() as nursery:
            async for _ in answer:
                nursery.start_soon(answer.stop, 60)
        assert answer.summary is not None
        assert answer.summary.ending == "cancelled"
        assert conversation.connected
        await ask(conversation, "two")
        assert server.seen[-1] == [("user", "one"), ("assistant", "so far "), ("user", "two")]


async def test_a_cancel_that_crosses_the_end_spoils_no_later_answer() -> None:
    released = trio.Event()

    async def just_done(peer: Peer) -> None:
        await peer.begin()
        await peer.say("done")
        await peer.cancelled.wait()
        await peer.finish()
        await peer.error("nothing_to_cancel")
        released.set()

    async with fake_server() as server:
        server.answers = [just_done]
        conversation = Conversation()
        async with connection(server) as websocket:
            conversation.attach(websocket)
            answer = conversation.ask("one")
            async with trio.open_nursery() as nursery:
                async for _ in answer:
                    nursery.start_soon(answer.stop, 60)
            assert answer.text == "done"
            assert not conversation.connected
            await released.wait()
        async with connection(server) as websocket:
            conversation.attach(websocket)
            assert await ask(conversation, "two") == "You said: two "


async def test_a_refused_cancel_ends_the_answer_all_the_same() -> None:
    async def not_yet(peer: Peer) -> None:
        await peer.begin()
        await peer.say("and ")
        await peer.cancelled.wait()
        await peer.error("response_cancel_not_active")
        await peer.say("on ")

    async with fake_server() as server, connection(server) as websocket:
        server.answers = [not_yet]
        conversation = Conversation()
        conversation.attach(websocket)
        answer = conversation.ask("one")
        async with trio.open_nursery() as nursery:
            async for _ in answer:
                nursery.start_soon(answer.stop, 60)
        assert answer.summary is not None
        assert answer.summary.ending == "disconnected"
        assert conversation.history[-1] == Turn("assistant", "and ")
        assert not conversation.connected


async def test_a_server_that_does_not_stop_is_left(autojump_clock: trio.testing.MockClock) -> None:
    async def deaf(peer: Peer) -> None:
        await peer.begin()
        await peer.say("on and on")
        await trio.sleep_forever()

    async with fake_server() as server, connection(server) as websocket:
        server.answers = [deaf]
        conversation = Conversation()
        conversation.attach(websocket)
        answer = conversation.ask("one")
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            async for _ in answer:
                nursery.start_soon(answer.stop, 5)
        assert trio.current_time() - started == pytest.approx(5, abs=1)
        assert answer.summary is not None
        assert answer.summary.ending == "disconnected"
        assert conversation.history[-1] == Turn("assistant", "on and on")
        assert not conversation.connected


@pytest.mark.parametrize("polite", [True, False])
async def test_a_lost_connection_is_told_apart_and_leaves_the_history(polite: bool) -> None:
    async def crash(peer: Peer) -> None:
        await peer.begin()
        await peer.say("half an ans")
        await (peer.websocket.aclose() if polite else peer.vanish())

    async with fake_server() as server, connection(server) as websocket:
        server.answers = [crash]
        conversation = Conversation()
        conversation.attach(websocket)
        with pytest.raises(ConnectionLost):
            await ask(conversation, "one")
        assert conversation.history == ()
        assert not conversation.connected


async def test_an_expired_connection_counts_as_lost() -> None:
    async def expired(peer: Peer) -> None:
        await peer.error("websocket_connection_limit_reached", "60 minutes are over")

    async with fake_server() as server, connection(server) as websocket:
        server.answers = [expired]
        conversation = Conversation()
        conversation.attach(websocket)
        with pytest.raises(ConnectionLost):
            await ask(conversation, "one")


async def test_a_refused_question_leaves_history_and_connection() -> None:
    async def too_long(peer: Peer) -> None:
        await peer.error("context_length_exceeded", "9000 tokens,\n context 8192")

    async def broken(peer: Peer) -> None:
        await peer.begin()
        await peer.say("a few words")
        await peer.fail("batch_failed", "the step failed")

    async with fake_server() as server, connection(server) as websocket:
        conversation = Conversation()
        conversation.attach(websocket)
        await ask(conversation, "one")
        server.answers = [too_long, broken]
        for code, message in [
            ("context_length_exceeded", "9000 tokens, context 8192"),
            ("batch_failed", "the step failed"),
        ]:
            with pytest.raises(AnswerRefused) as refusal:
                await ask(conversation, "two")
            assert refusal.value.code == code
            assert str(refusal.value) == message
        assert await ask(conversation, "three") == "You said: three "
        assert server.seen[-1] == [
            ("user", "one"),
            ("assistant", "You said: one "),
            ("user", "three"),
        ]


@pytest.mark.parametrize(
    "frame", ["{", "[]", '"text"', '{"type": 7}', '{"type": "response.completed"}', "é" * 100]
)
async def test_nonsense_from_a_server_ends_the_question_and_the_connection(frame: str) -> None:
    async def nonsense(peer: Peer) -> None:
        await peer.websocket.send_message(frame)

    async with fake_server() as server, connection(server) as websocket:
        server.answers = [nonsense]
        conversation = Conversation()
        conversation.attach(websocket)
        with pytest.raises(AnswerRefused) as refusal:
            await ask(conversation, "one")
        assert refusal.value.code == "protocol_error"
        assert not conversation.connected


async def test_events_it_does_not_know_are_passed_over() -> None:
    async def newer(peer: Peer) -> None:
        await peer.begin()
        await peer.event("response.hologram.delta", delta={"x": [1, 2]}, response="?")
        await peer.say("text")
        await peer.finish()

    async with fake_server() as server, connection(server) as websocket:
        server.answers = [newer]
        conversation = Conversation()
        conversation.attach(websocket)
        assert await ask(conversation, "half an emoji: \ud83d") == "text"
        assert server.seen[-1] == [("user", "half an emoji: ?")]


async def test_asking_without_a_connection_is_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="connection"):
        Conversation().ask("anyone?")
