"""For each field of each door, a request that asks something by it, as ``docs/api.md`` groups them.

``Door.least`` is a request without any of them; a ``Case`` may need others beside its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DOORS", "Case", "Door"]


@dataclass(frozen=True, slots=True)
class Case:
    """A value of a field.

    Attributes:
        beside: other fields, which are there with the value and without it.
    """

    value: Any
    beside: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Door:
    """Where requests of one kind go.

    Attributes:
        table: the name of its table in ``docs/api.md``.
        honoured: a value of each field that must change something.
        accepted: of each that must change nothing.
        refused: of each that must be refused; ``instead`` is the value with which it is not, for
            fields that need not be left out.
        echoed: what an answer repeats of its request, which is no effect of it.
    """

    table: str
    path: str
    least: Mapping[str, Any]
    honoured: Mapping[str, Case]
    accepted: Mapping[str, Case]
    refused: Mapping[str, Case]
    instead: Mapping[str, Any] = field(default_factory=dict)
    echoed: frozenset[str] = frozenset()


def cases(**values: Any) -> dict[str, Case]:
    return {
        name: value if isinstance(value, Case) else Case(value) for name, value in values.items()
    }


SCHEMA = {"type": "object", "properties": {}}
FUNCTION = {"name": "f", "parameters": SCHEMA}
STREAM = {"stream": True}
SAID = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
LONG = [{"role": "user", "content": "x" * 200}] * 9
"""Longer than the context."""

DRAWING = cases(
    model="another",
    stream=True,
    stream_options=Case({"include_usage": True}, STREAM),
    n=2,
    temperature=0.5,
    top_p=0.5,
    frequency_penalty=1,
    presence_penalty=1,
    logit_bias={"5": 10},
    seed=2,
    stop="l",
    top_k=3,
    min_p=0.1,
    repetition_penalty=1.1,
    ignore_eos=True,
    return_progress=Case(True, STREAM),
    response_format={"type": "json_object"},
    json_schema=SCHEMA,
    grammar='root ::= "a"',
    structured_outputs={"regex": "a+"},
    cache_salt="mine",
)
TOOLS = [{"type": "function", "function": FUNCTION}]

CHAT = Door(
    "ChatRequest",
    "/v1/chat/completions",
    {"messages": [{"role": "user", "content": "Hi"}], "seed": 1},
    honoured={
        **DRAWING,
        **cases(
            messages=[{"role": "user", "content": "Ho"}],
            max_tokens=5,
            max_completion_tokens=5,
            logprobs=True,
            top_logprobs=Case(3, {"logprobs": True}),
            tools=TOOLS,
            tool_choice=Case("required", {"tools": TOOLS}),
            parallel_tool_calls=Case(False, {"tools": TOOLS}),
            reasoning_effort="max",
            reasoning={"max_tokens": 5},
            chat_template_kwargs={"enable_thinking": False},
            add_generation_prompt=False,
            continue_final_message=Case(True, {"messages": SAID}),
        ),
    },
    accepted=cases(
        user="a",
        metadata={"a": "b"},
        store=True,
        service_tier="priority",
        safety_identifier="a",
        prompt_cache_key="a",
        prompt_cache_options={"mode": "implicit"},
        prompt_cache_retention="24h",
        timings_per_token=True,
    ),
    refused=cases(
        functions=[FUNCTION],
        function_call={"name": "f"},
        modalities=["text", "audio"],
        audio={"voice": "a", "format": "mp3"},
        prediction={"type": "content", "content": "a"},
        moderation={"model": "a"},
        verbosity="low",
        web_search_options={"search_context_size": "low"},
    ),
    instead={
        "functions": [],
        "function_call": "auto",
        "modalities": ["text"],
        "verbosity": "medium",
    },
)

COMPLETIONS = Door(
    "CompletionRequest",
    "/v1/completions",
    {"prompt": "Hi", "seed": 1},
    honoured={**DRAWING, **cases(prompt=[5, 6], max_tokens=5, echo=True, logprobs=2)},
    accepted=cases(user="a", timings_per_token=True),
    refused=cases(best_of=2, suffix="a"),
    instead={"best_of": 1, "suffix": ""},
)

CUSTOM = [{"name": "f", "input_schema": SCHEMA}]
FORM = {"type": "json_schema", "schema": SCHEMA}
MESSAGE_LEAST = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
MESSAGE_PROMPT = cases(
    messages=[{"role": "user", "content": "Ho"}],
    model="another",
    system="Be brief.",
    tools=CUSTOM,
    tool_choice=Case({"type": "any"}, {"tools": CUSTOM}),
    thinking={"type": "enabled", "budget_tokens": 5},
    output_config={"effort": "low"},
    output_format=FORM,
)
MESSAGE_ACCEPTED = cases(
    cache_control={"type": "ephemeral"},
    context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
    speed="fast",
    billing_policy="a",
)
MESSAGE_REFUSED = cases(
    compaction={"type": "auto"},
    mcp_servers=[{"type": "url", "name": "a", "url": "https://a.example"}],
)

MESSAGES = Door(
    "MessageRequest",
    "/v1/messages",
    {**MESSAGE_LEAST, "max_tokens": 9, "seed": 1},
    honoured={
        **MESSAGE_PROMPT,
        **cases(
            max_tokens=5,
            stream=True,
            stop_sequences=["l"],
            temperature=0.5,
            top_k=3,
            top_p=0.5,
            min_p=0.1,
            repetition_penalty=1.1,
            seed=2,
            cache_salt="mine",
        ),
    },
    accepted={
        **MESSAGE_ACCEPTED,
        **cases(
            metadata={"user_id": "a"},
            user_profile_id="a",
            service_tier="standard_only",
            inference_geo="eu",
            diagnostics={"a": True},
        ),
    },
    refused={
        **MESSAGE_REFUSED,
        **cases(container="a", fallbacks="default", fallback_credit_token="a", thread={"id": "a"}),
    },
    instead={"mcp_servers": [], "fallbacks": []},
    echoed=frozenset({"context_management"}),
)

COUNT = Door(
    "CountTokensRequest",
    "/v1/messages/count_tokens",
    MESSAGE_LEAST,
    honoured=MESSAGE_PROMPT,
    accepted=MESSAGE_ACCEPTED,
    refused=MESSAGE_REFUSED,
    instead={"mcp_servers": []},
)

RESPONSE_TOOLS = [{"type": "function", **FUNCTION}]
TEXT = {"format": {"type": "json_object"}}

RESPONSES = Door(
    "ResponseCreate",
    "/v1/responses",
    {"input": "Hi", "seed": 1},
    honoured=cases(
        input="Ho",
        model="another",
        instructions="Be brief.",
        previous_response_id="resp_unknown",
        store=False,
        background=True,
        stream=True,
        generate=False,
        stream_id="a",
        prompt_cache_options={"prewarm": True},
        max_output_tokens=5,
        truncation=Case("auto", {"input": LONG}),
        temperature=0.5,
        top_p=0.5,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        text=TEXT,
        reasoning={"effort": "max"},
        tools=RESPONSE_TOOLS,
        tool_choice=Case("required", {"tools": RESPONSE_TOOLS}),
        parallel_tool_calls=Case(False, {"tools": RESPONSE_TOOLS}),
        metadata={"a": "b"},
        top_k=3,
        min_p=0.1,
        cache_salt="mine",
        repetition_penalty=1.1,
        frequency_penalty=1,
        presence_penalty=1,
        seed=2,
        stop="l",
        chat_template_kwargs={"enable_thinking": False},
        continue_final_message=Case(True, {"input": SAID}),
        return_progress=Case(True, STREAM),
    ),
    accepted=cases(
        stream_options=Case({"include_obfuscation": True}, STREAM),
        max_tool_calls=1,
        user="a",
        service_tier="priority",
        safety_identifier="a",
        prompt_cache_key="a",
        prompt_cache_retention="24h",
    ),
    refused=cases(
        access_programs={"cyber": "standard"},
        background_options={"completion_window": "2h"},
        conversation="conv_a",
        context_management=[{"type": "compaction"}],
        image={"context_compression": "enabled"},
        moderation={"model": "a"},
        prompt={"id": "a"},
    ),
    instead={
        "access_programs": {},
        "background_options": {},
        "context_management": [],
        "image": {},
    },
    echoed=frozenset(
        {"instructions", "max_output_tokens", "max_tool_calls", "parallel_tool_calls"}
        | {"previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier"}
        | {"temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation"}
        | {"user"}
    ),
)

INPUT_TOKENS = Door(
    "InputTokens",
    "/v1/responses/input_tokens",
    {"input": "Hi"},
    honoured=cases(
        input="Ho",
        model="another",
        instructions="Be brief.",
        previous_response_id="resp_unknown",
        text=TEXT,
        reasoning={"effort": "max"},
        tools=RESPONSE_TOOLS,
        tool_choice=Case("required", {"tools": RESPONSE_TOOLS}),
        parallel_tool_calls=Case(False, {"tools": RESPONSE_TOOLS}),
        chat_template_kwargs={"enable_thinking": False},
    ),
    accepted=cases(truncation="auto"),
    refused=cases(conversation="conv_a", personality="friendly"),
)

DOORS = (CHAT, COMPLETIONS, MESSAGES, COUNT, RESPONSES, INPUT_TOKENS)
