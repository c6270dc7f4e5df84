"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's Messages."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator

from quart import Blueprint, Response, request

from ds4trio.api.anthropic.errors import REQUEST_ID, anthropic_error, request_id, speaks_anthropic
from ds4trio.api.anthropic.events import PING, MessageEvents, WholeMessage, WireEvent
from ds4trio.api.anthropic.request import PARAMS, generation_request, prompt_request
from ds4trio.api.auth import tenant, user
from ds4trio.api.schemas.messages import (
    CountTokensRequest,
    MessageRequest,
    ThinkingAdaptive,
    ThinkingEnabled,
)
from ds4trio.api.service import Service
from ds4trio.api.sse import EventStreamBody, SendEvent, event_stream
from ds4trio.api.wire import decode, encode, error_body, json_response
from ds4trio.errors import RequestError, WireError
from ds4trio.generate import Generator, Prompt

__all__ = ["messages"]

_KEEP_ALIVE = b"event: ping\ndata: " + encode(PING) + b"\n\n"


def messages(service: Service) -> Blueprint:
    """The door, as a blueprint."""
    blueprint = Blueprint("messages", __name__)

    @blueprint.post("/v1/messages")
    async def create() -> Response:
        wanted = decode(await request.get_data(), MessageRequest)
        generator = service.generator
        model = service.find_model(wanted.model)
        asked = generation_request(
            wanted,
            model.adapter,
            tenant(request, wanted.cache_salt),
            user(request, service.settings),
        )
        with _our_names():
            prompt = await generator.prepare(asked)
        answer = MessageEvents(
            model.name,
            prompt_tokens=len(prompt.tokens),
            max_tokens=wanted.max_tokens,
            show_thinking=_shows_thinking(wanted),
            edits_context=wanted.context_management is not None,
        )
        if not wanted.stream:
            whole = WholeMessage()
            async with contextlib.aclosing(_events(answer, generator, prompt)) as events:
                async for event in events:
                    whole.add(event)
            return json_response(whole.message())
        identifier = request_id()

        async def produce(send: SendEvent) -> None:
            try:
                async with contextlib.aclosing(_events(answer, generator, prompt)) as events:
                    async for event in events:
                        await send(encode(event), event=event["type"])
            except WireError as error:
                body, _ = anthropic_error(error_body(error), error.status, identifier)
                await send(encode(body), event="error")

        return event_stream(
            EventStreamBody(
                produce, send_timeout=service.settings.send_timeout, keep_alive=_KEEP_ALIVE
            )
        )

    @blueprint.post("/v1/messages/count_tokens")
    async def count_tokens() -> Response:
        wanted = decode(await request.get_data(), CountTokensRequest)
        service.find_model(wanted.model)
        with _our_names():
            tokens = await service.generator.count(prompt_request(wanted))
        return json_response({"input_tokens": tokens})

    @blueprint.after_app_request
    async def identify(response: Response) -> Response:
        if speaks_anthropic(request):
            response.headers[REQUEST_ID] = request_id()
        return response

    return blueprint


async def _events(
    answer: MessageEvents, generator: Generator, prompt: Prompt
) -> AsyncGenerator[WireEvent, None]:
    """All events of one message.

    Raises:
        WireError: it cannot be finished.
    """
    for event in answer.begin():
        yield event
    async with contextlib.aclosing(generator.generate(prompt)) as generated:
        async for one in generated:
            for event in answer.take(one):
                yield event


@contextlib.contextmanager
def _our_names() -> Iterator[None]:
    """The generator's complaints name fields as this API does."""
    try:
        yield
    except RequestError as error:
        error.param = PARAMS.get(error.param, error.param)
        raise


def _shows_thinking(wanted: MessageRequest) -> bool:
    match wanted.thinking:
        case ThinkingEnabled(display="omitted") | ThinkingAdaptive(display="omitted"):
            return False
        case _:
            return True
