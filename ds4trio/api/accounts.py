"""What an answer took, as Chat Completions and Completions tell it: usage and timings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ds4trio.events import Finished, Usage

__all__ = ["timings_object", "total_usage", "usage_object"]


def total_usage(groups: Sequence[Sequence[Usage]]) -> Usage:
    """Of several answers: a prompt counts once, however many answers it got.

    Args:
        groups: for each prompt, one for each of its answers.
    """
    first = [group[0] for group in groups]
    every = [usage for group in groups for usage in group]
    return Usage(
        sum(usage.input_tokens for usage in first),
        sum(usage.output_tokens for usage in every),
        sum(usage.cached_tokens for usage in first),
        sum(usage.reasoning_tokens for usage in every),
    )


def usage_object(usage: Usage) -> dict[str, Any]:
    """In OpenAI's shape."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_object(finished: Finished) -> dict[str, float]:
    """In llama.cpp's shape
    (https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md), milliseconds."""
    usage, timings = finished.usage, finished.timings
    evaluated = usage.input_tokens - usage.cached_tokens
    prompt = max(timings.first_token_seconds - timings.queue_seconds, 0.0)
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": evaluated,
        "prompt_ms": prompt * 1000,
        "prompt_per_second": evaluated / prompt if prompt else 0.0,
        "predicted_n": usage.output_tokens,
        "predicted_ms": timings.decode_seconds * 1000,
        "predicted_per_second": timings.tokens_per_second,
    }
