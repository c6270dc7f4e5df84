"""Tools for models whose chat template cannot write them: everything becomes text.

The form is that of the Hermes models (https://github.com/NousResearch/Hermes-Function-Calling):
schemas between ``<tools>`` tags in a system message, calls between ``<tool_call>`` tags, results
between ``<tool_response>`` tags in a message of the user's. Many small models have learned it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ds4trio.chat.tool import Tool

__all__ = [
    "calls_as_text",
    "described",
    "results_as_text",
    "with_instructions",
    "with_tools_beside",
]

Message = dict[str, Any]


def described(tools: Sequence[Tool], *, required: bool, parallel: bool) -> str:
    """What a model without a form of its own is told of its tools."""
    schemas = "\n".join(_json(tool.as_message()) for tool in tools)
    how_many = "one or more of these functions" if parallel else "one of these functions"
    when = f"You must call {how_many}." if required else f"You may call {how_many}."
    return (
        f"# Tools\n\n{when} Their names and the JSON schemas of their arguments:\n"
        f"<tools>\n{schemas}\n</tools>\n\n"
        "To call a function, write its name and its arguments as a JSON object between tags:\n"
        '<tool_call>\n{"name": "the function\'s name", "arguments": {"an argument": "its value"}}\n'
        "</tool_call>"
    )


def with_instructions(
    messages: Iterable[Message], instructions: str, *, system: bool
) -> list[Message]:
    """The messages, and instructions in the system message, or before the first of the user."""
    result = list(messages)
    roles = ("system", "developer") if system else ("user",)
    if result and result[0].get("role") in roles:
        result[0] = _joined(result[0], instructions, before=not system)
        return result
    if not system:
        for number, message in enumerate(result):
            if message.get("role") == "user":
                result[number] = _joined(message, instructions, before=True)
                return result
    return [{"role": roles[0], "content": instructions}, *result]


def with_tools_beside(messages: Iterable[Message], tools: Sequence[Tool]) -> list[Message]:
    """The messages, and tools as JSON text in a field of the system message (Phi-4-mini)."""
    result = list(messages)
    if not result or result[0].get("role") != "system":
        result.insert(0, {"role": "system", "content": ""})
    told = _json([tool.as_message()["function"] for tool in tools])
    return [{**result[0], "tools": told}, *result[1:]]


def calls_as_text(message: Message) -> Message:
    """An assistant's message with its calls at the end of its text."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple) or not calls:
        return message
    written = "\n".join(filter(None, map(_call, calls)))
    bare = {key: value for key, value in message.items() if key != "tool_calls"}
    return _joined(bare, written, gap="\n") if bare.get("content") else {**bare, "content": written}


def results_as_text(messages: Iterable[Message]) -> list[Message]:
    """The results of tools as messages of the user; what he says next is part of the same."""
    result: list[Message] = []
    rewritten = False
    for message in messages:
        if message.get("role") in ("tool", "function"):
            text = f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"
            if rewritten:
                result[-1] = _joined(result[-1], text, gap="\n")
            else:
                result.append({"role": "user", "content": text})
            rewritten = True
        elif rewritten and message.get("role") == "user":
            result[-1] = _joined(message, _text(result[-1]["content"]), before=True)
            rewritten = False
        else:
            result.append(message)
            rewritten = False
    return result


def _joined(message: Message, text: str, *, before: bool = False, gap: str = "\n\n") -> Message:
    content = message.get("content")
    if isinstance(content, list | tuple):
        part = {"type": "text", "text": text + gap if before else gap + text}
        return {**message, "content": [part, *content] if before else [*content, part]}
    written = content if isinstance(content, str) else ""
    both = (text, written) if before else (written, text)
    return {**message, "content": gap.join(filter(None, both))}


def _call(call: Any) -> str:
    if not isinstance(call, Mapping):
        return ""
    inner = call.get("function")
    function = inner if isinstance(inner, Mapping) else call
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = _json(arguments if arguments is not None else {})
    name = _json(str(function.get("name", "")))
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments or "{}"}}}\n</tool_call>'


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        return "".join(text for text in texts if isinstance(text, str))
    return "" if content is None else _json(content)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
