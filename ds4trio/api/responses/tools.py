"""Tools, formats and reasoning: from the fields of the Responses API to what the waist takes."""

from __future__ import annotations

from typing import Any

from ds4trio.api.schemas.responses import (
    AllowedTools,
    FunctionTool,
    InputTokens,
    JsonSchemaFormat,
    NamedTool,
    PatternFormat,
    PlainFormat,
    ResponseCreate,
)
from ds4trio.api.wire import convert
from ds4trio.chat.formats import Format, JsonObject, JsonSchema, Lark, Regex
from ds4trio.chat.tool import Tool
from ds4trio.errors import InvalidRequest
from ds4trio.generate import Reasoning, Tools

__all__ = ["format_of", "reasoning_of", "tools_of"]

Wanted = ResponseCreate | InputTokens


def tools_of(wanted: Wanted) -> Tools:
    """The functions that the answer may call.

    Raises:
        InvalidRequest: a tool is none that the client runs itself, two have one name, or
            ``tool_choice`` names one that is not there.
    """
    known = [_tool(raw, f"tools[{index}]") for index, raw in enumerate(wanted.tools or ())]
    names = [tool.name for tool in known]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"two tools have the name {name!r}", param=f"tools[{index}].name")
    parallel = wanted.parallel_tool_calls is not False
    choice = wanted.tool_choice
    if choice is None:
        return Tools(known, parallel=parallel)
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise InvalidRequest(
                "tool_choice must be none, auto, required, or name a function", param="tool_choice"
            )
        if choice == "required" and not known:
            raise InvalidRequest("tool_choice is required without tools", param="tool_choice")
        return Tools(known, choice, parallel=parallel)  # type: ignore[arg-type]
    kind = choice.get("type")
    if kind == "function":
        named = convert(choice, NamedTool, "tool_choice")
        return Tools(known, "required", (_known(named, names),), parallel=parallel)
    if kind == "allowed_tools":
        some = convert(choice, AllowedTools, "tool_choice")
        allowed = tuple(dict.fromkeys(_known(tool, names) for tool in some.tools))
        return Tools(known, some.mode, allowed, parallel=parallel)
    raise InvalidRequest(
        f"tool_choice of type {str(kind)[:100]!r} is not supported by this server",
        param="tool_choice",
        code="unsupported_parameter",
    )


def format_of(wanted: Wanted) -> Format | None:
    """What the answer must look like; None leaves it free.

    Raises:
        InvalidRequest: the format is none that there is.
    """
    chosen = wanted.text.format if wanted.text is not None else None
    if chosen is None:
        return None
    at = "text.format"
    kind = chosen.get("type")
    if kind == "text":
        convert(chosen, PlainFormat, at)
        return None
    if kind == "json_object":
        convert(chosen, PlainFormat, at)
        return JsonObject()
    if kind == "json_schema":
        return JsonSchema(convert(chosen, JsonSchemaFormat, at).schema)
    if kind in ("regex", "grammar"):
        form = convert(chosen, PatternFormat, at)
        if kind == "regex" and form.pattern and form.grammar is None:
            return Regex(form.pattern)
        if kind == "grammar" and form.grammar and form.pattern is None:
            return Lark(form.grammar)
        needed = "pattern" if kind == "regex" else "grammar"
        raise InvalidRequest(f"a format of type {kind} has a {needed}, and that alone", param=at)
    raise InvalidRequest(
        f"a format of type {str(kind)[:100]!r} is not supported by this server",
        param=f"{at}.type",
        code="unsupported_parameter",
    )


def reasoning_of(wanted: Wanted) -> Reasoning:
    """How much the model may think.

    Raises:
        InvalidRequest: something is asked of it that there is not.
    """
    asked = wanted.reasoning
    if asked is None:
        return Reasoning()
    refused = {
        "summary": asked.summary not in (None, "auto"),
        "generate_summary": asked.generate_summary not in (None, "auto"),
        "context": asked.context not in (None, "auto"),
        "mode": asked.mode not in (None, "standard"),
    }
    for name, is_refused in refused.items():
        if is_refused:
            raise InvalidRequest(
                f"reasoning.{name} with this value is not supported by this server",
                param=f"reasoning.{name}",
                code="unsupported_parameter",
            )
    return Reasoning("xhigh" if asked.effort == "max" else asked.effort, asked.max_tokens)


def _tool(raw: dict[str, Any], at: str) -> Tool:
    kind = raw.get("type")
    if kind != "function":
        raise InvalidRequest(
            f"tools of type {str(kind)[:100]!r} do not run on this server; "
            "it knows functions, which their client runs",
            param=f"{at}.type",
            code="unsupported_parameter",
        )
    tool = convert(raw, FunctionTool, at)
    return Tool(tool.name, tool.description or "", tool.parameters or {}, tool.strict is True)


def _known(tool: NamedTool, names: list[str]) -> str:
    if tool.type != "function" or tool.name not in names:
        raise InvalidRequest(
            f"tool_choice names {tool.name[:100]!r}, which is none of the functions in tools",
            param="tool_choice",
        )
    return tool.name
