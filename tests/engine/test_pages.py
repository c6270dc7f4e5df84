"""Page accounting under any order of calls."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ds4trio.engine.pages import PagePool
from ds4trio.errors import EngineMisuse

OWNERS = st.integers(0, 4)
COUNTS = st.integers(0, 9)


class Accounts(RuleBasedStateMachine):
    """The pool beside a model of it that only counts."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: set[int] = set()
        self.pool = PagePool(20, self.kept.remove)
        self.tables: dict[int, list[int]] = {}

    @rule(owner=OWNERS)
    def open(self, owner: int) -> None:
        if owner in self.tables:
            with pytest.raises(EngineMisuse):
                self.pool.open(owner)
        else:
            self.pool.open(owner)
            self.tables[owner] = []

    @rule(owner=OWNERS)
    def close(self, owner: int) -> None:
        if owner in self.tables:
            self.pool.close(owner)
            del self.tables[owner]
        else:
            with pytest.raises(EngineMisuse):
                self.pool.close(owner)

    @rule(owner=OWNERS, count=COUNTS)
    def grow(self, owner: int, count: int) -> None:
        if owner in self.tables and count <= self.pool.free:
            self.pool.grow(owner, count)
            table = list(self.pool.table(owner))
            assert table[: len(self.tables[owner])] == self.tables[owner]
            assert len(table) == len(self.tables[owner]) + count
            self.tables[owner] = table
        else:
            with pytest.raises(EngineMisuse):
                self.pool.grow(owner, count)

    @rule(owner=OWNERS, count=COUNTS)
    def shrink(self, owner: int, count: int) -> None:
        if owner in self.tables and count <= len(self.tables[owner]):
            self.pool.shrink(owner, count)
            self.tables[owner] = self.tables[owner][: len(self.tables[owner]) - count]
        else:
            with pytest.raises(EngineMisuse):
                self.pool.shrink(owner, count)

    @rule(owner=OWNERS, count=COUNTS)
    def keep(self, owner: int, count: int) -> None:
        for page in self.tables.get(owner, [])[:count]:
            self.pool.keep(page)
            self.kept.add(page)

    @rule(owner=OWNERS, count=COUNTS)
    def share(self, owner: int, count: int) -> None:
        """Kept pages can be taken into any table, shelved or owned by others."""
        table = self.tables.get(owner)
        pages = [page for page in sorted(self.kept) if table is not None and page not in table]
        if table is not None:
            self.pool.share(owner, pages[:count])
            table.extend(pages[:count])

    @rule()
    def keep_nothing(self) -> None:
        self.pool.keep_nothing()
        self.kept.clear()

    @rule(owner=OWNERS)
    def share_what_is_not_kept(self, owner: int) -> None:
        loose = next((page for page in range(20) if page not in self.kept), None)
        if owner in self.tables and loose is not None:
            with pytest.raises(EngineMisuse):
                self.pool.share(owner, [loose])

    @rule(owners=st.sets(OWNERS))
    def free_without(self, owners: set[int]) -> None:
        closed = owners & self.tables.keys()
        others = [table for owner, table in self.tables.items() if owner not in closed]
        assert self.pool.free_without(closed) == 20 - len({p for t in others for p in t})

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        self.pool.check()
        assert self.pool.free == 20 - len({p for table in self.tables.values() for p in table})
        assert len(self.pool) == len(self.tables)
        for owner, table in self.tables.items():
            assert list(self.pool.table(owner)) == table
        assert all((owner in self.pool) == (owner in self.tables) for owner in range(5))


Accounts.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAccounts = Accounts.TestCase


def test_what_shrinks_is_given_out_again_in_the_same_order() -> None:
    """A step that failed and is tried again touches the same memory."""
    pool = PagePool(8)
    pool.open(0)
    pool.grow(0, 3)
    first = list(pool.table(0))
    pool.shrink(0, 2)
    pool.grow(0, 2)
    assert list(pool.table(0)) == first


def test_damage_is_noticed() -> None:
    pool = PagePool(4)
    pool.open(0)
    pool.grow(0, 2)
    pool._empty.append(pool.table(0)[0])
    with pytest.raises(EngineMisuse):
        pool.check()


def test_a_pool_of_nothing_is_no_pool() -> None:
    with pytest.raises(ValueError, match="at least one"):
        PagePool(0)
