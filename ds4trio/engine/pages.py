"""Who owns which page of the KV cache.

Plain bookkeeping, no tensors: a free list, and for each sequence the table of its pages in the
order of its positions, as in PagedAttention (arXiv:2309.06180). Shared prefixes, and the counts
they need, belong here too when they come.
"""

from __future__ import annotations

from collections.abc import Sequence

from ds4trio.errors import EngineMisuse

__all__ = ["PagePool"]


class PagePool:
    """Pages ``0 .. total - 1``; each is free or belongs to exactly one owner.

    The last page given back is the first one given out again, since it is the likeliest to be in
    a processor's cache.

    Args:
        total: how many pages there are, at least 1.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a page pool needs at least one page, not {total}")
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._tables: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

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
        """Free the owner's pages and forget it. Raises EngineMisuse when it is unknown."""
        table = self._known(owner)
        self._free.extend(reversed(table))
        del self._tables[owner]

    def grow(self, owner: int, count: int) -> None:
        """Append free pages to the owner's table, all or none.

        Raises EngineMisuse when the owner is unknown or fewer than ``count`` pages are free.
        """
        table = self._known(owner)
        if not 0 <= count <= len(self._free):
            raise EngineMisuse(f"{count} pages asked for, {len(self._free)} are free")
        table.extend(self._free.pop() for _ in range(count))

    def shrink(self, owner: int, count: int) -> None:
        """Free the last pages of the owner's table.

        Raises EngineMisuse when the owner is unknown or has fewer than ``count`` pages.
        """
        table = self._known(owner)
        if not 0 <= count <= len(table):
            raise EngineMisuse(f"{count} pages to take back, sequence {owner} has {len(table)}")
        self._free.extend(table.pop() for _ in range(count))

    def check(self) -> None:
        """Raise EngineMisuse unless every page is in exactly one place."""
        places = list(self._free)
        for table in self._tables.values():
            places.extend(table)
        if sorted(places) != list(range(self.total)):
            raise EngineMisuse(
                f"{len(places)} places hold {len(set(places))} of {self.total} pages"
            )

    def _known(self, owner: int) -> list[int]:
        try:
            return self._tables[owner]
        except KeyError:
            raise EngineMisuse(f"sequence {owner} is not open") from None
