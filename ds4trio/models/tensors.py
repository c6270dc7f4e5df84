"""The tensors that a decoder of the llama family is made of, and their GGUF names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import ModelConfig

__all__ = ["ROPE_FREQS", "check_tensors", "expected_shapes", "hf_name"]

ROPE_FREQS = "rope_freqs.weight"
"""The GGUF tensor of rotary divisors; it becomes ``ModelConfig.rope_factors``."""

OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PATTERN = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")

UNUSED = re.compile(r".*\.rotary_emb\.inv_freq|.*\.attn_rot_embd\.weight")
"""Tensors of old files that hold what the config already says."""


def hf_name(gguf_name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for a tensor that is not a weight of a layer.

    Raises:
        ModelUnavailable: a tensor that no known layer has. Leaving it out would change the answers.
    """
    if gguf_name == ROPE_FREQS or UNUSED.fullmatch(gguf_name):
        return None
    match = PATTERN.fullmatch(gguf_name)
    names = INNER if match and match["layer"] else OUTER
    if match is None or match["part"] not in names:
        raise ModelUnavailable(f"This model cannot be used: unknown tensor {gguf_name!r}.")
    layer = f"model.layers.{match['layer']}." if match["layer"] else ""
    return f"{layer}{names[match['part']]}.{match['kind']}"


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the decoder reads, by Hugging Face name, with its shape [out, in] or [size]."""
    c = config
    queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c.vocab_size, c.hidden_size),
        "model.norm.weight": (c.hidden_size,),
    }
    if not c.tied_head:
        shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
    products = {
        "self_attn.q_proj": (queries, c.hidden_size, c.attention_bias),
        "self_attn.k_proj": (keys, c.hidden_size, c.attention_bias),
        "self_attn.v_proj": (keys, c.hidden_size, c.attention_bias),
        "self_attn.o_proj": (c.hidden_size, queries, c.attention_bias),
        "mlp.gate_proj": (c.intermediate_size, c.hidden_size, c.mlp_bias),
        "mlp.up_proj": (c.intermediate_size, c.hidden_size, c.mlp_bias),
        "mlp.down_proj": (c.hidden_size, c.intermediate_size, c.mlp_bias),
    }
    for layer in range(c.layers):
        base = f"model.layers.{layer}."
        shapes[f"{base}input_layernorm.weight"] = (c.hidden_size,)
        shapes[f"{base}post_attention_layernorm.weight"] = (c.hidden_size,)
        for name, (rows, columns, biased) in products.items():
            shapes[f"{base}{name}.weight"] = (rows, columns)
            if biased:
                shapes[f"{base}{name}.bias"] = (rows,)
    return shapes


def check_tensors(config: ModelConfig, found: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Hold what a file has against what its config says.

    Args:
        config: the decoder's shape.
        found: the file's tensors, by Hugging Face name.

    Returns:
        The names that the decoder reads.

    Raises:
        ModelUnavailable: a tensor is missing, has another shape, or is one that the decoder would
            silently leave out.
    """
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in found:
            raise ModelUnavailable(f"This model cannot be used: it has no tensor {name!r}.")
        if found[name] != shape:
            raise ModelUnavailable(
                f"This model cannot be used: tensor {name!r} has shape {list(found[name])}, "
                f"its config says {list(shape)}."
            )
    for name in found:
        if name not in expected and name != "lm_head.weight" and not UNUSED.fullmatch(name):
            raise ModelUnavailable(f"This model cannot be used: unknown tensor {name!r}.")
    return tuple(expected)
