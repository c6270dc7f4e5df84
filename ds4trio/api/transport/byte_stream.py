"""A byte stream that cannot hold its server: every write has a deadline, every end is final.

hypercorn's trio worker shields its socket writes from cancellation, so that a cancelled handler
never leaves half a frame behind. The price is that a client which stays but stops reading holds
the sending task for ever. ``BoundedStream`` stands between the worker and the socket and puts the
bounds below that shield: a write that makes no progress ends the connection, and so does the end of
the connection itself, after a short while left for its tasks to finish.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import struct
from contextlib import suppress
from typing import Any

import trio

__all__ = ["BoundedStream"]

_log = logging.getLogger(__name__)

POSIX = os.name == "posix"
"""A socket can be written to as a file."""

WRITE_CHUNK = 16 * 1024
"""Bytes that a client must take within one send timeout; the most that TLS puts in one record."""


class BoundedStream:
    """A ``SocketStream`` or ``SSLStream`` as hypercorn uses it, with deadlines of its own.

    Every attribute not defined here (the socket, the TLS handshake) is the wrapped stream's.

    Args:
        stream: the stream to bound; it stays open until ``aclose``, ``finish`` or ``abort``.
        connection: the scope around all tasks of this connection. It is cancelled by ``abort``, and
            gets a deadline when the peer is gone, so that no task outlives its connection by more
            than ``close_timeout``.
        send_timeout: seconds that a write may go without ``WRITE_CHUNK`` bytes of progress.
        close_timeout: seconds for the parting of both sides.
    """

    def __init__(
        self,
        stream: Any,
        connection: trio.CancelScope,
        *,
        send_timeout: float,
        close_timeout: float,
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._send_timeout = send_timeout
        self._close_timeout = close_timeout
        self._sending = False
        self._finished = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def send_at_once(self, data: bytes) -> int:
        """Send what the kernel takes without waiting, and say how many bytes that were.

        0 where it takes nothing now, on TLS, and where something is wrong: ``send_all`` will say.
        """
        if self._finished or self._sending or not isinstance(self._stream, trio.SocketStream):
            return 0
        try:
            return os.write(self._stream.socket.fileno(), data) if data and POSIX else 0
        except OSError:
            return 0

    async def send_all(self, data: bytes | bytearray) -> None:
        """Send all of ``data``.

        Raises:
            trio.BrokenResourceError: the peer is gone, or took nothing for ``send_timeout``
                seconds; in the latter case the connection has been aborted.
            trio.ClosedResourceError: this side has finished sending.
        """
        if self._finished:
            raise trio.ClosedResourceError("this side has finished sending")
        if not data:
            await trio.lowlevel.checkpoint()
        self._sending = True
        try:
            view = memoryview(data)
            for start in range(0, len(view), WRITE_CHUNK):
                with trio.move_on_after(self._send_timeout) as progress:
                    await self._stream.send_all(view[start : start + WRITE_CHUNK])
                if progress.cancelled_caught:
                    _log.info(
                        "a client has read nothing for %g s; its connection is ended",
                        self._send_timeout,
                    )
                    self.abort()
                    raise trio.BrokenResourceError("the client reads nothing")
        except trio.BrokenResourceError:
            self._leave()
            raise
        finally:
            self._sending = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive up to ``max_bytes`` bytes; ``b""`` when the peer has ended.

        After ``finish`` what arrives is thrown away until the peer ends, or until the connection
        does because its time is up.

        Raises:
            trio.BrokenResourceError: the connection was lost.
            trio.ClosedResourceError: the connection is over on this side.
        """
        try:
            data: bytes | bytearray = await self._stream.receive_some(max_bytes)
            while data and self._finished:
                data = await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._leave()
            raise
        if self._finished:
            raise trio.ClosedResourceError("both sides have finished")
        if not data:
            self._leave()
        return data

    async def finish(self) -> None:
        """End this side politely: everything sent can still be read by the peer.

        Closing a socket while the peer is still sending resets the connection, and a reset destroys
        what the peer has not read yet, a close frame with the reason for instance (RFC 9112,
        section 9.6). So only the sending side ends here; the reader discards the rest for a while.
        """
        if self._finished:
            return
        self._finished = True
        self._leave()
        try:
            # The task that sends the last words is often cancelled by then: to the app the end of
            # its response is the end of the request.
            with trio.CancelScope(shield=True):
                await self._stream.send_eof()
        except AttributeError:
            # TLS cannot end one side alone.
            await self.aclose()
        except (trio.BrokenResourceError, trio.BusyResourceError, trio.ClosedResourceError):
            # Another task is inside a write, which has a deadline of its own; or nothing is left.
            pass

    async def aclose(self) -> None:
        """Close, within ``close_timeout``: TLS says goodbye, to a peer that may not listen."""
        self._finished = True
        self._leave()
        with trio.move_on_after(self._close_timeout):
            await self._stream.aclose()

    def abort(self) -> None:
        """Close at once; a write in progress fails, and every task of the connection ends."""
        sock = getattr(self._stream, "transport_stream", self._stream).socket
        if self._sending:
            # A reset, so that the kernel does not hold what the peer has not taken.
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        self._finished = True
        self._connection.cancel()

    def hurry(self, seconds: float) -> None:
        """The server is stopping: from now on part within so many seconds."""
        self._close_timeout = min(self._close_timeout, seconds)
        if self._connection.deadline < math.inf:  # parting already
            self._leave()

    def _leave(self) -> None:
        deadline = trio.current_time() + self._close_timeout
        self._connection.deadline = min(self._connection.deadline, deadline)
