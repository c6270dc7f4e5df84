"""Llama 2 and 3 (arXiv:2307.09288, arXiv:2407.21783): the plainest block of all.

SmolLM2 and other models say ``llama`` too; of GGUF files, Mixtral's do.
"""

from __future__ import annotations

from ds4trio.models.architecture import ModelConfig
from ds4trio.models.families.family import Family
from ds4trio.models.families.gguf_file import GgufFile, gguf_config
from ds4trio.models.families.hf_file import HfFile, hf_config
from ds4trio.models.families.mixtral import mixtral_from_gguf
from ds4trio.models.families.names import in_pairs

__all__ = ["LLAMA"]


def _from_hf(file: HfFile) -> ModelConfig:
    return hf_config(file)


def _from_gguf(file: GgufFile) -> ModelConfig:
    if file.read.integer("expert_count", 0):
        return mixtral_from_gguf(file)
    return gguf_config(file)


LLAMA = Family(from_hf={"llama": _from_hf}, from_gguf={"llama": _from_gguf}, gguf_source=in_pairs)
