"""Items of the Responses API: read from a request, and told to the model as messages."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ds4trio.api.requests import joined_text
from ds4trio.api.schemas.response_items import (
    FunctionCall,
    FunctionCallOutput,
    ItemReference,
    Message,
    Part,
    Reasoning,
)
from ds4trio.api.schemas.responses import InputTokens, ResponseCreate
from ds4trio.api.wire import convert
from ds4trio.errors import InvalidRequest

__all__ = ["Item", "as_messages", "new_id", "read_input", "references"]

Item = dict[str, Any]
"""An item as it goes over the wire, with an id. Shared between turns, never changed."""

_TEXT_PARTS = ("input_text", "output_text", "text")


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}_{uuid.uuid4().hex}"


def references(wanted: ResponseCreate | InputTokens) -> list[str]:
    """Ids of the items that the input only refers to."""
    return [
        item["id"]
        for item in (wanted.input if isinstance(wanted.input, list) else ())
        if _kind(item) == "item_reference" and isinstance(item.get("id"), str)
    ]


def read_input(
    wanted: ResponseCreate | InputTokens, known: Mapping[str, Item] | None = None
) -> tuple[Item, ...]:
    """The items of a request's input, each with an id of its own.

    Args:
        known: items that references may mean, by their ids.

    Raises:
        InvalidRequest: there is nothing, or an item that is no text or not well formed.
    """
    if wanted.input == [] and isinstance(wanted, ResponseCreate) and wanted.only_warms:
        return ()  # instructions and tools alone
    if not wanted.input:
        empty = "input must not be empty" if wanted.input == "" else "input needs an item"
        raise InvalidRequest(empty, param="input")
    if isinstance(wanted.input, str):
        return (_message(Message(role="user", content=wanted.input), "input"),)
    items: list[Item] = []
    taken: set[str] = set()
    for index, raw in enumerate(wanted.input):
        item = _read(raw, f"input[{index}]", known or {})
        if item["id"] in taken:
            item = {**item, "id": new_id(item["id"].partition("_")[0][:20])}
        taken.add(item["id"])
        items.append(item)
    return tuple(items)


def as_messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    """A conversation in the form of Chat Completions, which chat templates take.

    What the model wrote at once (reasoning, text, calls) is one message of the assistant. A call
    that a limit cut and nobody answered is left out.

    Raises:
        InvalidRequest: an output names a call that is not before it.
    """
    items = list(items)
    answered = {item["call_id"] for item in items if item["type"] == "function_call_output"}
    names: dict[str, str] = {}
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None  # what the assistant says, as long as it may go on
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            if turn is None or turn["content"] or "tool_calls" in turn:
                messages.append(turn := {"role": "assistant", "content": ""})
            thought = turn.get("reasoning_content", "") + _thought(item)
            if thought:
                turn["reasoning_content"] = thought
        elif kind == "function_call":
            names[item["call_id"]] = item["name"]
            if item.get("status") == "incomplete" and item["call_id"] not in answered:
                continue
            if turn is None:
                messages.append(turn := {"role": "assistant", "content": ""})
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            turn.setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            turn = None
            messages.append(_result(item, names))
        elif item["role"] == "assistant":
            text = _text(item["content"])
            if turn is None or turn["content"] or "tool_calls" in turn:
                messages.append(turn := {"role": "assistant", "content": text})
            else:
                turn["content"] = text
        else:
            turn = None
            role = "system" if item["role"] == "developer" else item["role"]
            messages.append({"role": role, "content": _text(item["content"])})
    return messages


def _result(item: Item, names: Mapping[str, str]) -> dict[str, Any]:
    call_id = item["call_id"]
    if call_id not in names:
        raise InvalidRequest(
            f"there is no function call {call_id[:100]!r} before its output", param="input"
        )
    output = item["output"]
    content = output if isinstance(output, str) else _text(output)
    return {"role": "tool", "tool_call_id": call_id, "name": names[call_id], "content": content}


def _text(parts: Sequence[Mapping[str, Any]]) -> str:
    return "".join(part.get("text") or part.get("refusal") or "" for part in parts)


def _thought(item: Item) -> str:
    return _text(item.get("content") or item["summary"])


# -- reading


def _kind(item: Mapping[str, Any]) -> str:
    """Its type; what has none is a message, or, with nothing but an id, a reference."""
    kind = item.get("type")
    if kind is None:
        return "item_reference" if set(item) <= {"type", "id"} and item.get("id") else "message"
    return kind if isinstance(kind, str) else ""


def _read(raw: dict[str, Any], param: str, known: Mapping[str, Item]) -> Item:
    kind = _kind(raw)
    if kind == "item_reference":
        return _referred(convert(_typed(raw, kind), ItemReference, param), param, known)
    reader = _READERS.get(kind)
    if reader is None:
        raise InvalidRequest(
            f"items of type {kind[:100]!r} are not supported by this server",
            param=f"{param}.type",
            code="unsupported_content",
        )
    item, read = reader
    return read(convert(_typed(raw, kind), item, param), param)


def _typed(raw: dict[str, Any], kind: str) -> dict[str, Any]:
    return raw if raw.get("type") == kind else {**raw, "type": kind}


def _referred(reference: ItemReference, param: str, known: Mapping[str, Item]) -> Item:
    found = known.get(reference.id)
    if found is None:
        raise InvalidRequest(
            f"there is no item {reference.id[:100]!r} here", param=f"{param}.id", code="not_found"
        )
    return found


def _message(message: Message, param: str) -> Item:
    whole = joined_text(message.content, f"{param}.content", kinds=_TEXT_PARTS)
    parts = [Part(type="text", text=whole)] if isinstance(message.content, str) else message.content
    item: Item = {"id": message.id or new_id("msg"), "type": "message", "role": message.role}
    item["status"] = message.status or "completed"
    if message.role == "assistant":
        item["content"] = [_said(part) for part in parts]
    else:
        item["content"] = _input_texts(parts)
    return item


def _said(part: Part) -> dict[str, Any]:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": part.refusal}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}


def _input_texts(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [
        {"type": "input_text", "text": part.refusal if part.type == "refusal" else part.text}
        for part in parts
    ]


def _call(call: FunctionCall, param: str) -> Item:
    return {
        "id": call.id or new_id("fc"),
        "type": "function_call",
        "call_id": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
        "status": call.status or "completed",
    }


def _output(output: FunctionCallOutput, param: str) -> Item:
    joined_text(output.output, f"{param}.output", kinds=_TEXT_PARTS)
    return {
        "id": output.id or new_id("fco"),
        "type": "function_call_output",
        "call_id": output.call_id,
        "output": output.output if isinstance(output.output, str) else _input_texts(output.output),
        "status": output.status or "completed",
    }


def _reasoning(reasoning: Reasoning, param: str) -> Item:
    if reasoning.encrypted_content and not (reasoning.content or reasoning.summary):
        raise InvalidRequest(
            "reasoning that another server has encrypted cannot be read here; leave the item out",
            param=f"{param}.encrypted_content",
            code="unsupported_content",
        )
    return {
        "id": reasoning.id or new_id("rs"),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": part.text} for part in reasoning.summary],
        "content": [
            {"type": "reasoning_text", "text": part.text} for part in reasoning.content or ()
        ],
        "encrypted_content": None,
        "status": reasoning.status or "completed",
    }


_READERS: dict[str, tuple[type, Callable[[Any, str], Item]]] = {
    "message": (Message, _message),
    "function_call": (FunctionCall, _call),
    "function_call_output": (FunctionCallOutput, _output),
    "reasoning": (Reasoning, _reasoning),
}
