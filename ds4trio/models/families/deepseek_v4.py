"""DeepSeek V4: attention to a window and to compressed positions, several residual streams, and
experts of which the first layers look theirs up by token.

The publisher's names of tensors are other than Hugging Face's usual ones. GGUF files have no
settled form for it yet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from ds4trio.models.architecture import Compressed, Experts, LayerKind, ModelConfig, Streams
from ds4trio.models.families.family import Family
from ds4trio.models.families.hf_file import HfFile, hf_activation, hf_config, hf_rope
from ds4trio.models.families.names import split_name
from ds4trio.models.fields import FieldReader, refuse
from ds4trio.models.rotary import Rope
from ds4trio.models.sources import Source

__all__ = ["DEEPSEEK_V4"]

KINDS: Mapping[object, Literal["no", "sparse", "heavy"]] = {
    "sliding_attention": "no",
    "compressed_sparse_attention": "sparse",
    "heavily_compressed_attention": "heavy",
    0: "no",
    4: "sparse",
    128: "heavy",
}
DEFAULTS = {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "max_position_embeddings": 1048576,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
"""Of transformers, where a config does not say."""

MLPS: Mapping[object, bool] = {"hash_moe": True, "moe": False}
LIMIT = 10.0

OUTER = {
    "lm_head.weight": "head.weight",
    "model.head_streams.fn": "model.hc_head.hc_fn",
    "model.head_streams.base": "model.hc_head.hc_base",
    "model.head_streams.scale": "model.hc_head.hc_scale",
}
INNER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_a_proj.weight": "attn.wq_a.weight",
    "self_attn.q_a_layernorm.weight": "attn.q_norm.weight",
    "self_attn.q_b_proj.weight": "attn.wq_b.weight",
    "self_attn.kv_proj.weight": "attn.wkv.weight",
    "self_attn.kv_norm.weight": "attn.norm.weight",
    "self_attn.sinks": "attn.attn_sink",
    "self_attn.o_a_proj.weight": "attn.wo_a.weight",
    "self_attn.o_b_proj.weight": "attn.wo_b.weight",
    "self_attn.index.q_b_proj.weight": "attn.indexer.wq_b.weight",
    "self_attn.index.weights_proj.weight": "attn.indexer.weights_proj.weight",
    "mlp.router.weight": "ffn.gate.weight",
    "mlp.router.correction": "ffn.gate.bias",
    "mlp.router.by_token": "ffn.gate.tid2eid",
}
COMPRESSORS = {"compressor": "compressor", "index": "indexer.compressor"}
COMPRESSED = {
    "kv_proj.weight": "wkv.weight",
    "gate_proj.weight": "wgate.weight",
    "position_bias": "ape",
    "norm.weight": "norm.weight",
}
MLP = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
HALVES = {"attn_streams": "attn", "mlp_streams": "ffn"}

PREDICTION = re.compile(r"(model\.)?mtp\..*")
"""Layers that predict further tokens; they are not used."""


def _from_hf(file: HfFile) -> ModelConfig:
    file = file.with_defaults(DEFAULTS)
    read, values = file.read, file.values
    layers, head_dim = read.integer("num_hidden_layers"), read.integer("head_dim", 512)
    if read.number("swiglu_limit", LIMIT) != LIMIT:
        refuse(f"swiglu_limit is {values['swiglu_limit']!r}; known: {LIMIT}")
    if (scoring := values.get("scoring_func", "sqrtsoftplus")) != "sqrtsoftplus":
        refuse(f"scoring_func is {scoring!r}; known: sqrtsoftplus")
    if (activation := hf_activation(values)) != "silu":
        refuse(f"activation {activation} is not known in this family; known: silu")
    if read.integer("num_key_value_heads", 1) != 1:
        refuse("there must be one key/value head")
    main, compress = _ropes(file, head_dim)
    ratios = FieldReader(file.mapping("compress_rates"))
    groups = read.integer("o_groups", 8)
    plain = hf_config(
        HfFile({**values, "num_key_value_heads": 1, "head_dim": head_dim}, file.ends),
        ropes=(main, compress),
    )
    return replace(
        plain,
        intermediate_size=read.integer("moe_intermediate_size", 2048),
        kinds=_kinds(file, layers, read.integer("sliding_window", 128)),
        activation="limited",
        sinks=True,
        experts=Experts(
            count=read.integer("n_routed_experts", 256),
            used=read.integer("num_experts_per_tok", 6),
            width=read.integer("moe_intermediate_size", 2048),
            shared_width=read.integer("moe_intermediate_size", 2048),
            scoring="root softplus",
            normalise=True,
            scale=read.number("routed_scaling_factor", 1.5),
            correction=True,
        ),
        compressed=Compressed(
            query_rank=read.integer("q_lora_rank", 1024),
            turned_dim=main.dims,
            sparse_ratio=ratios.integer(
                "compressed_sparse_attention", read.integer("compress_rate_csa", 4)
            ),
            heavy_ratio=ratios.integer(
                "heavily_compressed_attention", read.integer("compress_rate_hca", 128)
            ),
            index_heads=read.integer("index_n_heads", 64),
            index_dim=read.integer("index_head_dim", 128),
            index_used=read.integer("index_topk", 512),
            output_groups=groups,
            output_rank=read.integer("o_lora_rank", 1024),
        ),
        streams=Streams(
            count=read.integer("hc_mult", 4),
            iterations=read.integer("hc_sinkhorn_iters", 20),
            epsilon=read.number("hc_eps", 1e-6),
        ),
    )


def _ropes(file: HfFile, head_dim: int) -> tuple[Rope, Rope]:
    """Of layers with a window alone, and of those with compressed positions."""
    values = file.values
    share = file.read.integer("qk_rope_head_dim", head_dim // 8) / max(head_dim, 1)
    parameters = file.mapping("rope_parameters") or file.mapping("rope_scaling")
    if all(isinstance(parameters.get(kind), dict) for kind in ("main", "compress")):
        main, compress = (
            hf_rope(file, head_dim, kind=kind, share=share, partly=True)
            for kind in ("main", "compress")
        )
    else:
        bases = (("rope_theta", 10000.0), ("compress_rope_theta", 160000.0))
        thetas = [file.read.number(key, default) for key, default in bases]
        less = {k: v for k, v in values.items() if k not in ("rope_parameters", "rope_scaling")}
        flat = HfFile({**less, "rope_theta": thetas[0]})
        scaled = HfFile({**less, "rope_parameters": {**parameters, "rope_theta": thetas[1]}})
        main, compress = (
            hf_rope(part, head_dim, share=share, partly=True) for part in (flat, scaled)
        )
    if main.dims != compress.dims:
        refuse(f"layers turn {main.dims} and {compress.dims} dimensions; it must be the same")
    if compress.scaling is not None and compress.scaling.attention_factor is None:
        # Unlike others it does not sharpen attention where its context is stretched.
        compress = replace(compress, scaling=replace(compress.scaling, attention_factor=1.0))
    return main, compress


def _kinds(file: HfFile, layers: int, window: int) -> tuple[LayerKind, ...]:
    attention = (
        _list(file, "layer_types")
        or _list(file, "compress_ratios")
        or [128 if number < 2 or number % 2 == 0 else 4 for number in range(layers)]
    )
    hashed = file.read.integer("num_hash_layers", 3)
    mlps = _list(file, "mlp_layer_types") or [
        "hash_moe" if number < hashed else "moe" for number in range(layers)
    ]
    if len(attention) < layers or len(mlps) < layers:
        refuse(f"the kinds of its {layers} layers are not all given")
    if window < 1:
        refuse(f"a window of {window} positions cannot be")
    for given, known in ((attention, KINDS), (mlps, MLPS)):
        if unknown := [kind for kind in given if kind not in known]:
            refuse(f"layer type {unknown[0]!r} is not known; known: {', '.join(map(str, known))}")
    return tuple(
        LayerKind(
            window=window,
            rope=0 if KINDS[kind] == "no" else 1,
            experts=True,
            hashed=MLPS[mlp],
            compressed=KINDS[kind],
        )
        for kind, mlp in zip(attention[:layers], mlps[:layers], strict=True)
    )


def _list(file: HfFile, key: str) -> Sequence[Any]:
    """Names or numbers, one for each layer; nothing where the config has no such key."""
    values = file.values.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, str | int) for value in values):
        refuse(f"{key} is {values!r}; it must be a list of names or numbers")
    return values


def _hf_source(config: ModelConfig, name: str) -> Source:
    where = split_name(name)
    if where is None:
        return Source(OUTER.get(name, name))
    layer, part = where
    return Source(f"model.layers.{layer}.{_own_name(part)}")


def _own_name(part: str) -> str:
    if part in INNER:
        return INNER[part]
    first, _, rest = part.partition(".")
    if first in HALVES:
        return f"hc_{HALVES[first]}_{rest}"
    if first == "self_attn":
        which, _, leaf = rest.partition(".")
        return f"attn.{COMPRESSORS[which]}.{COMPRESSED[leaf]}"
    place, product, kind = rest.rsplit(".", 2)
    place = "shared_experts" if place == "shared" else place
    return f"ffn.{place}.{MLP[product]}.{kind}"


DEEPSEEK_V4 = Family(
    from_hf={"deepseek_v4": _from_hf},
    from_gguf={},
    hf_source=_hf_source,
    hf_unused=PREDICTION,
)
