"""The response object of the Responses API, before there is anything in it."""

from __future__ import annotations

import time
from typing import Any

from ds4trio.api.schemas.responses import ResponseCreate
from ds4trio.generate import Usage

__all__ = ["response_object", "usage_object"]


def response_object(
    response_id: str, wanted: ResponseCreate, model: str, *, stored: bool
) -> dict[str, Any]:
    """With what the request asked for, and what holds where it asked for nothing."""
    reasoning = wanted.reasoning
    text = wanted.text
    chosen = text.format if text is not None else None
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": bool(wanted.background),
        "error": None,
        "incomplete_details": None,
        "instructions": wanted.instructions,
        "max_output_tokens": wanted.max_output_tokens,
        "max_tool_calls": wanted.max_tool_calls,
        "metadata": wanted.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": wanted.parallel_tool_calls is not False,
        "previous_response_id": wanted.previous_response_id,
        "prompt_cache_key": wanted.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "safety_identifier": wanted.safety_identifier,
        "service_tier": "default",
        "store": stored,
        "temperature": 1.0 if wanted.temperature is None else wanted.temperature,
        "text": {"format": chosen or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto" if wanted.tool_choice is None else wanted.tool_choice,
        "tools": list(wanted.tools or ()),
        "top_logprobs": wanted.top_logprobs or 0,
        "top_p": 1.0 if wanted.top_p is None else wanted.top_p,
        "truncation": wanted.truncation or "disabled",
        "usage": None,
        "user": wanted.user,
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    """Tokens as this API counts them."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
