"""Stored responses, for tasks: everything that touches the disk happens in a worker thread."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec
import trio

from ds4trio.api.responses.conversation import Turn
from ds4trio.api.responses.items import Item
from ds4trio.api.responses.stored.database import Database, Record
from ds4trio.errors import PreviousResponseNotFound, ResponseNotFound, StoreUnavailable

__all__ = ["ResponseStore", "not_ended", "owner_of"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def owner_of(tenant: str) -> str:
    """Whose a response is, for the file, which holds no keys."""
    return hashlib.sha256(tenant.encode("utf-8", "surrogateescape")).hexdigest()


class ResponseStore:
    """Responses by their ids, each for its owner alone.

    Args:
        path: of the file; ``:memory:`` keeps them as long as the server runs, and None not at all.
        most_bytes, most_seconds: as in ``Database``.
        longest: bytes of a conversation, as JSON, that can still be continued.
    """

    def __init__(
        self, path: str | None, *, most_bytes: int, most_seconds: float, longest: int
    ) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._most_seconds = most_seconds
        self._longest = longest
        self._database: Database | None = None
        self._one_at_a_time = trio.CapacityLimiter(1)

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._path is not None

    async def put(self, owner: str, record: Record) -> None:
        """Keep a response.

        Raises:
            StoreUnavailable: the disk does not take it.
        """
        await self._do(lambda database: database.put(owner, record))

    async def get(self, owner: str, response_id: str) -> Record:
        """A response.

        Raises:
            ResponseNotFound: this owner has none of this id.
            StoreUnavailable: the disk does not say.
        """
        found = await self._do(lambda database: database.get(owner, response_id))
        if found is None:
            raise not_found(response_id)
        return found

    async def turn(self, owner: str, response_id: str) -> Turn | None:
        """A response as something to be continued, if it can be.

        Raises:
            ContextLengthExceeded: it is too large.
            StoreUnavailable: the disk does not say.
        """
        if not self.keeps:
            return None
        return await self._do(lambda database: database.turn(owner, response_id, self._longest))

    async def items(self, owner: str, item_ids: Sequence[str]) -> Mapping[str, Item]:
        """Items of stored responses by their ids, those that there are.

        Raises:
            StoreUnavailable: the disk does not say.
        """
        if not self.keeps or not item_ids:
            return {}
        return await self._do(lambda database: database.items(owner, item_ids))

    async def delete(self, owner: str, response_id: str) -> None:
        """Delete a response.

        Raises:
            ResponseNotFound: this owner has none of this id.
            StoreUnavailable: the disk does not let it.
        """
        if not await self._do(lambda database: database.delete(owner, response_id)):
            raise not_found(response_id)

    async def give_up_unfinished(self) -> None:
        """Responses that a server that is gone was writing have failed. Call it at the start."""
        if not self.keeps:
            return
        try:
            for owner, record in await self._do(lambda database: database.unfinished()):
                error = {"code": "server_error", "message": "the server was restarted meanwhile"}
                response = {**record.response, "status": "failed", "error": error}
                await self.put(owner, replace(record, response=response))
        except StoreUnavailable as error:
            _log.error("%s", error)

    async def aclose(self) -> None:
        """Close the file."""
        database, self._database = self._database, None
        if database is not None:
            with trio.CancelScope(shield=True):  # it takes milliseconds
                await trio.to_thread.run_sync(database.close, limiter=self._one_at_a_time)

    async def _do(self, work: Callable[[Database], _T]) -> _T:
        if not self.keeps:
            raise StoreUnavailable("this server stores no responses (--store off)")
        return await trio.to_thread.run_sync(self._with_database, work, limiter=self._one_at_a_time)

    def _with_database(self, work: Callable[[Database], _T]) -> _T:
        """In a worker thread, one at a time."""
        try:
            if self._database is None:
                self._database = Database(
                    self._path or ":memory:",
                    most_bytes=self._most_bytes,
                    most_seconds=self._most_seconds,
                )
            return work(self._database)
        except (sqlite3.Error, OSError, zlib.error, msgspec.DecodeError) as error:
            _log.error("the file of responses, %s, cannot be used: %s", self._path, error)
            raise StoreUnavailable("responses cannot be stored or read at the moment") from error


def not_ended(response_id: str) -> PreviousResponseNotFound:
    """What is said to who would continue a response that is still written."""
    return PreviousResponseNotFound(
        f"the response {response_id[:100]!r} can be continued when it has ended, and it has not",
        param="previous_response_id",
    )


def not_found(response_id: str) -> ResponseNotFound:
    return ResponseNotFound(
        f"there is no response {response_id[:100]!r} here, or no longer", param="response_id"
    )
