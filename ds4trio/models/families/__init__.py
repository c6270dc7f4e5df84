"""The families of models that can be served, one file each."""

from __future__ import annotations

from ds4trio.models.families.deepseek import DEEPSEEK
from ds4trio.models.families.deepseek_v4 import DEEPSEEK_V4
from ds4trio.models.families.family import Family
from ds4trio.models.families.gemma import GEMMA2, GEMMA3
from ds4trio.models.families.gguf_file import GgufFile
from ds4trio.models.families.gpt_oss import GPT_OSS
from ds4trio.models.families.granite import GRANITE
from ds4trio.models.families.hf_file import HfFile
from ds4trio.models.families.llama import LLAMA
from ds4trio.models.families.mistral import MISTRAL
from ds4trio.models.families.mixtral import MIXTRAL
from ds4trio.models.families.olmo import OLMO
from ds4trio.models.families.phi import PHI3
from ds4trio.models.families.qwen import QWEN2, QWEN3
from ds4trio.models.families.qwen_moe import QWEN2_MOE, QWEN3_MOE
from ds4trio.models.families.smollm3 import SMOLLM3
from ds4trio.models.fields import refuse

__all__ = ["FAMILIES", "Family", "GgufFile", "HfFile", "gguf_family", "hf_family"]

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MIXTRAL,
    QWEN2_MOE,
    QWEN3_MOE,
    GPT_OSS,
    DEEPSEEK,
    DEEPSEEK_V4,
    QWEN2,
    QWEN3,
    MISTRAL,
    SMOLLM3,
    GRANITE,
    GEMMA2,
    GEMMA3,
    PHI3,
    OLMO,
)


def hf_family(kind: object) -> Family:
    """The family of a config's ``model_type``. Raises ModelUnavailable if it is not known."""
    known = {name: family for family in FAMILIES for name in family.from_hf}
    if not isinstance(kind, str) or kind not in known:
        refuse(f"unknown architecture {kind!r}; known: {', '.join(known)}")
    return known[kind]


def gguf_family(kind: object) -> Family:
    """The family of a GGUF file's architecture. Raises ModelUnavailable if it is not known."""
    known = {name: family for family in FAMILIES for name in family.from_gguf}
    if not isinstance(kind, str) or kind not in known:
        refuse(f"unknown architecture {kind!r}; known: {', '.join(known)}")
    return known[kind]
