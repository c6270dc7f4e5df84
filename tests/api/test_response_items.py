"""Items of the Responses API: what is read, what the model is told, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from ds4trio.api.responses.items import as_messages, read_input, references
from ds4trio.api.responses.tools import format_of, reasoning_of, tools_of
from ds4trio.api.schemas.responses import ResponseCreate
from ds4trio.api.wire import decode, encode
from ds4trio.chat.formats import JsonObject, JsonSchema, Lark, Regex
from ds4trio.errors import InvalidRequest
from ds4trio.generate import Reasoning

OPENAI: TypeAdapter[Any] = TypeAdapter(ResponseItem)
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}
FUNCTION = {"type": "function", "name": "f", "description": "does", "parameters": {}}


def wanted(**fields: Any) -> ResponseCreate:
    """As it comes over the wire."""
    return decode(encode({"input": "Hi", **fields}), ResponseCreate)


def messages(*items: Any) -> list[dict[str, Any]]:
    read = read_input(wanted(input=list(items)))
    for item in read:
        OPENAI.validate_python(item)
    return as_messages(read)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def test_text_is_a_message_of_the_user() -> None:
    assert as_messages(read_input(wanted(input="Hi"))) == [user("Hi")]


def test_roles_and_parts() -> None:
    assert messages(
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}] * 2},
        {
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "b", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "c"},
            ],
        },
    ) == [
        {"role": "system", "content": "Be brief."},
        user("aa"),
        {"role": "assistant", "content": "bc"},
    ]


def test_what_the_model_wrote_at_once_is_one_message() -> None:
    second = {**CALL, "call_id": "c2", "name": "g"}
    assert messages(
        user("?"),
        THOUGHT,
        {"role": "assistant", "content": "I ask."},
        CALL,
        second,
        OUTPUT,
        {**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "43"}]},
        {"role": "assistant", "content": "It is 42."},
    ) == [
        user("?"),
        {
            "role": "assistant",
            "content": "I ask.",
            "reasoning_content": "Hm.",
            "tool_calls": [called("c1", "f", '{"a": 1}'), called("c2", "g", '{"a": 1}')],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "42"},
        {"role": "tool", "tool_call_id": "c2", "name": "g", "content": "43"},
        {"role": "assistant", "content": "It is 42."},
    ]


def test_call_that_a_limit_cut_is_not_told_unless_answered() -> None:
    cut = {**CALL, "arguments": '{"a', "status": "incomplete"}
    assert messages(user("?"), cut, user("Well?")) == [user("?"), user("Well?")]
    assert "tool_calls" in messages(user("?"), cut, OUTPUT)[1]


def test_reference_stands_for_the_item() -> None:
    kept = read_input(wanted(input=[{"role": "user", "content": "Hi", "id": "msg_1"}]))
    asked = wanted(input=[{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}])
    assert references(asked) == ["msg_1", "msg_1"]
    read = read_input(asked, {"msg_1": kept[0]})
    assert as_messages(read) == [user("Hi"), user("Hi")]
    assert len({item["id"] for item in read}) == 2


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        (OUTPUT, "input", None),
        ({**OUTPUT, "call_id": None}, "input[0].call_id", None),
        ({"type": "function_call_output", "output": ""}, "input[0].call_id", "missing_parameter"),
        ({**CALL, "arguments": {}}, "input[0].arguments", None),
        ({**CALL, "colour": 1}, "input[0].colour", "unknown_parameter"),
        ({"role": "robot", "content": ""}, "input[0].role", None),
        ({"role": "user"}, "input[0].content", "missing_parameter"),
        ({"role": "user", "content": [{"type": "input_image"}]}, None, "unsupported_content"),
        ({**OUTPUT, "output": [{"type": "input_file"}]}, None, "unsupported_content"),
        ({"type": "web_search_call", "id": "x"}, "input[0].type", "unsupported_content"),
        ({"type": 5}, "input[0].type", "unsupported_content"),
        ({"type": "item_reference", "id": "nobody"}, "input[0].id", "not_found"),
        ({"type": "item_reference"}, "input[0].id", "missing_parameter"),
        (
            {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAA"},
            "input[0].encrypted_content",
            "unsupported_content",
        ),
    ],
)
def test_refused_items_are_named(item: Any, param: str | None, code: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        messages(item)
    assert param is None or refused.value.param == param
    assert code is None or refused.value.code == code


FIELDS = ["role", "content", "id", "status", "summary", "call_id", "output", "arguments", "name"]
TEXTS = ["", "c1", "user", "assistant", "input_text", "output_text", "refusal", "a\x00"]
KINDS = ["message", "function_call", "function_call_output", "reasoning", "item_reference"]
parts = st.dictionaries(st.sampled_from(["type", "text", "refusal"]), st.sampled_from(TEXTS))
values: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([*TEXTS, None, 5, 1e9, True, [], {}, [[]], [5], [None]]),
    st.lists(parts, max_size=2),
)
items = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)}, optional=dict.fromkeys([*FIELDS, "x"], values)
)


@settings(deadline=None)
@given(st.lists(items, max_size=4))
def test_any_items_are_read_or_refused(any_items: list[dict[str, Any]]) -> None:
    try:
        read = read_input(wanted(input=any_items))
        told = as_messages(read)
    except InvalidRequest:
        return  # anything else would be a defect
    assert read_input(wanted(input=list(read))) == read
    assert all(isinstance(message["content"], str) for message in told)


# -- tools, formats, reasoning


def test_tools_and_choice() -> None:
    two = [FUNCTION, {**FUNCTION, "name": "g", "strict": True}]
    tools = tools_of(wanted(tools=two, parallel_tool_calls=False))
    assert [(tool.name, tool.strict) for tool in tools.known] == [("f", False), ("g", True)]
    assert (tools.choice, tools.allowed, tools.parallel) == ("auto", None, False)
    named = tools_of(wanted(tools=two, tool_choice={"type": "function", "name": "g"}))
    assert (named.choice, named.allowed) == ("required", ("g",))
    some = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    allowed = tools_of(wanted(tools=two, tool_choice=some))
    assert (allowed.choice, allowed.allowed) == ("auto", ("f",))
    assert not tools_of(wanted(tools=two, tool_choice="none")).callable


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [FUNCTION, {"type": "mcp", "server_label": "x"}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**FUNCTION, "name": "no spaces"}]}, "tools[0].name"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        ({"tools": [{**FUNCTION, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice"),
    ],
)
def test_refused_tools_are_named(asked: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tools_of(wanted(**asked))
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("form", "meant"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonObject()),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            JsonSchema({"type": "object"}),
        ),
        ({"type": "regex", "pattern": "a+"}, Regex("a+")),
        ({"type": "grammar", "grammar": 'start: "a"'}, Lark('start: "a"')),
    ],
)
def test_formats(form: Any, meant: Any) -> None:
    assert format_of(wanted(text={"format": form})) == meant


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"type": "xml"},
        {"type": "json_schema", "name": "n"},
        {"type": "json_schema", "name": "n", "schema": []},
        {"type": "regex"},
        {"type": "regex", "pattern": "a", "grammar": "b"},
        {"type": "text", "schema": {}},
    ],
)
def test_refused_formats_are_named(form: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        format_of(wanted(text={"format": form}))
    assert refused.value.param is not None
    assert refused.value.param.startswith("text.format")


def test_reasoning() -> None:
    assert reasoning_of(wanted()) == Reasoning()
    assert reasoning_of(wanted(reasoning={"effort": "max"})) == Reasoning("xhigh")
    asked = {"effort": "low", "summary": "auto", "max_tokens": 5}
    assert reasoning_of(wanted(reasoning=asked)) == Reasoning("low", 5)
    with pytest.raises(InvalidRequest, match=r"reasoning\.summary"):
        reasoning_of(wanted(reasoning={"summary": "detailed"}))
