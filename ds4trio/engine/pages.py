"""Who owns which page of the KV cache.

Plain bookkeeping, no tensors: for each sequence the table of its pages in the order of its
positions, as in PagedAttention (arXiv:2309.06180). A page may be in several tables when sequences
begin with the same tokens. One that nobody owns but whose content is worth keeping lies on a shelf
until someone shares it or its place is needed; which content that is, ``prefix_cache.py`` knows.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence

from ds4trio.errors import EngineMisuse

__all__ = ["PagePool"]


class PagePool:
    """Pages ``0 .. total - 1``; each is empty, or on the shelf, or in the tables of its owners.

    The last page given back is the first one given out again, since it is the likeliest to be in
    a processor's cache. Shelved pages are given out last, the one least recently used first.

    Args:
        total: how many pages there are, at least 1.
        on_evict: told of every kept page whose place is given to somebody else.
    """

    def __init__(self, total: int, on_evict: Callable[[int], None] = lambda page: None) -> None:
        if total < 1:
            raise ValueError(f"a page pool needs at least one page, not {total}")
        self.total = total
        self._on_evict = on_evict
        self._empty = list(range(total - 1, -1, -1))
        self._shelf: OrderedDict[int, None] = OrderedDict()
        self._kept: set[int] = set()
        self._owners: Counter[int] = Counter()
        self._tables: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        """Pages that nobody owns, shelved ones among them."""
        return len(self._empty) + len(self._shelf)

    def free_without(self, owners: Collection[int]) -> int:
        """Pages that nobody would own if these owners were closed."""
        theirs = Counter(page for owner in owners for page in self._known(owner))
        return self.free + sum(self._owners[page] == count for page, count in theirs.items())

    def __contains__(self, owner: int) -> bool:
        return owner in self._tables

    def __len__(self) -> int:
        """How many owners there are."""
        return len(self._tables)

    def table(self, owner: int) -> Sequence[int]:
        """The owner's pages, in the order of its positions. Read it only; it changes with it."""
        return self._known(owner)

    def open(self, owner: int) -> None:
        """Begin an empty table. Raises EngineMisuse when the owner has one."""
        if owner in self._tables:
            raise EngineMisuse(f"sequence {owner} is already open")
        self._tables[owner] = []

    def close(self, owner: int) -> None:
        """Give up the owner's pages and forget it. Raises EngineMisuse when it is unknown."""
        table = self._known(owner)
        self._give_back(reversed(table))
        del self._tables[owner]

    def grow(self, owner: int, count: int) -> None:
        """Append free pages to the owner's table, all or none.

        Raises EngineMisuse when the owner is unknown or fewer than ``count`` pages are free.
        """
        table = self._known(owner)
        if not 0 <= count <= self.free:
            raise EngineMisuse(f"{count} pages asked for, {self.free} are free")
        for _ in range(count):
            page = self._empty.pop() if self._empty else self._evict()
            self._owners[page] = 1
            table.append(page)

    def shrink(self, owner: int, count: int) -> None:
        """Give up the last pages of the owner's table.

        Raises EngineMisuse when the owner is unknown or has fewer than ``count`` pages.
        """
        table = self._known(owner)
        if not 0 <= count <= len(table):
            raise EngineMisuse(f"{count} pages to take back, sequence {owner} has {len(table)}")
        self._give_back([table.pop() for _ in range(count)])

    def keep(self, page: int) -> None:
        """The content of an owned page is worth keeping when nobody owns it any more."""
        if not self._owners[page]:
            raise EngineMisuse(f"page {page} belongs to nobody")
        self._kept.add(page)

    def share(self, owner: int, pages: Sequence[int]) -> None:
        """Append kept pages to the owner's table, whoever else owns them.

        Raises EngineMisuse when the owner is unknown or a page is not kept.
        """
        table = self._known(owner)
        if not self._kept.issuperset(pages):
            raise EngineMisuse("only kept pages can be shared")
        for page in pages:
            self._shelf.pop(page, None)
            self._owners[page] += 1
            table.append(page)

    def keep_nothing(self) -> None:
        """No content can be trusted any more: empty the shelf, and keep none of the owned pages."""
        self._kept.clear()
        self._empty.extend(self._shelf)
        self._shelf.clear()

    def check(self) -> None:
        """Raise EngineMisuse unless every page is in exactly one kind of place."""
        owned = Counter(page for table in self._tables.values() for page in table)
        places = [*self._empty, *self._shelf, *owned]
        if sorted(places) != list(range(self.total)):
            raise EngineMisuse(
                f"{len(places)} places hold {len(set(places))} of {self.total} pages"
            )
        if owned != self._owners or not self._kept.issuperset(self._shelf):
            raise EngineMisuse("the pool has lost count of a page's owners")

    def _give_back(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._owners[page] -= 1
            if self._owners[page]:
                continue
            del self._owners[page]
            if page in self._kept:
                self._shelf[page] = None
            else:
                self._empty.append(page)

    def _evict(self) -> int:
        page, _ = self._shelf.popitem(last=False)
        self._kept.remove(page)
        self._on_evict(page)
        return page

    def _known(self, owner: int) -> list[int]:
        try:
            return self._tables[owner]
        except KeyError:
            raise EngineMisuse(f"sequence {owner} is not open") from None
