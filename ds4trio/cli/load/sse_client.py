"""A user over Chat Completions, streamed as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import trio

from ds4trio.cli.load.client import Answer, Asking, RequestFailed
from ds4trio.cli.load.http_connection import HttpConnection
from ds4trio.cli.load.sse_events import EventReader
from ds4trio.cli.terminal.connection import ServerUnreachable
from ds4trio.cli.terminal.endpoint import Endpoint

__all__ = ["SseClient", "first_model", "sse_client"]

DONE: Final = b"[DONE]"
LIST_SECONDS: Final = 20.0
"""For the list of models."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None


class _Error(msgspec.Struct):
    """Servers differ: OpenAI's code is a name, others have the HTTP status there."""

    code: str | int | None = None
    type: str | None = None
    message: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class SseClient:
    """Every turn sends the whole conversation, as the protocol has it.

    The connection is kept where the server keeps it, and opened anew where it does not.
    """

    def __init__(self, connection: HttpConnection, endpoint: Endpoint, asking: Asking) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._path = _path(endpoint, "/chat/completions")
        self._asking = asking
        self._messages: list[dict[str, str]] = []
        self._decoder = msgspec.json.Decoder(_Chunk)

    def begin(self) -> None:
        self._messages = []

    async def ask(self, text: str) -> Answer:
        if not self._connection.reusable:
            await self._reconnect()
        messages = [*self._messages, {"role": "user", "content": text}]
        body = msgspec.json.encode(self._request(messages))
        status = await self._connection.request("POST", self._path, body)
        if status != 200:
            raise await self._refusal(status)
        answer, said = await self._answer()
        self._messages = [*messages, {"role": "assistant", "content": said}]
        return answer

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def _reconnect(self) -> None:
        await self._connection.aclose()
        try:
            self._connection = await HttpConnection.open(self._endpoint)
        except ServerUnreachable as error:
            raise RequestFailed(str(error), code="unreachable", lost=True) from None

    async def _answer(self) -> tuple[Answer, str]:
        pieces: list[float] = []
        said: list[str] = []
        usage = _Usage()
        async with aclosing(self._events()) as events:
            async for data in events:
                now = trio.current_time()
                chunk = self._decode(data)
                if chunk.error is not None:
                    raise self._failure(chunk.error, "error")
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    delta = choice.delta or _Delta()
                    if delta.content or delta.reasoning_content:
                        pieces.append(now)
                    said.append(delta.content or "")
        cached = usage.prompt_tokens_details
        answer = Answer(
            tuple(pieces),
            input_tokens=usage.prompt_tokens,
            cached_tokens=cached.cached_tokens if cached else None,
            output_tokens=usage.completion_tokens,
        )
        return answer, "".join(said)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """The data of each event before ``[DONE]``; then the response is read to its end."""
        reader = EventReader()
        done = False
        while (received := await self._connection.chunk()) is not None:
            try:
                events = reader.feed(received)
            except ValueError as error:
                raise RequestFailed(str(error), code="bad_answer", lost=True) from None
            for data in events:
                done = done or data == DONE
                if not done:
                    yield data
        if not done:
            raise RequestFailed(
                "the answer ended without [DONE]",
                code="bad_answer",
                lost=True,
            )

    def _decode(self, data: bytes) -> _Chunk:
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise RequestFailed(
                f"an event is not as expected: {error}", code="bad_answer", lost=True
            ) from None

    async def _refusal(self, status: int) -> RequestFailed:
        body = await self._connection.whole()
        try:
            error = self._decoder.decode(body).error or _Error()
        except msgspec.MsgspecError:
            error = _Error()
        if not error.message:
            error.message = f"HTTP status {status}"
        return self._failure(error, f"http_{status}", lost=not self._connection.reusable)

    @staticmethod
    def _failure(error: _Error, otherwise: str, *, lost: bool = True) -> RequestFailed:
        code = error.code if isinstance(error.code, str) else error.type
        return RequestFailed(
            error.message or "the answer failed", code=code or otherwise, lost=lost
        )

    def _request(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        wanted: dict[str, Any] = {
            "messages": messages,
            "max_tokens": self._asking.output_tokens,
            "temperature": self._asking.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._asking.model is not None:
            wanted["model"] = self._asking.model
        return wanted


@asynccontextmanager
async def sse_client(endpoint: Endpoint, asking: Asking) -> AsyncIterator[SseClient]:
    """Connect.

    Raises:
        ServerUnreachable: on entering, nobody is there.
    """
    async with aclosing(SseClient(await HttpConnection.open(endpoint), endpoint, asking)) as client:
        yield client


async def first_model(endpoint: Endpoint) -> str | None:
    """The first model that the server lists; None where it lists none.

    Many servers want to be told a model by name, even where they have but one.

    Raises:
        ServerUnreachable: nobody is there.
        RequestFailed: the connection broke, no answer came, or the server wants another API key.
    """
    async with aclosing(await HttpConnection.open(endpoint)) as connection:
        with trio.move_on_after(LIST_SECONDS) as patience:
            status = await connection.request("GET", _path(endpoint, "/models"))
            body = await connection.whole()
    if patience.cancelled_caught:
        raise RequestFailed(
            f"{endpoint.origin} did not answer within {LIST_SECONDS:g} s", code="timeout", lost=True
        )
    if status == 401:
        fault = "refused the API key" if endpoint.api_key else "asks for an API key"
        raise RequestFailed(f"{endpoint.origin} {fault}", code="http_401", lost=True)
    if status != 200:
        return None
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except msgspec.MsgspecError:
        return None
    return models[0].id if models else None


def _path(endpoint: Endpoint, resource: str) -> str:
    return urlsplit(endpoint.url).path.removesuffix("/responses") + resource
