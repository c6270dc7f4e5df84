"""Identifiers of calls as templates want them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.chat.dialect import Dialect
from ds4trio.chat.dialects.call_ids import nine_characters, numbered, renamed
from ds4trio.chat.template import ChatTemplate
from ds4trio.request import Tools
from tests.chat.dialects import LISTING, TOOLS, dialect, tokenizer

NINE = re.compile(r"[0-9A-Za-z]{9}")
REFUSING = (
    LISTING + "{% for m in messages %}"
    "{% for c in m.tool_calls or [] %}"
    "{% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('nine!') }}{% endif %}"
    "[TOOL_CALLS]{{ c.function.arguments | tojson }}={{ c.id }};{% endfor %}"
    "{% if m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine!') }}{% endif %}"
    "{{ m.content }}={{ m.tool_call_id }};"
    "{% elif not m.tool_calls %}{{ m.content }}{% endif %}{% endfor %}"
)
LONG = "call_0123456789abcdef01234567"


def called(*ids: str) -> dict[str, Any]:
    calls = [
        {"id": each, "type": "function", "function": {"name": "weather", "arguments": {"a": "b"}}}
        for each in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "rain"}


USER: dict[str, Any] = {"role": "user", "content": "?"}


def ids_of(messages: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for message in messages:
        found += [call["id"] for call in message.get("tool_calls") or []]
        found += [message["tool_call_id"]] if "tool_call_id" in message else []
    return found


def test_a_template_that_refuses_other_ids_gets_nine_characters() -> None:
    own = Dialect(REFUSING, tokenizer("Mistral"))
    talk = [USER, called(LONG, "x"), result("x"), result(LONG), called("abcDEF123")]
    given = own.messages(talk, Tools(TOOLS))
    ids = ids_of(given)
    assert all(NINE.fullmatch(each) for each in ids)
    assert ids[:2] == ids[3:1:-1]
    assert ids[0] != ids[1]
    assert ids[4] == "abcDEF123"
    assert talk[1]["tool_calls"][0]["id"] == LONG  # the client's own are left alone
    segments = ChatTemplate(REFUSING).render(given, tools=own.template_tools(TOOLS))
    text = "".join(segment.text for segment in segments)
    assert text.count(ids[0]) == text.count(ids[1]) == 2
    # A conversation that goes on has the same beginning, or no cached prompt would fit it.
    longer = own.messages([*talk, result("abcDEF123"), USER], Tools(TOOLS))
    assert longer[: len(given)] == given


@pytest.mark.parametrize("family", ["Hermes", "Mistral", "Llama 3"])
def test_other_templates_get_ids_as_they_are(family: str) -> None:
    talk = [USER, called(LONG), result(LONG)]
    assert dialect(family).messages(talk, Tools(TOOLS)) == talk


def test_kimi_has_its_own_numbers() -> None:
    talk = [USER, called(LONG, "x"), result("x"), result(LONG), USER, called("x"), result("x")]
    ids = ids_of(dialect("Kimi").messages(talk, Tools(TOOLS)))
    first, second, third = (f"functions.weather:{number}" for number in range(3))
    assert ids == [first, second, second, first, third, third]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "function", "name", "tool_calls", "tool_call_id", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
odd = st.dictionaries(
    st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "name"]), anything
)


@given(st.lists(odd, max_size=4), st.sampled_from([nine_characters, numbered]))
def test_odd_messages_are_renamed_somehow(messages: list[dict[str, Any]], namer: Any) -> None:
    for before, after in zip(messages, renamed(messages, namer), strict=True):
        assert before.keys() == after.keys()
        assert {**before, "tool_calls": 0, "tool_call_id": 0} == {
            **after,
            "tool_calls": 0,
            "tool_call_id": 0,
        }


@given(st.text())
def test_any_id_becomes_nine_characters(call_id: str) -> None:
    once = nine_characters(call_id)
    assert NINE.fullmatch(once)
    assert nine_characters(once) == once
