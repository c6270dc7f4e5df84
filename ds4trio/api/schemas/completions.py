"""Wire types of Completions. A field that is not here is refused by name."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ds4trio.api.schemas.drawing import DrawingFields

__all__ = ["CompletionRequest"]


class CompletionRequest(DrawingFields, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/completions``: OpenAI's fields and some beyond them."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None

    best_of: int | None = None
    suffix: str | None = None
