"""WebSocket messages as clients may send them, over real sockets."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
import trio
from trio.testing import MockClock

from tests.api.transport_harness import (
    BINARY,
    CLOSE,
    CLOSE_TIMEOUT,
    MAX_MESSAGE,
    PING,
    PONG,
    TEXT,
    bystander,
    frame,
    serving,
)


@pytest.fixture
def quiet_clock() -> MockClock:
    # The threshold lets what is on its way through the loopback arrive before time moves on.
    return MockClock(autojump_threshold=0.02)


async def test_compression_is_not_negotiated() -> None:
    async with serving() as server:
        client = await server.connect()
        offer = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
        answer = await client.open("/", offer)
        assert b" 101 " in answer
        assert b"extensions" not in answer.lower()
        # A compressed frame all the same breaks the protocol.
        await client.send(bytes([0xC1, 0x80]) + bytes(4))
        assert await client.close_code() == 1002


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frame(3), 1002),
        (frame(0, b"continues nothing"), 1002),
        (bytes([0x81, 1, 65]), 1002),
        (frame(PING, bytes(126)), 1002),
        (frame(TEXT, b"\xff\xfe"), 1007),
        (frame(CLOSE, b"\x03"), 1002),
    ],
    ids=["opcode", "continuation", "unmasked", "long ping", "not UTF-8", "short close"],
)
async def test_a_broken_frame_is_answered_with_its_close_code(
    bad: bytes, code: int, quiet_clock: MockClock
) -> None:
    async with serving() as server, bystander(server):
        client = await server.open("/ticks")
        await client.send(bad)
        assert await client.close_code() == code
        await trio.sleep(CLOSE_TIMEOUT + 0.1)
        assert server.app.ended == ["ticks"]


async def test_messages_reach_the_app_whole_and_as_what_they_are() -> None:
    text = "grüße 🦙" * 1000
    async with serving() as server:
        client = await server.open("/")
        await client.send(frame(BINARY, b"\x00\xff") + frame(BINARY) + frame(TEXT))
        raw = text.encode()
        await client.send(frame(TEXT, raw[:3], fin=False))
        await client.send(frame(PING, b"between"))
        assert await client.frame() == (PONG, b"between")
        await client.send(frame(0, raw[3:11], fin=False) + frame(0, raw[11:]))
        await client.send(frame(CLOSE))
        await client.rest()
    received = [(event.get("bytes"), event.get("text")) for event in server.app.received]
    assert received == [(b"\x00\xff", None), (b"", None), (None, ""), (None, text)]


@pytest.mark.parametrize(("extra", "code"), [("", 1000), ("e", 1009)])
async def test_the_limit_of_a_message_counts_bytes(extra: str, code: int) -> None:
    text = "é" * (MAX_MESSAGE // 2) + extra
    async with serving() as server:
        client = await server.open("/")
        await client.send(frame(TEXT, text.encode()) + frame(CLOSE, b"\x03\xe8"))
        assert await client.close_code() == code
    assert len(server.app.received) == (1 if code == 1000 else 0)


@pytest.mark.parametrize("shape", ["one frame", "fragments"])
async def test_memory_stays_flat_behind_a_message_that_is_too_long(shape: str) -> None:
    size, piece = 32_000_000, bytes(64_000)
    async with serving() as server:
        client = await server.open("/")
        gc.collect()
        tracemalloc.start()
        try:
            if shape == "one frame":
                await client.send(frame(BINARY, length=size))
            else:
                await client.send(frame(BINARY, fin=False))
            for _ in range(size // len(piece)):
                await client.send(piece if shape == "one frame" else frame(0, piece, fin=False))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert await client.close_code() == 1009
    assert peak < 20 * MAX_MESSAGE
    assert server.app.received == []
