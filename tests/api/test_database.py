"""The file of responses, beyond what a client can see of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from ds4trio.api.responses.stored import database as module
from ds4trio.api.responses.stored.database import Database, Record

DAY = 86_400.0


@pytest.fixture
def database() -> Iterator[Database]:
    with closing(Database(":memory:", most_bytes=10**8, most_seconds=DAY)) as opened:
        yield opened


def record(name: str, items: int = 1) -> Record:
    response: dict[str, Any] = {"id": name, "status": "completed", "output": []}
    return Record(response, tuple({"id": f"{name}_{i}"} for i in range(items)), None)


def test_items_of_one_response_cost_reading_it_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.put("me", record("long", items=500))
    database.put("me", record("other"))
    unpacked: list[int] = []
    unpack = module._unpacked

    def counted(packed: bytes) -> Record:
        unpacked.append(len(packed))
        return unpack(packed)

    monkeypatch.setattr(module, "_unpacked", counted)
    wanted = [f"long_{i}" for i in range(500)] + ["other_0", "none"]
    assert set(database.items("me", wanted)) == set(wanted) - {"none"}
    assert len(unpacked) == 2


def test_a_commit_that_fails_leaves_the_file_usable(database: Database) -> None:
    def break_a_promise() -> None:
        # Found out by the commit, which leaves the transaction open, as a lock of others may.
        with database._transaction():
            run = database._connection.execute
            run("PRAGMA defer_foreign_keys = ON")
            run("INSERT INTO items VALUES ('item', 'me', 'no such response')")

    with pytest.raises(sqlite3.IntegrityError):
        break_a_promise()
    database.put("me", record("next"))
    assert database.get("me", "next") == record("next")
