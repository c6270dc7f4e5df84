"""A chat session in this process, with a test at its keyboard and watching its screen."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ds4trio.cli.terminal.chat_session import ChatSession
from ds4trio.cli.terminal.conversation import RequestOptions
from ds4trio.cli.terminal.endpoint import Endpoint
from ds4trio.cli.terminal.screen import Screen

__all__ = ["Chat", "chatting"]


class Page(io.StringIO):
    """Text output that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = trio.Event()

    def write(self, text: str) -> int:
        self._changed.set()
        self._changed = trio.Event()
        return super().write(text)

    async def until(self, text: str) -> None:
        while text not in self.getvalue():
            await self._changed.wait()


class Keyboard:
    """Lines as a person types them; an exception among them is raised instead."""

    def __init__(self) -> None:
        self._keys, self._typed = trio.open_memory_channel[str | Exception](100)
        self.idle = trio.Event()

    def type(self, *lines: str | Exception) -> None:
        self.idle = trio.Event()
        for line in lines:
            self._keys.send_nowait(line)

    def leave(self) -> None:
        self._keys.close()

    async def read(self) -> str | None:
        if not self._typed.statistics().current_buffer_used:
            self.idle.set()
        try:
            line = await self._typed.receive()
        except trio.EndOfChannel:
            return None
        if isinstance(line, Exception):
            raise line
        return line


class Chat:
    """A running session. ``exit_code`` is set once it has ended."""

    def __init__(self, url: str, *, interactive: bool, options: RequestOptions) -> None:
        self.out = Page()
        self.err = Page()
        self.keyboard = Keyboard()
        self.exit_code: int | None = None
        screen = Screen(self.out, self.err, interactive=interactive, live=interactive, styled=False)
        self.session = ChatSession(Endpoint.parse(url), options, self.keyboard, screen)

    async def run(self) -> None:
        self.exit_code = await self.session.run()
        self.keyboard.idle.set()

    async def type(self, *lines: str | Exception) -> None:
        """Type, and wait until the session is back at the prompt, or has ended."""
        self.keyboard.type(*lines)
        await self.keyboard.idle.wait()

    async def ended(self) -> int:
        """End the input; the exit code that follows."""
        self.keyboard.type()
        self.keyboard.leave()
        await self.keyboard.idle.wait()
        assert self.exit_code is not None
        return self.exit_code


@asynccontextmanager
async def chatting(
    url: str, *, interactive: bool = True, options: RequestOptions | None = None
) -> AsyncIterator[Chat]:
    chat = Chat(url, interactive=interactive, options=options or RequestOptions())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chat.run)
        yield chat
        nursery.cancel_scope.cancel()
