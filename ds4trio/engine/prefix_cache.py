"""Which pages hold the keys and values of which beginnings.

A full page is named by a digest of every token up to its end, and of a salt, so that whoever begins
with the same tokens under the same salt finds it. Digests are chained, page by page, as in vLLM's
automatic prefix caching; 128 bits of BLAKE2b leave chance and malice no collision.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

__all__ = ["PrefixCache"]

DIGEST_BYTES = 16


class PrefixCache:
    """Names of pages. Whether a page's content is still there is the pool's business.

    Args:
        page_size: positions in a page.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._pages: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._pages)

    @staticmethod
    def root(salt: str, adapter: str = "") -> bytes:
        """The digest before the first token: sequences of different salts never meet, nor do those
        that are evaluated with different adapters."""
        parts = [part.encode("utf-8", "surrogatepass") for part in (salt, adapter)]
        named = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        return hashlib.blake2b(named, digest_size=DIGEST_BYTES).digest()

    @staticmethod
    def extend(before: bytes, tokens: Sequence[int]) -> bytes:
        """The digest after one more page of tokens."""
        return hashlib.blake2b(before + array("q", tokens).tobytes(), digest_size=16).digest()

    def find(self, root: bytes, tokens: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """The pages of the longest known beginning of ``tokens``, and their digests."""
        pages: list[int] = []
        digests: list[bytes] = []
        digest = root
        for start in range(0, len(tokens) - self._page_size + 1, self._page_size):
            digest = self.extend(digest, tokens[start : start + self._page_size])
            page = self._pages.get(digest)
            if page is None:
                break
            pages.append(page)
            digests.append(digest)
        return pages, digests

    def remember(self, digest: bytes, page: int) -> bool:
        """Name a full page. False if another page has this content already."""
        if digest in self._pages:
            return False
        self._pages[digest] = page
        self._names[page] = digest
        return True

    def forget(self, page: int) -> None:
        """The page will hold something else."""
        del self._pages[self._names.pop(page)]

    def clear(self) -> None:
        """No page holds what its name says."""
        self._pages.clear()
        self._names.clear()
