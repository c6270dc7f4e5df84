"""One measurement: users who talk with one server, and how long everything took."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import trio

from ds4trio.cli.load.client import Answer, Client, Connect, RequestFailed
from ds4trio.cli.load.tally import Request, Tally
from ds4trio.cli.load.workload import Conversation, Workload, poisson_arrivals
from ds4trio.errors import Ds4TrioError

__all__ = ["Level", "Limits", "measure", "warm_up"]

PAUSE: Final = 0.25
"""Seconds that a user waits after a failure. A server that refuses everything is not flooded."""
MAX_OPEN: Final = 1024
"""Conversations of an open loop that may run at once: file descriptors are few."""


@dataclass(frozen=True, slots=True)
class Level:
    """How much is asked of a server: one of two kinds of load.

    Attributes:
        users: closed loop. So many connections, on each one conversation after the other.
        rate: open loop. So many conversations begin in a second, on average, at the times of a
            Poisson process and on connections of their own, whether or not the server keeps up.
    """

    users: int | None = None
    rate: float | None = None

    def __str__(self) -> str:
        if self.users is None:
            return f"{self.rate:g}/s"
        return f"{self.users} user{'' if self.users == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Limits:
    """When a measurement ends: after so many conversations, or so much time, whichever is first.

    Attributes:
        conversations: of each user in a closed loop, of all together in an open one.
        seconds: after which no conversation begins. Those that run are waited for.
        request_seconds: the longest a request may take; then it fails as ``timeout``.
    """

    conversations: int | None = 4
    seconds: float | None = None
    request_seconds: float = 120.0


async def measure(
    connect: Connect, level: Level, workload: Workload, limits: Limits, tally: Tally, stream: object
) -> None:
    """Put this load on a server until the limits are reached.

    Args:
        tally: filled as requests end. What it holds when this is cancelled is sound as far as it
            goes.
        stream: the same stream has the same conversations and arrivals.
    """
    run = _Run(connect, workload, limits, tally, stream)
    if level.users is not None:
        await run.closed_loop(level.users)
    else:
        assert level.rate is not None
        await run.open_loop(level.rate)
    tally.complete = True


async def warm_up(connect: Connect, workload: Workload, limits: Limits) -> None:
    """One conversation whose times do not count.

    Raises:
        Ds4TrioError: the server is not there, refuses, or does not answer well.
    """
    run = _Run(connect, workload, limits, Tally(), "warm-up")
    async with connect() as client:
        failure = await run.converse(client, next(workload.conversations("warm-up")))
    if failure is not None:
        raise failure


class _Run:
    def __init__(
        self, connect: Connect, workload: Workload, limits: Limits, tally: Tally, stream: object
    ) -> None:
        self._connect = connect
        self._workload = workload
        self._limits = limits
        self._tally = tally
        self._stream = stream
        self._started = trio.current_time()
        self._connecting = 0
        self._all_connected = trio.Event()

    async def closed_loop(self, users: int) -> None:
        self._connecting = users
        async with trio.open_nursery() as nursery:
            for number in range(users):
                nursery.start_soon(self._user, number)

    async def open_loop(self, rate: float) -> None:
        self._all_connected.set()
        conversations = self._workload.conversations(self._stream)
        arrivals = poisson_arrivals(rate, self._workload.source("arrivals", self._stream))
        count = self._limits.conversations
        async with trio.open_nursery() as nursery:
            for after in itertools.islice(arrivals, count):
                if self._limits.seconds is not None and after >= self._limits.seconds:
                    return
                due = self._started + after
                await trio.sleep_until(due)
                if len(nursery.child_tasks) < MAX_OPEN:
                    nursery.start_soon(self._visit, next(conversations), due)
                else:
                    self._failed("not_started", f"{MAX_OPEN} conversations were running already")

    async def converse(
        self, client: Client, conversation: Conversation, due: float | None = None
    ) -> RequestFailed | None:
        """Ask turn after turn, up to the first that fails.

        Args:
            due: when the time of the first turn begins; now, if not given.
        """
        client.begin()
        for turn, text in enumerate(conversation):
            if due is None or turn:
                due = trio.current_time()
            try:
                answer = await self._ask(client, text)
            except RequestFailed as failure:
                self._failed(failure.code, str(failure))
                return failure
            now = trio.current_time()
            self._tally.requests.append(Request(turn, due, now, answer))
            self._tally.seconds = now - self._started
        return None

    async def _ask(self, client: Client, text: str) -> Answer:
        seconds = self._limits.request_seconds
        try:
            with trio.fail_after(seconds):
                return await client.ask(text)
        except trio.TooSlowError:
            raise RequestFailed(
                f"no whole answer within {seconds:g} s", code="timeout", lost=True
            ) from None

    async def _user(self, number: int) -> None:
        conversations = self._limited(number)
        conversation = next(conversations, None)
        waited = False
        while conversation is not None:
            connected = False
            try:
                async with self._connect() as client:
                    connected = True
                    if not waited:
                        waited = True
                        await self._start_together()
                    conversation = await self._converse_on(client, conversation, conversations)
            except Ds4TrioError as error:
                if not waited:
                    waited = True
                    await self._start_together()
                if not connected:  # what goes wrong in parting has been counted, or matters not
                    self._failed("unreachable", str(error))
                    conversation = next(conversations, None)
            if conversation is not None:
                await trio.sleep(PAUSE)

    async def _converse_on(
        self, client: Client, conversation: Conversation, more: Iterator[Conversation]
    ) -> Conversation | None:
        """Until the connection is lost; returns the one to go on with, if there is one."""
        following: Conversation | None = conversation
        while following is not None:
            failure = await self.converse(client, following)
            following = next(more, None)
            if failure is not None and failure.lost:
                break
            if failure is not None and following is not None:
                await trio.sleep(PAUSE)
        return following

    async def _visit(self, conversation: Conversation, due: float) -> None:
        try:
            async with self._connect() as client:
                await self.converse(client, conversation, due=due)
        except Ds4TrioError as error:
            self._failed("unreachable", str(error))

    async def _start_together(self) -> None:
        """Time runs from when every user is connected, or has failed to."""
        self._connecting -= 1
        if not self._connecting:
            self._started = trio.current_time()
            self._all_connected.set()
        await self._all_connected.wait()

    def _limited(self, number: int) -> Iterator[Conversation]:
        """The conversations of one user, until a limit is reached."""
        endless = self._workload.conversations(self._stream, number)
        for conversation in itertools.islice(endless, self._limits.conversations):
            seconds = self._limits.seconds
            if seconds is not None and trio.current_time() - self._started >= seconds:
                return
            yield conversation

    def _failed(self, code: str, message: str) -> None:
        self._tally.errors[code] += 1
        self._tally.message = message
        self._tally.seconds = trio.current_time() - self._started
