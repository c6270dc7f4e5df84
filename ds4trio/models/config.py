"""A model's configuration, whatever file it comes from: the names that other rooms use."""

from __future__ import annotations

from ds4trio.models.architecture import ARCHITECTURES, ROPE_KINDS, ModelConfig, RopeScaling
from ds4trio.models.config_gguf import config_from_gguf
from ds4trio.models.config_hf import config_from_hf

__all__ = [
    "ARCHITECTURES",
    "ROPE_KINDS",
    "ModelConfig",
    "RopeScaling",
    "config_from_gguf",
    "config_from_hf",
]
