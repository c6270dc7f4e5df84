"""From what a request says to the token ids of its prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

import trio

from ds4trio.chat.dialect import Dialect
from ds4trio.chat.template import ChatTemplate, Segment, encode_prompt
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.errors import ContextLengthExceeded, InvalidRequest, TokenOutOfVocabulary
from ds4trio.request import GenerationRequest

__all__ = ["LONG_TEXT", "Piece", "PromptWriter", "Written"]

LONG_TEXT = 16_000
"""Characters beyond which a prompt is tokenised in a worker thread (about 10 ms of work)."""

PER_MESSAGE = 100
"""Characters that writing a message costs besides its content."""

BREAK = "\N{OBJECT REPLACEMENT CHARACTER}zqbreakzq"
"""Marks where a message that is to be continued breaks off; no message has it in it by chance."""

TAIL = 200
"""Characters from the end of a prompt that tell how the answer begins."""


_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Piece:
    """A token and what it stands for: control tokens by name, whose bytes are their name's."""

    id: int
    text: str
    bytes: bytes


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt.

    Attributes:
        tokens: its ids, at least one.
        tail: the end of its text; empty where it was given as ids.
        thinks: it has begun the reasoning.
    """

    tokens: list[int]
    tail: str
    thinks: bool = False


class PromptWriter:
    """Renders and tokenises; what takes long does not hold the event loop.

    Args:
        bos_token, add_bos: the model's BOS token, and whether a prompt must begin with it.
        vocab_size: ids are below it.
        room: positions that prompt and answer can have together.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        dialect: Dialect,
        *,
        bos_token: str | None,
        add_bos: bool,
        vocab_size: int,
        room: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._dialect = dialect
        self._bos_token = bos_token
        self._add_bos = add_bos
        self._vocab_size = vocab_size
        self._room = room
        self._one_long_text_at_a_time = trio.CapacityLimiter(1)

    async def write(self, request: GenerationRequest) -> Written:
        """The prompt of a request.

        Raises:
            InvalidRequest, ContextLengthExceeded, TokenOutOfVocabulary: with the field at fault.
        """
        if request.prompt is None:
            field = "messages"
            if not request.messages:
                raise InvalidRequest("there must be at least one message", param=field)
            # Everything that a template might write counts for where it is done...
            size = sum(len(str(part)) for message in request.messages for part in message.values())
            size += PER_MESSAGE * len(request.messages)
            for tool in request.tools.known:
                size += len(tool.description) + len(str(tool.parameters))
            size += len(str(request.template_switches)) if request.template_switches else 0
            # ...and what every template writes, for whether it can fit at all.
            contents = [message.get("content") for message in request.messages]
            least = sum(len(content) for content in contents if isinstance(content, str))
        elif isinstance(request.prompt, str):
            field = "prompt"
            size = least = len(request.prompt)
        else:
            written = Written(self._checked(request.prompt), "")
            return self._fitting(written, "prompt")
        if size <= LONG_TEXT:
            return self._fitting(self._written(request), field)
        if (tokens := least // self._tokenizer.longest_token) >= self._room:
            raise self._too_long(f"at least {tokens}", field)
        return self._fitting(await self._in_a_thread(self._written, request), field)

    async def text(self, request: GenerationRequest) -> str:
        """The prompt of a request for messages as the template writes it.

        Raises:
            InvalidRequest: the template refuses them.
        """
        segments = await self._in_a_thread(self._segments, request)
        return "".join(segment.text for segment in segments)

    async def tokenize(
        self, text: str, *, special: bool, add_special: bool, field: str
    ) -> list[int]:
        """The ids of a text.

        Args:
            special: control tokens written in it are those tokens, and not plain text.
            add_special: begin with the BOS token if the model's prompts do.
            field: what the client calls the text.

        Raises:
            ContextLengthExceeded: they are more than the context holds.
        """
        if (least := len(text) // self._tokenizer.longest_token) > self._room:
            raise self._too_long(f"at least {least}", field)
        encode = self._with_bos if add_special else self._alone
        if len(text) <= LONG_TEXT:
            tokens = encode(text, special)
        else:
            tokens = await self._in_a_thread(encode, text, special)
        if len(tokens) > self._room:
            raise self._too_long(f"{len(tokens)}", field)
        return tokens

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of ids, control tokens by name.

        Raises:
            ContextLengthExceeded: they are more than the context holds.
            TokenOutOfVocabulary: the model does not have one of them.
        """
        if len(tokens) > self._room:
            raise self._too_long(f"{len(tokens)}", "tokens")
        return await self._in_a_thread(self._decoded, tokens)

    async def pieces(self, tokens: Sequence[int]) -> list[Piece]:
        """What each of the tokens stands for."""
        return await self._in_a_thread(self._pieces, tokens)

    async def _in_a_thread(
        self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        # One at a time: a long text takes hundreds of times its size while it is tokenised.
        return await trio.to_thread.run_sync(
            partial(function, *args, **kwargs), limiter=self._one_long_text_at_a_time
        )

    def _alone(self, text: str, special: bool) -> list[int]:
        return self._tokenizer.encode(text, special=special)

    def _with_bos(self, text: str, special: bool) -> list[int]:
        return self._encoded([Segment(text, special=special)])

    def _encoded(self, segments: Sequence[Segment]) -> list[int]:
        return encode_prompt(
            self._tokenizer, segments, bos_token=self._bos_token, add_bos=self._add_bos
        )

    def _decoded(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(self._checked(tokens, "tokens"))

    def _pieces(self, tokens: Sequence[int]) -> list[Piece]:
        found: list[Piece] = []
        for token in tokens:
            text = self._tokenizer.token_text(token)
            control = self._tokenizer.is_control(token)
            spelt = text.encode() if control else self._tokenizer.token_bytes(token)
            found.append(Piece(token, text, spelt))
        return found

    def _written(self, request: GenerationRequest) -> Written:
        if isinstance(request.prompt, str):
            segments = [Segment(request.prompt, special=True)]
        else:
            segments = self._segments(request)
        tail = "".join(segment.text for segment in segments[-3:])[-TAIL:]
        return Written(self._encoded(segments), tail, self._dialect.thinks_from(tail))

    def _segments(self, request: GenerationRequest) -> list[Segment]:
        """The prompt of messages, with the beginning of an answer."""
        tools, dialect = request.tools, self._dialect
        messages = dialect.messages(request.messages, tools)
        switches = dialect.switches(request.reasoning.effort) | dict(request.template_switches)
        told = dialect.template_tools(tools.known if tools.choice != "none" else ())
        variables: dict[str, Any] = (
            {dialect.tools_variable: told} if told and dialect.tools_variable else {}
        )
        if request.continues:
            return self._unfinished(messages, switches, variables)
        segments = self._template.render(messages, switches=switches, **variables)
        return [*segments, *self._thoughts(request, segments)]

    def _unfinished(
        self, messages: list[dict[str, Any]], switches: dict[str, Any], variables: dict[str, Any]
    ) -> list[Segment]:
        """The prompt up to where the last message, which is the assistant's, breaks off."""
        last = messages[-1]
        text = last.get("content")
        if last.get("role") != "assistant" or not isinstance(text, str) or last.get("tool_calls"):
            raise InvalidRequest(
                "only a text of the assistant can be continued, as the last message",
                param="messages",
            )
        messages[-1] = {**last, "content": text.rstrip() + BREAK}
        segments = self._template.render(
            messages, switches=switches, add_generation_prompt=False, **variables
        )
        for number in range(len(segments) - 1, -1, -1):
            before, found, _ = segments[number].text.rpartition(BREAK)
            if found:
                kept = Segment(before + text[len(text.rstrip()) :], segments[number].special)
                return [*segments[:number], kept]
        raise InvalidRequest(
            "the model's chat template does not let an answer be continued", param="messages"
        )

    def _thoughts(self, request: GenerationRequest, segments: Sequence[Segment]) -> list[Segment]:
        """With a limit of its tokens reasoning begins in the prompt, so that every token of it
        counts; with a limit of none it ends there too."""
        limit, dialect = request.reasoning.tokens, self._dialect
        tail = "".join(segment.text for segment in segments[-3:])[-TAIL:]
        if limit is None or not dialect.reasons or dialect.ended_thinking(tail):
            return []
        begin = "" if dialect.thinks_from(tail) else dialect.reasoning_begin
        end = dialect.reasoning_end if limit == 0 else ""
        return [Segment(begin + end, special=True)] if begin + end else []

    def _checked(self, tokens: Sequence[int], field: str = "prompt") -> list[int]:
        for token in tokens:
            if not 0 <= token < self._vocab_size:
                raise TokenOutOfVocabulary(
                    f"{field} names token {token}, and the vocabulary has "
                    f"{self._vocab_size} tokens",
                    param=field,
                )
        return list(tokens)

    def _fitting(self, written: Written, field: str) -> Written:
        if not written.tokens:
            raise InvalidRequest("the prompt is empty", param=field)
        if len(written.tokens) >= self._room:
            raise self._too_long(f"{len(written.tokens)}", field)
        return written

    def _too_long(self, tokens: str, field: str) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            f"the prompt has {tokens} tokens, and this server's context holds {self._room} tokens, "
            "prompt and answer together; please shorten the conversation",
            param=field,
        )
