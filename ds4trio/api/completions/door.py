"""``POST /v1/completions``: OpenAI's Completions, streamed and not: a prompt goes on as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import trio
from quart import Blueprint, Response, request

from ds4trio.api.auth import tenant, user
from ds4trio.api.choices import Take, answer_all, variants
from ds4trio.api.completions.answer import CompletionAnswer
from ds4trio.api.completions.echo import Echo, echoes
from ds4trio.api.completions.request import generation_requests
from ds4trio.api.delivery import deliver
from ds4trio.api.formats import asked_format
from ds4trio.api.requests import params_named
from ds4trio.api.schemas.completions import CompletionRequest
from ds4trio.api.service import Service
from ds4trio.api.wire import decode
from ds4trio.events import Finished, GenerationEvent, TextDelta, Timings, Usage
from ds4trio.generate import GenerationRequest, Generator, Prompt

__all__ = ["completions"]


def completions(service: Service) -> Blueprint:
    """The door, as a blueprint."""
    blueprint = Blueprint("completions", __name__)

    @blueprint.post("/v1/completions")
    async def create() -> Response:
        wanted = decode(await request.get_data(), CompletionRequest)
        generator = service.generator
        model = service.find_model(wanted.model)
        asked = generation_requests(
            wanted,
            model.adapter,
            tenant(request, wanted.cache_salt),
            user(request, service.settings),
        )
        with params_named({"format": asked_format(wanted)[0]}):
            prompts = await _prepare(generator, asked)
        count = wanted.n or 1
        groups = [variants(prompt, count) for prompt in prompts]
        options = wanted.stream_options
        logprobs = wanted.logprobs is not None
        repeated = [Echo()] * len(asked)
        if wanted.echo:
            repeated = await echoes(generator, asked, prompts, logprobs=logprobs)
        most = service.settings.max_sessions
        answers = CompletionAnswer(
            model.name,
            count,
            repeated,
            logprobs=logprobs,
            with_usage=options is not None and options.include_usage,
        )
        if wanted.max_tokens != 0:
            run = partial(answer_all, generator, groups, most)
        elif logprobs:
            run = partial(_evaluate_alone, generator, groups, most)
        else:
            run = partial(_answer_nothing, groups)
        return await deliver(
            run,
            answers,
            stream=bool(wanted.stream),
            send_timeout=service.settings.send_timeout,
        )

    return blueprint


async def _prepare(generator: Generator, asked: Sequence[GenerationRequest]) -> list[Prompt]:
    """All or none: one bad prompt is an error of the request."""
    prompts: list[Prompt] = []
    for number, one in enumerate(asked):
        with params_named({"prompt": f"prompt[{number}]"} if len(asked) > 1 else {}):
            prompts.append(await generator.prepare(one))
        await trio.lowlevel.checkpoint()
    return prompts


async def _answer_nothing(groups: Sequence[Sequence[Prompt]], take: Take) -> None:
    """For clients that want to see their prompts, and no answers."""
    prompts = [prompt for group in groups for prompt in group]
    for number, prompt in enumerate(prompts):
        usage = Usage(len(prompt.tokens), 0)
        await take(number, Finished("length", usage, Timings(0.0, 0.0, 0.0, 0.0, 0.0)))


async def _evaluate_alone(
    generator: Generator, groups: Sequence[Sequence[Prompt]], max_sessions: int, take: Take
) -> None:
    """For clients that want to know what the model thinks of their prompts, and no answers: the one
    token that is drawn on the way is dropped."""

    async def without_answer(number: int, event: GenerationEvent) -> None:
        if isinstance(event, Finished):
            usage = replace(event.usage, output_tokens=0)
            event = replace(event, reason="length", usage=usage, stop=None)
        if not isinstance(event, TextDelta):
            await take(number, event)

    await answer_all(generator, groups, max_sessions, without_answer)
