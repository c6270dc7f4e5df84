"""What one row of a step wants of the sampler."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import torch

from ds4trio.engine.forced import forced_token
from ds4trio.engine.step import SamplingParams

__all__ = ["Bias", "Draw"]


@dataclass(frozen=True, slots=True)
class Bias:
    """A sequence's logit biases, ready to be added.

    Attributes:
        ids: int64 [count].
        amounts: float32 [count].
    """

    ids: torch.Tensor
    amounts: torch.Tensor

    @classmethod
    def of(cls, params: SamplingParams) -> Bias | None:
        """None where there is none. A vocabulary of them takes 50 ms, so it is done once."""
        if not params.logit_bias:
            return None
        return cls(
            torch.tensor(list(params.logit_bias)),
            torch.tensor(list(params.logit_bias.values()), dtype=torch.float32),
        )


@dataclass(frozen=True, slots=True)
class Draw:
    """One row's wish.

    Attributes:
        params: how to draw.
        history: int64 ids of every token before the drawn one, prompt first.
        bias: of the params.
        mask: bool [vocab_size] on the CPU, true where the grammar allows a token; None for no
            grammar.
    """

    params: SamplingParams
    history: array[int]
    bias: Bias | None
    mask: torch.Tensor | None = None

    @property
    def number(self) -> int:
        """Which draw of the sequence's random stream this is; the first output token is 0."""
        return len(self.history) - self.params.prompt_length

    @property
    def forced(self) -> int | None:
        """The token that is given without drawing; a grammar that does not allow it has its way."""
        token = forced_token(self.params, self.history)
        if token is None or self.mask is None or self.mask[token]:
            return token
        return None

    @property
    def free(self) -> bool:
        """Nothing but its logits and how it draws decides."""
        return self.mask is None and self.params.reasoning_limit is None
