from __future__ import annotations

import signal

import pytest
import trio
from trio.testing import MockClock

from ds4trio.cli.terminal.chat_session import STOP_PATIENCE
from ds4trio.cli.terminal.conversation import RequestOptions, Turn
from ds4trio.cli.terminal.lines import Interrupted
from tests.cli.terminal.chatting import chatting
from tests.cli.terminal.fake_server import Peer, Refusal, echo, fake_server


async def speaks_until_cancelled(peer: Peer) -> None:
    await peer.begin()
    await peer.say("Once ", "upon ")
    await peer.cancelled.wait()
    await peer.finish("cancelled")


async def deaf(peer: Peer) -> None:
    await peer.begin()
    await peer.say("and so ")
    await trio.sleep_forever()


async def crashes(peer: Peer) -> None:
    await peer.begin()
    await peer.say("half an ans")
    await peer.vanish()


async def test_answers_and_remarks_at_a_terminal() -> None:
    async with fake_server() as server, chatting(server.url) as chat:
        await chat.type("hello")
        assert "You said: hello \n7 tokens, 21.5 tokens/s, mean batch 3.2\n" in chat.out.getvalue()
        await chat.type("again")
        assert server.frames[-1]["previous_response_id"] == "resp_1"
        assert await chat.ended() == 0
        assert chat.err.getvalue() == ""


async def test_options_travel_with_every_request() -> None:
    options = RequestOptions("some-model", "Be brief.", 0.5, 12)
    async with fake_server() as server, chatting(server.url, options=options) as chat:
        await chat.type("one", "two")
        for frame in server.frames:
            assert frame["model"] == "some-model"
            assert frame["instructions"] == "Be brief."
            assert frame["temperature"] == 0.5
            assert frame["max_output_tokens"] == 12


async def test_commands() -> None:
    async with fake_server() as server, chatting(server.url) as chat:
        await chat.type(
            "one", "/new", "two", "/help", "/nonsense", "/retry", "   ", " /etc/passwd?"
        )
        assert server.seen == [
            [("user", "one")],
            [("user", "two")],
            [("user", "two"), ("assistant", "You said: two "), ("user", "/etc/passwd?")],
        ]
        shown = chat.out.getvalue()
        assert "Ctrl-C stops an answer" in shown
        assert "no such command" in shown
        assert "every question has its answer" in shown
        await chat.type("/quit")
        assert chat.exit_code == 0


async def test_hostile_answers_and_errors_reach_no_terminal() -> None:
    async def hostile(peer: Peer) -> None:
        await peer.begin()
        await peer.say("safe\x1b", "]0;owned\x07 text\x1b[2", "J\x9b31m end")
        await peer.finish("\x1b[31mreason")

    async def hostile_error(peer: Peer) -> None:
        await peer.error("odd\x1b[2J", "first\x1b]0;x\x07\nsecond\x1b[5m")

    async with fake_server() as server, chatting(server.url) as chat:
        server.answers = [hostile, hostile_error]
        await chat.type("one", "two")
        assert "safe text end\n" in chat.out.getvalue()
        assert "\x1b" not in chat.out.getvalue() + chat.err.getvalue()
        assert chat.err.getvalue() == "ds4trio chat: first second; /retry asks again\n"


async def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    async with fake_server() as server, chatting(server.url) as chat:
        server.answers = [speaks_until_cancelled]
        chat.keyboard.type("a story")
        await chat.out.until("upon")
        signal.raise_signal(signal.SIGINT)
        await chat.keyboard.idle.wait()
        assert server.frames[-1] == {"type": "response.cancel"}
        assert "mean batch 3.2, stopped\n" in chat.out.getvalue()
        await chat.type("and then?")
        assert server.seen[-1] == [
            ("user", "a story"),
            ("assistant", "Once upon "),
            ("user", "and then?"),
        ]
        assert len(server.peers) == 1
        assert await chat.ended() == 0


async def test_a_second_ctrl_c_leaves_a_server_that_does_not_stop() -> None:
    async with fake_server() as server, chatting(server.url) as chat:
        server.answers = [deaf]
        chat.keyboard.type("a story")
        await chat.out.until("and so")
        signal.raise_signal(signal.SIGINT)
        await server.peers[0].cancelled.wait()
        signal.raise_signal(signal.SIGINT)
        with trio.fail_after(STOP_PATIENCE / 2):
            await chat.keyboard.idle.wait()
        await chat.type("go on")
        assert server.seen[-1][:2] == [("user", "a story"), ("assistant", "and so ")]
        assert len(server.peers) == 2


async def test_a_server_that_does_not_stop_is_left_after_a_while(
    autojump_clock: MockClock,
) -> None:
    async with fake_server() as server, chatting(server.url) as chat:
        server.answers = [deaf]
        chat.keyboard.type("a story")
        await chat.out.until("and so")
        signal.raise_signal(signal.SIGINT)
        await chat.keyboard.idle.wait()
        assert "stopped\n" in chat.out.getvalue()
        assert chat.session.conversation.history[-1] == Turn("assistant", "and so ")


@pytest.mark.parametrize("as_signal", [True, False])
async def test_ctrl_c_at_the_prompt_warns_and_twice_leaves(as_signal: bool) -> None:
    async with fake_server() as server, chatting(server.url) as chat:

        async def press() -> None:
            if as_signal:
                signal.raise_signal(signal.SIGINT)
                await trio.testing.wait_all_tasks_blocked()
            else:
                await chat.type(Interrupted(typed=False))

        await chat.type("one")
        await press()
        assert "Ctrl-C again" in chat.out.getvalue()
        await chat.type("two")
        await press()
        assert chat.exit_code is None
        await press()
        await chat.keyboard.idle.wait()
        assert chat.exit_code == 0


@pytest.mark.parametrize(("interactive", "number"), [(True, "SIGTERM"), (False, "SIGINT")])
async def test_other_signals_end_the_program_in_order(interactive: bool, number: str) -> None:
    async with fake_server() as server, chatting(server.url, interactive=interactive) as chat:
        server.answers = [deaf]
        chat.keyboard.type("a story")
        while not server.seen:
            await trio.testing.wait_all_tasks_blocked()
        signal.raise_signal(getattr(signal, number))
        await chat.keyboard.idle.wait()
        assert chat.exit_code == 128 + getattr(signal, number)
        await server.peers[0].cancelled.wait()


async def test_a_lost_connection_is_replaced_and_the_question_asked_again() -> None:
    async with fake_server() as server, chatting(server.url) as chat:
        server.answers = [echo, crashes, echo]
        await chat.type("one", "two")
        assert len(server.peers) == 2
        assert server.seen[-1] == [
            ("user", "one"),
            ("assistant", "You said: one "),
            ("user", "two"),
        ]
        assert "half an ans\nthe connection was lost; asking again\nYou said: two \n" in (
            chat.out.getvalue()
        )
        assert chat.session.conversation.history[-1] == Turn("assistant", "You said: two ")


async def test_a_connection_closed_while_nobody_asked_is_replaced_in_silence() -> None:
    async with fake_server() as server, chatting(server.url) as chat:
        await chat.type("one")
        await server.peers[0].websocket.aclose(1001, "going away")
        await chat.type("two")
        assert server.seen[-1][0] == ("user", "one")
        assert "lost" not in chat.out.getvalue() + chat.err.getvalue()


async def test_a_question_that_costs_every_connection_is_given_back() -> None:
    async with fake_server() as server, chatting(server.url) as chat:
        server.model = crashes
        await chat.type("one")
        assert chat.err.getvalue() == ("ds4trio chat: the connection was lost; /retry asks again\n")
        server.model = echo
        await chat.type("/retry")
        assert server.seen[-1] == [("user", "one")]
        assert "You said: one" in chat.out.getvalue()


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("context_length_exceeded", "/new starts a new conversation"),
        ("server_busy", "/retry asks again"),
        ("batch_failed", "/retry asks again"),
    ],
)
async def test_an_error_is_one_line_with_advice_and_the_question_is_kept(
    code: str, advice: str
) -> None:
    async def refuses(peer: Peer) -> None:
        if code == "batch_failed":
            await peer.begin()
            await peer.say("some words")
            await peer.fail(code, "why\nindeed")
        else:
            await peer.error(code, "why\nindeed")

    async with fake_server() as server, chatting(server.url) as chat:
        server.answers = [refuses]
        await chat.type("one")
        assert chat.err.getvalue() == f"ds4trio chat: why indeed; {advice}\n"
        await chat.type("/retry")
        assert server.seen[-1] == [("user", "one")]
        assert len(server.peers) == 1


async def test_a_loading_server_is_waited_for(autojump_clock: MockClock) -> None:
    async def still_loading(peer: Peer) -> None:
        await peer.error("server_loading", "wait")

    async with fake_server() as server:
        server.refusals = [Refusal(503, "server_loading")] * 3
        async with chatting(server.url) as chat:
            server.answers = [still_loading, still_loading]
            await chat.type("one")
            shown = chat.out.getvalue()
            assert shown.count("the model is still being loaded; waiting") == 2
            assert "You said: one" in shown
            assert chat.err.getvalue() == ""


async def test_ctrl_c_ends_the_wait_for_a_loading_server() -> None:
    async with fake_server() as server:
        server.refusals = [Refusal(503, "server_loading")] * 1000
        async with chatting(server.url) as chat:
            await chat.out.until("still being loaded")
            signal.raise_signal(signal.SIGINT)
            await chat.keyboard.idle.wait()
            assert chat.exit_code == 1


async def test_a_server_that_went_away_leaves_the_prompt_and_the_question(
    autojump_clock: MockClock,
) -> None:
    async with fake_server() as server, chatting(server.url) as chat:
        await chat.type("one")
        server.refusals = [Refusal(500, "internal_error", "broken")]
        await server.peers[0].vanish()
        await chat.type("two")
        assert "refused the connection (500): broken; /retry asks again" in chat.err.getvalue()
        await chat.type("/retry")
        assert server.seen[-1][-1] == ("user", "two")
        assert server.seen[-1][0] == ("user", "one")


async def test_from_a_pipe_answers_come_whole_and_bare() -> None:
    async with fake_server() as server, chatting(server.url, interactive=False) as chat:
        server.answers = [echo, crashes, echo]
        await chat.type("one", "", "/quit")
        assert chat.out.getvalue() == "You said: one \nYou said: /quit \n"
        assert await chat.ended() == 0
        assert chat.err.getvalue() == ""


async def test_from_a_pipe_the_first_error_ends_it() -> None:
    async def busy(peer: Peer) -> None:
        await peer.error("server_busy", "every slot is taken")

    async with fake_server() as server, chatting(server.url, interactive=False) as chat:
        server.answers = [echo, busy]
        await chat.type("one", "two", "three")
        assert chat.exit_code == 1
        assert chat.out.getvalue() == "You said: one \n"
        assert chat.err.getvalue() == "ds4trio chat: every slot is taken\n"
        assert len(server.seen) == 2


async def test_input_that_cannot_be_read_is_an_error() -> None:
    async with fake_server() as server, chatting(server.url, interactive=False) as chat:
        await chat.type(ValueError("a line is too long"))
        assert chat.exit_code == 1
        assert "a line is too long" in chat.err.getvalue()
