"""How most families name their tensors in files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ds4trio.models.architecture import ModelConfig
from ds4trio.models.fields import refuse
from ds4trio.models.sources import Source

__all__ = [
    "GGUF_UNUSED",
    "HF_UNUSED",
    "gguf_source",
    "hf_source",
    "in_pairs",
    "named",
    "renamed",
    "split_name",
]

HF_UNUSED = re.compile(r".*\.rotary_emb\.inv_freq|lm_head\.weight")
"""What the config already says, and a head that is the embedding a second time."""

GGUF_UNUSED = re.compile(r".*\.attn_rot_embd\.weight|rope_freqs\.weight|rope_factors_\w+\.weight")

NAME = re.compile(r"model\.layers\.(?P<layer>\d+)\.(?P<part>.+)")
EXPERT = re.compile(r"mlp\.experts\.(?P<number>\d+)\.(?P<part>.+)")

GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.output_norm": "post_attention_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.k_b_proj": "attn_k_b",
    "self_attn.v_b_proj": "attn_v_b",
    "post_attention_layernorm": "ffn_norm",
    "mlp.output_norm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.router": "ffn_gate_inp",
    "mlp.router.correction": "exp_probs_b.bias",
    "mlp.shared.gate_proj": "ffn_gate_shexp",
    "mlp.shared.up_proj": "ffn_up_shexp",
    "mlp.shared.down_proj": "ffn_down_shexp",
    "mlp.shared_gate": "ffn_gate_inp_shexp",
}
"""A decoder's names, less ``.weight`` and ``.bias`` where both may be, and those of llama.cpp."""

GGUF_EXPERTS = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
}


def hf_source(config: ModelConfig, name: str) -> Source:
    """The same name."""
    return Source(name)


def split_name(name: str) -> tuple[str, str] | None:
    """A layer's number and the name within it; None for a tensor outside layers."""
    match = NAME.fullmatch(name)
    return None if match is None else (match["layer"], match["part"])


def renamed(name: str, names: Mapping[str, str]) -> Source:
    """For files that name parts of a layer in their own way.

    Args:
        name: of the decoder's tensor.
        names: from a name within a layer, less ``.weight`` and ``.bias``, to the file's.
    """
    where = split_name(name)
    if where is None:
        return Source(name)
    layer, part = where
    return Source(f"model.layers.{layer}.{named(part, names)}")


def named(part: str, names: Mapping[str, str]) -> str:
    """A name by a table that leaves out ``.weight`` and ``.bias``; itself if it is not there."""
    if part in names:
        return names[part]
    stem, _, kind = part.rpartition(".")
    return f"{names[stem]}.{kind}" if stem in names else part


def gguf_source(config: ModelConfig, name: str) -> Source:
    """llama.cpp's names; experts of a layer lie in one tensor.

    Raises:
        ModelUnavailable: there is no name for such a tensor.
    """
    where = split_name(name)
    if where is None:
        return Source(GGUF_NAMES[name])
    layer, part = where
    if expert := EXPERT.fullmatch(part):
        stacked = named(expert["part"], GGUF_EXPERTS)
        return Source(f"blk.{layer}.{stacked}", index=int(expert["number"]))
    own = named(part, GGUF_NAMES)
    if own == part:
        refuse(f"GGUF files have no name for {part!r}")
    return Source(f"blk.{layer}.{own}", flat=part == "mlp.shared_gate.weight")


def in_pairs(config: ModelConfig, name: str) -> Source:
    """``gguf_source`` of families whose query and key rows lie pair by pair there.

    Raises:
        ModelUnavailable: only a part of each head is turned. Which rows are its pairs would then
            depend on who wrote the file.
    """
    if any(rope.dims != config.head_dim for rope in config.ropes):
        refuse("heads of which only a part is turned are not known in this family")
    source = gguf_source(config, name)
    heads = {".attn_q.": config.heads, ".attn_k.": config.kv_heads}
    for part, count in heads.items():
        if part in source.name:
            return Source(source.name, heads=count)
    return source
