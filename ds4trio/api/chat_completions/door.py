"""``POST /v1/chat/completions``: OpenAI's Chat Completions, streamed and not."""

from __future__ import annotations

from functools import partial

from quart import Blueprint, Response, request

from ds4trio.api.auth import tenant, user
from ds4trio.api.chat_completions.answer import ChatAnswer
from ds4trio.api.chat_completions.request import field_names, generation_request
from ds4trio.api.choices import answer_all, variants
from ds4trio.api.delivery import deliver
from ds4trio.api.requests import params_named
from ds4trio.api.schemas.chat import ChatRequest
from ds4trio.api.service import Service
from ds4trio.api.wire import decode

__all__ = ["chat_completions"]


def chat_completions(service: Service) -> Blueprint:
    """The door, as a blueprint."""
    blueprint = Blueprint("chat_completions", __name__)

    @blueprint.post("/v1/chat/completions")
    async def create() -> Response:
        wanted = decode(await request.get_data(), ChatRequest)
        generator = service.generator
        model = service.find_model(wanted.model)
        asked = generation_request(
            wanted,
            model.adapter,
            tenant(request, wanted.cache_salt),
            user(request, service.settings),
        )
        with params_named(field_names(wanted)):
            prompt = await generator.prepare(asked)
        prompts = variants(prompt, wanted.n or 1)
        options = wanted.stream_options
        answers = ChatAnswer(
            model.name,
            len(prompts),
            logprobs=bool(wanted.logprobs),
            may_call=bool(asked.tools.callable),
            with_usage=options is not None and options.include_usage,
        )
        return await deliver(
            partial(answer_all, generator, [prompts], service.settings.max_sessions),
            answers,
            stream=bool(wanted.stream),
            send_timeout=service.settings.send_timeout,
        )

    return blueprint
