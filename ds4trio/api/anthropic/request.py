"""From a request of Anthropic's Messages to what the generator asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ds4trio.api.requests import asks, refuse_unsupported
from ds4trio.api.schemas.messages import (
    AnyChoice,
    AutoChoice,
    Block,
    CountTokensRequest,
    CustomTool,
    InputMessage,
    MessageRequest,
    NoChoice,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ThinkingDisabled,
    ThinkingEnabled,
    ToolNamed,
    ToolResultBlock,
    ToolUseBlock,
)
from ds4trio.api.wire import encode
from ds4trio.chat.formats import JsonSchema
from ds4trio.chat.tool import Tool
from ds4trio.errors import InvalidRequest, ThreadsUnsupported
from ds4trio.generate import GenerationRequest, Reasoning, Sampling, Tools

__all__ = ["PARAMS", "generation_request", "prompt_request"]

PARAMS: dict[str | None, str] = {
    "stop": "stop_sequences",
    "format": "output_config.format",
    "reasoning": "thinking",
    "continues": "messages",
}
"""What this API calls the fields that the generator complains about."""

BETWEEN = "\n\n"
"""Between the texts of neighbours with the same role, which are one turn in Anthropic's API."""


def generation_request(
    wanted: MessageRequest, adapter: str, cache_salt: str, user: str
) -> GenerationRequest:
    """The request for an answer.

    Raises:
        InvalidRequest: a field asks for what this server does not do.
    """
    refuse_unsupported(
        {
            "container": asks(wanted.container),
            "fallbacks": asks(wanted.fallbacks),
            "fallback_credit_token": asks(wanted.fallback_credit_token),
        }
    )
    if asks(wanted.thread):
        raise ThreadsUnsupported(
            "this server holds no threads; send the whole conversation", param="thread"
        )
    return dataclasses.replace(
        prompt_request(wanted),
        sampling=Sampling.of(wanted),
        max_tokens=max(wanted.max_tokens, 1),
        stop=tuple(wanted.stop_sequences or ()),
        cache_salt=cache_salt,
        user=user,
        adapter=adapter,
    )


def prompt_request(wanted: CountTokensRequest) -> GenerationRequest:
    """The part of a request that makes its prompt.

    Raises:
        InvalidRequest: a field asks for what this server does not do, or for what cannot be.
    """
    refuse_unsupported(
        {"compaction": asks(wanted.compaction), "mcp_servers": asks(wanted.mcp_servers)}
    )
    conversation = _Conversation()
    if wanted.system:
        conversation.add({"role": "system", "content": _text(wanted.system, "system")})
    for index, message in enumerate(wanted.messages):
        _add(conversation, message, f"messages[{index}]")
    messages = conversation.messages()
    continues = _continues(messages)
    return GenerationRequest(
        messages=messages,
        tools=_tools(wanted),
        format=_format(wanted),
        reasoning=_reasoning(wanted),
        continues=continues,
    )


class _Conversation:
    """Messages as chat templates take them; neighbours with the same role become one."""

    def __init__(self) -> None:
        self._groups: list[list[dict[str, Any]]] = []

    def add(self, message: dict[str, Any]) -> None:
        last = self._groups[-1][-1] if self._groups else {}
        if message["role"] == "tool" or message["role"] != last.get("role"):
            self._groups.append([message])
        else:
            self._groups[-1].append(message)

    def messages(self) -> list[dict[str, Any]]:
        # Thousands of neighbours are joined at once: one by one would take the square of it.
        return [_merged(group) for group in self._groups]


def _merged(neighbours: list[dict[str, Any]]) -> dict[str, Any]:
    """Messages of one role as one."""
    merged = dict(neighbours[0])
    for field in ("content", "reasoning_content"):
        texts = [one[field] for one in neighbours if one.get(field)]
        if texts:
            merged[field] = BETWEEN.join(texts)
    if calls := [call for one in neighbours for call in one.get("tool_calls", ())]:
        merged["tool_calls"] = calls
    return merged


def _continues(messages: list[dict[str, Any]]) -> bool:
    """Whether the answer goes on with the text of the last message, which is then there.

    Raises:
        InvalidRequest: the last message calls tools, or there is none.
    """
    last = messages[-1]
    if last["role"] != "assistant":
        return False
    if "tool_calls" in last:
        raise InvalidRequest(
            "each tool_use needs a tool_result in the message after it", param="messages"
        )
    if not last["content"] and "reasoning_content" not in last:
        messages.pop()  # nothing to go on with
        if not messages:
            raise InvalidRequest("there is nothing to answer", param="messages")
        return False
    return True


def _add(conversation: _Conversation, message: InputMessage, param: str) -> None:
    content, at = message.content, f"{param}.content"
    if isinstance(content, str):
        conversation.add({"role": message.role, "content": content})
    elif message.role == "assistant":
        conversation.add(_assistant(content, at))
    elif message.role == "system":
        conversation.add({"role": "system", "content": _text(content, at)})
    else:
        _add_user(conversation, content, at)


def _add_user(conversation: _Conversation, blocks: Sequence[Block], param: str) -> None:
    """A user's texts and the results of tools, in the order in which they stand."""
    texts: list[str] = []

    def flush() -> None:
        if texts:
            conversation.add({"role": "user", "content": "".join(texts)})
            texts.clear()

    for index, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            flush()
            conversation.add(_result(block, f"{param}[{index}].content"))
        else:
            texts.append(_text([block], param, index))
    if not blocks:
        texts.append("")
    flush()


def _assistant(blocks: Sequence[Block], param: str) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        match block:
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case RedactedThinkingBlock():
                pass  # it says nothing to anyone but Anthropic's servers
            case ToolUseBlock():
                calls.append(_call(block))
            case _:
                texts.append(_text([block], param, index))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": encode(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}


def _result(block: ToolResultBlock, param: str) -> dict[str, Any]:
    text = _text(block.content or "", param)
    if block.is_error:
        text = f"Error: {text}" if text else "Error"  # templates have no other way to say so
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}


def _text(content: str | Sequence[Block], param: str, first: int = 0) -> str:
    """Content as one text; blocks are joined without anything between them.

    Args:
        first: where the first block stands, for errors.
    """
    if isinstance(content, str):
        return content
    for index, block in enumerate(content, first):
        if not isinstance(block, TextBlock):
            kind = block.__struct_config__.tag
            raise InvalidRequest(
                f"{param}[{index}]: a block of type {kind!r} is not supported here: "
                "this model reads text",
                param=f"{param}[{index}]",
                code="unsupported_content",
            )
    return "".join(block.text for block in content if isinstance(block, TextBlock))


def _tools(wanted: CountTokensRequest) -> Tools:
    known = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(wanted.tools or ())]
    names = {tool.name for tool in known}
    if len(names) < len(known):
        raise InvalidRequest("tools: each needs a name of its own", param="tools")
    choice = wanted.tool_choice
    if isinstance(choice, AnyChoice | ToolNamed) and not known:
        raise InvalidRequest("tool_choice asks for a call, and there are no tools", param="tools")
    match choice:
        case None:
            return Tools(known)
        case NoChoice():
            return Tools(known, "none")
        case AutoChoice():
            return Tools(known, "auto", parallel=not choice.disable_parallel_tool_use)
        case AnyChoice():
            return Tools(known, "required", parallel=not choice.disable_parallel_tool_use)
        case ToolNamed():
            if choice.name not in names:
                raise InvalidRequest(
                    f"tool_choice: there is no tool {choice.name[:100]!r}", param="tool_choice.name"
                )
            parallel = not choice.disable_parallel_tool_use
            return Tools(known, "required", (choice.name,), parallel)


def _tool(tool: CustomTool, param: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise InvalidRequest(
            f"{param}: tools of type {tool.type[:100]!r} are Anthropic's own; "
            "here a tool has a name, a description and an input_schema",
            param=f"{param}.type",
            code="unsupported_parameter",
        )
    if tool.input_schema is None:
        raise InvalidRequest(
            f"{param}.input_schema is missing",
            param=f"{param}.input_schema",
            code="missing_parameter",
        )
    callers = tool.allowed_callers
    refuse_unsupported({f"{param}.allowed_callers": callers not in (None, [], ["direct"])})
    return Tool(tool.name, tool.description or "", tool.input_schema, bool(tool.strict))


def _format(wanted: CountTokensRequest) -> JsonSchema | None:
    asked = wanted.output_config and wanted.output_config.format
    if asked and wanted.output_format:
        raise InvalidRequest(
            "output_format is the older name of output_config.format; send one of them",
            param="output_format",
        )
    chosen = asked or wanted.output_format
    return JsonSchema(chosen.schema) if chosen else None


def _reasoning(wanted: CountTokensRequest) -> Reasoning:
    effort: str | None = wanted.output_config.effort if wanted.output_config else None
    if effort == "max":
        effort = "xhigh"
    match wanted.thinking:
        case ThinkingDisabled():
            return Reasoning("none")
        case ThinkingEnabled(budget_tokens=budget):
            return Reasoning(effort, budget)
        case _:
            return Reasoning(effort)
