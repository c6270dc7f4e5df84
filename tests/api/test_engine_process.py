"""A server whose engine has a process of its own, which is killed under it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from ds4trio.engine.ledger import Ledger
from ds4trio.engine.process import ProcessRunner
from tests.api.helpers import Api, delta_text, serving_tiny, until
from tests.tiny import make_tiny_model

RESTART_SECONDS = 60.0
LENGTH = 150


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its answers go on to their limit."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "talkative", scale=0.5, ends=False)


def engine_pid(api: Api) -> int:
    ledger = api.coalescer._engine
    assert isinstance(ledger, Ledger)
    assert isinstance(ledger._runner, ProcessRunner)
    assert ledger._runner.pid is not None
    return ledger._runner.pid


async def ask(api: Api, number: int, texts: dict[int, str]) -> None:
    """One answer, streamed; every second one is drawn, and every third reader starts late."""
    messages = [{"role": "user", "content": f"Question {number}"}]
    temperature = 0.7 * (number % 2)
    async with api.chunks(
        messages=messages, max_tokens=LENGTH, temperature=temperature, seed=number
    ) as chunks:
        if number % 3 == 0:
            await trio.sleep(0.5)
        texts[number] = delta_text([chunk async for chunk in chunks])


async def test_eight_streams_survive_the_death_of_the_engine(talkative: Path) -> None:
    alone: dict[int, str] = {}
    texts: dict[int, str] = {}
    async with serving_tiny(talkative, engine="process", threads=1) as api:
        for number in range(8):
            await ask(api, number, alone)
        assert len(set(alone.values())) == 8
        first = engine_pid(api)
        with trio.fail_after(RESTART_SECONDS):
            async with trio.open_nursery() as nursery:
                tokens = api.coalescer.stats.sampled_tokens
                for number in range(8):
                    nursery.start_soon(ask, api, number, texts)
                leaver = await api.raw()
                await leaver.send(api.post_bytes(stream=True, max_tokens=LENGTH))
                await until(lambda: api.coalescer.stats.sampled_tokens > tokens + 200)
                os.kill(first, signal.SIGKILL)
                await until(lambda: not api.coalescer.ready)
                assert (await api.http.get("/health")).status_code == 503
                await leaver.stream.aclose()
        assert texts == alone
        assert api.coalescer.stats.failed_steps == 1
        assert (await api.http.get("/health")).status_code == 200
        second = engine_pid(api)
        assert second != first
        await api.at_rest()
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


async def test_an_engine_that_dies_idle_is_started_again_at_once(talkative: Path) -> None:
    async with serving_tiny(talkative, engine="process", threads=1) as api:
        with trio.fail_after(RESTART_SECONDS):
            first = engine_pid(api)
            os.kill(first, signal.SIGKILL)
            await until(lambda: not api.coalescer.ready)
            health = await api.http.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "restarting"})
            assert "ds4trio_ready 0.0" in (await api.http.get("/metrics")).text
            await until(lambda: api.coalescer.ready)
        assert engine_pid(api) != first
        assert (await api.http.get("/health")).status_code == 200
        assert api.coalescer.stats.failed_steps == 0


async def test_an_engine_that_stands_still_is_replaced(talkative: Path) -> None:
    texts: dict[int, str] = {}
    async with serving_tiny(talkative, engine="process", threads=1, step_timeout=2.0) as api:
        with trio.fail_after(RESTART_SECONDS):
            await ask(api, 1, texts)
            os.kill(engine_pid(api), signal.SIGSTOP)
            again: dict[int, str] = {}
            await ask(api, 1, again)
        assert again == texts
        await api.at_rest()


async def test_an_engine_that_dies_idle_is_there_again_when_it_is_wanted(talkative: Path) -> None:
    texts: dict[int, str] = {}
    async with serving_tiny(talkative, engine="process", threads=1) as api:
        with trio.fail_after(RESTART_SECONDS):
            await ask(api, 1, texts)
            os.kill(engine_pid(api), signal.SIGKILL)
            again: dict[int, str] = {}
            await ask(api, 1, again)
        assert again == texts
        await api.at_rest()
