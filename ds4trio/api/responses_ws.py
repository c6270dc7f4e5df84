"""``GET /v1/responses`` as a WebSocket: OpenAI's Responses WebSocket mode.

A connection is three tasks in one nursery: one reads frames, one answers requests in turn, one
sends. The one that sends may be held by a client that does not read, so the one that generates only
ever waits for it for ``send_timeout`` seconds; then the connection ends, and with it the answer.
Between them is a channel without a buffer: what is generated meanwhile piles up in the session and
leaves as one event.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Any

import trio
from quart import Blueprint, Response, websocket
from quart.wrappers import Websocket

from ds4trio.api.auth import SUBPROTOCOL, tenant, user
from ds4trio.api.conversation import Turn
from ds4trio.api.requests import refuse_unsupported
from ds4trio.api.response_events import ResponseEvents
from ds4trio.api.response_request import prepare_response
from ds4trio.api.schemas.responses import ClientEvent, ResponseCancel, ResponseCreate
from ds4trio.api.service import Service
from ds4trio.api.wire import decode, encode, error_body, error_response
from ds4trio.errors import (
    ClientStalled,
    InternalError,
    InvalidRequest,
    PreviousResponseNotFound,
    ServerStopping,
    UpgradeRequired,
    WireError,
)
from ds4trio.generate import Finished, GenerationEvent

__all__ = ["responses_ws"]

_log = logging.getLogger(__name__)

MAX_QUEUED = 16
"""Requests that may wait their turn on one connection."""

GOING_AWAY = 1001
"""Close code of a server that stops (RFC 6455, section 7.4.1)."""

MAX_KEPT = 32
"""Responses of one connection that can still be continued, the latest ones; fewer if they are long:
all their texts together are at most as long as one message may be."""


def responses_ws(service: Service) -> Blueprint:
    """The door, as a blueprint."""
    blueprint = Blueprint("responses_ws", __name__)

    @blueprint.route("/v1/responses", methods=["GET", "POST"])
    async def not_a_websocket() -> Response:
        response = error_response(
            UpgradeRequired(
                "responses are served over a WebSocket here (client.responses.connect()); "
                "over plain HTTP use POST /v1/chat/completions"
            )
        )
        response.headers["Upgrade"] = "websocket"
        return response

    @blueprint.websocket("/v1/responses")
    async def responses() -> Response | None:
        try:
            _ = service.generator
        except WireError as error:
            return error_response(error)
        socket = websocket._get_current_object()  # type: ignore[attr-defined]
        chosen = SUBPROTOCOL if SUBPROTOCOL in socket.requested_subprotocols else None
        await socket.accept(subprotocol=chosen)
        try:
            await _Connection(service, socket).serve()
        except* ClientStalled as stalled:
            _log.info("%s", stalled.exceptions[0])
        return None

    return blueprint


class _Connection:
    """One client's WebSocket, for as long as it lasts."""

    def __init__(self, service: Service, socket: Websocket) -> None:
        self._service = service
        self._socket = socket
        self._outgoing, self._to_send = trio.open_memory_channel[str](0)
        self._requests, self._to_answer = trio.open_memory_channel[tuple[ResponseCreate, int]](
            MAX_QUEUED
        )
        self._queued_characters = 0
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._running: _Running | None = None

    async def serve(self) -> None:
        """Until the client leaves (Quart then cancels this task) or stops reading."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_frames, nursery.cancel_scope)
            nursery.start_soon(self._answer_requests)
            nursery.start_soon(self._end_when_the_server_does)
            await self._read_frames()

    # -- frames

    async def _read_frames(self) -> None:
        while True:
            frame = await self._socket.receive()
            try:
                if not isinstance(frame, str):  # an empty binary frame arrives as None
                    raise InvalidRequest("messages are JSON texts, not binary", code="invalid_json")
                self._take(decode(frame, ClientEvent), len(frame))  # type: ignore[arg-type]
            except WireError as error:
                await self._send_error(error)

    def _take(self, event: ResponseCreate | ResponseCancel, characters: int) -> None:
        if isinstance(event, ResponseCancel):
            self._cancel(event.response_id)
            return
        limit = self._service.settings.max_body_bytes
        if self._queued_characters and self._queued_characters + characters > limit:
            raise InvalidRequest(
                "the requests that wait on this connection are too large together",
                code="websocket_stream_limit_reached",
            )
        try:
            self._requests.send_nowait((event, characters))
            self._queued_characters += characters
        except trio.ClosedResourceError:
            raise ServerStopping("the server is stopping") from None
        except trio.WouldBlock:
            raise InvalidRequest(
                f"{MAX_QUEUED} requests wait on this connection already",
                code="websocket_stream_limit_reached",
            ) from None

    def _cancel(self, response_id: str | None) -> None:
        """End the response that runs, or that comes next if none has begun."""
        running = self._running
        if running is None and self._to_answer.statistics().current_buffer_used:
            running = self._running = _Running()
        if running is None or response_id not in (None, running.response_id):
            raise InvalidRequest("this response is not running", code="response_cancel_not_active")
        running.stop()

    async def _send_frames(self, connection: trio.CancelScope) -> None:
        async for frame in self._to_send:
            await self._socket.send(frame)
        await self._socket.close(GOING_AWAY, "the server is stopping")
        connection.cancel()

    async def _send(self, event: dict[str, Any]) -> None:
        frame = encode(event).decode()
        # closed: all that mattered was said, and the close frame is on its way
        with contextlib.suppress(trio.ClosedResourceError):
            try:
                self._outgoing.send_nowait(frame)  # mostly somebody waits for it
            except trio.WouldBlock:
                await self._send_in_time(frame)

    async def _send_in_time(self, frame: str) -> None:
        timeout = self._service.settings.send_timeout
        try:
            with trio.fail_after(timeout):
                await self._outgoing.send(frame)
        except trio.TooSlowError:
            raise ClientStalled(
                f"a client has not read its WebSocket for {timeout:g} s; it is closed"
            ) from None

    async def _send_error(self, error: WireError) -> None:
        body = error_body(error)
        await self._send(
            {
                "type": "error",
                "status": error.status,
                "error": body,
                "code": error.code,
                "message": error.message,
                "param": error.param,
                "sequence_number": 0,
            }
        )

    # -- requests, one at a time

    async def _end_when_the_server_does(self) -> None:
        """Take no more requests; when those that there are have ended, so does the connection."""
        await self._service.stopping.wait()
        self._requests.close()

    async def _answer_requests(self) -> None:
        async for wanted, characters in self._to_answer:
            self._queued_characters -= characters
            try:
                await self._answer(wanted)
            except WireError as error:
                await self._send_error(error)
            except ClientStalled:
                raise
            except Exception as error:
                _log.error("a response failed for a reason that is ours", exc_info=error)
                await self._send_error(InternalError("the server failed; its log says why"))
        await self._outgoing.aclose()

    async def _answer(self, wanted: ResponseCreate) -> None:
        # a cancel may have come for it already
        running = self._running = self._running or _Running()
        try:
            await self._generate(wanted, running)
        finally:
            self._running = None

    async def _generate(self, wanted: ResponseCreate, running: _Running) -> None:
        model = self._service.find_model(wanted.model)
        generator = self._service.generator
        refuse_unsupported(
            {
                "background": bool(wanted.background),
                "generate": wanted.only_warms,
                "stream_id": wanted.stream_id is not None,
            }
        )
        asked = await prepare_response(
            generator,
            wanted,
            self._earlier(wanted),
            adapter=model.adapter,
            cache_salt=tenant(self._socket, wanted.cache_salt),
            user=user(self._socket, self._service.settings),
        )
        events = ResponseEvents(wanted, model.name)
        running.response_id = events.id
        await self._send_all(events.begin())
        last: list[dict[str, Any]] | None = None
        try:
            async with contextlib.aclosing(generator.generate(asked.prompt)) as generated:
                while last is None:
                    event = await running.wait_for(generated)
                    if event is None:
                        last = events.cut("cancelled", len(asked.prompt.tokens))
                    elif isinstance(event, Finished):
                        last = events.finish(event)
                    else:
                        await self._send_all(events.take(event))
        except WireError as error:
            await self._send_all(events.failed(error))
            return
        self._keep(Turn.of(events.response, asked.input, asked.previous))
        await self._send_all(last)

    async def _send_all(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            await self._send(event)

    # -- conversations

    def _earlier(self, wanted: ResponseCreate) -> Turn | None:
        previous = wanted.previous_response_id
        if previous is None:
            return None
        if previous not in self._turns:
            raise PreviousResponseNotFound(
                f"this connection does not hold the response {previous[:100]!r}; "
                "please send the whole conversation as input",
                param="previous_response_id",
            )
        self._turns.move_to_end(previous)
        return self._turns[previous]

    def _keep(self, turn: Turn) -> None:
        self._turns[turn.id] = turn
        sizes = [kept.bytes for kept in self._turns.values()]
        total, limit = sum(sizes), self._service.settings.max_body_bytes
        for size in sizes[:-1]:  # the latest can always be continued
            if len(self._turns) <= MAX_KEPT and total <= limit:
                break
            self._turns.popitem(last=False)
            total -= size


class _Running:
    """The response that is being generated, and the way to stop it between two events.

    Only the wait for the generator can be cancelled, never a send, so that no event is lost and the
    sequence numbers stay whole.
    """

    def __init__(self) -> None:
        self.response_id: str | None = None
        self._stopped = False
        self._waiting: trio.CancelScope | None = None

    def stop(self) -> None:
        self._stopped = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def wait_for(
        self, generated: AsyncGenerator[GenerationEvent, None]
    ) -> GenerationEvent | None:
        """The next event, or None when stopped."""
        if self._stopped:
            return None
        with trio.CancelScope() as self._waiting:
            return await anext(generated)
        return None
