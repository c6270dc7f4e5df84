"""Grammars for answers that must be calls, may only be right ones, or have a format.

Rules are in llguidance's form of Lark (https://github.com/guidance-ai/llguidance, docs/syntax.md).
What they refer to as ``@name`` is a format of its own, so that nothing here depends on how formats
become grammars. Control tokens are ``<[id]>``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ds4trio.chat.dialects.signs import Signs
from ds4trio.chat.dialects.styles import Style
from ds4trio.chat.dialects.tags import ReasoningTags
from ds4trio.chat.formats import Format, JsonSchema
from ds4trio.chat.tool import Tool

__all__ = ["Rules", "ToolsLike", "Writer"]

Rules = tuple[str, dict[str, Format]]

MOST_CALLS = 16
"""In one answer that must be calls: a small model would go on for ever."""

TEXT = r"/(?s:.*)/"
UNLIKE_CALL = r"/[\s\x1c-\x1f]*([^\s\x1c-\x1f{](?s:.*))?/"
"""Text that does not begin with a brace; what is white space to Python is it here."""
PYTHON_TAG = "<|python_tag|>"
HARMONY_ANALYSIS = "<|channel|>analysis<|message|>"
HARMONY_FINAL = "<|channel|>final<|message|>"
HARMONY_NEXT = "<|end|><|start|>assistant"


class ToolsLike(Protocol):
    """``ds4trio.request.Tools``."""

    @property
    def choice(self) -> str: ...
    @property
    def parallel(self) -> bool: ...
    @property
    def callable(self) -> list[Tool]: ...


@dataclass(frozen=True, slots=True)
class _Form:
    """How calls are made to look; ``NAME`` stands for the function's.

    Attributes:
        opener: the marker that comes first.
        begin, end: around all calls, behind the opener.
        before, after: around the arguments of each.
        between: two calls.
    """

    opener: str
    before: str
    after: str
    between: str
    begin: str = ""
    end: str = ""


def _as_json(opener: str, close: str = "") -> _Form:
    return _Form(opener, '{"name": "NAME", "arguments": ', "}", ", ", "[", f"]{close}")


AS_HERMES = _Form(
    "<tool_call>",
    '\n{"name": "NAME", "arguments": ',
    "}\n</tool_call>",
    "\n<tool_call>",
)
FORMS = {
    "DeepSeek": _Form(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        "\n",
        end="<｜tool▁calls▁end｜>",
    ),
    "Kimi": _Form(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "",
        end="<|tool_calls_section_end|>",
    ),
    "Mistral": _as_json("[TOOL_CALLS]"),
    "Granite, Phi": _as_json("<|tool_call|>"),
    "Apriel": _as_json("<tool_calls>", "</tool_calls>"),
    "Llama 3": _Form("", '{"name": "NAME", "parameters": ', "}", "; "),
}
AS_MISTRAL = _Form("[TOOL_CALLS]", "NAME[ARGS]", "", "[TOOL_CALLS]")
AS_HARMONY = _Form(
    "",
    " to=functions.NAME<|channel|>commentary json<|message|>",
    "",
    "<|call|><|start|>assistant",
)


class Writer:
    """Writes the rules of one model.

    Args:
        style: in which it is made to call. Where that has no JSON for all arguments, it calls as
            Hermes does, which its parser reads too.
        tags: that it thinks between.
    """

    def __init__(
        self, signs: Signs, style: Style, tags: ReasoningTags | None, *, is_harmony: bool
    ) -> None:
        self._signs = signs
        self._tags = tags
        self._harmony = is_harmony
        self._bare = style.bare and not is_harmony
        self._form = FORMS.get(style.name, AS_HERMES)
        if is_harmony:
            self._form = AS_HARMONY
        elif style.name == "Mistral" and "[ARGS]" in signs.control:
            self._form = AS_MISTRAL
        # What may be JSON or a call must be told apart by its beginning.
        self._marked = self._form
        if style.name == "Llama 3" and not is_harmony:
            has_tag = PYTHON_TAG in signs.control
            self._marked = replace(self._form, opener=PYTHON_TAG) if has_tag else AS_HERMES

    @property
    def openers(self) -> set[str]:
        """The markers that may begin calls where there are rules."""
        return {self._form.opener, self._marked.opener}

    def rules(
        self, tools: ToolsLike, answer: Format | None, prompt_tail: str, *, thinks: bool
    ) -> Rules | None:
        """See ``Dialect.grammar_rules``."""
        callable_tools = tools.callable
        required = bool(callable_tools) and tools.choice == "required"
        strict = any(tool.strict for tool in callable_tools)
        single = bool(callable_tools) and not tools.parallel
        if not (required or strict or single or answer is not None):
            return None
        formats: dict[str, Format] = {}
        lines: list[str] = []
        form = self._form if required or answer is None else self._marked
        if callable_tools:
            lines += self._calls(form, callable_tools, formats, every=required, many=tools.parallel)
        speaks = f"{self._literal(HARMONY_FINAL)} " if self._harmony else ""
        in_final = self._harmony and prompt_tail.endswith(HARMONY_FINAL)
        if in_final:
            speaks = ""
        if required:
            body = f"{self._literal(form.opener)} calls"
        elif answer is not None:
            formats["answer"] = answer
            body = f"{speaks}@answer"
            if callable_tools and not in_final:
                body += f" | {self._literal(form.opener)} calls"
        elif in_final:
            return None
        else:
            body, more = self._free(speaks, many=tools.parallel)
            lines += more
        if in_final:
            start = [f"start: {body}"]
        elif self._harmony:
            start = self._after_analysis(body, thinks=thinks)
        else:
            start = self._after_thought(body, prompt_tail, thinks=thinks)
        return "\n".join([*start, *lines, f"TEXT: {TEXT}", ""]), formats

    def _after_analysis(self, body: str, *, thinks: bool) -> list[str]:
        thought = f"TEXT {self._literal(HARMONY_NEXT)}"
        if not thinks:
            thought = f"({self._literal(HARMONY_ANALYSIS)} {thought})?"
        return [f"start: {thought} ({body})"]

    def _after_thought(self, body: str, prompt_tail: str, *, thinks: bool) -> list[str]:
        tags = self._tags
        if tags is None or (prompt_tail.rstrip().endswith(tags.closes) and not thinks):
            return [f"start: {body}"]
        thought = "thought /[ \\t\\r\\n]{0,4}/"
        if not thinks:
            thought = f"({self._literal(tags.opens)} {thought})?"
        return [f"start: {thought} ({body})", self._up_to("thought", "TEXT", tags.closes)]

    def _calls(
        self,
        form: _Form,
        tools: Sequence[Tool],
        formats: dict[str, Format],
        *,
        every: bool,
        many: bool,
    ) -> list[str]:
        """The rule ``calls``, which is what comes behind the opener."""
        lines = []
        for number, tool in enumerate(tools):
            name = f"arguments_{number}"
            schema = _schema(tool) if every or tool.strict else {"type": "object"}
            formats[name] = JsonSchema(schema)
            before = form.before.replace("NAME", tool.name)
            lines.append(
                f"call_{number}: {self._literal(before)} @{name} {self._literal(form.after)}"
            )
        more = f"({self._literal(form.between)} call){{0,{MOST_CALLS - 1}}}" if many else ""
        calls = f"{self._literal(form.begin)} call {more} {self._literal(form.end)}"
        one_of = " | ".join(f"call_{number}" for number in range(len(tools)))
        return [f"calls: {calls}", f"call: {one_of}", *lines]

    def _free(self, speaks: str, *, many: bool) -> tuple[str, list[str]]:
        """Text, in which a call is a right one; the last thing if there may be no more of them."""
        opener = self._form.opener
        if self._harmony:
            return f"{speaks}TEXT | calls", []
        unlike = [f"UNLIKE_CALL: {UNLIKE_CALL}"]
        if not opener:
            return "UNLIKE_CALL | calls", unlike
        spoken = [self._up_to("spoken", "TEXT", opener)]
        if not self._bare:
            return ("(spoken calls)* TEXT", spoken) if many else ("spoken calls | TEXT", spoken)
        # The parser takes a brace at the beginning for a call, so there is none.
        begun = [*unlike, self._up_to("begun", "UNLIKE_CALL", opener)]
        if many:
            return "UNLIKE_CALL | begun calls (spoken calls)* TEXT", [*begun, *spoken]
        return "UNLIKE_CALL | begun calls", begun

    def _up_to(self, name: str, text: str, marker: str) -> str:
        """A rule for a text and the marker behind it."""
        if self._signs.spell(marker) == marker:
            return f"{name}[lazy]: {text} {self._literal(marker)}"
        return f"{name}: {text} {self._literal(marker)}"

    def _literal(self, text: str) -> str:
        """A text with control tokens in it."""
        parts = self._signs.parts(self._signs.spell(text))
        return " ".join(
            f"<[{index}]>" if index is not None else json.dumps(part, ensure_ascii=False)
            for part, index in parts
        )


def _schema(tool: Tool) -> dict[str, object]:
    """Arguments are an object, whatever the schema forgets to say; without one there are none."""
    return {"type": "object", **(tool.parameters or {"properties": {}})}
