"""From the body of a completion to what the generator asks for."""

from __future__ import annotations

from dataclasses import replace

from ds4trio.api.formats import asked_format
from ds4trio.api.requests import refuse_unsupported, stop_texts
from ds4trio.api.schemas.completions import CompletionRequest
from ds4trio.errors import InvalidRequest
from ds4trio.generate import GenerationRequest, Sampling

__all__ = ["DEFAULT_MAX_TOKENS", "MAX_PROMPTS", "generation_requests"]

MAX_PROMPTS = 128
"""Answers to one request, to all of its prompts together."""

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for requests that name no limit."""

GivenPrompt = str | list[int]


def generation_requests(
    wanted: CompletionRequest, adapter: str, cache_salt: str, user: str
) -> list[GenerationRequest]:
    """A request for each prompt.

    Raises:
        InvalidRequest: a field contradicts another, or asks for what this server does not do.
    """
    count = wanted.n or 1
    if wanted.best_of not in (None, count):
        raise InvalidRequest(
            "best_of must be the same as n: every answer that is made is returned",
            param="best_of",
            code="unsupported_parameter",
        )
    refuse_unsupported({"suffix": bool(wanted.suffix)})
    if wanted.max_tokens == 0 and not wanted.echo:
        raise InvalidRequest("max_tokens: 0 needs echo: true", param="max_tokens")
    prompts = _prompts(wanted.prompt)
    if len(prompts) * count > MAX_PROMPTS:
        raise InvalidRequest(
            f"a request may have {MAX_PROMPTS} answers, to all of its prompts together",
            param="prompt",
        )
    _, form = asked_format(wanted)
    sampling = replace(
        Sampling.of(wanted),
        logprobs=wanted.logprobs is not None,
        top_logprobs=wanted.logprobs or 0,
    )
    limit = DEFAULT_MAX_TOKENS if wanted.max_tokens is None else wanted.max_tokens
    return [
        GenerationRequest(
            prompt=prompt,
            sampling=sampling,
            format=form,
            max_tokens=max(limit, 1),  # of none, the prompt is checked all the same
            stop=stop_texts(wanted.stop),
            ignore_eos=bool(wanted.ignore_eos),
            progress=bool(wanted.return_progress and wanted.stream),
            prompt_logprobs=wanted.logprobs if wanted.echo else None,
            cache_salt=cache_salt,
            user=user,
            adapter=adapter,
        )
        for prompt in prompts
    ]


def _prompts(given: str | list[str | int | list[int]]) -> list[GivenPrompt]:
    """One or several, which the kind of the first entry tells."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequest("the prompt is empty", param="prompt")
    tokens = [entry for entry in given if isinstance(entry, int)]
    if len(tokens) == len(given):
        return [tokens]
    texts = [entry for entry in given if isinstance(entry, str)]
    lists = [entry for entry in given if isinstance(entry, list)]
    prompts: list[GivenPrompt] = [*texts, *lists]
    if len(given) not in (len(texts), len(lists)):
        raise InvalidRequest(
            "a list as the prompt holds token ids, or texts, or lists of token ids, not a mixture",
            param="prompt",
        )
    return prompts
