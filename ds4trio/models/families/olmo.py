"""OLMo 2 (arXiv:2501.00656): norms after attention and MLP, and queries and keys normalised over
all heads together; and OLMo 3, which has windows besides, in all layers but every fourth.

GGUF files of both say ``olmo2``.
"""

from __future__ import annotations

from msgspec.structs import replace

from ds4trio.models.architecture import LayerKind, ModelConfig
from ds4trio.models.families.family import Family
from ds4trio.models.families.gguf_file import GgufFile, gguf_config
from ds4trio.models.families.hf_file import HfFile, hf_config, hf_rope
from ds4trio.models.families.layers import every, gguf_windows, hf_window, hf_windows, kinds_of
from ds4trio.models.families.names import renamed
from ds4trio.models.rotary import Rope
from ds4trio.models.sources import Source

__all__ = ["OLMO"]

DEFAULTS = {
    "vocab_size": 50304,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": 50279,
}
"""Of transformers, where a config does not say."""

STEP = 4
"""Of so many layers of OLMo 3, the last sees everything."""

NAMES = {
    "self_attn.output_norm": "post_attention_layernorm",
    "mlp.output_norm": "post_feedforward_layernorm",
}


def _olmo2(config: ModelConfig) -> ModelConfig:
    return replace(config, norms="after", head_norm="whole")


def _olmo2_from_hf(file: HfFile) -> ModelConfig:
    return _olmo2(hf_config(file.with_defaults(DEFAULTS)))


def _olmo3_from_hf(file: HfFile) -> ModelConfig:
    file = file.with_defaults(DEFAULTS)
    config = hf_config(file, theta=5e5)
    windowed = hf_windows(file, config.layers, every(STEP))
    full = hf_rope(file, config.head_dim, theta=5e5, kind="full_attention")
    # Only layers that see everything are stretched.
    near = file.mapping("rope_parameters").get("sliding_attention")
    local = (
        Rope(theta=full.theta, dims=full.dims)
        if near is None
        else hf_rope(file, config.head_dim, theta=5e5, kind="sliding_attention")
    )
    kinds = kinds_of(windowed, hf_window(file, 4096), config.context_length, local=1)
    return _olmo2(_with(config, kinds, full, local))


def _with(
    config: ModelConfig, kinds: tuple[LayerKind, ...], full: Rope, local: Rope
) -> ModelConfig:
    if full == local:
        kinds = tuple(replace(kind, rope=0) for kind in kinds)
        kinds = kinds if any(kind.window for kind in kinds) else ()
        return replace(config, kinds=kinds, ropes=(full,))
    return replace(config, kinds=kinds, ropes=(full, local) if kinds else (full,))


def _from_gguf(file: GgufFile) -> ModelConfig:
    config = _olmo2(gguf_config(file))
    read = file.read
    window = read.integer("attention.sliding_window", 0)
    if not window:
        return config
    full = config.ropes[0]
    local = Rope(theta=read.number("rope.freq_base_swa", full.theta), dims=full.dims)
    windowed = gguf_windows(file, config.layers, every(STEP))
    kinds = kinds_of(windowed, window, config.context_length, local=1)
    return _with(config, kinds, full, local)


def _hf_source(config: ModelConfig, name: str) -> Source:
    return renamed(name, NAMES)


OLMO = Family(
    from_hf={"olmo2": _olmo2_from_hf, "olmo3": _olmo3_from_hf},
    from_gguf={"olmo2": _from_gguf},
    hf_source=_hf_source,
)
