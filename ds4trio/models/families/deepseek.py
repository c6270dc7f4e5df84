"""DeepSeek V2 (arXiv:2405.04434), V3 and R1 (arXiv:2412.19437), and models of their shape, such as
Kimi K2 and Moonlight: latent attention, and experts after a few layers without."""

from __future__ import annotations

import math
import re

from msgspec.structs import replace

from ds4trio.models.architecture import Experts, Latent, LayerKind, ModelConfig
from ds4trio.models.families.family import Family
from ds4trio.models.families.gguf_file import GgufFile, gguf_config, gguf_rope
from ds4trio.models.families.hf_file import HfFile, hf_config, hf_rope
from ds4trio.models.families.names import GGUF_UNUSED, renamed
from ds4trio.models.fields import FieldReader, refuse
from ds4trio.models.rotary import RopeScaling
from ds4trio.models.sources import Source

__all__ = ["DEEPSEEK"]

NAMES = {
    "mlp.router": "mlp.gate",
    "mlp.router.correction": "mlp.gate.e_score_correction_bias",
    "mlp.shared.gate_proj": "mlp.shared_experts.gate_proj",
    "mlp.shared.up_proj": "mlp.shared_experts.up_proj",
    "mlp.shared.down_proj": "mlp.shared_experts.down_proj",
}

V3_DEFAULTS = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 1536,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
"""Of transformers, where a config does not say."""

SOFTMAX, SIGMOID = 1, 2
"""``expert_gating_func`` of GGUF files."""


def _from_hf(file: HfFile, *, sigmoid: bool) -> ModelConfig:
    read = file.read
    latent = Latent(
        query_rank=read.integer("q_lora_rank", 0),
        rank=read.integer("kv_lora_rank", 512),
        plain_dim=read.integer("qk_nope_head_dim", 128),
        turned_dim=read.integer("qk_rope_head_dim", 64),
        value_dim=read.integer("v_head_dim", 128),
        neighbours=read.flag("rope_interleave", True) if sigmoid else True,
    )
    # Attention is over one head; what a config says of others is not what is attended to.
    one = {"head_dim": latent.rank + latent.turned_dim, "num_key_value_heads": 1}
    base = hf_config(
        HfFile({**file.values, **one}, file.ends), ropes=[hf_rope(file, latent.turned_dim)]
    )
    experts = _hf_experts(read, sigmoid=sigmoid) if read.integer("n_routed_experts", 0) else None
    dense = read.integer("first_k_dense_replace", 3 if sigmoid else 0)
    every = read.integer("moe_layer_freq", 1)
    scaling = base.ropes[0].scaling
    weight = 0.0 if scaling is None else scaling.mscale_all_dim or 0.0
    return _with_latent(
        base,
        latent,
        experts,
        [layer >= dense and layer % max(every, 1) == 0 for layer in range(base.layers)],
        sharpness=_sharpness(scaling, weight),
    )


def _hf_experts(read: FieldReader, *, sigmoid: bool) -> Experts:
    method = read.values.get("topk_method") or ("noaux_tc" if sigmoid else "greedy")
    scoring = read.values.get("scoring_func") or ("sigmoid" if sigmoid else "softmax")
    known = ("noaux_tc",) if sigmoid else ("greedy", "group_limited_greedy")
    if method not in known or scoring != ("sigmoid" if sigmoid else "softmax"):
        refuse(f"experts chosen by {method!r} from {scoring!r} scores are not known")
    grouped = method != "greedy"
    return Experts(
        count=read.integer("n_routed_experts"),
        used=read.integer("num_experts_per_tok"),
        width=read.integer("moe_intermediate_size"),
        shared_width=read.integer("n_shared_experts", 0) * read.integer("moe_intermediate_size"),
        scoring="sigmoid" if sigmoid else "softmax",
        normalise=read.flag("norm_topk_prob", sigmoid),
        scale=read.number("routed_scaling_factor", 1.0),
        correction=sigmoid,
        groups=read.integer("n_group", 1) if grouped else 1,
        groups_used=read.integer("topk_group", 1) if grouped else 1,
        group_score="best two" if sigmoid else "best",
    )


def _from_gguf(file: GgufFile) -> ModelConfig:
    read = file.read
    if read.number("attention.temperature_scale", 0.0):
        refuse("queries that grow with their position are not known in this family")
    turned = read.integer("rope.dimension_count")
    # Files with keys and values of the latent apart have these twice: as they are before it, and
    # as attention over it sees them.
    key = read.integer("attention.key_length_mla", read.integer("attention.key_length"))
    latent = Latent(
        query_rank=read.integer("attention.q_lora_rank", 0),
        rank=read.integer("attention.kv_lora_rank"),
        plain_dim=key - turned,
        turned_dim=turned,
        value_dim=read.integer(
            "attention.value_length_mla", read.integer("attention.value_length")
        ),
        split=file.has("blk.0.attn_k_b.weight"),
    )
    weight = read.number("rope.scaling.yarn_log_multiplier", 0.0) * 10.0
    rope = gguf_rope(file, turned)
    if weight and rope.scaling is not None:
        # Both of a model's weights are the same in all of these files, which have only one.
        rope = replace(rope, scaling=replace(rope.scaling, mscale=weight, mscale_all_dim=weight))
    base = gguf_config(file, ropes=[rope], head_dim=latent.rank + turned)
    base = replace(base, layers=base.layers - read.integer("nextn_predict_layers", 0))
    experts = _gguf_experts(file) if read.integer("expert_count", 0) else None
    dense = read.integer("leading_dense_block_count", 0)
    return _with_latent(
        base,
        latent,
        experts,
        [layer >= dense for layer in range(base.layers)],
        sharpness=_sharpness(rope.scaling, weight),
    )


def _gguf_experts(file: GgufFile) -> Experts:
    read = file.read
    scoring = read.integer("expert_gating_func", 0) or SOFTMAX  # files of V2 may not say
    if scoring not in (SOFTMAX, SIGMOID):
        refuse(f"experts with the gating function {scoring} are not known in this family")
    width = read.integer("expert_feed_forward_length")
    first = read.integer("leading_dense_block_count", 0)
    return Experts(
        count=read.integer("expert_count"),
        used=read.integer("expert_used_count"),
        width=width,
        shared_width=width * read.integer("expert_shared_count", 0),
        scoring="sigmoid" if scoring == SIGMOID else "softmax",
        normalise=read.flag("expert_weights_norm", False),
        scale=read.number("expert_weights_scale", 1.0) or 1.0,
        correction=file.has(f"blk.{first}.exp_probs_b.bias"),
        groups=read.integer("expert_group_count", 1) or 1,
        groups_used=read.integer("expert_group_used_count", 1) or 1,
        group_score="best two" if scoring == SIGMOID else "best",
    )


def _sharpness(scaling: RopeScaling | None, weight: float) -> float:
    """Yarn's second multiplier of scores in these families, of a weight (``mscale_all_dim``): the
    first (``rope.py``) is of the turned dimensions only."""
    if scaling is None or scaling.factor <= 1:
        return 1.0
    multiplier = 0.1 * weight * math.log(scaling.factor) + 1.0
    if not math.isfinite(multiplier * multiplier):
        refuse(f"yarn with the factor {scaling.factor} and the weight {weight} cannot be")
    return multiplier * multiplier


def _with_latent(
    base: ModelConfig,
    latent: Latent,
    experts: Experts | None,
    mixed: list[bool],
    *,
    sharpness: float,
) -> ModelConfig:
    """The config with attention as the engine sees it, over one head of keys and values.

    Args:
        base: what the family has in common with others.
        latent, experts: of the model.
        mixed: for each layer, whether it has experts, if there are any.
        sharpness: scores are multiplied by it besides.
    """
    return replace(
        base,
        kv_heads=1,
        head_dim=latent.rank + latent.turned_dim,
        attention_scale=(latent.plain_dim + latent.turned_dim) ** -0.5 * sharpness,
        latent=latent,
        experts=experts,
        kinds=tuple(LayerKind(experts=own) for own in mixed) if experts is not None else (),
    )


def _v2(file: HfFile) -> ModelConfig:
    return _from_hf(file, sigmoid=False)


def _v3(file: HfFile) -> ModelConfig:
    return _from_hf(file.with_defaults(V3_DEFAULTS), sigmoid=True)


def _hf_source(config: ModelConfig, name: str) -> Source:
    return renamed(name, NAMES)


DEEPSEEK = Family(
    from_hf={"deepseek_v2": _v2, "deepseek_v3": _v3, "kimi_k2": _v3},
    from_gguf={"deepseek2": _from_gguf},
    hf_source=_hf_source,
    # Files that have keys and values apart may have them together besides.
    gguf_unused=re.compile(rf"{GGUF_UNUSED.pattern}|blk\.\d+\.attn_kv_b\.weight"),
)
