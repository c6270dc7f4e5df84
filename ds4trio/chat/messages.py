"""Messages in the form that a template wants.

Templates agree on little: content is a text or a list of parts, the arguments of a tool call are an
object or its JSON text, a message that only calls tools has no content or an empty one. What one
takes is found out by rendering small conversations with it, once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

__all__ = ["Wants", "find_wants"]

WORD = "zqprobezq"
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names that a message's reasoning goes by; templates read the first or the second."""

SHOWN = ("{'type'", '{"type": "text"', "{'place'", f'\\"{WORD}')
"""What is in a prompt when a template writes an object, or writes a text as if it were one."""

Bare = Literal["missing", "none", "empty"]
BARE: tuple[Bare, ...] = get_args(Bare)

# Mistral's templates want identifiers of nine letters and digits.
PROBE_CALL: tuple[Mapping[str, Any], ...] = (
    {"role": "user", "content": "probe"},
    {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "probe1234",
                "type": "function",
                "function": {"name": "probe", "arguments": {"place": WORD}},
            }
        ],
    },
)
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "probe",
        "parameters": {"type": "object", "properties": {}},
    },
}
PROBE_RESULT = {
    "role": "tool",
    "name": "probe",
    "tool_call_id": "probe1234",
    "content": "probe",
}


@dataclass(frozen=True)
class Wants:
    """What one template takes.

    Attributes:
        texts: content as a text.
        parts: content as a list of parts.
        json_arguments: arguments of a tool call as JSON text, not as an object.
        bare: what the content is of a message that only calls tools.
    """

    texts: bool = True
    parts: bool = False
    json_arguments: bool = False
    bare: Bare = "missing"

    def form(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """One message for the template.

        As in transformers, entries that are None are left out, and reasoning is there under each
        of its names. Content that is missing is the empty text, except beside tool calls, where it
        is what the template can do with.
        """
        formed = {key: value for key, value in message.items() if value is not None}
        reasoning = next((formed[name] for name in REASONING if name in formed), None)
        if reasoning is not None:
            formed = {"thinking": reasoning, **formed, "reasoning_content": reasoning}
        if formed.get("tool_calls"):
            formed["tool_calls"] = self._calls(formed["tool_calls"])
        if "content" in formed:
            formed["content"] = self._content(formed["content"])
        elif not formed.get("tool_calls") or self.bare == "empty":
            formed["content"] = ""
        elif self.bare == "none":
            formed["content"] = None
        return formed

    def _content(self, content: Any) -> Any:
        if isinstance(content, str):
            return content if self.texts else [{"type": "text", "text": content}]
        if self.parts or not isinstance(content, list | tuple):
            return content
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        known = [text for text in texts if isinstance(text, str)]
        return "".join(known) if len(known) == len(texts) else content

    def _calls(self, calls: Any) -> Any:
        if not isinstance(calls, list | tuple):
            return calls
        return [self._call(call) if isinstance(call, Mapping) else call for call in calls]

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call.get("function")
        if isinstance(function, Mapping):
            return {**call, "function": self._with_arguments(function)}
        return self._with_arguments(call)

    def _with_arguments(self, function: Mapping[str, Any]) -> dict[str, Any]:
        arguments = function.get("arguments")
        if isinstance(arguments, str) and not self.json_arguments:
            try:
                read = json.loads(arguments)
            except (ValueError, RecursionError):
                read = None
            if isinstance(read, dict):
                arguments = read
        elif isinstance(arguments, Mapping) and self.json_arguments:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**function, "arguments": arguments} if "arguments" in function else dict(function)


def find_wants(render: Callable[..., str]) -> Wants:
    """Find out what a template takes.

    Args:
        render: given ``messages`` and ``tools``, writes the prompt or raises any exception.
    """

    def writes(messages: Sequence[Mapping[str, Any]], tools: Any = None) -> bool | None:
        """Whether the word comes out, and not as Python shows an object that has it; None where
        the template fails."""
        try:
            text = render(messages=messages, tools=tools)
        except Exception:
            return None
        return WORD in text and not any(sign in text for sign in SHOWN)

    texts = bool(writes([{"role": "user", "content": WORD}]))
    parts = bool(writes([{"role": "user", "content": [{"type": "text", "text": WORD}]}]))
    found: Wants | None = None
    # Templates write the last message in another way than those before, and some know no results.
    for calls, bare, json_arguments in product(
        ((*PROBE_CALL, PROBE_RESULT), PROBE_CALL), BARE, (False, True)
    ):
        wants = Wants(texts or not parts, parts, json_arguments, bare)
        written = writes([wants.form(message) for message in calls], [PROBE_TOOL])
        if written:
            return wants
        if written is not None and found is None:
            found = wants  # it ignores tool calls, but does not fail
    return found or Wants(texts or not parts, parts)
