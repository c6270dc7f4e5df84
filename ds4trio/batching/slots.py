"""The slots, and the line for them: users take turns, and each user's requests stay in order.

A user with a hundred requests in line thus delays another by one slot at a time, not by a hundred.
It is the turn that goes round and not the user with the fewest slots that comes next, because
users who have none yet may come without end; in a circle everybody's place is reached.
"""

from __future__ import annotations

from collections import OrderedDict

import trio

__all__ = ["Slots"]


class Slots:
    """A semaphore whose waiters are served round-robin by user, first come, first served within.

    Args:
        count: slots in all.

    Attributes:
        free: slots that nobody holds; while there are any, nobody waits.
    """

    def __init__(self, count: int) -> None:
        self.free = count
        self._line: OrderedDict[str, trio.lowlevel.ParkingLot] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return sum(map(len, self._line.values()))

    async def acquire(self, user: str) -> None:
        """Take a slot, or wait in line for one. Give it back with ``release()``."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.free:
            self.free -= 1
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        lot = self._line.setdefault(user, trio.lowlevel.ParkingLot())
        try:
            await lot.park()  # whoever releases hands its slot over
        finally:
            if not lot and self._line.get(user) is lot:
                del self._line[user]

    def release(self) -> None:
        """Give a slot to the next in line, or to whoever comes."""
        while self._line:
            user, lot = self._line.popitem(last=False)
            if lot.unpark():  # none where all who waited were cancelled just now
                if lot:
                    self._line[user] = lot
                return
        self.free += 1
