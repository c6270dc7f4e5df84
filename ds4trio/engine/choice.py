"""Which number format ``--dtype auto`` means on a CPU: int8 where it changes little of what a model
says, which is measured once for each model."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.engine.quality import compare, logits_of
from ds4trio.errors import ModelUnavailable
from ds4trio.models.cache import publish_file
from ds4trio.models.config import ModelConfig
from ds4trio.models.loaded import LoadedModel

__all__ = ["fastest_dtype"]

log = logging.getLogger(__name__)

MOST = 0.02
"""Mean divergence from float32, in nats a token, up to which int8 is taken."""

VERDICT = "int8.divergence"

MOST_WEIGHTS = 2_000_000_000
"""Beyond so many, float32 may not fit into memory beside everything else, and nothing is measured:
large models lose less to rounding, and int8 is taken."""

TEXT = """\
The harbour was quiet when the first boats came in. Gulls had settled along the wall, and
the man who kept the light was writing the names of the vessels in his book, as he did
every morning: when each had left, how many were aboard, what the weather had been. "You
are early," he said to the girl who carried the lamp oil, "and you have forgotten the key
again." She laughed, since it was true.

Measured at noon, the water stood 2.4 metres above the mark; by three it had fallen to
1.7. Rain was expected from the west, with winds of up to 60 km/h, and the council asked
everyone who lived below the bridge to move what they could to the upper floors. Nobody
was surprised. In 1953 the same street had been under water for nine days.

def mean(values: list[float]) -> float:
    if not values:
        raise ValueError("the mean of nothing is not defined")
    return sum(values) / len(values)

To make the soup, cut two onions and four carrots into small pieces, fry them in a little
butter, then add a litre of stock and let it simmer for half an hour. Salt and pepper at
the end. It serves four.
"""


def fastest_dtype(model: LoadedModel) -> str:
    """``int8`` if it was measured, or is now, to be close enough to float32; else ``float32``.

    The measurement takes some seconds, and is kept in the model's folder; where there is none, it
    would be taken at each start, and float32 is the answer.
    """
    if model.folder is None:
        return "float32"
    if _weights(model.config) > MOST_WEIGHTS:
        return "int8"
    divergence = _known(model.folder / VERDICT)
    if divergence is None:
        log.info("measuring what int8 does to %s", model.name)
        divergence = _measured(model)
        try:
            kept = f"{divergence!r}\n"
            publish_file(model.folder / VERDICT, lambda part: _write(part, kept))
        except ModelUnavailable as error:
            log.warning("the measurement is not kept: %s", error)
    dtype = "int8" if divergence < MOST else "float32"
    log.info("int8 diverges from float32 by %.4f nats a token: taking %s", divergence, dtype)
    return dtype


def _weights(config: ModelConfig) -> int:
    """About how many there are."""
    width = config.hidden_size
    heads = (config.heads + config.kv_heads) * 2 * config.head_dim
    return config.vocab_size * width + config.layers * width * (
        heads + 3 * config.intermediate_size
    )


def _known(path: Path) -> float | None:
    try:
        return float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")


def _measured(model: LoadedModel) -> float:
    tokens = list(Tokenizer.load(model.tokenizer_path).encode(TEXT, special=False))
    tokens = [t for t in tokens if t < model.config.vocab_size][: model.config.context_length]
    longest, cpu = len(tokens), torch.device("cpu")
    logits = logits_of(model.config, model.weights, dtype="float32", device=cpu, longest=longest)
    expected = logits(tokens)
    del logits  # one set of weights at a time
    candidate = logits_of(model.config, model.weights, dtype="int8", device=cpu, longest=longest)
    return compare(lambda _: expected, candidate, [tokens]).divergence
