"""What clients may do to the transport, over real sockets: each time only their connection ends."""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import pytest
import trio
from hypercorn.config import Config
from hypercorn.protocol.h2 import H2Protocol
from hypothesis import given, settings
from hypothesis import strategies as st
from quart import request
from quart_trio import QuartTrio
from trio.testing import MockClock

from ds4trio.api.transport.worker import PARTING, harden_hypercorn
from tests.api.transport_harness import (
    CLOSE,
    CLOSE_TIMEOUT,
    GRACE,
    HOST,
    REPLACED,
    SEND_TIMEOUT,
    TEXT,
    UPGRADE,
    Client,
    bystander,
    frame,
    get,
    serving,
    upgrade,
)


@pytest.fixture
def quiet_clock() -> MockClock:
    # The threshold lets what is on its way through the loopback arrive before time moves on.
    return MockClock(autojump_threshold=0.02)


# ---- a client that stops reading


@pytest.mark.parametrize("kind", ["websocket", "http"])
async def test_a_client_that_stops_reading_loses_its_connection(
    kind: str, quiet_clock: MockClock
) -> None:
    async with serving() as server, bystander(server):
        client = await server.connect(receive_buffer=4096)
        started = trio.current_time()
        await client.send(upgrade("/torrent") if kind == "websocket" else get("/torrent"))
        await server.app.some_ended.wait()
        assert SEND_TIMEOUT <= trio.current_time() - started <= SEND_TIMEOUT + CLOSE_TIMEOUT + 1
        # Reset, so that the kernel holds nothing for it either.
        with pytest.raises(trio.BrokenResourceError):
            await client.until_end()


async def test_a_slow_reader_is_not_a_client_that_stops_reading(quiet_clock: MockClock) -> None:
    async with serving() as server:
        client = await server.open("/torrent", receive_buffer=4096)
        for _ in range(int(SEND_TIMEOUT) * 3):
            await trio.sleep(1)
            for _ in range(4):
                assert await client.stream.receive_some(50_000)
        assert not server.app.ended
        await client.stream.aclose()


async def test_an_http2_client_without_window_loses_its_connection(quiet_clock: MockClock) -> None:
    async with serving() as server, bystander(server):
        client = await server.connect()
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        connection.initiate_connection()
        connection.send_headers(
            1,
            [(":method", "GET"), (":path", "/torrent"), (":scheme", "http"), (":authority", "x")],
            end_stream=True,
        )
        started = trio.current_time()
        await client.send(connection.data_to_send())
        await client.rest()
        await server.app.some_ended.wait()
        assert trio.current_time() - started <= SEND_TIMEOUT + 1


async def test_a_client_that_floods_and_never_reads_ends_too(quiet_clock: MockClock) -> None:
    """Its messages fill the queue to the app, so that no disconnect reaches the app that way."""
    async with serving() as server, bystander(server):
        client = await server.open("/deaf")
        await client.send(frame(TEXT, b"x") * 100)
        await client.stream.aclose()
        await trio.sleep(SEND_TIMEOUT + 2 * CLOSE_TIMEOUT + 0.1)
        assert server.app.ended == ["deaf"]


async def test_an_app_that_ends_unread_still_ends_its_connection(quiet_clock: MockClock) -> None:
    async with serving() as server:
        client = await server.open("/deaf-and-done")
        await client.send(frame(TEXT, b"x") * 100)
        assert await client.close_code() == 1011


# ---- the fence

HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
H2C = b"Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: "
H2_SETTINGS_FRAME = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
H2_DATA_FRAME = bytes([0, 0, 1, 0, 0, 0, 0, 0, 1, 65])

HOSTILE = {
    "a byte after the upgrade request": upgrade("/undecided") + b"x",
    "TLS to a plain port": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "garbage after a request": get("/") + b"\x16\x03\x01\x00\xff\r\n\r\n",
    "no upgrade header": get("/", UPGRADE.replace(b"Upgrade: websocket\r\n", b"")),
    "no key": get("/", UPGRADE.replace(b"Sec-WebSocket-Key", b"X")),
    "an old version": get("/", UPGRADE.replace(b": 13", b": 8")),
    "odd bytes in Connection": upgrade("/", b"Connection: \xe9, upgrade\r\n"),
    "odd bytes in a subprotocol": upgrade("/", b"Sec-WebSocket-Protocol: \xff\xfe\r\n"),
    "odd bytes in the extensions": upgrade("/", b"Sec-WebSocket-Extensions: \xff\r\n"),
    "odd bytes in the path": get("/\xff\xfe"),
    "an empty path": get("?x"),
    "escapes that are no UTF-8": get("/%ff%fe", b"Connection: close\r\n"),
    "h2c with broken settings": get("/", H2C + b"!!!\r\n"),
    "h2c with settings out of range": get("/", H2C + b"AAIAAAAJ\r\n"),
    "HTTP/2, then garbage": HTTP2 + b"\xff" * 100,
    "HTTP/2 data on no stream": HTTP2 + H2_SETTINGS_FRAME + H2_DATA_FRAME,
    "a broken chunk": get("/", b"Transfer-Encoding: chunked\r\n") + b"zz\r\n",
    "headers without end": b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 100_000,
}


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_bytes_end_their_connection_only(
    payload: bytes, quiet_clock: MockClock
) -> None:
    async with serving() as server, bystander(server):
        client = await server.connect()
        await client.send(payload)
        with trio.fail_after(20):
            await client.rest()


async def test_a_byte_in_the_middle_of_a_rejection_ends_its_connection_only(
    quiet_clock: MockClock,
) -> None:
    async with serving() as server, bystander(server):
        client = await server.connect()
        await client.send(upgrade("/rejecting"))
        while b" 403 " not in client.buffer:
            client.buffer += await client.stream.receive_some()
        await client.send(b"x")
        with trio.fail_after(20):
            await client.rest()


async def test_bytes_before_the_handshake_is_over_are_refused_and_the_app_is_told(
    quiet_clock: MockClock,
) -> None:
    async with serving() as server:
        client = await server.connect()
        await client.send(upgrade("/undecided") + b"x")
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
        await trio.sleep(CLOSE_TIMEOUT + 0.1)
        assert server.app.ended == ["undecided"]


@pytest.mark.parametrize("path", ["/ticks", "/undecided", "/torrent"])
async def test_resets_end_their_connection_only(path: str, quiet_clock: MockClock) -> None:
    async with serving() as server, bystander(server):
        for _ in range(5):
            client = await server.connect()
            await client.send(upgrade(path))
            await trio.sleep(0.01)
            client.stream.socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            client.stream.socket.close()
        await trio.sleep(CLOSE_TIMEOUT + 0.1)
        assert server.app.ended.count(path.strip("/")) == 5


async def test_frames_after_the_close_are_ignored(quiet_clock: MockClock) -> None:
    async with serving() as server, bystander(server):
        client = await server.open("/closing")
        await client.send(frame(TEXT, b"late") + frame(CLOSE, b"\x03\xe8") + frame(TEXT, b"later"))
        assert await client.close_code() == 1000
        client = await server.open("/torrent")
        await client.send(frame(CLOSE, b"\x03\xe8"))
        await client.send(frame(TEXT, b"late"))
        assert await client.close_code() == 1000


OPENINGS = [b"", get("/"), upgrade("/"), upgrade("/ticks"), HTTP2]
PIECES = [get("/"), b"\r\n\r\n", b"HTTP/1.1\r\n", frame(TEXT, b"{}"), frame(CLOSE), frame(0)]


@settings(max_examples=40, deadline=None)
@given(
    opening=st.sampled_from(OPENINGS),
    pieces=st.lists(st.one_of(st.binary(max_size=40), st.sampled_from(PIECES)), max_size=6),
    pause=st.booleans(),
)
async def test_no_bytes_bring_the_worker_down(
    opening: bytes, pieces: list[bytes], pause: bool
) -> None:
    async with serving() as server:
        client = await server.connect()
        await client.send(opening)
        if pause:
            await trio.testing.wait_all_tasks_blocked(0.001)
        try:
            for piece in pieces:
                await client.send(piece)
                await trio.lowlevel.checkpoint()
            await client.stream.send_eof()
        except trio.BrokenResourceError:
            pass
        await client.rest()
        await client.stream.aclose()
        other = await server.connect()
        await other.send(get("/", b"Connection: close\r\n"))
        assert b"hello" in await other.rest()


async def test_an_error_of_the_app_is_logged_and_stays_with_its_connection(
    quiet_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server, bystander(server):
        client = await server.open("/fails")
        assert await client.close_code() == 1011
    assert "Error in ASGI Framework" in caplog.text
    assert "a defect in the app" in caplog.text


async def test_the_fence_lets_through_what_is_not_an_exception_of_a_connection() -> None:
    async def serve_the_fatal_request() -> None:
        async with serving() as server:
            client = await server.connect()
            await client.send(get("/fatal"))
            await server.stopped.wait()

    with pytest.raises(BaseExceptionGroup) as raised:
        await serve_the_fatal_request()
    assert raised.group_contains(SystemExit, match="7")


async def test_the_end_of_a_connection_is_logged_in_one_line(
    quiet_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        client = await server.connect()
        await client.send(upgrade("/", b"Sec-WebSocket-Protocol: \xff\r\n"))
        await client.rest()
    (record,) = [r for r in caplog.records if r.name == "ds4trio.api.transport.worker"]
    assert record.levelno == logging.WARNING
    assert "UnicodeDecodeError" in record.getMessage()
    assert record.exc_info is None


# ---- shutdown


async def test_shutdown_says_goodbye_to_websockets_and_ends_idle_connections_at_once(
    quiet_clock: MockClock,
) -> None:
    async with serving() as server:
        idle, ticks = await server.open("/"), await server.open("/ticks")
        kept = await server.connect()
        await kept.send(get("/"))
        while not kept.buffer.endswith(b"0\r\n\r\n"):
            kept.buffer += await kept.stream.receive_some()
        started = trio.current_time()
        server.stop.set()
        assert await idle.close_code() == 1001
        assert await ticks.close_code() == 1001
        await kept.rest()
        for client in (idle, ticks, kept):
            await client.stream.aclose()
        await server.stopped.wait()
        assert trio.current_time() - started < CLOSE_TIMEOUT + 0.1


async def test_shutdown_does_not_wait_long_for_clients_that_do_not_part(
    quiet_clock: MockClock,
) -> None:
    async with serving(close_timeout=GRACE) as server:
        clients = [await server.open("/"), await server.open("/ticks")]
        started = trio.current_time()
        server.stop.set()
        await server.stopped.wait()
        assert trio.current_time() - started <= PARTING + 0.1
        for client in clients:
            assert await client.close_code() == 1001
            await client.stream.aclose()


async def test_shutdown_keeps_to_the_grace_period_whatever_clients_do(
    quiet_clock: MockClock,
) -> None:
    async with serving(send_timeout=1000) as server:
        clients = [await server.open("/torrent", receive_buffer=4096)]
        for path in ("/torrent", "/silent"):
            clients.append(await server.connect(receive_buffer=4096))
            await clients[-1].send(get(path))
        clients.append(await server.open("/deaf"))
        await clients[-1].send(frame(TEXT, b"x") * 100)
        clients.append(await server.connect())
        await clients[-1].send(upgrade("/undecided"))
        await trio.sleep(2)
        started = trio.current_time()
        server.stop.set()
        await server.stopped.wait()
        assert trio.current_time() - started <= GRACE + 0.1
        for client in clients:
            await client.stream.aclose()


async def test_a_websocket_accepted_during_shutdown_is_told_too(quiet_clock: MockClock) -> None:
    async with serving() as server:
        client = await server.connect()
        await client.send(upgrade("/late"))
        await trio.sleep(0.5)
        server.stop.set()
        assert b"\x88\x02\x03\xe9" in await client.rest()


SIGNALLED_APP = """
from ds4trio.api.transport.worker import harden_hypercorn
from tests.api.transport_harness import App

def create_app():
    harden_hypercorn(send_timeout=30, max_message_bytes=1000)
    return App()
"""


def test_sigterm_ends_the_hypercorn_command_within_the_grace_period(tmp_path: Path) -> None:
    (tmp_path / "signalled.py").write_text(SIGNALLED_APP)
    root = Path(__file__).parents[2]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    worker = "-m hypercorn -k trio -w 1 --graceful-timeout 1 signalled:create_app() -b"
    command = [sys.executable, *worker.split(), f"127.0.0.1:{port}"]
    path = os.pathsep.join([str(tmp_path), str(root)])
    process = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        while b"Running on" not in process.stderr.readline():
            assert process.poll() is None
        idle, stalled, silent = (socket.create_connection(("127.0.0.1", port)) for _ in range(3))
        with idle, stalled, silent:
            idle.settimeout(10)
            idle.sendall(upgrade("/"))
            assert b" 101 " in idle.recv(4096)
            stalled.sendall(upgrade("/torrent"))
            silent.sendall(get("/silent"))
            assert b" 200 " in silent.recv(4096)
            process.send_signal(signal.SIGTERM)
            assert idle.recv(4096) == b"\x88\x02\x03\xe9"
            assert process.wait(timeout=5) == 0
    finally:
        process.kill()
        process.communicate()


# ---- slow and many


async def trickle(client: Client) -> None:
    with suppress(trio.BrokenResourceError):
        while True:
            await trio.sleep(1)
            await client.send(b"A: b\r\n")


async def test_headers_that_never_end_do_not_hold_a_connection(quiet_clock: MockClock) -> None:
    async with serving() as server:
        client = await server.connect()
        started = trio.current_time()
        await client.send(b"GET / HTTP/1.1\r\n")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle, client)
            await client.rest()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - started <= Config.keep_alive_timeout + CLOSE_TIMEOUT + 1


async def test_a_body_that_never_arrives_ends_by_quarts_own_timeout(
    quiet_clock: MockClock,
) -> None:
    app = QuartTrio(__name__)
    app.config["BODY_TIMEOUT"] = 10

    @app.post("/")
    async def read() -> str:
        return str(len(await request.get_data()))

    async with serving(app) as server:
        client = await server.connect()
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\nabc")
        started = trio.current_time()
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
        assert trio.current_time() - started <= 10 + CLOSE_TIMEOUT + 1


async def test_connections_beyond_the_limit_are_refused_until_one_ends(
    quiet_clock: MockClock,
) -> None:
    async with serving(max_connections=2) as server, bystander(server):
        first = await server.open("/")
        refused = await server.connect()
        await refused.send(get("/"))
        answer = await refused.rest()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: " in answer
        await first.stream.aclose()
        await trio.sleep(CLOSE_TIMEOUT + 0.1)
        await (await server.open("/")).stream.aclose()


async def test_a_refused_handshake_ends_its_connection(quiet_clock: MockClock) -> None:
    async with serving() as server:
        client = await server.connect()
        await client.send(upgrade("/").replace(b": 13", b": 12"))
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")


# ---- the hardening itself


def current_values() -> list[Any]:
    return [getattr(module, name) for module, name in REPLACED]


@pytest.fixture
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for (module, name), value in zip(REPLACED, current_values(), strict=True):
        monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("_restored")
def test_hardening_twice_is_hardening_once() -> None:
    harden_hypercorn(send_timeout=1, max_message_bytes=1)
    once = [value.func for value in current_values()]
    harden_hypercorn(send_timeout=2, max_message_bytes=2)
    assert [value.func for value in current_values()] == once


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(("owner", "name"), [*REPLACED, (H2Protocol, "stream_send")])
def test_another_hypercorn_is_refused_and_left_as_it_was(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(owner, name)
    others = [(module, left) for module, left in REPLACED if (module, left) != (owner, name)]
    before = [getattr(module, left) for module, left in others]
    with pytest.raises(RuntimeError, match="hypercorn has changed"):
        harden_hypercorn(send_timeout=1, max_message_bytes=1)
    assert [getattr(module, left) for module, left in others] == before
