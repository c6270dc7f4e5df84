"""The line for the slots."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from ds4trio.batching.slots import Slots


async def test_users_take_turns_and_their_own_requests_keep_their_order() -> None:
    slots = Slots(1)
    await slots.acquire("a")
    served: list[str] = []

    async def wait(name: str) -> None:
        await slots.acquire(name[0])
        served.append(name)
        await trio.lowlevel.checkpoint()
        slots.release()

    async with trio.open_nursery() as nursery:
        for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
            nursery.start_soon(wait, name)
            await wait_all_tasks_blocked()
        assert slots.waiting == 7
        slots.release()
    assert served == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
    assert (slots.free, slots.waiting) == (1, 0)


async def test_one_that_leaves_the_line_is_passed_over_and_one_that_has_got_it_keeps_it() -> None:
    slots = Slots(1)
    await slots.acquire("a")
    got: list[str] = []

    async def wait(name: str, scope: trio.CancelScope) -> None:
        with scope:
            await slots.acquire(name)
            got.append(name)

    leaver, lucky = trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "b", leaver)
        await wait_all_tasks_blocked()
        nursery.start_soon(wait, "c", lucky)
        await wait_all_tasks_blocked()
        leaver.cancel()
        await wait_all_tasks_blocked()
        assert slots.waiting == 1
        slots.release()
        lucky.cancel()  # too late: the slot is its own, and it will give it back
    assert got == ["c"]
    assert (slots.free, slots.waiting) == (0, 0)
    slots.release()
    assert slots.free == 1


async def test_two_who_leave_the_line_of_one_user_leave_nothing_behind() -> None:
    slots = Slots(0)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slots.acquire, "a")
            nursery.start_soon(slots.acquire, "a")
            await wait_all_tasks_blocked()
            assert slots.waiting == 2
            scope.cancel()
    assert slots.waiting == 0
    slots.release()
    assert slots.free == 1


async def test_a_slot_is_not_lost_when_a_holder_and_a_waiter_leave_at_the_same_moment() -> None:
    async def hold(user: str, scope: trio.CancelScope) -> None:
        with scope:
            await slots.acquire(user)
            try:
                await trio.sleep_forever()
            finally:
                slots.release()

    for _ in range(20):  # the order in which the two wake up is a matter of chance
        slots = Slots(1)
        holder, waiter = trio.CancelScope(), trio.CancelScope()
        async with trio.open_nursery() as nursery:
            for user, scope in (("a", holder), ("b", waiter)):
                nursery.start_soon(hold, user, scope)
                await wait_all_tasks_blocked()
            holder.cancel()
            waiter.cancel()
        assert (slots.free, slots.waiting) == (1, 0)
