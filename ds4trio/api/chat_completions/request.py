"""From the body of a chat completion to what the generator asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ds4trio.api.formats import AskedFormat, asked_format
from ds4trio.api.requests import asks, joined_text, refuse_unsupported, stop_texts
from ds4trio.api.schemas.chat import ChatRequest, Message, ReasoningOptions
from ds4trio.api.schemas.tools import FunctionTool, NamedFunction, ToolChoiceObject
from ds4trio.chat.tool import Tool
from ds4trio.errors import InvalidRequest
from ds4trio.generate import GenerationRequest, Reasoning, Sampling, ToolChoice, Tools

__all__ = [
    "Prefilled",
    "continues",
    "field_names",
    "generation_request",
    "read_message",
    "read_tools",
]


def generation_request(
    wanted: ChatRequest, adapter: str, cache_salt: str, user: str
) -> GenerationRequest:
    """The request as the waist takes it.

    Raises:
        InvalidRequest: a field contradicts another, or asks for what this server does not do.
    """
    refuse_unsupported(_asks_too_much(wanted))
    if wanted.top_logprobs is not None and not wanted.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    _, form = asked_format(wanted)
    return GenerationRequest(
        messages=[read_message(message, index) for index, message in enumerate(wanted.messages)],
        sampling=Sampling.of(wanted),
        tools=_tools(wanted),
        format=form,
        reasoning=_reasoning(wanted),
        template_switches=wanted.chat_template_kwargs or {},
        continues=continues(wanted),
        max_tokens=wanted.max_completion_tokens or wanted.max_tokens,
        stop=stop_texts(wanted.stop),
        ignore_eos=bool(wanted.ignore_eos),
        progress=bool(wanted.return_progress and wanted.stream),
        cache_salt=cache_salt,
        user=user,
        adapter=adapter,
    )


def field_names(wanted: ChatRequest) -> dict[str, str]:
    """What the client calls the fields that the waist may complain about."""
    asked: AskedFormat = asked_format(wanted)
    return {
        "format": asked[0],
        "reasoning": "reasoning" if wanted.reasoning is not None else "reasoning_effort",
        "continues": "continue_final_message",
        "template_switches": "chat_template_kwargs",
    }


def _asks_too_much(wanted: ChatRequest) -> dict[str, bool]:
    return {
        "functions": asks(wanted.functions),
        "function_call": asks(wanted.function_call),
        "modalities": wanted.modalities not in (None, ["text"]),
        "audio": asks(wanted.audio),
        "prediction": asks(wanted.prediction),
        "moderation": asks(wanted.moderation),
        "verbosity": wanted.verbosity not in (None, "medium"),
        "web_search_options": asks(wanted.web_search_options),
    }


# -- messages


def read_message(message: Message, index: int) -> dict[str, Any]:
    """A message as the chat template takes it.

    Args:
        index: its place, for the names of fields at fault.

    Raises:
        InvalidRequest: it has parts that are no text, or lacks what its role needs.
    """
    param = f"messages[{index}]"
    refuse_unsupported(
        {
            f"{param}.audio": asks(message.audio),
            f"{param}.function_call": asks(message.function_call),
        }
    )
    content = message.content
    if content is None and message.role != "assistant":
        raise InvalidRequest(
            f"a message of the {message.role} needs content", param=f"{param}.content"
        )
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequest("only the assistant calls tools", param=f"{param}.tool_calls")
    rendered: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": joined_text(content or message.refusal or "", f"{param}.content"),
    }
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            rendered[name] = value
    if message.tool_calls:
        rendered["tool_calls"] = [
            {
                **({} if call.id is None else {"id": call.id}),
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls
        ]
        if not rendered["content"]:
            del rendered["content"]  # which templates write in ways of their own
    return rendered


class Prefilled(Protocol):
    """A request that may end with the beginning of the answer."""

    @property
    def messages(self) -> Sequence[Message] | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...


def continues(wanted: Prefilled) -> bool:
    """Whether the answer goes on with the last message.

    Raises:
        InvalidRequest: the fields contradict each other, or that message cannot be continued.
    """
    if not wanted.continue_final_message:
        if wanted.add_generation_prompt is False:
            raise InvalidRequest(
                "add_generation_prompt: false needs continue_final_message: true; "
                "a prompt that ends otherwise is for /v1/completions",
                param="add_generation_prompt",
            )
        return False
    if wanted.add_generation_prompt:
        raise InvalidRequest(
            "an answer goes on with the final message or begins a new one, not both",
            param="add_generation_prompt",
        )
    last = wanted.messages[-1] if wanted.messages else None
    if last is None or last.role != "assistant" or last.tool_calls:
        raise InvalidRequest(
            "the final message must be the assistant's, and text, to be continued",
            param="continue_final_message",
        )
    return True


# -- tools


def _tools(wanted: ChatRequest) -> Tools:
    known = read_tools(wanted.tools)
    names = {tool.name for tool in known}
    choice, allowed = _tool_choice(wanted.tool_choice)
    if choice == "required" or allowed is not None:
        if not known:
            raise InvalidRequest("tool_choice needs tools", param="tool_choice")
        for name in allowed or ():
            if name not in names:
                raise InvalidRequest(
                    f"tool_choice names {name[:100]!r}, which is none of the tools",
                    param="tool_choice",
                )
    return Tools(known, choice, allowed, parallel=wanted.parallel_tool_calls is not False)


def read_tools(tools: Sequence[FunctionTool] | None) -> list[Tool]:
    """The functions that a request describes.

    Raises:
        InvalidRequest: one is none, or two have the same name.
    """
    known = [_tool(tool, index) for index, tool in enumerate(tools or ())]
    if len({tool.name for tool in known}) != len(known):
        raise InvalidRequest("two tools have the same name", param="tools")
    return known


def _tool(tool: FunctionTool, index: int) -> Tool:
    param = f"tools[{index}]"
    if tool.type != "function":
        raise InvalidRequest(
            f"tools of type {tool.type[:100]!r} are not supported by this server",
            param=f"{param}.type",
            code="unsupported_parameter",
        )
    if tool.function is None or asks(tool.custom):
        raise InvalidRequest("a tool of type function has a function", param=f"{param}.function")
    function = tool.function
    return Tool(
        function.name,
        function.description or "",
        function.parameters or {},
        strict=bool(function.strict),
    )


def _tool_choice(
    wanted: str | ToolChoiceObject | None,
) -> tuple[ToolChoice, tuple[str, ...] | None]:
    """The choice, and the names of the tools that it leaves; None for all."""
    match wanted:
        case None | "auto":
            return "auto", None
        case "none":
            return "none", None
        case "required":
            return "required", None
        case ToolChoiceObject(type="function"):
            return "required", _names([wanted.function])
        case ToolChoiceObject(type="allowed_tools") if wanted.allowed_tools is not None:
            allowed = wanted.allowed_tools
            if any(tool.type != "function" for tool in allowed.tools):
                raise InvalidRequest("only functions can be allowed", param="tool_choice")
            names = _names([tool.function for tool in allowed.tools])
            match allowed.mode:
                case "auto" | "required" as mode:
                    return mode, names
    raise InvalidRequest(
        "tool_choice is none, auto, required, or an object of type function or allowed_tools",
        param="tool_choice",
    )


def _names(functions: Sequence[NamedFunction | None]) -> tuple[str, ...]:
    names = [function.name for function in functions if function is not None]
    if len(names) != len(functions):
        raise InvalidRequest("tool_choice names no function", param="tool_choice")
    return tuple(dict.fromkeys(names))


# -- reasoning


def _reasoning(wanted: ChatRequest) -> Reasoning:
    options = wanted.reasoning or ReasoningOptions()
    if None not in (options.effort, wanted.reasoning_effort):
        raise InvalidRequest(
            "reasoning_effort and reasoning.effort say the same thing; send one of them",
            param="reasoning_effort",
        )
    effort = wanted.reasoning_effort or options.effort
    return Reasoning("xhigh" if effort == "max" else effort, options.max_tokens)
