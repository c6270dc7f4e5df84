"""``POST /v1/chat/completions``: OpenAI's Chat Completions, streamed and not."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from quart import Blueprint, Response, request

from ds4trio.api.auth import tenant, user
from ds4trio.api.requests import asks, joined_text, refuse_unsupported
from ds4trio.api.schemas.chat import ChatRequest, Message
from ds4trio.api.service import Service
from ds4trio.api.sse import EventStreamBody, SendEvent, event_stream
from ds4trio.api.wire import decode, encode, error_body, json_response
from ds4trio.errors import InvalidRequest, WireError
from ds4trio.generate import (
    Finished,
    GenerationRequest,
    Generator,
    Prompt,
    Sampling,
    TextDelta,
    TokenLogprob,
    TokenText,
    Usage,
)

__all__ = ["chat_completions"]


def chat_completions(service: Service) -> Blueprint:
    """The door, as a blueprint."""
    blueprint = Blueprint("chat_completions", __name__)

    @blueprint.post("/v1/chat/completions")
    async def create() -> Response:
        wanted = decode(await request.get_data(), ChatRequest)
        generator = service.generator
        model = service.find_model(wanted.model)
        asked = _generation_request(
            wanted,
            model.adapter,
            tenant(request, wanted.cache_salt),
            user(request, service.settings),
        )
        prompt = await generator.prepare(asked)
        answer = _Answer(wanted, model.name)
        if not wanted.stream:
            return json_response(await answer.whole(generator, prompt))

        async def produce(send: SendEvent) -> None:
            await answer.stream(generator, prompt, send)

        return event_stream(EventStreamBody(produce, send_timeout=service.settings.send_timeout))

    return blueprint


class _Answer:
    """One answer on its way out."""

    def __init__(self, wanted: ChatRequest, model: str) -> None:
        self._wanted = wanted
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    async def whole(self, generator: Generator, prompt: Prompt) -> dict[str, Any]:
        texts: list[str] = []
        logprobs: list[TokenLogprob] = []
        async with contextlib.aclosing(generator.generate(prompt)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    texts.append(event.text)
                    logprobs.extend(event.logprobs)
                elif isinstance(event, Finished):
                    finished = event
        message = {"role": "assistant", "content": "".join(texts), "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(logprobs),
            "finish_reason": finished.reason,
        }
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(finished.usage),
            "ds4trio": finished.timings,
        }

    async def stream(self, generator: Generator, prompt: Prompt, send: SendEvent) -> None:
        """Send the chunks and ``[DONE]``, or an error object in its place."""
        try:
            await send(self._chunk({"role": "assistant", "content": ""}))
            async with contextlib.aclosing(generator.generate(prompt)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        finished = event
                    elif isinstance(event, TextDelta) and (event.text or event.logprobs):
                        logprobs = self._logprobs(event.logprobs)
                        await send(self._chunk({"content": event.text}, logprobs=logprobs))
        except WireError as error:
            await send(encode({"error": error_body(error)}))
            return
        await send(self._chunk({}, finish_reason=finished.reason))
        if self._wants_usage:
            await send(self._usage_chunk(finished))
        await send(b"[DONE]")

    @property
    def _wants_usage(self) -> bool:
        options = self._wanted.stream_options
        return options is not None and options.include_usage

    def _chunk(
        self,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        if self._wants_usage:
            chunk["usage"] = None
        return encode(chunk)

    def _usage_chunk(self, finished: Finished) -> bytes:
        return encode(
            {
                **self._head,
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": _usage(finished.usage),
                "ds4trio": finished.timings,
            }
        )

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self._wanted.logprobs:
            return None
        return {
            "content": [
                {**_token(item.token), "top_logprobs": [_token(top) for top in item.top]}
                for item in tokens
            ],
            "refusal": None,
        }


def _token(token: TokenText) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.bytes)}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _generation_request(
    wanted: ChatRequest, adapter: str, cache_salt: str, user: str
) -> GenerationRequest:
    refuse_unsupported(_asks_too_much(wanted))
    if wanted.top_logprobs is not None and not wanted.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    stop = wanted.stop
    return GenerationRequest(
        messages=[_message(message, index) for index, message in enumerate(wanted.messages)],
        sampling=Sampling.of(wanted),
        max_tokens=wanted.max_completion_tokens or wanted.max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        cache_salt=cache_salt,
        user=user,
        adapter=adapter,
    )


def _asks_too_much(wanted: ChatRequest) -> dict[str, bool]:
    return {
        "n": wanted.n not in (None, 1),
        "response_format": wanted.response_format is not None
        and wanted.response_format.type != "text",
        "tools": asks(wanted.tools),
        "tool_choice": asks(wanted.tool_choice),
        "functions": asks(wanted.functions),
        "function_call": asks(wanted.function_call),
        "modalities": wanted.modalities not in (None, ["text"]),
        "audio": asks(wanted.audio),
        "prediction": asks(wanted.prediction),
        "reasoning_effort": wanted.reasoning_effort not in (None, "none"),
        "verbosity": wanted.verbosity not in (None, "medium"),
        "web_search_options": asks(wanted.web_search_options),
    }


def _message(message: Message, index: int) -> dict[str, Any]:
    rendered: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": joined_text(message.content or "", f"messages[{index}].content"),
    }
    if message.role != "assistant" and message.content is None:
        raise InvalidRequest(
            f"a message of the {message.role} needs content", param=f"messages[{index}].content"
        )
    for name in ("name", "tool_calls", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            rendered[name] = msgspec.to_builtins(value)
    return rendered
