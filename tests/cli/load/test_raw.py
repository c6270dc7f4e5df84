"""The raw engine's process: real, with a tiny model."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest
import trio

from ds4trio.cli.load.raw import raw_engine
from ds4trio.cli.load.replay import Job, Order, RawFailed
from ds4trio.settings import Settings

JOBS = [Job(20, 0, 5), Job(30, 16, 4), Job(40, 16, 1)]


def settings(model: Path, **more: object) -> Settings:
    return Settings.load({}, {"model": str(model), "kv_memory": "4MiB", "threads": 1, **more})


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_it_replays_round_after_round_and_ends_with_its_block(tiny_model: Path) -> None:
    with trio.fail_after(60):
        async with raw_engine(settings(tiny_model, dtype="int8")) as engine:
            ready = engine.ready
            assert (ready.model, ready.dtype, ready.device) == ("tiny", "int8", "cpu")
            assert ready.threads == 1
            for users in (1, 3):
                done = await engine.replay(Order(users, 0.0, JOBS))
                assert (done.requests, done.output_tokens) == (3, 10)
                assert 0 < done.seconds < 60
            os.kill(engine.process.pid, signal.SIGINT)  # Ctrl-C reaches the whole group
            assert (await engine.replay(Order(2, 0.0, JOBS[:1]))).output_tokens == 5
    assert not running(engine.process.pid)


async def test_what_it_cannot_hold_is_said_in_one_line(tiny_model: Path) -> None:
    with trio.fail_after(60):
        async with raw_engine(settings(tiny_model, kv_memory="64KiB")) as engine:
            with pytest.raises(RawFailed, match=r"--raw: the engine alone: .*the KV cache is full"):
                await engine.replay(Order(8, 0.0, [Job(100, 0, 2)] * 8))


async def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with trio.fail_after(60):
        with pytest.raises(RawFailed, match="is not a model folder"):
            async with raw_engine(settings(tmp_path)):
                raise AssertionError("it has no model")


async def test_a_process_that_is_killed_is_one_line(tiny_model: Path) -> None:
    with trio.fail_after(60):
        async with raw_engine(settings(tiny_model)) as engine:
            engine.process.kill()
            with pytest.raises(RawFailed, match="has ended"):
                await engine.replay(Order(1, 0.0, JOBS))


async def test_a_cancelled_replay_takes_the_process_with_it(tiny_model: Path) -> None:
    with trio.fail_after(60):
        async with raw_engine(settings(tiny_model)) as engine:
            with trio.move_on_after(0.2) as scope:
                await engine.replay(Order(1, 0.0, [Job(1, 0, 500)] * 1000))
            assert scope.cancelled_caught
    assert not running(engine.process.pid)


def test_settings_cross_to_the_process_whole(tiny_model: Path) -> None:
    sent = settings(tiny_model, api_key=("one", "two"), max_sessions=3)
    assert msgspec.json.decode(msgspec.json.encode(sent), type=Settings) == sent
