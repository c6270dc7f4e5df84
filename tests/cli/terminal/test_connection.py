from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock
from trio_websocket import ConnectionClosed

from ds4trio.cli.terminal import connection
from ds4trio.cli.terminal.connection import (
    ServerNotReady,
    ServerRefused,
    ServerUnreachable,
    open_connection,
)
from ds4trio.cli.terminal.endpoint import Endpoint
from tests.cli.terminal.fake_server import Refusal, fake_server


async def connect(url: str, key: str | None = None, *, reconnecting: bool = False) -> list[str]:
    """Open a connection and close it again; what was said of the wait."""
    waits: list[str] = []
    endpoint = Endpoint.parse(url, key)
    async with open_connection(endpoint, on_wait=waits.append, reconnecting=reconnecting):
        pass
    return waits


@asynccontextmanager
async def tcp_server(greeting: bytes | None) -> AsyncIterator[int]:
    """A server of another kind: says one thing and closes, or nothing at all."""

    async def handle(stream: trio.SocketStream) -> None:
        if greeting is None:
            await trio.sleep_forever()
        await stream.receive_some()
        await stream.send_all(greeting)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_the_key_travels_as_a_bearer_token_and_not_without_need() -> None:
    async with fake_server() as server:
        await connect(server.url, "secret")
        await connect(server.url)
        assert server.headers[0][b"authorization"] == b"Bearer secret"
        assert b"authorization" not in server.headers[1]
        assert server.paths == ["/v1/responses"] * 2


@pytest.mark.parametrize(
    ("refusal", "key", "message"),
    [
        (Refusal(401, "invalid_api_key"), None, "asks for an API key"),
        (Refusal(401, "invalid_api_key"), "wrong", "refused the API key"),
        (Refusal(403, "origin_not_allowed", "not from there"), None, r"\(403\): not from there"),
        (Refusal(404, "not_found"), None, "no Responses server"),
        (Refusal(503, "server_busy", "full up"), None, r"\(503\): full up"),
    ],
)
async def test_a_refusal_says_why_at_once(refusal: Refusal, key: str | None, message: str) -> None:
    async with fake_server() as server:
        server.refusals = [refusal]
        with pytest.raises(ServerRefused, match=message) as refused:
            await connect(server.url, key, reconnecting=True)
        assert refused.value.status == refusal.status
        assert "\n" not in str(refused.value)


async def test_a_server_that_loads_is_waited_for_but_not_for_ever(
    autojump_clock: MockClock,
) -> None:
    async with fake_server() as server:
        server.refusals = [Refusal(503, "server_loading")] * 5
        assert await connect(server.url) == ["the model is still being loaded; waiting"]
        server.refusals = [Refusal(503, "server_loading")] * 10_000
        started = trio.current_time()
        with pytest.raises(ServerNotReady, match="still loading"):
            await connect(server.url)
        waited = trio.current_time() - started
        assert 0.9 < waited / connection.LOADING_PATIENCE <= 1


async def test_nobody_there_is_told_at_once_unless_somebody_was(autojump_clock: MockClock) -> None:
    async with tcp_server(b"") as port:
        pass
    started = trio.current_time()
    with pytest.raises(ServerUnreachable, match=f"127.0.0.1:{port}: Connection refused"):
        await connect(f"http://127.0.0.1:{port}")
    assert trio.current_time() - started < 1
    with pytest.raises(ServerUnreachable):
        await connect(f"http://127.0.0.1:{port}", reconnecting=True)
    assert trio.current_time() - started > 10


async def test_a_server_that_comes_back_is_found(autojump_clock: MockClock) -> None:
    async with fake_server() as server:
        pass
    waits: list[str] = []
    connected = trio.Event()

    async def reconnect() -> None:
        waits.extend(await connect(server.url, reconnecting=True))
        connected.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reconnect)
        await trio.sleep(10)
        assert not connected.is_set()
        async with fake_server(server.port):
            await connected.wait()
    assert len(waits) == 1
    assert waits[0].endswith("Connection refused; trying again")


@pytest.mark.parametrize(
    "greeting", [None, b"", b"SSH-2.0-other\r\n"], ids=["silent", "closes", "other protocol"]
)
async def test_a_server_that_never_answers_is_given_up(
    greeting: bytes | None, autojump_clock: MockClock
) -> None:
    async with tcp_server(greeting) as port:
        with pytest.raises(ServerUnreachable, match="no WebSocket within 10 s"):
            await connect(f"http://127.0.0.1:{port}")


async def test_tls_to_a_server_without_it_is_one_line() -> None:
    async with fake_server() as server:
        with pytest.raises(ServerUnreachable) as error:
            await connect(server.url.replace("http", "https"))
        assert "\n" not in str(error.value)


async def test_an_unknown_host_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_name(*args: object, **kwargs: object) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr(trio, "open_tcp_stream", no_name)
    with pytest.raises(ServerUnreachable, match="Name or service not known"):
        await connect("http://nowhere.invalid")


async def test_a_dead_peer_is_noticed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_server() as server:
        async with open_connection(Endpoint.parse(server.url), on_wait=print) as websocket:
            await websocket.ping()

            async def no_pong(payload: bytes | None = None) -> None:
                await trio.sleep_forever()

            monkeypatch.setattr(websocket, "ping", no_pong)
            with pytest.raises(ConnectionClosed):
                await websocket.get_message()
        assert trio.current_time() < 120


async def test_an_idle_connection_with_a_live_peer_is_kept(autojump_clock: MockClock) -> None:
    async with (
        fake_server() as server,
        open_connection(Endpoint.parse(server.url), on_wait=print) as websocket,
    ):
        await trio.sleep(600)
        assert websocket.closed is None


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/responses"),
        ("https://chat.example", "wss://chat.example/v1/responses"),
        ("ws://h:1/", "ws://h:1/v1/responses"),
        ("wss://h/base/v1", "wss://h/base/v1/responses"),
        ("ws://h/v1/responses/", "ws://h/v1/responses"),
        ("localhost:8000", "ws://localhost:8000/v1/responses"),
        ("http://[::1]:8000", "ws://[::1]:8000/v1/responses"),
        ("HTTP://h/a b", "ws://h/a%20b/v1/responses"),
    ],
)
def test_urls_as_people_type_them(typed: str, url: str) -> None:
    assert Endpoint.parse(typed).url == url


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "://",
        "ftp://h",
        "http://",
        "http://h:port",
        "http://h:99999",
        "http://user:pw@h",
        "http://[::1",
        "http://a b",
        "http://h\x1b[2J",
    ],
)
def test_urls_that_are_none(typed: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as error:
        Endpoint.parse(typed)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "clé"])
def test_keys_that_cannot_be_sent(key: str) -> None:
    with pytest.raises(ValueError, match="API key"):
        Endpoint.parse("http://h", key)


def test_a_key_is_in_no_repr() -> None:
    assert "secret" not in repr(Endpoint.parse("http://h", "secret"))
