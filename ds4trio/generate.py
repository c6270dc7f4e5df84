"""The waist: every door calls ``Generator``, and nothing below it.

A door turns its wire format into a ``GenerationRequest``; ``prepare`` refuses what is wrong with it
while a plain HTTP error can still be sent; ``generate`` yields plain events, which the door turns
back into its wire format.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Any

import trio

from ds4trio.answer import Answer
from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.session import Session
from ds4trio.chat.dialect import Dialect
from ds4trio.chat.output import OutputParser, PlainOutput
from ds4trio.chat.template import ChatTemplate
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.checking import GrammarChecks
from ds4trio.engine.step import SamplingParams
from ds4trio.errors import InternalError, InvalidRequest, WireError
from ds4trio.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    PrefillProgress,
    PromptLogprobs,
    ReasoningDelta,
    TextDelta,
    Timings,
    TokenLogprob,
    TokenText,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    Usage,
)
from ds4trio.prompting import PromptWriter, Written
from ds4trio.request import GenerationRequest, Reasoning, ToolChoice, Tools
from ds4trio.sampling import Sampling
from ds4trio.shaping import Shaper

__all__ = [
    "FinishReason",
    "Finished",
    "GenerationEvent",
    "GenerationRequest",
    "Generator",
    "PrefillProgress",
    "Prompt",
    "PromptLogprobs",
    "Reasoning",
    "ReasoningDelta",
    "Sampling",
    "TextDelta",
    "Timings",
    "TokenLogprob",
    "TokenText",
    "ToolCallArguments",
    "ToolCallBegun",
    "ToolCallEnded",
    "ToolChoice",
    "Tools",
    "Usage",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request that was checked and tokenised.

    Attributes:
        stop: the request's own stop texts; ``ends`` are the model's.
        parser: makes what takes one answer to it apart.
    """

    tokens: list[int]
    sampling: SamplingParams
    max_tokens: int
    stop: tuple[str, ...]
    cache_salt: str
    user: str
    adapter: str
    stop_tokens: frozenset[int]
    parser: Callable[[], OutputParser] = PlainOutput
    ends: tuple[str, ...] = ()
    progress: bool = False


class Generator:
    """Text in, events out: joins template, tokenizer and coalescer.

    Args:
        coalescer: ``run`` runs it.
        stop_tokens: ids that end an answer.
        bos_token, add_bos: the model's BOS token, and whether a prompt must begin with it.
        default_max_tokens: for requests that name no limit.
        dialect: how the model reasons and calls tools; None for one that its template tells
            nothing of.
    """

    def __init__(
        self,
        coalescer: Coalescer,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        stop_tokens: frozenset[int],
        bos_token: str | None,
        add_bos: bool,
        default_max_tokens: int,
        dialect: Dialect | None = None,
    ) -> None:
        self.coalescer = coalescer
        self._tokenizer = tokenizer
        self._template = template
        self._stop_tokens = stop_tokens
        self._default_max_tokens = default_max_tokens
        self.dialect = dialect or Dialect(None, tokenizer, template=template)
        self._checks = GrammarChecks(
            tokenizer, vocab_size=coalescer.info.vocab_size, stop_tokens=stop_tokens
        )
        self._shaper = Shaper(
            self.dialect,
            checks=self._checks,
            announce=coalescer.prepare_grammar,
        )
        self.prompts = PromptWriter(
            tokenizer,
            template,
            self.dialect,
            bos_token=bos_token,
            add_bos=add_bos,
            vocab_size=coalescer.info.vocab_size,
            room=coalescer.info.longest_sequence,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the coalescer, and what checks grammars beside it. Raises as ``Coalescer.run``."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._checks.run)
            await self.coalescer.run(task_status=task_status)
            nursery.cancel_scope.cancel()

    async def prepare(self, request: GenerationRequest) -> Prompt:
        """Check, render and tokenise.

        Raises:
            InvalidRequest, ContextLengthExceeded, TokenOutOfVocabulary: with the field at fault.
            ServerBusy, ServerStopping: it could not even wait.
        """
        self.coalescer.check_capacity()
        request.sampling.check(self.coalescer.info.vocab_size)
        if request.max_tokens is not None and request.max_tokens < 1:
            raise InvalidRequest("the answer needs room for at least 1 token", param="max_tokens")
        if any(not stop for stop in request.stop):
            raise InvalidRequest("a stop text must not be empty", param="stop")
        if request.tools.choice == "required" and not request.tools.callable:
            raise InvalidRequest("a call is required, and there is no tool", param="tool_choice")
        if request.reasoning.tokens is not None and request.reasoning.tokens < 0:
            raise InvalidRequest("a limit of reasoning is not negative", param="reasoning")
        written = await self.prompts.write(request)
        grammar = await self._shaper.grammar(request, written.tail)
        sampling = replace(
            request.sampling.params(len(written.tokens)), prompt_logprobs=request.prompt_logprobs
        )
        if grammar or written.thinks:
            sampling = replace(sampling, grammar=grammar, **self._reasoning(request, written))
        return Prompt(
            tokens=written.tokens,
            sampling=sampling,
            parser=lambda: self._parser(request, written),
            max_tokens=request.max_tokens or self._default_max_tokens,
            stop=tuple(request.stop),
            ends=self._template.ends if request.prompt is None else (),
            stop_tokens=frozenset() if request.ignore_eos else self._stop_tokens,
            progress=request.progress,
            cache_salt=request.cache_salt,
            user=request.user,
            adapter=request.adapter,
        )

    async def count(self, request: GenerationRequest) -> int:
        """How many tokens the prompt of a request has. It takes no slot and no place in line.

        Raises:
            InvalidRequest, ContextLengthExceeded, TokenOutOfVocabulary: with the field at fault.
        """
        return len((await self.prompts.write(request)).tokens)

    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        """Answer a prompt. Close it (``contextlib.aclosing``) to cancel.

        Raises:
            WireError: ``BatchFailed``, ``ServerBusy``, ``ServerStopping``; a defect of ours is
                logged and raised as ``InternalError``.
        """
        try:
            async with contextlib.aclosing(self._generate(prompt)) as events:
                async for event in events:
                    yield event
        except WireError:
            raise
        except Exception as error:
            _log.error("an answer failed for a reason that is ours", exc_info=error)
            raise InternalError("the server failed; its log says why") from error

    async def warm(self, prompt: Prompt) -> Usage:
        """Evaluate a prompt for the prefix cache, so that what begins like it need not be again.

        The one token that is drawn on the way is dropped.

        Raises:
            WireError: as ``generate``.
        """
        single = replace(
            prompt,
            sampling=replace(prompt.sampling, prompt_logprobs=None),
            max_tokens=1,
            stop_tokens=frozenset(),
            stop=(),
            ends=(),
        )
        async with contextlib.aclosing(self.generate(single)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    return replace(event.usage, output_tokens=0, reasoning_tokens=0)
        raise AssertionError("every answer ends with Finished")

    async def _generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        opened = self.coalescer.session(
            prompt.sampling,
            cache_salt=prompt.cache_salt,
            user=prompt.user,
            adapter=prompt.adapter,
        )
        async with opened as session:
            session.start(
                prompt.tokens,
                max_new_tokens=prompt.max_tokens,
                stop_tokens=prompt.stop_tokens,
                progress=prompt.progress,
            )
            answer = Answer(self._tokenizer, prompt.parser(), stop=prompt.stop, ends=prompt.ends)
            if prompt.sampling.prompt_logprobs is not None:
                yield PromptLogprobs((None,))
            while answer.end is None:
                delivery = await session.receive()
                if (told := delivery.progress) is not None:
                    yield PrefillProgress(told.evaluated, told.cached, len(prompt.tokens))
                if delivery.prompt:
                    yield PromptLogprobs(tuple(map(answer.logprob, delivery.prompt)))
                for event in answer.take(delivery):
                    yield event
            yield _finished(answer, prompt, session)

    def _parser(self, request: GenerationRequest, written: Written) -> OutputParser:
        tools = request.tools.callable
        if request.prompt is not None or not (tools or self.dialect.reasons):
            return PlainOutput()
        return self.dialect.parser(written.tail, tools=tools)

    def _reasoning(self, request: GenerationRequest, written: Written) -> dict[str, Any]:
        """What the sampler needs to end reasoning in time. A model that does not reason has
        nothing to end."""
        limit = request.reasoning.tokens
        if limit is None or not written.thinks:
            return {}
        end = self._tokenizer.encode(self.dialect.reasoning_end, special=True, begins=False)
        return {"reasoning_limit": limit, "reasoning_end": tuple(end)}


def _finished(answer: Answer, prompt: Prompt, session: Session) -> Finished:
    assert answer.end is not None
    times = session.times
    started = times.started if times.started is not None else times.opened
    first = times.first_token if times.first_token is not None else trio.current_time()
    last = times.last_token if times.last_token is not None else first
    decode = last - first
    return Finished(
        answer.end,
        Usage(len(prompt.tokens), answer.tokens, session.reused_at_first, answer.reasoning_tokens),
        Timings(
            queue_seconds=started - times.opened,
            first_token_seconds=first - times.opened,
            decode_seconds=decode,
            tokens_per_second=(answer.tokens - 1) / decode if decode > 0 else 0.0,
            mean_batch_size=times.mean_batch_size,
        ),
        answer.stop,
    )
