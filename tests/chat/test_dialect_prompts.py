"""What a model is told of tools when its template cannot."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.chat.dialect import Dialect
from ds4trio.chat.template import ChatTemplate
from ds4trio.chat.tool import Tool
from ds4trio.errors import InvalidRequest, ModelUnavailable
from ds4trio.request import Tools
from tests.chat.dialects import TEMPLATES, TOOLS, call, dialect, pieces_of, tokenizer

USER: dict[str, Any] = {"role": "user", "content": "How will it be?"}
CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": "I look.",
    "tool_calls": [
        {
            "id": "a",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
        },
        {"id": "b", "type": "function", "function": {"name": "mail", "arguments": {}}},
    ],
}
RESULTS: list[dict[str, Any]] = [
    {"role": "tool", "tool_call_id": "a", "content": "rain"},
    {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "sent"}]},
]
TALK = [USER, CALLED, *RESULTS, {"role": "user", "content": "Thanks."}]
NO_SYSTEM = (
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}"
)


def written(own: Dialect, source: str, messages: list[dict[str, Any]], tools: Tools) -> str:
    told = own.template_tools(tools.callable)
    variables: dict[str, Any] = {own.tools_variable: told} if own.tools_variable else {}
    segments = ChatTemplate(source).render(own.messages(messages, tools), **variables)
    return "".join(segment.text for segment in segments)


@pytest.mark.parametrize("name", [*TEMPLATES, "no system"])
def test_every_template_tells_of_tools_calls_and_results(name: str) -> None:
    source = NO_SYSTEM if name == "no system" else TEMPLATES[name]
    own = Dialect(source, tokenizer("plain" if name == "no system" else name))
    text = written(own, source, TALK, Tools(TOOLS))
    for word in ("Says how it will be.", "maximum", "How will", "I look.", "Köln", "rain", "sent"):
        assert text.count(word) == 1, word
    assert text.index("rain") < text.index("sent") < text.index("Thanks.")


def test_what_is_described_is_what_is_read() -> None:
    """Calls in the history have the form that the model is asked for, and that the parser reads."""
    (_, called, *_) = dialect("plain").messages([USER, CALLED], Tools())
    own = called["content"].removeprefix("I look.")
    assert pieces_of("plain", own) == [*call("weather", '{"city": "Köln"}'), *call("mail", "{}")]
    assert "tool_calls" not in called


def test_results_and_what_follows_are_one_turn() -> None:
    roles = [message["role"] for message in dialect("plain").messages(TALK, Tools(TOOLS))]
    assert roles == ["system", "user", "assistant", "user"]
    own = Dialect(NO_SYSTEM, tokenizer("plain"))
    roles = [message["role"] for message in own.messages(TALK, Tools(TOOLS))]
    assert roles == ["user", "assistant", "user"]


def test_instructions_join_a_system_message_of_either_form() -> None:
    contents: list[Any] = ["Be kind.", [{"type": "text", "text": "Be kind."}]]
    for content in contents:
        messages = [{"role": "system", "content": content}, USER]
        system, user = dialect("plain").messages(messages, Tools(TOOLS))
        text = content if isinstance(content, str) else ""
        told = system["content"]
        assert user == USER
        assert (told if text else "".join(part["text"] for part in told)).startswith(
            "Be kind.\n\n#"
        )


def test_how_often_a_model_may_call_is_said() -> None:
    must = Tools(TOOLS, "required", parallel=False)
    (system, _) = dialect("plain").messages([USER], must)
    assert "must call one of these" in system["content"]
    assert dialect("plain").messages([USER], Tools(TOOLS, "none")) == [USER]
    assert dialect("plain").template_tools(TOOLS) is None
    assert dialect("Hermes").template_tools([Tool("mail")]) == [Tool("mail").as_message()]
    assert dialect("Hermes").messages(TALK, Tools(TOOLS)) == TALK
    assert dialect("plain").messages(TALK, Tools())[0] == USER


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": "no list"},
        {"role": "assistant", "tool_calls": [1, {}, {"function": 3}, {"function": {}}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [{}]},
        {"role": "tool"},
        {"role": "tool", "content": {"a": 1}},
        {"role": "tool", "content": [{"image": 1}, 7]},
        {},
    ],
)
def test_odd_messages_are_written_somehow(message: dict[str, Any]) -> None:
    assert dialect("plain").messages([message], Tools(TOOLS))


def test_phi_takes_tools_with_the_system_message() -> None:
    own, source = dialect("Phi-4-mini"), TEMPLATES["Phi-4-mini"]
    text = written(own, source, [USER], Tools(TOOLS))
    assert text.startswith('<|system|><|tool|>[{"name": "weather", "description": "Says')
    assert "# Tools" not in text
    kind = {"role": "system", "content": "Be kind."}
    text = written(own, source, [kind, USER], Tools(TOOLS))
    assert text.startswith('<|system|>Be kind.<|tool|>[{"name": "weather"')
    assert own.messages([kind, USER], Tools(TOOLS, "none")) == [kind, USER]
    # The same template with the tokens of another model is told in words.
    other = Dialect(source, tokenizer("plain"))
    assert "# Tools" in written(other, source, [USER], Tools(TOOLS))


ODD = (
    "{{ messages[0].content }}",
    "{{ messages[7].content }}",
    "{{ messages[-1].tool_calls[0].function.arguments.place.x.y }}",
    "{% for m in messages %}{{ m.content + '' }}{% endfor %}",
    "{% for t in tools %}{{ t.function.name }}{% endfor %}",
    "{% for t in xml_tools or [] %}{{ t['function']['parameters'].pop('type') }}{% endfor %}",
    "{{ raise_exception('no') }}",
    "{% if tools %}{{ raise_exception(tools) }}{% endif %}",
    "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "{{ 1 // 0 }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages | tojson }}",
    "{{ tools.append(1) }}",
    "{{ nothing() }}",
    "{% set ns = namespace(x='<think>') %}{{ ns.x }}</think>",
    "<tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "{{ '\ud800' }}",
    "{% if add_generation_prompt %}<think>\n{% endif %}",
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(ODD), max_size=4), st.sampled_from(["plain", "Phi-4-mini", "gpt-oss"])
)
def test_whatever_a_template_does_the_server_starts(parts: list[str], family: str) -> None:
    source = "".join(parts)
    own = Dialect(source, tokenizer(family))
    assert own.parser("", tools=TOOLS).finish() == []
    assert own.grammar_rules(Tools(TOOLS, "required")) is not None
    with contextlib.suppress(InvalidRequest):  # the template's own refusal
        written(own, source, TALK, Tools(TOOLS))


def test_a_template_that_is_none_is_said_to_be() -> None:
    with pytest.raises(ModelUnavailable):
        Dialect("{% if %}", tokenizer("plain"))
