"""What goes into the waist: a request of any door, its wire format left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ds4trio.chat.formats import Format
from ds4trio.chat.tool import Tool
from ds4trio.sampling import Sampling

__all__ = ["GenerationRequest", "Reasoning", "ToolChoice", "Tools"]

ToolChoice = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions that a model may call.

    Attributes:
        known: what the prompt tells of.
        choice: ``none`` calls nothing, ``auto`` leaves it to the model, ``required`` makes the
            answer a call.
        allowed: names of those that may be called; None for all. A client that names one function
            allows only that one, and requires it.
        parallel: one answer may call several times.
    """

    known: Sequence[Tool] = ()
    choice: ToolChoice = "auto"
    allowed: tuple[str, ...] | None = None
    parallel: bool = True

    @property
    def callable(self) -> list[Tool]:
        """Those that this answer may call."""
        if self.choice == "none":
            return []
        return [tool for tool in self.known if self.allowed is None or tool.name in self.allowed]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How much a model may think before it answers.

    Attributes:
        effort: ``none``, ``minimal``, ``low``, ``medium``, ``high``, ``xhigh``, or None for the
            model's own.
        tokens: most tokens of it; then it is ended. None for no limit of its own.
    """

    effort: str | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What every door asks for.

    Attributes:
        messages: the conversation, each with ``role`` and ``content`` (a text or parts), in the
            form of Chat Completions: ``tool_calls``, ``tool_call_id``, ``reasoning_content``.
        prompt: in place of messages: a text as it is, or token ids; the model goes on with it, and
            nothing of what it writes is taken for reasoning or a tool call.
        tools: the functions that it may call.
        format: what the answer must look like; None leaves it free.
        reasoning: how much it may think.
        template_switches: names for the chat template that the client chose.
        continues: the last message is the assistant's, and the answer goes on with its text.
        max_tokens: most tokens of the answer, or None for the server's default.
        stop: texts that end the answer; they are not part of it.
        ignore_eos: the model's end tokens do not end the answer.
        progress: yield ``PrefillProgress`` while the prompt is evaluated.
        prompt_logprobs: yield ``PromptLogprobs``, with this many of the likeliest tokens at each
            place; None for none.
        cache_salt: cached beginnings are shared only between requests of the same salt, so that
            how fast an answer comes tells nobody what others have asked.
        user: who asks; users are served in turn.
        adapter: the name of the one to answer with; empty for the model alone.
    """

    messages: Sequence[Mapping[str, Any]] = ()
    prompt: str | Sequence[int] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    tools: Tools = field(default_factory=Tools)
    format: Format | None = None
    reasoning: Reasoning = field(default_factory=Reasoning)
    template_switches: Mapping[str, Any] = field(default_factory=dict)
    continues: bool = False
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    progress: bool = False
    prompt_logprobs: int | None = None
    cache_salt: str = ""
    user: str = ""
    adapter: str = ""
