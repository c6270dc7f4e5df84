"""How the served model writes what is no plain answer: tool calls and reasoning.

A model's ways are found out once, from its chat template and its control tokens. A wrong guess
costs little: what is not recognised is text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ds4trio.chat.dialects import call_ids, harmony, prompts
from ds4trio.chat.dialects.harmony import HarmonyParser
from ds4trio.chat.dialects.rules import Rules, Writer
from ds4trio.chat.dialects.signs import Signs
from ds4trio.chat.dialects.stream import StreamParser
from ds4trio.chat.dialects.styles import HERMES, PHI, style_of
from ds4trio.chat.dialects.switches import switches
from ds4trio.chat.dialects.tags import TAGS, tags_of
from ds4trio.chat.formats import Format
from ds4trio.chat.output import OutputParser
from ds4trio.chat.template import ChatTemplate, template_words
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.chat.tool import Tool
from ds4trio.errors import InvalidRequest

__all__ = ["Dialect", "Rules", "ToolsLike"]

WORD = "zqprobezq"
PROBE = Tool(WORD, WORD, {"type": "object", "properties": {"place": {"type": "string"}}})
QUESTION: dict[str, Any] = {"role": "user", "content": "probe"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "tool_calls": [
        {
            "id": "probe1234",
            "type": "function",
            "function": {"name": WORD, "arguments": {"place": "zqplacezq"}},
        }
    ],
}
RESULT: dict[str, Any] = {
    "role": "tool",
    "name": WORD,
    "tool_call_id": "probe1234",
    "content": "zqresultzq",
}
LONG_ID = "call_0123456789"


class ToolsLike(Protocol):
    """``ds4trio.request.Tools``."""

    @property
    def choice(self) -> str: ...
    @property
    def parallel(self) -> bool: ...
    @property
    def callable(self) -> list[Tool]: ...


class Dialect:
    """The ways of one model.

    Args:
        source: of its chat template; None if it has none.
        tokenizer: the model's.
        template: the template, compiled; by default it is made of the source.

    Attributes:
        reasons: it may think before it answers.
        reasoning_begin: what begins reasoning; empty if it has no such thing.
        reasoning_end: what ends reasoning, as a template would write it (control tokens in it are
            meant); empty if it has no such thing.
        tools_variable: the name by which its template takes tools.
        style: in which it calls, for people.

    Raises:
        ModelUnavailable: the template is not valid.
    """

    def __init__(
        self,
        source: str | None,
        tokenizer: Tokenizer,
        *,
        template: ChatTemplate | None = None,
    ) -> None:
        self._names, self._texts = template_words(source or "")
        written = "\n".join(self._texts)
        vocabulary = [
            tags.closes
            for tags in TAGS
            if tokenizer.token_id(tags.opens) is not None
            and tokenizer.token_id(tags.closes) is not None
        ]
        tags = tags_of(written) or tags_of("\n".join(vocabulary))
        self._harmony = {"<|channel|>", "<|message|>"} <= set(tokenizer.control_tokens)
        self._tags = None if self._harmony else tags
        native = style_of(written)
        phi = tokenizer.token_id(PHI.sign) is not None
        self._name_calls: call_ids.Namer | None = None
        self._probe(
            template or ChatTemplate(source, control_tokens=tokenizer.control_tokens), phi=phi
        )
        own = replace(HERMES, bare=True)
        if self._tools_beside:
            own = PHI
        elif native is not None and self.tools_variable is not None:
            own = native
        if own.name == "Kimi":
            self._name_calls = call_ids.numbered
        self._styles = [own]
        openers = {marker for marker, _ in own.openers}
        for style in (native, HERMES):
            if style is not None and not openers & {marker for marker, _ in style.openers}:
                self._styles.append(style)
                openers |= {marker for marker, _ in style.openers}
        self.style = "Harmony" if self._harmony else own.name
        markers = [*harmony.MARKERS] if self._harmony else []
        for style in self._styles:
            markers += style.markers
        if self._tags is not None:
            markers += [self._tags.opens, self._tags.closes, *self._tags.answer]
        self._signs = Signs(tokenizer, markers)
        self.reasons = self._harmony or self._tags is not None
        self.reasoning_begin, self.reasoning_end = "", ""
        if self._harmony:
            self.reasoning_begin = "<|channel|>analysis<|message|>"
            self.reasoning_end = "<|end|><|start|>assistant<|channel|>final<|message|>"
        elif self._tags is not None:
            self.reasoning_begin = f"{self._tags.opens}\n"
            self.reasoning_end = f"\n{self._tags.closes}\n\n"
        self._writer = Writer(self._signs, own, self._tags, is_harmony=self._harmony)
        # Where a grammar watches over calls, nothing else is one.
        self._watched = [style.only(self._writer.openers) for style in self._styles]

    def template_tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
        """Tools in the form that templates take; None if this one does not, or there are none."""
        if self.tools_variable is None or not tools:
            return None
        return [tool.as_message() for tool in tools]

    def messages(
        self, messages: Sequence[Mapping[str, Any]], tools: ToolsLike
    ) -> list[dict[str, Any]]:
        """The messages for the template: what it cannot write is written as text in them, and
        calls have identifiers that it takes."""
        result = [dict(message) for message in messages]
        if not self._writes_calls:
            result = [prompts.calls_as_text(message) for message in result]
        elif self._name_calls is not None:
            result = call_ids.renamed(result, self._name_calls)
        if not self._writes_results:
            result = prompts.results_as_text(result)
        if tools.callable and self._tools_beside:
            result = prompts.with_tools_beside(result, tools.callable)
        elif tools.callable and self.tools_variable is None:
            instructions = prompts.described(
                tools.callable, required=tools.choice == "required", parallel=tools.parallel
            )
            result = prompts.with_instructions(result, instructions, system=self._takes_system)
        return result

    def switches(self, effort: str | None) -> dict[str, Any]:
        """What an effort of reasoning means for the template: names for it, with values."""
        return switches(effort, self._names, self._texts)

    def parser(self, prompt_tail: str, *, tools: Sequence[Tool] = ()) -> OutputParser:
        """A parser of one answer.

        Args:
            prompt_tail: the end of the rendered prompt, which may have begun the reasoning.
            tools: those that this answer may call.
        """
        known = {tool.name: tool for tool in tools}
        if self._harmony:
            return HarmonyParser(self._signs, known, prompt_tail)
        tags = self._tags.spelled(self._signs.spell) if self._tags else None
        tail = prompt_tail.rstrip()
        return StreamParser(
            self._signs,
            tags,
            self._watched if any(tool.strict for tool in tools) else self._styles,
            known,
            thinks=self.thinks_from(prompt_tail),
            trimmed=self._tags is not None and tail.endswith(self._tags.closes),
        )

    def thinks_from(self, prompt_tail: str) -> bool:
        """Whether the prompt has begun the reasoning."""
        if self._harmony:
            return prompt_tail.endswith("<|channel|>analysis<|message|>")
        return self._tags is not None and prompt_tail.rstrip().endswith(self._tags.opens)

    def ended_thinking(self, prompt_tail: str) -> bool:
        """Whether the prompt says that nothing is to be thought."""
        tail = prompt_tail.rstrip()
        return self._tags is not None and tail.endswith(self._tags.closes)

    def grammar_rules(
        self, tools: ToolsLike, format: Format | None = None, prompt_tail: str = ""
    ) -> Rules | None:
        """What an answer must be: reasoning where the model has it, then calls or a format.

        Returns:
            Rules that begin with ``start``, in llguidance's form of Lark, and the formats that they
            refer to as ``@name``. None where the answer is free.
        """
        return self._writer.rules(tools, format, prompt_tail, thinks=self.thinks_from(prompt_tail))

    def _probe(self, template: ChatTemplate, *, phi: bool) -> None:
        """Find out what the template writes."""

        def writes(word: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> bool:
            try:
                segments = template.render(messages, **variables)
            except InvalidRequest:
                return False
            return word in "".join(segment.text for segment in segments)

        tools = [PROBE.as_message()]
        system = {"role": "system", "content": "zqsystemzq"}
        self._takes_system = writes("zqsystemzq", [system, QUESTION])
        self.tools_variable: str | None = None
        for name in ("tools", "xml_tools"):
            if name in self._names and any(
                writes(WORD, messages, **{name: tools})
                for messages in ([QUESTION], [system, QUESTION])
            ):
                self.tools_variable = name
                break
        offered = {self.tools_variable: tools} if self.tools_variable else {}
        # Phi-4-mini's takes them with the system message.
        beside = prompts.with_tools_beside([system, QUESTION], [PROBE])
        self._tools_beside = phi and not offered and writes(WORD, beside)
        called = [QUESTION, CALL]
        answered = [*called, RESULT]
        written = next((m for m in (answered, called) if writes("zqplacezq", m, **offered)), None)
        self._writes_calls = written is not None
        if written is not None:
            long = call_ids.renamed(written, lambda *_: LONG_ID)
            if not writes("zqplacezq", long, **offered):
                self._name_calls = call_ids.nine_characters
        # A template that writes any role knows nothing of results yet.
        knows = self._writes_calls or self.tools_variable is not None
        self._writes_results = knows and writes("zqresultzq", answered, **offered)
