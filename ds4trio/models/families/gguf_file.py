"""What a GGUF file's metadata say of a model of any family.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ds4trio.models.architecture import ModelConfig
from ds4trio.models.families.gguf_unread import refuse_unread
from ds4trio.models.fields import FieldReader, refuse, token_ids
from ds4trio.models.rotary import Rope, RopeScaling

__all__ = ["GgufFile", "gguf_config", "gguf_rope"]

_BAR, _BLANK = "\N{FULLWIDTH VERTICAL LINE}", "\N{LOWER ONE EIGHTH BLOCK}"
_DEEPSEEK_END = f"<{_BAR}end{_BLANK}of{_BLANK}sentence{_BAR}>"

END_MARKERS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<|end_of_turn|>",
        "<|return|>",
        "<|call|>",
        "<EOT>",
        "<|eot|>",
        _DEEPSEEK_END,
        "<eos>",
        "<end_of_utterance>",
        "</s>",
    }
)
"""Control tokens that end an answer in the chat formats in use. A GGUF file names one end token,
often only one of the two that its model writes, so these are added when they are control tokens."""

CHANNELS = frozenset({"<|return|>", "<|call|>"})
"""Where these are control tokens, ``<|end|>`` ends a part of an answer, not all of it (gpt-oss)."""


@dataclass(frozen=True)
class GgufFile:
    """The header of a GGUF file, and what little is needed of its weights.

    Attributes:
        metadata: its keys and values.
        shapes: of its tensors, by name.
        divisors: the content of the tensors that hold rotary divisors (``rope_freqs.weight``,
            ``rope_factors_long.weight``, ``rope_factors_short.weight``), by name.
    """

    metadata: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    divisors: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture"))

    @property
    def read(self) -> FieldReader:
        """The family's own keys, less their prefix."""
        return FieldReader(self.metadata, prefix=f"{self.architecture}.")

    def has(self, tensor: str) -> bool:
        return tensor in self.shapes


def gguf_config(
    file: GgufFile,
    *,
    ropes: Sequence[Rope] | None = None,
    theta: float = 10000.0,
    head_dim: int | None = None,
) -> ModelConfig:
    """What all families have in common; a family replaces in it what it has otherwise.

    Args:
        file: the header.
        ropes: the rotary embeddings, where they are not one over whole heads.
        theta: the base where the file does not say.
        head_dim: dimensions of a head, where lengths of keys and values in the file do not say so.

    Raises:
        ModelUnavailable: a key is missing or of the wrong type, or something not known here.
    """
    refuse_unread(file.architecture, file.metadata)
    read = file.read
    heads = read.integer("attention.head_count")
    hidden = read.integer("embedding_length")
    if head_dim is None:
        head_dim = read.integer("attention.key_length", hidden // max(heads, 1))
        if read.integer("attention.value_length", head_dim) != head_dim:
            refuse("keys and values of different head sizes are not supported in this family")
    embedding = file.shapes["token_embd.weight"]
    if len(embedding) != 2:
        refuse(f"its embedding has {len(embedding)} dimensions in place of 2")
    return ModelConfig(
        architecture=file.architecture,
        vocab_size=embedding[0],
        hidden_size=hidden,
        intermediate_size=read.integer("feed_forward_length"),
        layers=read.integer("block_count"),
        heads=heads,
        kv_heads=read.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=read.number("attention.layer_norm_rms_epsilon"),
        ropes=tuple(ropes) if ropes is not None else (gguf_rope(file, head_dim, theta=theta),),
        context_length=read.integer("context_length"),
        tied_head=not file.has("output.weight"),
        attention_bias=file.has("blk.0.attn_q.bias"),
        output_bias=file.has("blk.0.attn_output.bias"),
        mlp_bias=file.has("blk.0.ffn_gate.bias"),
        bos_token_id=next(iter(token_ids(file.metadata.get("tokenizer.ggml.bos_token_id"))), None),
        eos_token_ids=_ends(file.metadata),
    )


def gguf_rope(file: GgufFile, head_dim: int, *, theta: float = 10000.0) -> Rope:
    """Base and scaling of a model that has one rotary embedding.

    Args:
        file: the header.
        head_dim: dimensions of a head.
        theta: the base where the file does not say.
    """
    read = file.read
    dims = read.integer("rope.dimension_count", head_dim)
    base = read.number("rope.freq_base", theta)
    factors = file.divisors.get("rope_freqs.weight")
    if factors:
        return Rope(theta=base, dims=dims, factors=tuple(map(float, factors)))
    return Rope(theta=base, dims=dims, scaling=_scaling(file))


def _scaling(file: GgufFile) -> RopeScaling | None:
    read = file.read
    context = read.integer("context_length")
    original = read.integer("rope.scaling.original_context_length", context)
    short, long = (
        tuple(map(float, file.divisors.get(f"rope_factors_{which}.weight", ())))
        for which in ("short", "long")
    )
    if bool(short) != bool(long):
        refuse("it has factors for either short or long texts, and not for both")
    if short and long:
        return RopeScaling(
            kind="longrope",
            factor=context / max(original, 1),
            original_context_length=original,
            attention_factor=read.optional("rope.scaling.attn_factor"),
            short_factors=short,
            long_factors=long,
        )
    linear = read.number("rope.scale_linear", 1.0)  # what files had before rope.scaling.*
    kind = read.values.get(f"{read.prefix}rope.scaling.type", "linear" if linear != 1.0 else "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        refuse(f"unknown rotary scaling {kind!r}; known: none, linear, yarn")
    factor = read.number("rope.scaling.factor", linear)
    if factor == 1.0:
        return None
    # The first replaces yarn's derived attention factor, and llama.cpp multiplies by the second.
    own = read.optional("rope.scaling.yarn_attn_factor")
    extra = read.number("rope.scaling.attn_factor", 1.0)
    if own is None and extra != 1.0:
        own = 0.1 * math.log(factor) + 1.0
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_context_length=original,
        beta_fast=read.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=read.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=None if own is None else extra * own,
    )


def _ends(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    ends: list[int] = []
    for name in ("eos", "eot", "eom"):
        ends += token_ids(metadata.get(f"tokenizer.ggml.{name}_token_id"))
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    kinds = metadata.get("tokenizer.ggml.token_type") or []
    control = 3
    marked = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == control and token in END_MARKERS
    }
    if marked.keys() >= CHANNELS:
        marked.pop("<|end|>", None)
    return tuple(dict.fromkeys([*ends, *marked.values()]))
