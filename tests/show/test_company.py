"""Forty people at once: each gets the text it gets alone, and they share their batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import pytest
import trio
from trio_websocket import open_websocket_url

from tests.show.questions import QUESTIONS
from tests.show.real_server import KEY, RealServer

pytestmark = pytest.mark.model

MAX_TOKENS = 24
NEAR_TIE = 1e-3
"""Where the two likeliest tokens are closer than this, rounding may choose the other one."""

MEAN_BATCH = 8.0
COMPANY_SECONDS = 240.0
HEADERS = {"Authorization": f"Bearer {KEY}"}

SEEDED = 4
"""Of the questions, how many are asked at temperature 0.8 too."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and how its answer is drawn."""

    question: str
    temperature: float = 0.0
    seed: int = 0

    def sampling(self) -> dict[str, float]:
        return {"temperature": self.temperature, "seed": self.seed}


@dataclass(frozen=True, slots=True)
class Alone:
    """What a question is answered when nobody else asks.

    Attributes:
        text: the answer.
        pieces: the bytes that each of its tokens adds to it.
        gaps: for each token, how far the likeliest one at its place is before the second.
    """

    text: str
    pieces: Sequence[bytes]
    gaps: Sequence[float]

    def before_near_tie(self) -> str | None:
        """The text up to the first token that rounding may change, if there is one."""
        for number, gap in enumerate(self.gaps):
            if gap < NEAR_TIE:
                return b"".join(self.pieces[:number]).decode("utf-8", "ignore")
        return None


GREEDY = tuple(Asked(question) for question in QUESTIONS)
DRAWN = tuple(
    Asked(question, temperature=0.8, seed=1000 + number)
    for number, question in enumerate(QUESTIONS[-SEEDED:])
)


@pytest.fixture(scope="module")
def alone(started: tuple[RealServer, object]) -> dict[str, Alone]:
    """The answers of a server that has nothing else to do, by question."""
    return {asked.question: ask_alone(started[0], asked) for asked in GREEDY}


def ask_alone(server: RealServer, asked: Asked) -> Alone:
    body = {
        "messages": [{"role": "user", "content": asked.question}],
        "max_tokens": MAX_TOKENS,
        "logprobs": True,
        "top_logprobs": 2,
        **asked.sampling(),
    }
    choice = server.post("/v1/chat/completions", body)["choices"][0]
    tokens = choice["logprobs"]["content"]
    likeliest = [[top["logprob"] for top in token["top_logprobs"]] for token in tokens]
    return Alone(
        text=choice["message"]["content"],
        pieces=[bytes(token["bytes"]) for token in tokens],
        gaps=[first - second for first, second in likeliest],
    )


async def test_forty_clients_get_the_text_they_get_alone(
    server: RealServer, alone: dict[str, Alone], capsys: pytest.CaptureFixture[str]
) -> None:
    steps, rows = batches(server)
    answers = await ask_together(server, GREEDY)
    steps, rows = (now - then for now, then in zip(batches(server), (steps, rows), strict=True))
    same = sum(answers[asked] == alone[asked.question].text for asked in GREEDY)
    with capsys.disabled():
        print(f"\n{same} of {len(GREEDY)} texts are the same; mean batch {rows / steps:.1f}")
    for asked in GREEDY:
        assert_the_same(answers[asked], alone[asked.question], asked.question)
    assert rows / steps > MEAN_BATCH


async def test_a_seed_says_the_same_in_company(server: RealServer) -> None:
    alone = {asked: ask_alone(server, asked).text for asked in DRAWN}
    answers = await ask_together(server, (*DRAWN, *GREEDY[:12]))
    assert {asked: answers[asked] for asked in DRAWN} == alone
    assert len(set(alone.values())) == len(alone)


def assert_the_same(text: str, alone: Alone, question: str) -> None:
    if text == alone.text:
        return
    common = alone.before_near_tie()
    assert common is not None, f"{question}\n  alone:   {alone.text!r}\n  company: {text!r}"
    assert text.startswith(common), (
        f"{question}\n  differs before the first near tie, after {common!r}\n"
        f"  alone:   {alone.text!r}\n  company: {text!r}"
    )


def batches(server: RealServer) -> tuple[float, float]:
    """Steps so far, and the sessions in them, added up."""
    return server.metric("ds4trio_steps_total"), server.metric("ds4trio_batch_rows_total")


async def ask_together(server: RealServer, all_asked: Sequence[Asked]) -> dict[Asked, str]:
    """Every question by a client of its own, all at once; every second one over a WebSocket."""
    answers: dict[Asked, str] = {}
    limits = httpx.Limits(max_connections=None)

    async def ask(number: int, asked: Asked, client: httpx.AsyncClient) -> None:
        if number % 2:
            answers[asked] = await ask_over_websocket(server, asked)
        else:
            answers[asked] = await ask_over_events(client, asked)

    with trio.fail_after(COMPANY_SECONDS):
        async with httpx.AsyncClient(
            base_url=server.url, headers=HEADERS, timeout=COMPANY_SECONDS, limits=limits
        ) as client:
            async with trio.open_nursery() as nursery:
                for number, asked in enumerate(all_asked):
                    nursery.start_soon(ask, number, asked, client)
    return answers


async def ask_over_websocket(server: RealServer, asked: Asked) -> str:
    request = {
        "type": "response.create",
        "input": asked.question,
        "max_output_tokens": MAX_TOKENS,
        "store": False,
        **asked.sampling(),
    }
    headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    text = ""
    async with open_websocket_url(server.websocket_url, extra_headers=headers) as socket:
        await socket.send_message(json.dumps(request))
        while True:
            event = json.loads(await socket.get_message())
            if event["type"] == "response.output_text.delta":
                text += event["delta"]
            elif event["type"] in ("response.completed", "response.incomplete"):
                return text
            assert event["type"] not in ("error", "response.failed"), event


async def ask_over_events(client: httpx.AsyncClient, asked: Asked) -> str:
    body = {
        "messages": [{"role": "user", "content": asked.question}],
        "max_tokens": MAX_TOKENS,
        "stream": True,
        **asked.sampling(),
    }
    text, done = "", False
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                done = True
            elif data != line:
                text += json.loads(data)["choices"][0]["delta"].get("content", "")
    assert done, f"the stream of {asked.question!r} ended without [DONE]"
    return text
