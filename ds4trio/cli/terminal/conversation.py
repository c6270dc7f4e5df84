"""A conversation over the Responses WebSocket, apart from any terminal.

Each question goes out as ``response.create`` with only what is new, chained to the answer before
by ``previous_response_id``. The chain lives in the server's connection; the conversation lives
here, so on a new connection, or when the server no longer knows the chain, the whole history is
sent instead. (OpenAI's Responses API, WebSocket mode.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from ds4trio.cli.terminal.connection import ChatError, drop
from ds4trio.cli.terminal.wire import (
    DeltaEvent,
    ErrorBody,
    ErrorEvent,
    Event,
    ResponseBody,
    ResponseEvent,
)

__all__ = [
    "Answer",
    "AnswerRefused",
    "AnswerSummary",
    "ConnectionLost",
    "Conversation",
    "RequestOptions",
    "Turn",
]

_decode = msgspec.json.decode

_CONNECTION_EXPIRED: Final = "websocket_connection_limit_reached"


class ConnectionLost(ChatError):
    """The connection ended before the answer did; the question can be asked again on another."""


class AnswerRefused(ChatError):
    """The server answered with an error; the connection stays usable.

    Attributes:
        code: the server's stable name for it, ``server_busy`` for instance.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(" ".join(message.split()) or code)
        self.code = code


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What every request of a conversation asks for; None leaves it to the server."""

    model: str | None = None
    system: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the history."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class AnswerSummary:
    """How an answer ended.

    Attributes:
        ending: ``completed``, or why it is incomplete: ``max_output_tokens``, ``cancelled``,
            or ``disconnected`` when it was stopped by dropping the connection.
        output_tokens: None where the server did not count them.
        tokens_per_second, mean_batch_size: ds4trio's own extension, None from other servers.
    """

    ending: str
    output_tokens: int | None = None
    tokens_per_second: float | None = None
    mean_batch_size: float | None = None


class Conversation:
    """What was said so far, and the chain that the connected server knows it by."""

    def __init__(self, options: RequestOptions | None = None) -> None:
        self.options = options or RequestOptions()
        self._history: list[Turn] = []
        self._websocket: WebSocketConnection | None = None
        self._chain: str | None = None

    @property
    def history(self) -> tuple[Turn, ...]:
        return tuple(self._history)

    def attach(self, websocket: WebSocketConnection) -> None:
        """Go on over this connection, which knows nothing of the conversation yet."""
        self._websocket = websocket
        self._chain = None

    @property
    def connected(self) -> bool:
        """False before ``attach``, and once the connection can no longer be relied on."""
        return self._websocket is not None

    def detach(self) -> None:
        """The connection is gone, or what it still holds belongs to nobody: ask on another."""
        self._websocket = None

    def clear(self) -> None:
        """Start anew, over the same connection."""
        self._history.clear()
        self._chain = None

    def ask(self, question: str) -> Answer:
        """Ask; the request leaves with the first step of the iteration.

        The history has the question and its answer once the answer has ended. One answer at a time.
        """
        if self._websocket is None:
            raise RuntimeError("a conversation needs a connection before it can ask")
        text = question.encode("utf-8", "replace").decode("utf-8")  # lone surrogates have no UTF-8
        return Answer(self, self._websocket, text)

    def request(self, question: str) -> dict[str, Any]:
        """The ``response.create`` frame for a question, chained where there is a chain."""
        new = Turn("user", question)
        turns = [new] if self._chain else [*self._history, new]
        options = {
            "model": self.options.model,
            "instructions": self.options.system,
            "temperature": self.options.temperature,
            "max_output_tokens": self.options.max_output_tokens,
            "previous_response_id": self._chain,
        }
        return {
            "type": "response.create",
            "input": [{"type": "message", "role": t.role, "content": t.text} for t in turns],
            "store": False,
            **{name: value for name, value in options.items() if value is not None},
        }

    def unchain(self) -> bool:
        """Forget the chain, so that the next request carries the whole history. Was there one?"""
        had = self._chain is not None
        self._chain = None
        return had

    def record(self, question: str, answer: str, chain: str | None) -> None:
        """Add a question and what was said in answer to it, however that ended."""
        self._history.append(Turn("user", question))
        if answer:
            self._history.append(Turn("assistant", answer))
        self._chain = chain


class Answer:
    """One answer as it comes: an async iterator over its pieces of text.

    Ends when the server says that the answer has; ``summary`` is set from then on.

    Raises, from the iteration:
        ConnectionLost: the connection is gone, and ``stop`` was not asked for.
        AnswerRefused: the server sent an error, instead of an answer or in the middle of it.
    """

    def __init__(
        self, conversation: Conversation, websocket: WebSocketConnection, question: str
    ) -> None:
        self._conversation = conversation
        self._websocket = websocket
        self._question = question
        self._pieces: list[str] = []
        self._asked = False
        self._ended = trio.Event()
        self.stopping = False
        self.summary: AnswerSummary | None = None

    @property
    def text(self) -> str:
        """What has come so far."""
        return "".join(self._pieces)

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> str:
        try:
            while self.summary is None:
                piece = await self._advance()
                if piece:
                    self._pieces.append(piece)
                    return piece
        except ChatError:
            self._ended.set()
            raise
        self._ended.set()
        raise StopAsyncIteration

    async def stop(self, patience: float) -> None:
        """Ask the server to stop; what was said so far stays part of the conversation.

        Call it from another task than the one that iterates. Returns when the iteration has ended;
        it is ended by :meth:`abort` if the server has not done so within ``patience`` seconds.
        """
        self.stopping = True
        with trio.move_on_after(patience):
            try:
                await self._send({"type": "response.cancel"})
            except ConnectionClosed:
                return  # the iteration finds out by itself
            await self._ended.wait()
        if not self._ended.is_set():
            await self.abort()

    async def abort(self) -> None:
        """Stop by dropping the connection, which also tells the server."""
        self.stopping = True
        await drop(self._websocket)

    async def _advance(self) -> str:
        """Take the next step: ask, or act on one event. The text in it, if any."""
        try:
            if not self._asked:
                self._asked = True
                await self._send(self._conversation.request(self._question))
            return self._take(await self._websocket.get_message())
        except msgspec.MsgspecError:
            self._conversation.detach()
            raise AnswerRefused("protocol_error", "the server sent no event we know") from None
        except ConnectionClosed:
            self._lose("the connection was lost")
            return ""

    async def _send(self, frame: dict[str, Any]) -> None:
        await self._websocket.send_message(msgspec.json.encode(frame).decode("utf-8"))

    def _take(self, message: str | bytes) -> str:
        """Act on one event; the text in it, if any."""
        match _decode(message, type=Event).type:
            case "response.output_text.delta":
                return _decode(message, type=DeltaEvent).delta
            case "response.completed" | "response.incomplete" as kind:
                self._finish(kind, _decode(message, type=ResponseEvent).response)
            case "response.failed":
                error = _decode(message, type=ResponseEvent).response.error or ErrorBody()
                raise AnswerRefused(error.code or "server_error", error.message)
            case "error":
                self._refuse(_decode(message, type=ErrorEvent).error)
        return ""

    def _finish(self, kind: str, response: ResponseBody) -> None:
        details, usage, timings = response.incomplete_details, response.usage, response.ds4trio
        if kind == "response.completed":
            ending = "completed"
        else:
            ending = details.reason if details else "incomplete"
        self._conversation.record(self._question, self.text, response.id or None)
        if self.stopping and ending != "cancelled":
            # The cancel crossed the end of its answer. An error that the server may send for it
            # must not be taken for the answer to the next question.
            self._conversation.detach()
        self.summary = AnswerSummary(
            ending,
            usage.output_tokens if usage else None,
            timings.tokens_per_second if timings else None,
            timings.mean_batch_size if timings else None,
        )

    def _refuse(self, error: ErrorBody) -> None:
        if self.stopping or error.code == _CONNECTION_EXPIRED:
            self._lose(error.message)
        elif error.code == "previous_response_not_found" and self._conversation.unchain():
            self._asked = False
        else:
            raise AnswerRefused(error.code or error.type or "error", error.message)

    def _lose(self, why: str) -> None:
        """The connection is of no more use. To an answer that was to stop, that is its end."""
        self._conversation.detach()
        if not self.stopping:
            raise ConnectionLost(why)
        self._conversation.record(self._question, self.text, None)
        self.summary = AnswerSummary("disconnected")
