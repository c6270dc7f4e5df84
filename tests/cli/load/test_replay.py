"""The loop around an engine: which batches it makes, from what was counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.batching.schedule import Budget
from ds4trio.cli.load.client import Answer
from ds4trio.cli.load.replay import Job, Order, RawFailed, Replayer, jobs_of
from ds4trio.cli.load.tally import Request, Tally
from tests.fake_engine import FakeEngine

BUDGET = Budget(step_tokens=20, prefill_chunk=8, sessions=64)


def sizes(engine: FakeEngine) -> list[list[int]]:
    """Of every step, the tokens of each item; a decode row is 0."""
    return [[len(item.tokens) for item in batch] for batch in engine.batches]


def test_decode_rows_come_first_and_prompts_within_the_budget() -> None:
    engine = FakeEngine()
    jobs = [Job(12, 0, 3), Job(15, 0, 2), Job(3, 0, 1)]
    done = Replayer(engine, BUDGET)(Order(2, 0.0, jobs))
    assert sizes(engine) == [
        [12, 8],  # both prompts, up to the budget of a step
        [0, 7],  # the first decodes, the second's prompt goes on
        [0, 0],  # both are done after it, and the third begins
        [3],
    ]
    assert [[item.sample for item in batch] for batch in engine.batches[:2]] == [
        [True, False],
        [True, True],
    ]
    assert (done.requests, done.output_tokens, done.steps) == (3, 6, 4)
    assert done.seconds > 0
    assert done.tokens_per_second == pytest.approx(6 / done.seconds)


def test_beside_decode_rows_prompts_come_in_small_chunks() -> None:
    engine = FakeEngine()
    Replayer(engine, BUDGET)(Order(2, 0.0, [Job(1, 0, 4), Job(30, 0, 1)]))
    assert sizes(engine) == [[1, 19], [0, 8], [0, 3], [0]]


def test_one_session_at_a_time_where_the_server_does_not_batch() -> None:
    engine = FakeEngine()
    Replayer(engine, Budget(20, 8, sessions=1))(Order(3, 0.0, [Job(2, 0, 2), Job(2, 0, 2)]))
    assert sizes(engine) == [[2], [0], [2], [0]]


def test_what_the_server_had_cached_is_found_here_too() -> None:
    engine = FakeEngine()
    replay = Replayer(engine, BUDGET)
    replay(Order(1, 0.0, [Job(10, 8, 1)]))
    engine.batches.clear()
    replay(Order(1, 0.0, [Job(12, 8, 1), Job(10, 0, 1)]))
    assert sizes(engine) == [[4], [10]]


@given(
    jobs=st.lists(
        st.builds(Job, st.integers(1, 60), st.integers(0, 80), st.integers(1, 9)), max_size=12
    ),
    users=st.integers(1, 5),
    step=st.integers(5, 40),
    chunk=st.integers(1, 40),
)
def test_any_order_is_done_to_its_end_and_leaves_nothing(
    jobs: list[Job], users: int, step: int, chunk: int
) -> None:
    engine = FakeEngine()
    done = Replayer(engine, Budget(step, chunk, 64))(Order(users, 0.5, jobs))
    assert done.output_tokens == sum(job.output for job in jobs)
    assert not engine.sequences
    drawn = sum(item.sample for batch in engine.batches for item in batch)
    assert drawn == done.output_tokens
    assert all(len(batch) <= users for batch in engine.batches)
    assert all(sum(len(item.tokens) or 1 for item in batch) <= step for batch in engine.batches)


def test_a_refusal_ends_it_with_its_reason() -> None:
    engine = FakeEngine()
    engine.refused_token = 0
    with pytest.raises(RawFailed, match="unlucky token"):
        Replayer(engine, BUDGET)(Order(1, 0.0, [Job(2000, 0, 1)]))


def test_jobs_are_the_answers_in_the_order_they_were_asked_for() -> None:
    tally = Tally(
        [
            Request(0, 2.0, 3.0, Answer((), 10, 4, 7)),
            Request(0, 1.0, 9.0, Answer((), 20, None, 8)),
            Request(1, 3.0, 4.0, Answer((), 20, 16, 0)),
        ]
    )
    assert jobs_of(tally) == [Job(20, 0, 8), Job(10, 4, 7)]
    tally.requests.append(Request(0, 4.0, 5.0, Answer((4.5,))))
    with pytest.raises(RawFailed, match="does not count"):
        jobs_of(tally)
