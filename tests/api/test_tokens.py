"""``/tokenize``, ``/detokenize``, ``/apply-template``, for clients of both kinds of servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ds4trio.chat.template import ChatTemplate
from ds4trio.generate import Generator
from ds4trio.prompting import LONG_TEXT
from ds4trio.settings import Settings
from tests.api.helpers import (
    USER,
    Api,
    ScriptedEngine,
    assert_openai_error,
    scripted_generator,
    serving_script,
    serving_tiny,
    tiny_tokenizer,
)
from tests.tiny import CONTROL_TOKENS

PATHS = ("/tokenize", "/detokenize", "/apply-template")
ODD = "Naïve 漢字 e\u0301 👩‍🚀 the user"


async def post(api: Api, path: str, **fields: Any) -> dict[str, Any]:
    response = await api.http.post(path, json=fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_there_and_back_again_for_both_kinds_of_clients() -> None:
    async with serving_script() as api:
        for field in ("content", "prompt"):
            there = await post(api, "/tokenize", **{field: ODD})
            assert there["tokens"] == tiny_tokenizer().encode(ODD, special=True)
            assert there["count"] == len(there["tokens"])
            assert there["max_model_len"] == 50_000
            back = await post(api, "/detokenize", tokens=there["tokens"], model="scripted")
            assert back == {"content": ODD, "prompt": ODD}


async def test_pieces_are_texts_or_the_bytes_of_half_characters() -> None:
    async with serving_script() as api:
        answer = await post(api, "/tokenize", content=ODD, with_pieces=True, return_token_strs=True)
        pieces = [item["piece"] for item in answer["tokens"]]
        spelt = [piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces]
        assert b"".join(spelt).decode() == ODD
        assert any(isinstance(piece, list) for piece in pieces)
        assert [item["id"] for item in answer["tokens"]] == tiny_tokenizer().encode(
            ODD, special=True
        )
        assert len(answer["token_strs"]) == len(pieces)
        named = await post(api, "/tokenize", content=CONTROL_TOKENS[1], with_pieces=True)
        assert named["tokens"] == [{"id": 1, "piece": CONTROL_TOKENS[1]}]


async def test_markers_are_tokens_or_plain_text() -> None:
    async with serving_script() as api:
        marker = CONTROL_TOKENS[1]
        assert (await post(api, "/tokenize", content=marker))["tokens"] == [1]
        plain = await post(api, "/tokenize", content=marker, parse_special=False)
        assert plain["tokens"] == tiny_tokenizer().encode(marker, special=False)
        assert (await post(api, "/detokenize", tokens=plain["tokens"]))["content"] == marker
        assert (await post(api, "/detokenize", tokens=[1, 2]))["content"] == "".join(
            CONTROL_TOKENS[1:]
        )


async def test_a_conversation_is_what_an_answer_begins_with(tiny_model: Path) -> None:
    async with serving_tiny(tiny_model) as api:
        written = (await post(api, "/apply-template", messages=USER))["prompt"]
        assert written.endswith("Say something.<|im_end|>\n<|im_start|>assistant\n")
        tokens = (await post(api, "/tokenize", messages=USER))["tokens"]
        assert tokens == (await post(api, "/tokenize", prompt=written))["tokens"]
        usage = (await api.completion(max_tokens=1))["usage"]
        assert usage["prompt_tokens"] == len(tokens)


async def test_each_client_gets_the_beginning_that_its_own_server_adds() -> None:
    def load(settings: Settings) -> tuple[Generator, str]:
        plain = scripted_generator(ScriptedEngine(), settings)
        generator = Generator(
            plain.coalescer,
            tiny_tokenizer(),
            ChatTemplate(None),
            stop_tokens=frozenset(),
            bos_token=CONTROL_TOKENS[0],
            add_bos=True,
            default_max_tokens=1,
        )
        return generator, "begun"

    async with serving_script(load=load) as api:
        hi = tiny_tokenizer().encode("hi", special=False)
        cases: list[tuple[dict[str, Any], bool]] = [
            ({"content": "hi"}, False),
            ({"prompt": "hi"}, True),
            ({"content": "hi", "add_special": True}, True),
            ({"prompt": "hi", "add_special_tokens": False}, False),
        ]
        for fields, begins in cases:
            assert (await post(api, "/tokenize", **fields))["tokens"] == [0] * begins + hi


async def test_long_texts_are_as_short_ones_and_bounded() -> None:
    async with serving_script(ScriptedEngine(context_length=LONG_TEXT + 100)) as api:
        short = (await post(api, "/tokenize", content="z"))["tokens"]
        long = await post(api, "/tokenize", content="z" * (LONG_TEXT + 50))
        assert long["tokens"] == short * (LONG_TEXT + 50)
        for text in ("z" * (LONG_TEXT + 101), "z" * 3_000_000):
            refusal = await api.http.post("/tokenize", json={"content": text})
            assert_openai_error(refusal, 400, code="context_length_exceeded", param="content")
        refusal = await api.http.post("/detokenize", json={"tokens": short * (LONG_TEXT + 101)})
        assert_openai_error(refusal, 400, code="context_length_exceeded", param="tokens")


@pytest.mark.parametrize(
    ("path", "fields", "param", "code"),
    [
        ("/tokenize", {}, "content", None),
        ("/tokenize", {"content": "a", "prompt": "b"}, "content", None),
        ("/tokenize", {"content": 1}, "content", None),
        ("/tokenize", {"messages": []}, "messages", None),
        ("/tokenize", {"content": "a", "typo": 1}, "typo", "unknown_parameter"),
        ("/tokenize", {"content": "a", "chat_template": "x"}, None, "unsupported_parameter"),
        ("/detokenize", {}, "tokens", "missing_parameter"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]", None),
        ("/detokenize", {"tokens": [-1]}, "tokens", "token_out_of_vocabulary"),
        ("/detokenize", {"tokens": [10**9]}, "tokens", "token_out_of_vocabulary"),
        ("/detokenize", {"tokens": [2**70]}, "tokens", "token_out_of_vocabulary"),
        ("/apply-template", {"messages": USER, "chat_template": "{{ 1 }}"}, "chat_template", None),
        ("/apply-template", {"messages": [{"role": "user"}]}, "messages[0].content", None),
    ],
)
async def test_what_is_refused(
    path: str, fields: dict[str, Any], param: str | None, code: str | None
) -> None:
    async with serving_script() as api:
        refusal = await api.http.post(path, json=fields)
        assert_openai_error(refusal, 400, code=code, param=param)


async def test_another_model_is_refused_and_a_key_is_needed() -> None:
    async with serving_script(api_key=("secret",)) as api:
        for path in PATHS:
            body = {"model": "other", "messages": USER}
            if path == "/detokenize":
                body = {"model": "other", "tokens": []}
            assert_openai_error(await api.http.post(path, json=body), 401)
            headers = {"Authorization": "Bearer secret"}
            refusal = await api.http.post(path, json=body, headers=headers)
            assert_openai_error(refusal, 404, code="model_not_found")
            foreign = {**headers, "Origin": "https://elsewhere.example"}
            assert_openai_error(await api.http.post(path, json=body, headers=foreign), 403)


@hypothesis_settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_comes_back(text: str) -> None:
    tokenizer = tiny_tokenizer()
    for special in (True, False):
        assert tokenizer.decode(tokenizer.encode(text, special=special)) == text


async def test_tools_and_half_written_answers_are_in_the_prompt() -> None:
    tool = {"type": "function", "function": {"name": "roll_dice", "parameters": {}}}
    half = [*USER, {"role": "assistant", "content": "Well, I"}]
    async with serving_script() as api:
        for fields, expected in (
            ({"messages": USER, "tools": [tool]}, "roll_dice"),
            ({"messages": half, "continue_final_message": True}, "Well, I"),
        ):
            written = await api.http.post("/apply-template", json=fields)
            assert expected in written.json()["prompt"]
            counted = await api.http.post("/tokenize", json=fields)
            plain = await api.http.post("/tokenize", json={"messages": USER})
            assert counted.json()["count"] > plain.json()["count"]
        assert written.json()["prompt"].endswith("Well, I")
