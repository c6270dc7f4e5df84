"""What a request may ask of the sampler, and in which ranges."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ds4trio.engine.step import SamplingParams
from ds4trio.errors import InvalidRequest, TokenOutOfVocabulary

__all__ = ["Sampling"]

_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("top_k", -1, 2**31),
    ("min_p", 0, 1),
    ("frequency_penalty", -2, 2),
    ("presence_penalty", -2, 2),
    ("top_logprobs", 0, 20),
    ("seed", -(2**63), 2**64 - 1),
)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens, as a request asks for it.

    Attributes: as in ``SamplingParams``; ``seed`` None draws a random one.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0

    @classmethod
    def of(cls, request: object) -> Sampling:
        """With the attributes of a request that have these names; None stands for the default."""
        given = {field.name: getattr(request, field.name, None) for field in fields(cls)}
        chosen: dict[str, Any] = {k: value for k, value in given.items() if value is not None}
        return cls(**chosen)

    def check(self, vocab_size: int) -> None:
        """Refuse what is out of range.

        Raises:
            InvalidRequest, TokenOutOfVocabulary: with the field at fault.
        """
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN fails this too
                raise InvalidRequest(f"{name} must be from {low} to {high}", param=name)
        if not 0.01 <= self.repetition_penalty <= 10.0:
            raise InvalidRequest(
                "repetition_penalty must be from 0.01 to 10", param="repetition_penalty"
            )
        for token, bias in self.logit_bias.items():
            if not 0 <= token < vocab_size:
                raise TokenOutOfVocabulary(
                    f"logit_bias names token {token}, and the vocabulary has {vocab_size} tokens",
                    param="logit_bias",
                )
            if not -100.0 <= bias <= 100.0:
                raise InvalidRequest("a logit bias must be from -100 to 100", param="logit_bias")

    def params(self, prompt_length: int) -> SamplingParams:
        """For the engine; a random seed where none is given."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=dict(self.logit_bias),
            seed=secrets.randbits(63) if self.seed is None else self.seed,
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
            prompt_length=prompt_length,
        )
