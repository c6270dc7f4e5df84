"""What operators and their tools see: health, metrics, the list of models, a model that fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from openai.types import Model
from prometheus_client.parser import text_string_to_metric_families

from ds4trio.errors import ModelUnavailable
from ds4trio.generate import Generator
from ds4trio.settings import Settings
from tests.api.helpers import (
    SECRET,
    Api,
    ScriptedEngine,
    assert_openai_error,
    scripted_generator,
    serving_script,
    until,
)


async def test_models() -> None:
    async with serving_script() as api:
        response = await api.http.get("/v1/models")
        assert response.status_code == 200
        body = response.json()
        assert body["object"] == "list"
        (model,) = body["data"]
        Model.model_validate(model)
        assert (model["id"], model["object"]) == ("scripted", "model")
        assert (await api.chat(model=model["id"], max_tokens=1)).status_code == 200


async def test_health_tells_the_counts() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine) as api:
        idle = (await api.http.get("/health")).json()
        assert idle["status"] == "ok"
        assert (idle["sessions"], idle["waiting"]) == (0, 0)
        assert idle["free_pages"] == idle["total_pages"] == engine.info.total_pages
        async with api.chunks(max_tokens=40_000) as chunks:
            await anext(chunks)
            await anext(chunks)
            busy = (await api.http.get("/health")).json()
        assert busy["sessions"] == 1
        assert busy["free_pages"] < busy["total_pages"]
        await api.at_rest()


# -- loading


class HeldLoad:
    """Loads when the test says so."""

    def __init__(self, error: Exception | None = None) -> None:
        self.release = threading.Event()
        self._error = error

    def __call__(self, settings: Settings) -> tuple[Generator, str]:
        assert self.release.wait(30), "the test forgot the loader"
        if self._error is not None:
            raise self._error
        return scripted_generator(ScriptedEngine(), settings), "scripted"


async def assert_closed(api: Api, code: str) -> None:
    health = await api.http.get("/health")
    assert health.status_code == 503
    assert SECRET not in health.text
    for response in (
        await api.chat(),
        await api.chat(stream=True),
        await api.http.get("/v1/models"),
        await api.handshake(),
    ):
        assert_openai_error(response, 503, code=code)
    assert (await api.http.get("/")).status_code == 200
    assert _metrics((await api.http.get("/metrics")).text)["ds4trio_ready"] == 0


async def test_loading_server_says_so_and_then_serves() -> None:
    load = HeldLoad()
    async with serving_script(load=load, wait=False) as api:
        try:
            await assert_closed(api, "server_loading")
            assert (await api.http.get("/health")).json() == {"status": "loading"}
            refusal = await api.chat()
            assert int(refusal.headers["retry-after"]) >= 1
        finally:
            load.release.set()
        await api.server.service.settled.wait()
        assert (await api.http.get("/health")).status_code == 200
        assert (await api.chat(max_tokens=1)).status_code == 200


@pytest.mark.parametrize(
    ("error", "said"),
    [(ModelUnavailable("no such model; try another"), "no such model"), (ValueError(SECRET), "")],
)
async def test_model_that_cannot_be_loaded(error: Exception, said: str) -> None:
    load = HeldLoad(error)
    load.release.set()
    async with serving_script(load=load, wait=False) as api:
        await api.server.service.settled.wait()
        await assert_closed(api, "server_stopping")
        assert said in (await api.http.get("/health")).text
        assert said in (await api.chat()).json()["error"]["message"]


# -- metrics


def _metrics(text: str) -> dict[str, float]:
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    return {sample.name: sample.value for family in families for sample in family.samples}


async def test_metrics_count_what_was_done() -> None:
    engine = ScriptedEngine("HELLO")
    async with serving_script(engine) as api:
        response = await api.http.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        before = _metrics(response.text)
        assert before["ds4trio_ready"] == 1
        usage = (await api.completion())["usage"]
        await api.at_rest()
        after = _metrics((await api.http.get("/metrics")).text)
        grown = {name: after[name] - before[name] for name in after}
        assert grown["ds4trio_sampled_tokens_total"] == usage["completion_tokens"] == 6
        assert grown["ds4trio_prefill_tokens_total"] == usage["prompt_tokens"]
        assert grown["ds4trio_steps_total"] == grown["ds4trio_batch_rows_total"] == 6
        assert grown["ds4trio_engine_seconds_total"] > 0
        assert after["ds4trio_sessions"] == after["ds4trio_waiting"] == 0
        assert after["ds4trio_pages_free"] == after["ds4trio_pages_total"]
        assert after["ds4trio_batch_size_mean"] == 1
        assert grown["ds4trio_draft_tokens_total"] == 0


async def test_metrics_count_guesses() -> None:
    engine = ScriptedEngine("HELLO HELLO HELLO HELLO HELLO")
    engine.fake.guesses = True
    async with serving_script(engine) as api:
        usage = (await api.completion())["usage"]
        await api.at_rest()
        counted = _metrics((await api.http.get("/metrics")).text)
        accepted = counted["ds4trio_accepted_tokens_total"]
        assert 0 < accepted < counted["ds4trio_draft_tokens_total"]
        assert counted["ds4trio_steps_total"] + accepted == usage["completion_tokens"]


async def test_metrics_show_the_line_and_the_failures() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, max_sessions=1) as api:
        async with api.chunks(max_tokens=40_000) as chunks:
            await anext(chunks)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: api.chat(max_tokens=1))
                await until(lambda: api.coalescer.waiting == 1)
                seen = _metrics((await api.http.get("/metrics")).text)
                nursery.cancel_scope.cancel()
        assert (seen["ds4trio_sessions"], seen["ds4trio_waiting"]) == (1, 1)
        await api.at_rest()
        # A step of the one that left may still be on its way. It is over when this one's is.
        assert (await api.chat(max_tokens=1)).status_code == 200
        engine.fault = lambda items: True
        assert (await api.chat()).status_code == 500
        seen = _metrics((await api.http.get("/metrics")).text)
        assert seen["ds4trio_failed_steps_total"] == 2
        assert seen["ds4trio_retries_total"] == 1


# -- the connection


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_client_that_asks_for_the_end_gets_it_with_the_answer(version: str) -> None:
    """Old proxies and simple tools read to the end of the connection."""
    body: dict[str, Any] = {"stream": True, "max_tokens": 3}
    async with serving_script() as api:
        for request in (b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", api.post_bytes(**body)):
            client = await api.raw()
            closing = request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            await client.send(closing.replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
            with trio.fail_after(1.5):
                answer = await client.until_end()
            assert b" 200 " in answer.split(b"\r\n")[0]
        assert b"[DONE]" in answer
