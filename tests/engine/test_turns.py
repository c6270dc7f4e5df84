"""Threads take their turns by number, whatever order they come in."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from ds4trio.engine.turns import Turns

PATIENCE = 10.0


def passed(turns: Turns, numbers: Sequence[int]) -> list[int]:
    """Send threads through, started in this order; the order in which they went."""
    went: list[int] = []

    def go(number: int) -> None:
        with turns.turn(number):
            went.append(number)

    threads = [threading.Thread(target=go, args=(number,), daemon=True) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return went


def test_by_number() -> None:
    assert passed(Turns(), [3, 1, 0, 2]) == [0, 1, 2, 3]


def test_one_that_raises_lets_the_next_one_go() -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns.turn(0):
        _ = 1 / 0
    assert passed(turns, [1]) == [1]


def test_those_left_out_are_not_waited_for() -> None:
    turns = Turns()
    turns.leave_out(2)
    turns.leave_out(0)
    assert passed(turns, [3, 1]) == [1, 3]
    turns.leave_out(1)  # it has been here
    turns.leave_out(4)
    assert passed(turns, [5]) == [5]
