"""One client's Responses WebSocket, for as long as it lasts.

Its tasks are in one nursery: one reads frames, one sends, each lane that has requests has one, and
two wait for the reasons to end it, the server's stop and the connection's age.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import trio
from quart.wrappers import Websocket

from ds4trio.api.auth import user
from ds4trio.api.responses.lanes.answering import Answering
from ds4trio.api.responses.lanes.lane import Lanes, check_name
from ds4trio.api.responses.lanes.outbox import Outbox, error_event
from ds4trio.api.schemas.responses import (
    ClientEvent,
    ResponseCancel,
    ResponseCreate,
    ResponseSteer,
)
from ds4trio.api.service import Service
from ds4trio.api.wire import decode
from ds4trio.errors import (
    ConnectionLimitReached,
    InvalidRequest,
    InvalidStreamId,
    ServerStopping,
    WireError,
)

__all__ = ["GRACE", "Connection"]

GOING_AWAY = 1001
"""Close code of a server that stops, or that has had enough of a connection (RFC 6455, section
7.4.1). OpenAI's clients take it as a reason to connect anew."""

GRACE = 60.0
"""Seconds that running responses get when the connection has reached its age."""


_Event: TypeAlias = ResponseCreate | ResponseCancel | ResponseSteer


class _Named(msgspec.Struct):
    """All that is read of a message that is refused: whose it was."""

    stream_id: str | None = None


class Connection:
    """A WebSocket that was accepted."""

    def __init__(self, service: Service, socket: Websocket) -> None:
        settings = service.settings
        self._service = service
        self._socket = socket
        self._outbox = Outbox(settings.send_timeout)
        who = user(socket, settings)
        self._answering = Answering(service, socket, self._outbox, who)
        self._lanes: Lanes

    async def serve(self) -> None:
        """Until the client leaves (Quart then cancels this task) or the connection is ended here.

        Raises (in a group):
            ClientStalled: the client has stopped reading.
        """
        async with trio.open_nursery() as nursery:
            self._lanes = Lanes(
                nursery, self._answering.answer, self._service.settings.max_body_bytes
            )
            nursery.start_soon(self._send_frames, nursery.cancel_scope)
            nursery.start_soon(self._end_when_the_server_does)
            nursery.start_soon(self._end_when_it_is_old)
            await self._read_frames()

    # -- frames

    async def _send_frames(self, connection: trio.CancelScope) -> None:
        await self._outbox.run(self._socket)
        connection.cancel()

    async def _read_frames(self) -> None:
        while True:
            frame = await self._socket.receive()
            try:
                if not isinstance(frame, str):  # an empty binary frame arrives as None
                    raise InvalidRequest("messages are JSON texts, not binary", code="invalid_json")
                event: _Event = decode(frame, ClientEvent)  # type: ignore[arg-type]
            except WireError as error:
                await self._refuse(frame, error)
            else:
                await self._take(event, len(frame))

    async def _refuse(self, frame: str | bytes | None, error: WireError) -> None:
        """Answer a message that is none; with its lane, if it says that much."""
        lane = None
        try:
            lane = decode(frame or b"", _Named).stream_id
            check_name(lane)
        except WireError as unnamed:
            lane = None
            if isinstance(unnamed, InvalidStreamId) or unnamed.param == "stream_id":
                error = InvalidStreamId(unnamed.message, param="stream_id")
        await self._outbox.send(error_event(error, lane))

    async def _take(self, event: _Event, size: int) -> None:
        if isinstance(event, ResponseSteer):
            await self._answering.register.steer(event)
            return
        try:
            if isinstance(event, ResponseCreate):
                self._lanes.take(event, size)
            else:
                self._cancel(event)
        except WireError as error:
            named = None if isinstance(error, InvalidStreamId) else event.stream_id
            await self._outbox.send(error_event(error, named))

    def _cancel(self, event: ResponseCancel) -> None:
        """End a response, or of a lane the first one that was not ended yet."""
        check_name(event.stream_id)
        if event.response_id is None:
            lane = self._lanes.get(event.stream_id)
            run = lane.first if lane is not None else None
        else:
            run = self._answering.register.running(event.response_id)
            if run is not None and event.stream_id not in (None, run.wanted.stream_id):
                run = None
        if run is None:
            what = "this response is not running"
            if event.response_id is None:
                what = "no response_id is named, and nothing runs in this lane"
            raise InvalidRequest(what, code="response_cancel_not_active")
        run.stop("cancelled")

    # -- the end

    async def _end_when_the_server_does(self) -> None:
        """Take no more requests; when those that there are have ended, so does the connection."""
        await self._service.stopping.wait()
        self._lanes.close(ServerStopping("the server is stopping"))
        await self._lanes.idle.wait()
        self._outbox.close(GOING_AWAY, "the server is stopping")

    async def _end_when_it_is_old(self) -> None:
        """Take no more requests; what runs gets a little time to end, what waits gets none."""
        minutes = self._service.settings.websocket_minutes
        await trio.sleep(60 * minutes)
        error = ConnectionLimitReached(
            f"this connection has reached its limit of {minutes:g} minutes; please connect anew"
        )
        self._lanes.close(error)
        for lane, _ in self._lanes.drop_waiting():
            await self._outbox.send(error_event(error, lane.name))
        with trio.move_on_after(GRACE):
            await self._lanes.idle.wait()
        for run in self._lanes.runs:
            run.stop(error)
        await self._lanes.idle.wait()
        await self._outbox.send(error_event(error))
        self._outbox.close(GOING_AWAY, "the connection has reached its limit of time")
