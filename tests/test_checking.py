"""Grammars that no limit of the library stops, and processes that die of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from ds4trio.chat.formats import Format, JsonSchema, Lark
from ds4trio.chat.grammar import compose
from ds4trio.checking import GrammarChecks
from ds4trio.errors import InvalidRequest, ServerStopping
from tests.api.helpers import PATIENCE, tiny_tokenizer

HONEST = compose("start: @answer", answer=JsonSchema({"properties": {"a": {"type": "string"}}}))
DOUBLING = [f"T{i}: T{i + 1} T{i + 1}" for i in range(600)]
PATTERNS = [{"type": "string", "pattern": f".*a.{{{i}}}b.*"} for i in range(30)]
MANY: dict[str, Any] = {
    "type": "object",
    "properties": {f"f{i}": {"type": "string", "maxLength": 200} for i in range(300)},
}
ENDLESS: dict[str, dict[str, Format]] = {
    "terminals that double": {"a": Lark("\n".join(["start: T0", *DOUBLING, 'T600: "x"']))},
    "merged properties": {"a": JsonSchema({"allOf": [{"properties": {"x": p}} for p in PATTERNS]})},
    "many tools": {f"a{i}": JsonSchema({**MANY, "title": str(i)}) for i in range(12)},
}


OTHERS: set[int | None] = set()
"""Processes of servers that other tests share."""


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    OTHERS.update(process.pid for process in multiprocessing.active_children())
    yield
    OTHERS.clear()


def children() -> list[multiprocessing.process.BaseProcess]:
    return [process for process in multiprocessing.active_children() if process.pid not in OTHERS]


def grammar(formats: dict[str, Format]) -> str:
    return compose("start: " + " | ".join(f"@{name}" for name in formats), param=None, **formats)


@asynccontextmanager
async def checking(seconds: float = 0.3, memory: int = 256 << 20) -> AsyncIterator[GrammarChecks]:
    tokenizer = tiny_tokenizer()
    checks = GrammarChecks(
        tokenizer,
        vocab_size=tokenizer.vocab_size,
        stop_tokens=[0],
        most_seconds=seconds,
        most_memory=memory,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(checks.run)
        with trio.fail_after(PATIENCE):
            yield checks
        nursery.cancel_scope.cancel()
    assert children() == []


def pid() -> int:
    (process,) = children()
    assert process.pid is not None
    return process.pid


async def test_a_grammar_without_end_is_refused_and_those_behind_it_are_answered() -> None:
    refused: list[str] = []

    async def hostile(formats: dict[str, Format]) -> None:
        with pytest.raises(InvalidRequest, match=r"too (long|large) to compile") as caught:
            await checks.check(grammar(formats), param="schema")
        assert caught.value.param == "schema"
        refused.append(caught.value.message)

    async with checking(seconds=0.15) as checks, trio.open_nursery() as nursery:
        for formats in ENDLESS.values():
            nursery.start_soon(hostile, formats)
            nursery.start_soon(honest, checks)
    assert len(refused) == len(ENDLESS)


async def honest(checks: GrammarChecks) -> None:
    assert await checks.check(HONEST, param=None) < PATIENCE


async def test_the_process_is_kept_and_one_that_was_killed_idle_is_not_noticed() -> None:
    async with checking() as checks:
        assert children() == []
        await honest(checks)
        first = pid()
        await honest(checks)
        assert pid() == first
        os.kill(first, signal.SIGKILL)
        await honest(checks)
        assert pid() != first


async def test_one_that_is_killed_at_work_is_replaced_and_the_grammar_tried_once_more() -> None:
    async with checking() as checks, trio.open_nursery() as nursery:
        await honest(checks)
        first = pid()

        async def hostile() -> None:
            with pytest.raises(InvalidRequest, match="too long to compile"):
                await checks.check(grammar(ENDLESS["merged properties"]), param=None)
            nursery.cancel_scope.cancel()

        nursery.start_soon(hostile)
        await trio.testing.wait_all_tasks_blocked()
        os.kill(first, signal.SIGKILL)
        await trio.sleep(PATIENCE)


async def test_memory_has_a_bound() -> None:
    wide = {"enum": ["x" * 250 + str(number) for number in range(900)]}
    async with checking(seconds=PATIENCE, memory=4 << 20) as checks:
        with pytest.raises(InvalidRequest, match="too large to compile"):
            await checks.check(grammar({"a": JsonSchema(wide)}), param=None)
        await honest(checks)


async def test_a_caller_that_leaves_costs_no_process_and_the_end_kills_what_computes() -> None:
    async with checking(seconds=PATIENCE) as checks:
        await honest(checks)
        first = pid()
        with trio.move_on_after(0.0):
            await checks.check(HONEST, param=None)
        await honest(checks)
        assert pid() == first
        with trio.move_on_after(0.1) as left:
            await checks.check(grammar(ENDLESS["merged properties"]), param=None)
        assert left.cancelled_caught
    with pytest.raises(ServerStopping):
        await checks.check(HONEST, param=None)
