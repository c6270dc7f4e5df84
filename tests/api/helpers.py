"""What the tests of the doors share: an engine that speaks a script, servers, clients, checks."""

from __future__ import annotations

import functools
import itertools
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11
import httpx
import torch
import trio
from trio.testing import wait_all_tasks_blocked
from trio_websocket import WebSocketConnection, open_websocket_url

from ds4trio.app import Load, build_coalescer, load_generator
from ds4trio.batching.coalescer import Coalescer
from ds4trio.chat.template import ChatTemplate
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.engine.step import Opening, SamplingParams, StepItem
from ds4trio.generate import Generator
from ds4trio.settings import Settings
from tests.api.transport_harness import Client
from tests.fake_engine import FakeEngine
from tests.server import RunningServer, running_server
from tests.tiny import CHATML, CONTROL_TOKENS, make_tiny_tokenizer

__all__ = [
    "ENDLESS",
    "FINAL_EVENTS",
    "PATIENCE",
    "SECRET",
    "USER",
    "WALL",
    "Api",
    "EventStream",
    "ResponsesSocket",
    "ScriptedEngine",
    "answer_text",
    "assert_error_event",
    "assert_openai_error",
    "delta_text",
    "logprob_entries",
    "scripted_generator",
    "serving_script",
    "serving_tiny",
    "tiny_tokenizer",
    "until",
]

PATIENCE = 30.0
"""Seconds after which a test gives up; what it waits for takes milliseconds."""

END = CONTROL_TOKENS.index("<|im_end|>")
ENDLESS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""A script whose tokens are one letter each."""

WALL = "w" * 16_384
"""A text that is one token, so that few tokens fill the buffers of a connection."""

SECRET = "a planted fault with words that no client may read"
USER = [{"role": "user", "content": "Say something."}]
FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")


@functools.cache
def tiny_tokenizer() -> Tokenizer:
    """That of the tiny model, and ``WALL`` as one more token."""
    native = make_tiny_tokenizer()
    native.add_tokens([WALL])
    return Tokenizer(native.to_str())


class ScriptedEngine(FakeEngine):
    """Says a text, whatever it is asked.

    Args:
        script: what sequences say that are opened from now on; tests may change it.
        repeat: begin the script again at its end, without ever ending the answer.

    Attributes:
        fault: raise in a step for whose items this is true.
        drawn: how many tokens each sequence has drawn, by its id; it outlives the sequence.
        deepest_company: most sequences in one step so far.
    """

    def __init__(
        self,
        script: str = ENDLESS,
        *,
        repeat: bool = False,
        pages: int = 20_000,
        context_length: int = 50_000,
    ) -> None:
        super().__init__(
            pages=pages,
            context_length=context_length,
            vocab_size=tiny_tokenizer().vocab_size,
        )
        self.script = script
        self.repeat = repeat
        self.fault: Callable[[Sequence[StepItem]], bool] | None = None
        self.drawn: dict[int, int] = {}
        self._scripts: dict[int, tuple[list[int], bool]] = {}
        self.fake.fault = self._fault
        self.fake.speak = self._speak
        self.fake.guesses = False  # so that a step is a token

    @property
    def deepest_company(self) -> int:
        return max(map(len, self.batches), default=0)

    def open(
        self, sequence: int, sampling: SamplingParams, *, cache_salt: str = "", adapter: str = ""
    ) -> None:
        super().open(sequence, sampling, cache_salt=cache_salt)
        script = tiny_tokenizer().encode(self.script, special=False)
        self._scripts.setdefault(sequence, (script, self.repeat))
        self.drawn.setdefault(sequence, 0)

    def _fault(self, items: Sequence[StepItem]) -> Exception | None:
        return RuntimeError(SECRET) if self.fault is not None and self.fault(items) else None

    def _speak(self, opening: Opening, tokens: Sequence[int]) -> int:
        script, repeat = self._scripts[opening.sequence]
        place = len(tokens) - opening.sampling.prompt_length
        self.drawn[opening.sequence] = place + 1
        return script[place % len(script)] if repeat or place < len(script) else END


def scripted_generator(
    engine: FakeEngine,
    settings: Settings,
    template: ChatTemplate | None = None,
    *,
    kind: type[Generator] = Generator,
) -> Generator:
    """A generator around an engine without tensors; its coalescer is not running yet."""
    tokenizer = tiny_tokenizer()
    return kind(
        build_coalescer(engine, settings),
        tokenizer,
        template or ChatTemplate(CHATML, control_tokens=tokenizer.control_tokens),
        stop_tokens=frozenset({END}),
        bos_token=None,
        add_bos=False,
        default_max_tokens=settings.max_output_tokens,
    )


@dataclass
class Api:
    """A running server as its clients see it, and its inside for tests that count."""

    server: RunningServer
    http: httpx.AsyncClient
    raw_clients: list[Client] = field(default_factory=list)

    @property
    def coalescer(self) -> Coalescer:
        return self.server.service.generator.coalescer

    async def chat(self, **fields: Any) -> httpx.Response:
        """``POST /v1/chat/completions``; ``messages`` has a default."""
        return await self.chat_with({}, **fields)

    async def chat_with(self, headers: Mapping[str, str], **fields: Any) -> httpx.Response:
        """The same, with headers."""
        body = {"messages": USER, **fields}
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)

    async def completion(self, **fields: Any) -> dict[str, Any]:
        """The same, and it must succeed."""
        response = await self.chat(**fields)
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    @asynccontextmanager
    async def chunks(self, **fields: Any) -> AsyncIterator[EventStream]:
        """A streamed completion; leaving the block ends the connection, whatever is left of it."""
        client = await self.raw()
        await client.send(self.post_bytes(stream=True, **fields))
        async with client.stream:
            yield await EventStream.begin(client.stream)

    async def streamed(self, **fields: Any) -> list[Any]:
        """All chunks of a streamed completion."""
        async with self.chunks(**fields) as chunks:
            return [chunk async for chunk in chunks]

    @asynccontextmanager
    async def socket(
        self, headers: Mapping[str, str] | None = None, subprotocols: Sequence[str] = ()
    ) -> AsyncIterator[ResponsesSocket]:
        """A WebSocket at ``/v1/responses``."""
        async with open_websocket_url(
            self.server.websocket_url,
            subprotocols=list(subprotocols) or None,
            extra_headers=[
                (name.encode(), text.encode()) for name, text in (headers or {}).items()
            ],
        ) as connection:
            yield ResponsesSocket(connection)

    async def raw(self, *, receive_buffer: int | None = None) -> Client:
        """A client in bytes; a small receive buffer makes it a slow one."""
        sock = trio.socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await sock.connect(("127.0.0.1", self.server.port))
        self.raw_clients.append(Client(trio.SocketStream(sock)))
        return self.raw_clients[-1]

    def post_bytes(self, **fields: Any) -> bytes:
        """A chat completion request as it goes over the wire."""
        body = json.dumps({"messages": USER, **fields}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\n"
            f"Host: 127.0.0.1:{self.server.port}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    @asynccontextmanager
    async def step_held(self, engine: FakeEngine) -> AsyncIterator[None]:
        """Hold the engine inside a step, the next one that begins, until the block ends.

        What clients did in the block has reached the server's tasks when the step goes on.
        """
        engine.gate.clear()
        try:
            await trio.to_thread.run_sync(engine.in_step.wait, PATIENCE)
            await wait_all_tasks_blocked(0.02)  # it may have been a step that had passed the gate
            yield
            await wait_all_tasks_blocked(0.02)
        finally:
            engine.gate.set()

    async def at_rest(self) -> None:
        """Wait until no session is open; then nothing may be left of any."""
        await until(lambda: self.coalescer.sessions == 0 and self.coalescer.waiting == 0)
        assert self.coalescer.free_pages == self.coalescer.info.total_pages

    async def handshake(self, **headers: str) -> httpx.Response:
        """The answer to a WebSocket handshake; underscores in names stand for hyphens."""
        request = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "bKdPyn3u98cTfZJSh4TNeQ==",
            **{name.replace("_", "-"): text for name, text in headers.items()},
        }
        async with httpx.AsyncClient(base_url=self.server.url, timeout=PATIENCE) as http:
            async with http.stream("GET", "/v1/responses", headers=request) as response:
                if response.status_code != 101:
                    await response.aread()
                return response


@dataclass
class EventStream:
    """The data of server-sent events, decoded, one after another; ``"[DONE]"`` as it is.

    A class and no generator, so that a test can leave it in the middle.
    """

    stream: trio.SocketStream
    http: h11.Connection
    text: str = ""

    @classmethod
    async def begin(cls, stream: trio.SocketStream) -> EventStream:
        """Read the head of the response to a request that was just sent."""
        events = cls(stream, h11.Connection(h11.CLIENT))
        events.http.send(h11.Request(method="POST", target="/", headers=[("host", "any")]))
        events.http.send(h11.EndOfMessage())
        head = await events._next()
        assert isinstance(head, h11.Response)
        assert head.status_code == 200
        kinds = [value for name, value in head.headers if name == b"content-type"]
        assert kinds == [b"text/event-stream; charset=utf-8"]
        return events

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Any:
        while True:
            while "\n\n" not in self.text:
                event = await self._next()
                if isinstance(event, h11.EndOfMessage):
                    assert self.text == ""
                    raise StopAsyncIteration
                assert isinstance(event, h11.Data)
                self.text += event.data.decode()
            block, _, self.text = self.text.partition("\n\n")
            if not block.startswith(":"):
                assert block.startswith("data: ")
                data = block.removeprefix("data: ")
                return data if data == "[DONE]" else json.loads(data)

    async def _next(self) -> Any:
        with trio.fail_after(PATIENCE):
            while (event := self.http.next_event()) is h11.NEED_DATA:
                self.http.receive_data(bytes(await self.stream.receive_some()))
        return event


@dataclass
class ResponsesSocket:
    """A client of the Responses WebSocket."""

    connection: WebSocketConnection

    async def send(self, message: Any) -> None:
        """Send a value as JSON, or a text or bytes as they are."""
        raw = message if isinstance(message, (str, bytes)) else json.dumps(message)
        await self.connection.send_message(raw)

    async def create(self, text: Any = "Say something.", **fields: Any) -> None:
        await self.send({"type": "response.create", "input": text, **fields})

    async def cancel(self, **fields: Any) -> None:
        await self.send({"type": "response.cancel", **fields})

    async def event(self) -> dict[str, Any]:
        """The next event."""
        with trio.fail_after(PATIENCE):
            event: dict[str, Any] = json.loads(await self.connection.get_message())
        return event

    async def until_type(self, *kinds: str) -> list[dict[str, Any]]:
        """All events up to the first of these types, which is the last of the list."""
        events = [await self.event()]
        while events[-1]["type"] not in kinds:
            assert events[-1]["type"] not in (*FINAL_EVENTS, "error"), events[-1]
            events.append(await self.event())
        return events

    async def finish(self) -> dict[str, Any]:
        """The response of the next final event."""
        response: dict[str, Any] = (await self.until_type(*FINAL_EVENTS))[-1]["response"]
        return response

    async def answer(self, text: Any = "Say something.", **fields: Any) -> dict[str, Any]:
        """Ask, and return the final response."""
        await self.create(text, **fields)
        return await self.finish()


@asynccontextmanager
async def _serving(settings: Settings, load: Load, *, wait: bool = True) -> AsyncIterator[Api]:
    with trio.fail_after(3 * PATIENCE):
        async with running_server(settings, load=load, wait=wait) as server:
            async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as http:
                api = Api(server, http)
                try:
                    yield api
                finally:
                    for client in api.raw_clients:
                        client.stream.socket.close()


@asynccontextmanager
async def serving_script(
    engine: FakeEngine | None = None, *, load: Load | None = None, wait: bool = True, **fields: Any
) -> AsyncIterator[Api]:
    """A server whose engine speaks a script; ``fields`` are settings."""
    settings = Settings(
        **{"model": "scripted", "store": "memory", "shutdown_timeout": 0.5, **fields}
    )
    used = ScriptedEngine() if engine is None else engine

    def load_script(settings: Settings) -> tuple[Generator, str]:
        return scripted_generator(used, settings), "scripted"

    async with _serving(settings, load or load_script, wait=wait) as api:
        yield api


@asynccontextmanager
async def serving_tiny(folder: Path, **fields: Any) -> AsyncIterator[Api]:
    """A server of the tiny model; ``fields`` are settings."""
    defaults = {
        "engine": "thread",
        "device": "cpu",
        "dtype": "float32",
        "kv_memory": "8MiB",
        "shutdown_timeout": 0.5,
        "store": "memory",
    }
    settings = Settings(**{"model": str(folder), **defaults, **fields})

    def load(settings: Settings) -> tuple[Generator, str]:
        torch.set_num_threads(1)  # products this small only lose by more
        return load_generator(settings)

    async with _serving(settings, load) as api:
        yield api


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about; look again whenever they all wait."""
    with trio.fail_after(PATIENCE):
        while not condition():
            await wait_all_tasks_blocked()


def assert_openai_error(
    response: httpx.Response, status: int, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """The answer is an error in OpenAI's shape, and says nothing of our insides."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    _assert_error_object(error, response.text)
    assert code is None or error["code"] == code
    assert param is None or error["param"] == param
    return error


def assert_error_event(event: Mapping[str, Any], status: int, code: str | None = None) -> None:
    """The event is an error outside of a response, in the shape that OpenAI's clients read."""
    assert event["type"] == "error", event
    assert event["status"] == status
    _assert_error_object(event["error"], json.dumps(event))
    for name in ("code", "message", "param"):
        assert event[name] == event["error"][name]
    assert isinstance(event["sequence_number"], int)
    assert code is None or event["code"] == code


def _assert_error_object(error: Mapping[str, Any], text: str) -> None:
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    for sign in ("Traceback", 'File "', ".py", SECRET):
        assert sign not in text


def delta_text(chunks: Sequence[Any]) -> str:
    """The text of a streamed completion."""
    choices = itertools.chain.from_iterable(
        chunk["choices"] for chunk in chunks if chunk != "[DONE]" and "choices" in chunk
    )
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def logprob_entries(chunks: Sequence[Any]) -> list[dict[str, Any]]:
    """The log-probabilities of a streamed completion."""
    return [
        entry
        for chunk in chunks
        if chunk != "[DONE]"
        for choice in chunk["choices"]
        if choice["logprobs"] is not None
        for entry in choice["logprobs"]["content"]
    ]


def answer_text(response: Mapping[str, Any]) -> str:
    """The text of a finished response of the Responses API."""
    return "".join(part["text"] for item in response["output"] for part in item["content"])
