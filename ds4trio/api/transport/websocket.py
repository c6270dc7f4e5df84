"""hypercorn's WebSocket stream, made safe against what a client may send.

What differs from the class it extends: no compression is negotiated, a message is measured in
bytes and ends the connection when it is too long, a broken frame is answered with its close code,
bytes that come before the handshake is over end that connection alone, and a server that goes away
says so.
"""

from __future__ import annotations

from typing import Any

import trio
from hypercorn.protocol.events import Body, Data, EndData, Event, Request, StreamClosed
from hypercorn.protocol.ws_stream import (
    ASGIWebsocketState,
    FrameTooLargeError,
    WebsocketBuffer,
    WSStream,
)
from hypercorn.typing import ASGISendEvent, WebsocketAcceptEvent
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Message, Ping, TextMessage
from wsproto.events import Event as WSProtoEvent
from wsproto.frame_protocol import CloseReason

__all__ = ["GuardedWSStream", "MessageBuffer"]


class MessageBuffer(WebsocketBuffer):
    """The parts of one message, held as bytes and never more than ``max_bytes`` of them.

    hypercorn counts characters, so a limit in bytes could be passed four times over, and keeps what
    it has refused.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._parts = bytearray()
        self._is_text = True

    def extend(self, event: Message[Any]) -> None:
        """Add a part of a message.

        Raises:
            FrameTooLargeError: the message is beyond the limit; what was held of it is gone.
        """
        self._is_text = isinstance(event, TextMessage)
        part = event.data.encode() if isinstance(event, TextMessage) else event.data
        if len(self._parts) + len(part) > self.max_length:
            self.clear()
            raise FrameTooLargeError
        self._parts += part

    def clear(self) -> None:
        """Forget the message."""
        self._parts = bytearray()

    def to_message(self) -> dict[str, Any]:
        """The finished message as an ASGI ``websocket.receive`` event."""
        return {
            "type": "websocket.receive",
            "bytes": None if self._is_text else bytes(self._parts),
            "text": self._parts.decode() if self._is_text else None,
        }


class GuardedWSStream(WSStream):
    """One WebSocket of one connection.

    Args:
        args: as for hypercorn's class.
        max_message_bytes: the longest message a client may send, in bytes of its payload.
        stall_timeout: seconds that an app may leave a full queue of messages alone. Meanwhile the
            connection is not read, so that the end of the client would go unnoticed.
        close_timeout: seconds that an app which does not read may delay the end of the connection.
    """

    def __init__(
        self, *args: Any, max_message_bytes: int, stall_timeout: float, close_timeout: float
    ) -> None:
        super().__init__(*args)
        self.buffer = MessageBuffer(max_message_bytes)
        self._stall_timeout = stall_timeout
        self._close_timeout = close_timeout

    async def handle(self, event: Event) -> None:
        """Take one event of the connection below."""
        if self.closed:
            return
        if isinstance(event, Request):
            await super().handle(event)
            if self.handshake_refused:
                # The handshake was refused. hypercorn would leave the connection open, untimed.
                await self.send(StreamClosed(stream_id=self.stream_id))
        elif isinstance(event, (Body, Data)) and not self.handshake.accepted:
            await self._refuse_early_data()
        elif isinstance(event, StreamClosed):
            # The queue to an app that reads nothing may be full; the closing does not wait for it.
            with trio.move_on_after(self._close_timeout):
                await super().handle(event)
        else:
            await super().handle(event)

    async def app_send(self, message: ASGISendEvent | None) -> None:
        """Take what the app sends; nothing goes out after the end."""
        if self.closed:
            # hypercorn returns without a checkpoint: an app that only sends would never be
            # cancelled, and nobody else would run.
            await trio.lowlevel.checkpoint()
        await super().app_send(message)

    @property
    def handshake_refused(self) -> bool:
        """Whether the request was no valid handshake, so that no app serves it."""
        return self.closed and self.app_put is None

    async def hang_up(self, code: CloseReason) -> None:
        """Send a close frame with ``code``, then end the connection; the app sees a disconnect."""
        if self.state is not ASGIWebsocketState.CONNECTED:
            return
        await self._send_wsproto_event(CloseConnection(code=code))
        await self.send(EndData(stream_id=self.stream_id))
        self.state = ASGIWebsocketState.CLOSED
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _refuse_early_data(self) -> None:
        # https://github.com/pgjones/hypercorn/issues/225: the answer 400 may come while the app is
        # giving another, which is an error in the reader and took the worker down. From here on
        # what the app sends goes nowhere.
        self.closed = True
        if self.state is ASGIWebsocketState.HANDSHAKE:
            await self._send_error_response(400)
        with trio.move_on_after(self._close_timeout):
            await self._tell_app(
                {"type": "websocket.disconnect", "code": CloseReason.PROTOCOL_ERROR.value}
            )
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _tell_app(self, message: dict[str, Any]) -> None:
        if self.app_put is not None:
            await self.app_put(message)

    async def _send_wsproto_event(self, event: WSProtoEvent) -> None:
        state = self.connection.state
        closing = state is ConnectionState.REMOTE_CLOSING and isinstance(event, CloseConnection)
        if state is ConnectionState.OPEN or closing:
            await super()._send_wsproto_event(event)
        else:
            # After a close frame nothing goes out; see app_send for the checkpoint.
            await trio.lowlevel.checkpoint()

    async def _accept(self, message: WebsocketAcceptEvent) -> None:
        # hypercorn accepts permessage-deflate from any client that offers it, with no setting to
        # turn it off (https://github.com/pgjones/hypercorn/issues/307). It costs CPU in every
        # message, and a small frame can inflate to a thousand times its size.
        self.handshake.extensions = None
        await super()._accept(message)
        if self.context.terminated.is_set():
            await self.hang_up(CloseReason.GOING_AWAY)

    async def _handle_events(self) -> None:
        for event in self.connection.events():
            if isinstance(event, (TextMessage, BytesMessage)):
                try:
                    self.buffer.extend(event)
                except FrameTooLargeError:
                    # hypercorn sends the close frame and reads on, storing all that comes.
                    await self.hang_up(CloseReason.MESSAGE_TOO_BIG)
                    return
                if event.message_finished:
                    message = self.buffer.to_message()
                    self.buffer.clear()
                    with trio.move_on_after(self._stall_timeout) as progress:
                        await self._tell_app(message)
                    if progress.cancelled_caught:
                        await self.hang_up(CloseReason.POLICY_VIOLATION)
                        return
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                if self.connection.state is ConnectionState.REMOTE_CLOSING:
                    await self._send_wsproto_event(event.response())
                elif self.connection.state is ConnectionState.OPEN:
                    # Not a close frame: the parser gave up. Say why (RFC 6455, section 7.1.7).
                    await self._send_wsproto_event(CloseConnection(code=event.code))
                await self.send(StreamClosed(stream_id=self.stream_id))
                return
