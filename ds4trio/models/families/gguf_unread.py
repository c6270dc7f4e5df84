"""Keys of GGUF files that would change the answer, and that a family does not read.

What does not stand here changes nothing, or is read by every family that files say it of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ds4trio.models.fields import refuse

__all__ = ["refuse_unread"]

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "use_parallel_residual": (False,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.shared_kv_layers": (0,),
    "attention.scale": (0,),
    "attention.temperature_scale": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "router_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "logit_scale": (0, 1),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_scale": (0, 1),
    "expert_weights_scale": (0, 1),
    "moe_every_n_layers": (0, 1),
    "interleave_moe_layer_step": (0, 1),
    "full_attention_interval": (0, 1),
    "rope.scaling.yarn_ext_factor": (-1, 1),
}
"""Values that say nothing; zero is what llama.cpp takes for "not said" in most of them."""

READ: Mapping[str, Collection[str]] = {
    "granite": ("attention.scale", "embedding_scale", "residual_scale", "logit_scale"),
    "gemma2": ("attn_logit_softcapping", "final_logit_softcapping"),
    "gemma3": ("final_logit_softcapping",),
    "mistral3": ("attention.temperature_scale",),
    "gpt-oss": ("expert_gating_func",),
    "deepseek2": (
        "attention.temperature_scale",
        "expert_gating_func",
        "expert_group_count",
        "expert_weights_scale",
    ),
}
"""Those of them that a family reads."""

SAME = {
    "attention.key_length_swa": "attention.key_length",
    "attention.value_length_swa": "attention.value_length",
    "rope.dimension_count_swa": "rope.dimension_count",
}
"""What files say of layers with a window, and must say of all others too."""


def refuse_unread(architecture: str, metadata: Mapping[str, Any]) -> None:
    """Look for such keys.

    Args:
        architecture: ``general.architecture``.
        metadata: of the file.

    Raises:
        ModelUnavailable: there is one that says something.
    """
    read = READ.get(architecture, ())
    for key, neutral in NEUTRAL.items():
        value = metadata.get(f"{architecture}.{key}")
        if value is not None and key not in read and value not in neutral:
            refuse(f"{architecture}.{key} is {value!r}, and this family does not read it")
    for near, far in SAME.items():
        value = metadata.get(f"{architecture}.{near}")
        if value is not None and value != metadata.get(f"{architecture}.{far}", value):
            refuse(f"{architecture}.{near} is {value!r}, and other than that of other layers")
