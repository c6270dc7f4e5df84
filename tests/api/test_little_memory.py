"""A third of the memory that everyone together needs: slower, and the same texts."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.api.helpers import Api, assert_openai_error, serving_tiny

USERS = 32
PAGE = 2 * 16 * 2 * 2 * 16 * 4
"""Bytes of a page of the tiny model: keys and values, positions, layers, heads, width, float32."""

PAGES_EACH = 10
"""What one conversation here fills, nearly: some 90 tokens of prompt and 64 of answer."""


async def answers(api: Api) -> list[str]:
    texts = [""] * USERS

    async def ask(number: int) -> None:
        asked = [{"role": "user", "content": f"{number} the quick brown fox " * (2 + number % 3)}]
        answer = await api.completion(
            messages=asked, max_tokens=64, temperature=0.8 * (number % 2), seed=number
        )
        texts[number] = answer["choices"][0]["message"]["content"]

    async with trio.open_nursery() as nursery:
        for number in range(USERS):
            nursery.start_soon(ask, number)
    return texts


async def test_everyone_gets_the_same_text_with_a_third_of_the_memory(tiny_model: Path) -> None:
    texts = []
    for pages in (USERS * PAGES_EACH, USERS * PAGES_EACH // 3):
        async with serving_tiny(tiny_model, kv_memory=str(pages * PAGE), prefix_cache=False) as api:
            assert api.coalescer.info.total_pages == pages
            texts.append(await answers(api))
            assert (api.coalescer.stats.preemptions > 0) == (pages < USERS * PAGES_EACH)
            await api.at_rest()
    assert texts[0] == texts[1]


async def test_what_can_never_fit_is_refused_at_once_while_others_wait(tiny_model: Path) -> None:
    too_long = [{"role": "user", "content": "word " * 60}]
    async with serving_tiny(tiny_model, kv_memory=str(8 * PAGE), max_sessions=1) as api:
        async with api.chunks(max_tokens=100), trio.open_nursery() as nursery:
            nursery.start_soon(api.chat)  # in line for the only slot
            refused = await api.chat(messages=too_long)
            assert_openai_error(refused, 400, code="context_length_exceeded")
            nursery.cancel_scope.cancel()
