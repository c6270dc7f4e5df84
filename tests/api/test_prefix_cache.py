"""What clients see of the prefix cache: fewer tokens evaluated, and nothing of one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.api.helpers import Api, serving_tiny

LONG = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog " * 4}]


async def cached(api: Api, *, key: str | None = None, **fields: Any) -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    response = await api.chat_with(headers, **{"messages": LONG, "max_tokens": 2, **fields})
    assert response.status_code == 200, response.text
    count: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


async def test_a_conversation_is_not_evaluated_twice(tiny_model: Path) -> None:
    async with serving_tiny(tiny_model) as api, api.socket() as socket:
        first = await socket.answer(LONG[0]["content"], temperature=0, max_output_tokens=20)
        assert first["usage"]["input_tokens_details"]["cached_tokens"] == 0
        then = await socket.answer(
            "and?", previous_response_id=first["id"], temperature=0, max_output_tokens=20
        )
        usage = then["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"] - 16
        assert usage["input_tokens_details"]["cached_tokens"] < usage["input_tokens"]


async def test_the_same_text_with_and_without(tiny_model: Path) -> None:
    texts = []
    for prefix_cache in (True, False):
        async with serving_tiny(tiny_model, prefix_cache=prefix_cache) as api:
            for _ in range(2):
                answer = await api.completion(messages=LONG, temperature=0, max_tokens=30)
                texts.append(answer["choices"][0]["message"]["content"])
            assert (await cached(api) > 0) == prefix_cache
    assert len(set(texts)) == 1


async def test_keys_and_salts_keep_tenants_apart(tiny_model: Path) -> None:
    async with serving_tiny(tiny_model, api_key=("alice", "bob")) as api:
        assert await cached(api, key="alice") == 0
        assert await cached(api, key="alice") > 0
        assert await cached(api, key="bob") == 0
        assert await cached(api, key="alice", cache_salt="project") == 0
        assert await cached(api, key="alice", cache_salt="project") > 0
        assert await cached(api, key="bob", cache_salt="project") == 0
