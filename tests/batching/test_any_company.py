"""Whatever comes and goes, and however few pages there are: everyone gets their own tokens."""

from __future__ import annotations

from dataclasses import dataclass

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.schedule import Budget
from ds4trio.engine.step import SamplingParams
from ds4trio.errors import BatchFailed, EngineDied
from tests.fake_engine import FakeEngine, expected


@dataclass(frozen=True)
class Request:
    """A user's prompt, how many tokens it wants, after how many it leaves (None: it stays).

    Attributes:
        draft: how many guesses its decode rows may carry.
    """

    prompt: tuple[int, ...]
    count: int
    leaves_after: int | None
    user: str = ""
    draft: int = 0


beginnings = st.sampled_from([(), tuple(range(20)), tuple(range(9)), (5,) * 12])
"""Some in common, so that requests find one another's pages."""

requests = st.builds(
    Request,
    prompt=st.builds(
        lambda beginning, end: (*beginning, *end),
        beginnings,
        st.lists(st.integers(0, 96), min_size=1, max_size=10),
    ),
    count=st.integers(1, 25),
    leaves_after=st.none() | st.integers(0, 20),
    user=st.sampled_from("abc"),
    draft=st.integers(0, 3),
)


@settings(max_examples=60, deadline=None)
@given(
    wanted=st.lists(requests, min_size=1, max_size=12),
    pages=st.integers(15, 60),
    step_tokens=st.integers(1, 64),
    prefill_chunk=st.integers(1, 64),
    batching=st.booleans(),
    max_sessions=st.integers(1, 12),
    faults=st.sets(st.integers(1, 60), max_size=4),
    deadly=st.booleans(),
)
def test_everyone_gets_the_tokens_of_their_own_prompt(
    wanted: list[Request],
    pages: int,
    step_tokens: int,
    prefill_chunk: int,
    batching: bool,
    max_sessions: int,
    faults: set[int],
    deadly: bool,
) -> None:
    """Though steps fail, one after the other or far apart, and the engine may die of it."""
    engine = FakeEngine(pages=pages, page_size=4)
    sessions = max_sessions if batching else 1
    coalescer = Coalescer(
        engine,
        max_sessions=max_sessions,
        max_waiting=len(wanted),
        window=0,
        budget=Budget(step_tokens, prefill_chunk, sessions, guess_rows=64),
    )
    got: dict[int, list[int]] = {}
    failed: set[int] = set()
    met: set[int] = set()

    def fault(_: object) -> Exception | None:
        number = len(engine.batches) + 1
        if number not in faults or number in met:
            return None
        met.add(number)
        return EngineDied("planted") if deadly else RuntimeError("planted")

    engine.fake.fault = fault

    async def ask(index: int, request: Request) -> None:
        tokens = got[index] = []
        async with coalescer.session(SamplingParams(), user=request.user) as session:
            session.draft = request.draft
            session.start(request.prompt, max_new_tokens=request.count, stop_tokens=frozenset())
            while request.leaves_after is None or len(tokens) < request.leaves_after:
                try:
                    delivery = await session.receive()
                except BatchFailed:
                    failed.add(index)
                    return
                tokens.extend(sampled.token for sampled in delivery.tokens)
                if delivery.end is not None:
                    return

    async def main() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as running:
                await running.start(coalescer.run)
                async with trio.open_nursery() as asking:
                    for index, request in enumerate(wanted):
                        asking.start_soon(ask, index, request)
                running.cancel_scope.cancel()

    trio.run(main)
    for index, request in enumerate(wanted):
        tokens = got[index]
        assert tokens == expected(request.prompt, request.count)[: len(tokens)]
        if index in failed:
            assert len(tokens) < request.count
        elif request.leaves_after is None:
            assert len(tokens) == request.count
        else:
            assert len(tokens) >= min(request.leaves_after, request.count)
    assert len(failed) <= max(len(met) - 1, 0), "a fault that does not come back ends nobody"
    assert not engine.sequences
    engine.check()
    assert engine.free_pages == pages
    assert coalescer.sessions == coalescer.waiting == 0
    assert max((len(batch) for batch in engine.batches), default=0) <= sessions
    assert all(
        sum(len(item.tokens) or 1 for item in batch) <= max(step_tokens, sessions)
        for batch in engine.batches
    )
