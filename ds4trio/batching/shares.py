"""Whose prompt is evaluated next: that of the user who has had the least.

Virtual-time fair queueing over evaluated tokens, after the Virtual Token Counter of "Fairness in
Serving Large Language Models" (arXiv:2401.00588). A counter for each user grows by the tokens
evaluated for it, drawn ones included. It pays for each token of a text once, whatever that took:

- A guess that holds is a token of the text like any other, although it needed no step of its own.
- Guesses that do not hold, and tokens that are evaluated anew after preemption or a failed step,
  are charged to nobody: they were the server's idea or its misfortune.

Three things differ from that paper:

- Whoever begins to wait is lifted to the *level*, the service that each waiting user has had in
  mean (virtual time as in generalized processor sharing), and not to the least counter. Idling
  earns no credit either way, but here users whom the server has never seen cannot hold the others
  back for ever by coming one after another: the level rises with everything that is evaluated.
- Users within ``QUANTUM`` tokens of the least are equals, and among equals the older session goes
  first. Prompts that come together are then finished one after another; switching at each chunk
  would finish all of them late and help nobody.
- When nobody waits, all debts are forgotten: nothing was taken from anyone.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable

from ds4trio.batching.session import Session

__all__ = ["QUANTUM", "Shares", "Turns"]

QUANTUM = 256
"""Tokens by which a user may lead the one that has had the least before that one's turn comes."""

MAX_KNOWN = 4096
"""Users whose counters are kept. It is reached only if more come and go while others wait."""


class Shares:
    """What each user has had since the last time that nobody waited."""

    def __init__(self) -> None:
        self._had: dict[str, float] = {}
        self._level = 0.0
        self._waiting: frozenset[str] = frozenset()

    def had(self, user: str) -> float:
        """Tokens on the user's counter."""
        return self._had.get(user, self._level)

    def wait(self, users: Collection[str]) -> None:
        """Say which users have prompts that wait, before a step is planned."""
        waiting = frozenset(users)
        if not waiting:
            self._had.clear()
            self._level = 0.0
        elif len(self._had) > MAX_KNOWN:
            self._had = {user: had for user, had in self._had.items() if user in waiting}
        for user in waiting - self._waiting:
            self._had[user] = max(self.had(user), self._level)
        self._waiting = waiting

    def charge(self, user: str, count: int) -> None:
        """Put ``count`` tokens (``Session.take_uncharged``) on the user's counter."""
        if not count or not self._waiting:
            return
        self._had[user] = self.had(user) + count
        if user in self._waiting:
            self._level += count / len(self._waiting)


class Turns:
    """The order in which prompts get their part of one step.

    Args:
        shares: what users had before this step.
        sessions: those with a prompt that waits, oldest first.
    """

    def __init__(self, shares: Shares, sessions: Iterable[Session]) -> None:
        self._sessions: dict[str, list[Session]] = {}
        for session in sessions:
            self._sessions.setdefault(session.user, []).append(session)
        self._had = {user: shares.had(user) for user in self._sessions}
        self._least = min(self._had.values(), default=0.0)
        self._heap: list[tuple[int, int, str]] = []
        for user, own in self._sessions.items():
            own.reverse()
            self._push(user)

    @property
    def first(self) -> list[Session]:
        """Of each user the session that comes first."""
        return [self._sessions[user][-1] for *_, user in self._heap]

    def next(self) -> Session | None:
        """The session whose turn it is. Its user gets another only after ``took()``."""
        if not self._heap:
            return None
        *_, user = heapq.heappop(self._heap)
        return self._sessions[user].pop()

    def took(self, session: Session, count: int) -> None:
        """It got ``count`` tokens in this step; its user's other sessions may have turns too."""
        self._had[session.user] += count
        self._push(session.user)

    def _push(self, user: str) -> None:
        if own := self._sessions[user]:
            lead = int((self._had[user] - self._least) // QUANTUM)
            heapq.heappush(self._heap, (lead, own[-1].arrival, user))
