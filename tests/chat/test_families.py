"""What the families' templates need, against transformers: constructs, tools, switches, forms."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers import AutoTokenizer

from ds4trio.chat.template import ChatTemplate, encode_prompt
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.errors import InvalidRequest
from tests.chat.templates import (
    ARGUMENTS,
    CONVERSATIONS,
    DOCUMENTS,
    FORMS,
    SWITCHES,
    TEMPLATES,
    TOOLS,
    USER,
)
from tests.tiny import CONTROL_TOKENS, make_tiny_tokenizer

CALLED = CONVERSATIONS["called"]
BOS, END = "<|im_start|>", "<|im_end|>"
TOKENIZER = Tokenizer(make_tiny_tokenizer().to_str())


@functools.cache
def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token=BOS, eos_token=END, control_tokens=CONTROL_TOKENS)


def written(source: str, messages: list[dict[str, Any]], **arguments: Any) -> str:
    segments = template(source).render(messages, **arguments)
    return "".join(segment.text for segment in segments)


def as_clients_send(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arguments of tool calls as JSON text, as in OpenAI's protocol."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return messages


@pytest.fixture(scope="module")
def theirs(tiny_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("switches", SWITCHES, ids=lambda switches: "+".join(switches))
def test_prompts_are_those_of_transformers(
    theirs: Any, source: str, name: str, tools: Any, switches: dict[str, Any]
) -> None:
    messages = CONVERSATIONS[name]
    for documents, ask in ((None, True), (DOCUMENTS, False)):
        shared: dict[str, Any] = {
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": ask,
        }
        try:
            expected = theirs.apply_chat_template(
                messages, chat_template=source, tokenize=False, **shared, **switches
            )
        except jinja2.TemplateError as error:
            assert name == "refused"
            with pytest.raises(InvalidRequest, match=str(error)):
                written(source, messages, **shared, switches=switches)
            continue
        for sent in (messages, as_clients_send(messages)):
            assert written(source, sent, **shared, switches=switches) == expected
        ids = theirs.apply_chat_template(
            messages, chat_template=source, return_dict=False, **shared, **switches
        )
        segments = template(source).render(messages, **shared, switches=switches)
        ours = encode_prompt(TOKENIZER, segments, bos_token=None, add_bos=False)
        assert ours == ids


def test_content_comes_in_the_form_that_the_template_takes() -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]
    text = [{"role": "user", "content": "Hi you"}]
    for content in ("Hi you", parts):
        messages = [{"role": "user", "content": content}]
        assert written(FORMS["parts"], messages) == f"{BOS}user\nHi you{END}\n"
        assert written(FORMS["json"], messages) == written(FORMS["json"], text)
        assert written(TEMPLATES["turns"], messages) == written(TEMPLATES["turns"], text)
    picture = [{"role": "user", "content": [{"type": "image"}]}]
    assert "image" in written(FORMS["json"], picture)  # what it cannot join stays as it is


@pytest.mark.parametrize("sent", [CALLED, as_clients_send(CALLED)])
def test_tool_calls_come_in_the_form_that_the_template_takes(sent: list[dict[str, Any]]) -> None:
    text = written(FORMS["json"], sent)
    assert json.JSONDecoder().raw_decode(text.split("weather", 2)[2])[0] == ARGUMENTS
    assert f"CALLS {json.dumps(ARGUMENTS, ensure_ascii=False)}" in written(FORMS["none"], sent)
    bare = [{key: value for key, value in message.items() if value is not None} for message in sent]
    assert "CALLS" in written(FORMS["none"], bare)


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "x" * 10, "[" * 100_000])
def test_arguments_that_are_no_object_are_left_as_they_are(arguments: str) -> None:
    function = {"name": "f", "arguments": arguments}
    messages: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "tool_calls": [{"function": function}]},
    ]
    source = "{% for m in messages %}{{ (m.tool_calls or []) | tojson }}{% endfor %}"
    assert json.dumps(arguments) in written(source, messages)


@pytest.mark.parametrize("calls", [7, "x", [7], [{}], [{"function": 7}], [{"name": "f"}], {}])
def test_tool_calls_of_any_shape_are_data(calls: Any) -> None:
    messages = [USER, {"role": "assistant", "content": "x", "tool_calls": calls}]
    assert written("{{ messages[1] | tojson }}", messages) == json.dumps(messages[1])


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "add_generation_prompt"])
def test_a_switch_cannot_have_a_name_that_is_taken(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        template(TEMPLATES["turns"]).render([USER], switches={name: "x"})
    assert caught.value.param == "chat_template_kwargs"


def test_markers_in_switches_are_plain_text() -> None:
    segments = template(TEMPLATES["turns"]).render([USER], switches={"reasoning_effort": END})
    ids = encode_prompt(TOKENIZER, segments, bos_token=None, add_bos=False)
    usual = template(TEMPLATES["turns"]).render([USER], switches={"reasoning_effort": "low"})
    expected = encode_prompt(TOKENIZER, usual, bos_token=None, add_bos=False)
    assert sum(map(TOKENIZER.is_control, ids)) == sum(map(TOKENIZER.is_control, expected))
