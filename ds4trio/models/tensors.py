"""The tensors that a decoder is made of: their names and shapes, and whether a file has them.

Names are those that Hugging Face's llama files have, and more of the same kind for what other
families have besides. ``families`` says where a file keeps each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from ds4trio.errors import ModelUnavailable
from ds4trio.models.architecture import (
    Compressed,
    Experts,
    Latent,
    LayerKind,
    ModelConfig,
    Streams,
)
from ds4trio.models.sources import Source

__all__ = ["find_tensors", "tensor_shapes"]

GUESSING = re.compile(
    r"((?:model\.layers|blk)\.(?P<layer>\d{1,9})\.)(?:nextn\.)?eh_proj\.weight", re.ASCII
)

Shape = tuple[int, ...]
Named = Iterator[tuple[str, Shape]]


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor the decoder reads, with its shape: [out, in] for products, [size] else, and
    [heads, out, in] for products of heads."""
    return dict(_tensors(config))


def _tensors(c: ModelConfig) -> Named:
    yield "model.embed_tokens.weight", (c.vocab_size, c.hidden_size)
    yield "model.norm.weight", (c.hidden_size,)
    if not c.tied_head:
        yield "lm_head.weight", (c.vocab_size, c.hidden_size)
    if c.streams is not None:
        yield from _streams(c, c.streams, "model.head_streams", c.streams.count, 1)
    for layer in range(c.layers):
        for name, shape in _layer(c, c.kind(layer)):
            yield f"model.layers.{layer}.{name}", shape


def _layer(c: ModelConfig, kind: LayerKind) -> Named:
    if c.norms != "after":
        yield "input_layernorm.weight", (c.hidden_size,)
        yield "post_attention_layernorm.weight", (c.hidden_size,)  # before the MLP
    if c.norms != "before":
        yield "self_attn.output_norm.weight", (c.hidden_size,)
        yield "mlp.output_norm.weight", (c.hidden_size,)
    if c.compressed is not None:
        yield from _compressed(c, c.compressed, kind)
    elif c.latent is not None:
        yield from _latent(c, c.latent)
    else:
        yield from _grouped(c)
    if c.streams is not None:
        for half in ("attn_streams", "mlp_streams"):
            yield from _streams(c, c.streams, half, (2 + c.streams.count) * c.streams.count, 3)
    if kind.experts and c.experts is not None:
        yield from _experts(c, c.experts, hashed=kind.hashed)
    else:
        yield from _gated("mlp", c.hidden_size, c.intermediate_size, c.mlp_bias)


def _product(name: str, outputs: int, inputs: int, bias: bool) -> Named:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _gated(name: str, hidden: int, width: int, bias: bool) -> Named:
    yield from _product(f"{name}.gate_proj", width, hidden, bias)
    yield from _product(f"{name}.up_proj", width, hidden, bias)
    yield from _product(f"{name}.down_proj", hidden, width, bias)


def _grouped(c: ModelConfig) -> Named:
    queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
    yield from _product("self_attn.q_proj", queries, c.hidden_size, c.attention_bias)
    yield from _product("self_attn.k_proj", keys, c.hidden_size, c.attention_bias)
    yield from _product("self_attn.v_proj", keys, c.hidden_size, c.attention_bias)
    yield from _product("self_attn.o_proj", c.hidden_size, queries, c.output_bias)
    if c.head_norm != "none":
        whole = c.head_norm == "whole"
        yield "self_attn.q_norm.weight", (queries if whole else c.head_dim,)
        yield "self_attn.k_norm.weight", (keys if whole else c.head_dim,)
    if c.sinks:
        yield "self_attn.sinks", (c.heads,)


def _latent(c: ModelConfig, latent: Latent) -> Named:
    key = latent.plain_dim + latent.turned_dim
    bias = c.attention_bias
    if latent.query_rank:
        yield from _product("self_attn.q_a_proj", latent.query_rank, c.hidden_size, bias)
        yield "self_attn.q_a_layernorm.weight", (latent.query_rank,)
        yield from _product("self_attn.q_b_proj", c.heads * key, latent.query_rank, False)
    else:
        yield from _product("self_attn.q_proj", c.heads * key, c.hidden_size, False)
    cached = latent.rank + latent.turned_dim
    yield from _product("self_attn.kv_a_proj_with_mqa", cached, c.hidden_size, bias)
    yield "self_attn.kv_a_layernorm.weight", (latent.rank,)
    if latent.split:
        yield "self_attn.k_b_proj.weight", (c.heads, latent.rank, latent.plain_dim)
        yield "self_attn.v_b_proj.weight", (c.heads, latent.value_dim, latent.rank)
    else:
        both = c.heads * (latent.plain_dim + latent.value_dim)
        yield from _product("self_attn.kv_b_proj", both, latent.rank, False)
    values = c.heads * latent.value_dim
    yield from _product("self_attn.o_proj", c.hidden_size, values, c.output_bias)


def _compressed(c: ModelConfig, own: Compressed, kind: LayerKind) -> Named:
    yield from _product("self_attn.q_a_proj", own.query_rank, c.hidden_size, False)
    yield "self_attn.q_a_layernorm.weight", (own.query_rank,)
    yield from _product("self_attn.q_b_proj", c.heads * c.head_dim, own.query_rank, False)
    yield from _product("self_attn.kv_proj", c.head_dim, c.hidden_size, False)
    yield "self_attn.kv_norm.weight", (c.head_dim,)
    yield "self_attn.sinks", (c.heads,)
    short, group = own.output_groups * own.output_rank, c.heads * c.head_dim // own.output_groups
    yield from _product("self_attn.o_a_proj", short, group, False)
    yield from _product("self_attn.o_b_proj", c.hidden_size, short, False)
    sparse = kind.compressed == "sparse"
    if kind.compressed != "no":
        yield from _compressor("self_attn.compressor", c, c.head_dim, own.ratio(kind), sparse)
    if sparse:
        yield from _compressor("self_attn.index", c, own.index_dim, own.ratio(kind), sparse)
        queries = own.index_heads * own.index_dim
        yield from _product("self_attn.index.q_b_proj", queries, own.query_rank, False)
        yield from _product("self_attn.index.weights_proj", own.index_heads, c.hidden_size, False)


def _compressor(name: str, c: ModelConfig, width: int, ratio: int, sparse: bool) -> Named:
    doubled = 2 * width if sparse else width
    yield from _product(f"{name}.kv_proj", doubled, c.hidden_size, False)
    yield from _product(f"{name}.gate_proj", doubled, c.hidden_size, False)
    yield f"{name}.position_bias", (ratio, doubled)
    yield f"{name}.norm.weight", (width,)


def _streams(c: ModelConfig, streams: Streams, name: str, outputs: int, scales: int) -> Named:
    yield f"{name}.fn", (outputs, streams.count * c.hidden_size)
    yield f"{name}.base", (outputs,)
    yield f"{name}.scale", (scales,)


def _experts(c: ModelConfig, experts: Experts, *, hashed: bool) -> Named:
    yield from _product("mlp.router", experts.count, c.hidden_size, experts.router_bias)
    if hashed:
        yield "mlp.router.by_token", (c.vocab_size, experts.used)
    elif experts.correction:
        yield "mlp.router.correction", (experts.count,)
    for number in range(experts.count):
        yield from _gated(f"mlp.experts.{number}", c.hidden_size, experts.width, experts.bias)
    if experts.shared_width:
        yield from _gated("mlp.shared", c.hidden_size, experts.shared_width, c.mlp_bias)
        if experts.shared_gate:
            yield "mlp.shared_gate.weight", (c.hidden_size,)


def find_tensors(
    config: ModelConfig,
    shapes: Mapping[str, Shape],
    source_of: Callable[[ModelConfig, str], Source],
    unused: re.Pattern[str],
) -> dict[str, Source]:
    """Hold what a file has against what its config says.

    Args:
        config: the decoder's shape.
        shapes: of the file's tensors, by its own names.
        source_of: says where the file keeps a tensor of the decoder.
        unused: matches names of tensors that hold nothing the decoder needs.

    Returns:
        Where each tensor of the decoder is.

    Raises:
        ModelUnavailable: a tensor is missing, has another shape, or is one that the decoder would
            silently leave out. Layers beyond the decoder's that guess further tokens are left out.
    """
    sources = {}
    # One by one, since a config may ask for more than memory holds, of a file that has not.
    for name, shape in _tensors(config):
        source = sources[name] = source_of(config, name)
        try:
            found = source.shape(shapes)
        except KeyError:
            raise ModelUnavailable(
                f"This model cannot be used: it has no tensor {source.name!r}."
            ) from None
        if found != shape:
            raise ModelUnavailable(
                f"This model cannot be used: tensor {source.name!r} has shape "
                f"{list(shapes[source.name])}, its config says {list(shape)}."
            )
    used = {source.name for source in sources.values()}
    guessing = _guessing_layers(config, shapes)
    for name in shapes:
        if name not in used and not unused.fullmatch(name) and not name.startswith(guessing):
            raise ModelUnavailable(f"This model cannot be used: unknown tensor {name!r}.")
    return sources


def _guessing_layers(config: ModelConfig, shapes: Mapping[str, Shape]) -> tuple[str, ...]:
    """How names begin of layers for multi-token prediction (arXiv:2412.19437, section 2.2), which
    follow those of the decoder; the product that joins two hidden states tells them apart."""
    found = filter(None, map(GUESSING.fullmatch, shapes))
    return tuple(match[1] for match in found if int(match["layer"]) >= config.layers)
