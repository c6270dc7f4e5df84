"""What Chat Completions and Completions have in common on the wire."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ds4trio.api.schemas.tools import ResponseFormat, Schema, StructuredOutputs

__all__ = ["MAX_CHOICES", "DrawingFields", "StopText", "StreamOptions"]

MAX_CHOICES = 16
"""Answers to one prompt."""

StopText = Annotated[str, Meta(max_length=1000)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``include_usage``: send one more chunk with the usage and no choices."""

    include_usage: bool = False
    include_obfuscation: bool = False


class DrawingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How an answer is drawn, formed and sent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    return_progress: bool | None = None
    response_format: ResponseFormat | None = None
    json_schema: Schema | None = None
    grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: Annotated[str, Meta(max_length=1000)] | None = None

    user: str | None = None
    timings_per_token: bool | None = None
