"""The file that responses are kept in: SQLite with a write-ahead log, one thread at a time.

Each response has its own input and output only; the conversation before it is found through the
response that it continues. One that its owner deleted stays, unseen, while others continue it.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ds4trio.api.responses.conversation import Turn
from ds4trio.errors import ContextLengthExceeded

__all__ = ["Database", "Record"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    previous TEXT,
    used REAL NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0,
    ended INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    record BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
    PRIMARY KEY (owner, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_response ON items (response);
CREATE INDEX IF NOT EXISTS by_use ON responses (used);
CREATE INDEX IF NOT EXISTS by_end ON responses (ended) WHERE ended = 0;
CREATE INDEX IF NOT EXISTS by_previous ON responses (previous);
"""

CHAIN = """
WITH RECURSIVE chain (id, previous, owner, record, depth) AS (
    SELECT id, previous, owner, record, 0 FROM responses WHERE id = ? AND owner = ? AND deleted = 0
    UNION ALL
    SELECT r.id, r.previous, r.owner, r.record, chain.depth + 1
    FROM responses r JOIN chain ON r.id = chain.previous AND r.owner = chain.owner
)
SELECT id, previous, record FROM chain ORDER BY depth
"""

OVERHEAD = 400
"""Bytes that a row takes besides its record, about."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of a response.

    Attributes:
        response: the object; the final one once the response has ended.
        input: the items of its own request.
        previous: the stored response that it continues.
        earlier: the items before its own, where they are not those of a stored response.
        events: all of its events as JSON, in order; empty while it is being written.
    """

    response: dict[str, Any]
    input: tuple[dict[str, Any], ...]
    previous: str | None
    earlier: tuple[dict[str, Any], ...] = ()
    events: tuple[msgspec.Raw, ...] = ()

    @property
    def ended(self) -> bool:
        """Nothing more is written."""
        return self.response["status"] not in ("queued", "in_progress")


class Database:
    """Blocks; for worker threads, one at a time.

    Args:
        path: of the file, which is made; or ``:memory:``.
        most_bytes: those used longest ago go when all together are larger.
        most_seconds: those not used for so long go.

    Raises:
        sqlite3.Error: the file cannot be opened, or is no such file.
    """

    def __init__(self, path: str, *, most_bytes: int, most_seconds: float) -> None:
        self._most_bytes = most_bytes
        self._most_seconds = most_seconds
        if path != ":memory:":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).touch(mode=0o600)
        self._connection = sqlite3.connect(
            path, timeout=5.0, isolation_level=None, check_same_thread=False
        )
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.executescript(SCHEMA)
        except sqlite3.Error:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def put(self, owner: str, record: Record) -> None:
        """Write a response, or write it anew, and make room for it."""
        packed = zlib.compress(msgspec.json.encode(record), 1)
        now = time.time()
        with self._transaction():
            self._connection.execute(
                "INSERT INTO responses (id, owner, previous, used, ended, bytes, record)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET used = excluded.used,"
                " ended = excluded.ended, bytes = excluded.bytes, record = excluded.record",
                (
                    record.response["id"],
                    owner,
                    record.previous,
                    now,
                    record.ended,
                    len(packed) + OVERHEAD,
                    packed,
                ),
            )
            if record.ended:
                found = [*record.input, *record.response["output"]]
                self._connection.executemany(
                    "INSERT OR REPLACE INTO items (id, owner, response) VALUES (?, ?, ?)",
                    [(item["id"], owner, record.response["id"]) for item in found],
                )
            self._make_room(now)

    def items(self, owner: str, item_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Items of responses by their ids, those that there are."""
        places: dict[str, set[str]] = {}
        for item_id in item_ids:
            row = self._connection.execute(
                "SELECT r.id FROM items JOIN responses r ON r.id = items.response"
                " WHERE items.owner = ? AND items.id = ? AND r.deleted = 0",
                (owner, item_id),
            ).fetchone()
            if row is not None:
                places.setdefault(row[0], set()).add(item_id)
        found: dict[str, dict[str, Any]] = {}
        for response_id, wanted in places.items():  # each is unpacked once
            record = self.get(owner, response_id)
            if record is not None:
                every = [*record.input, *record.response["output"]]
                found |= {item["id"]: item for item in every if item["id"] in wanted}
        return found

    def get(self, owner: str, response_id: str) -> Record | None:
        """A response by its id; None if this owner has none of it."""
        row = self._connection.execute(
            "SELECT record FROM responses WHERE id = ? AND owner = ? AND deleted = 0",
            (response_id, owner),
        ).fetchone()
        return None if row is None else _unpacked(row[0])

    def turn(self, owner: str, response_id: str, most_bytes: int) -> Turn | None:
        """A response with the whole conversation that led to it, all of which counts as used now.

        None if it is not there, has not ended, failed, or if a part of the conversation is gone.

        Raises:
            ContextLengthExceeded: it is larger than ``most_bytes``, as JSON.
        """
        rows = self._connection.execute(CHAIN, (response_id, owner)).fetchall()
        if not rows or rows[-1][1] is not None:
            return None
        turn: Turn | None = None
        for _, _, packed in reversed(rows):
            record = _unpacked(packed)
            if not record.ended or record.response["status"] == "failed":
                return None
            turn = Turn.of(record.response, record.input, turn, earlier=record.earlier)
            if turn.bytes > most_bytes:
                raise ContextLengthExceeded(
                    "the conversation is larger than any that this server can go on with",
                    param="previous_response_id",
                )
        now = time.time()
        with self._transaction():
            self._connection.executemany(
                "UPDATE responses SET used = ? WHERE id = ?", [(now, row[0]) for row in rows]
            )
        return turn

    def delete(self, owner: str, response_id: str) -> bool:
        """Delete a response; whether it was there."""
        with self._transaction():
            found = self._connection.execute(
                "UPDATE responses SET deleted = 1 WHERE id = ? AND owner = ? AND deleted = 0",
                (response_id, owner),
            )
            self._sweep(response_id)
        return found.rowcount > 0

    def unfinished(self) -> list[tuple[str, Record]]:
        """Responses that were being written when the server ended, with their owners."""
        rows = self._connection.execute(
            "SELECT owner, record FROM responses WHERE ended = 0"
        ).fetchall()
        return [(owner, _unpacked(packed)) for owner, packed in rows]

    # -- inside a transaction

    def _make_room(self, now: float) -> None:
        self._connection.execute(
            "DELETE FROM responses WHERE used < ?", (now - self._most_seconds,)
        )
        (size,) = self._connection.execute("SELECT sum(bytes) FROM responses").fetchone()
        if size <= self._most_bytes:
            return
        # Some more, so that not every response has to look again.
        too_many = size - self._most_bytes * 9 // 10
        goes: list[str] = []
        for response_id, own in self._connection.execute(
            "SELECT id, bytes FROM responses ORDER BY used"
        ):
            if too_many <= 0:
                break
            goes.append(response_id)
            too_many -= own
        self._connection.executemany("DELETE FROM responses WHERE id = ?", [(one,) for one in goes])
        self._connection.execute("PRAGMA incremental_vacuum")

    def _sweep(self, response_id: str | None) -> None:
        """Remove a deleted response that no other continues, and then those it continued."""
        while response_id is not None:
            row = self._connection.execute(
                "SELECT previous FROM responses WHERE id = ? AND deleted = 1 AND NOT EXISTS"
                " (SELECT 1 FROM responses later WHERE later.previous = ?)",
                (response_id, response_id),
            ).fetchone()
            if row is None:
                return
            self._connection.execute("DELETE FROM responses WHERE id = ?", (response_id,))
            response_id = row[0]

    def _transaction(self) -> _Transaction:
        return _Transaction(self._connection)


class _Transaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            # A commit that failed may leave it open, and nothing could be stored ever after; a
            # full disk may have ended it already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def _unpacked(packed: bytes) -> Record:
    return msgspec.json.decode(zlib.decompress(packed), type=Record)
