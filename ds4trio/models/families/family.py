"""What a family of models says about itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ds4trio.models.architecture import ModelConfig
from ds4trio.models.families.gguf_file import GgufFile
from ds4trio.models.families.hf_file import HfFile
from ds4trio.models.families.names import GGUF_UNUSED, HF_UNUSED, gguf_source, hf_source
from ds4trio.models.sources import Source

__all__ = ["Family"]

SourceOf = Callable[[ModelConfig, str], Source]


@dataclass(frozen=True)
class Family:
    """Models of one kind, in both kinds of files.

    Attributes:
        from_hf: reads ``config.json``, by the ``model_type`` that stands there.
        from_gguf: reads the metadata of a GGUF file, by its ``general.architecture``.
        hf_source, gguf_source: where such a file keeps a tensor of the decoder.
        hf_stacked: the same for files in which the experts of a layer lie in one tensor, where
            such are about besides others.
        hf_unused, gguf_unused: match names of tensors that the decoder does not need.
        hf_roots: what files may have in place of ``model.`` and in front of ``lm_head``; the first
            pair that a file has an embedding by counts.
    """

    from_hf: Mapping[str, Callable[[HfFile], ModelConfig]]
    from_gguf: Mapping[str, Callable[[GgufFile], ModelConfig]]
    hf_source: SourceOf = hf_source
    gguf_source: SourceOf = gguf_source
    hf_unused: re.Pattern[str] = HF_UNUSED
    gguf_unused: re.Pattern[str] = GGUF_UNUSED
    hf_stacked: SourceOf | None = None
    hf_roots: Sequence[tuple[str, str]] = (("model.", ""),)

    def hf_source_in(self, names: Collection[str]) -> SourceOf:
        """``hf_source`` for a file that has tensors of these names."""
        named = self.hf_source
        if self.hf_stacked and any(name.endswith(".experts.gate_up_proj") for name in names):
            named = self.hf_stacked
        roots = (pair for pair in self.hf_roots if f"{pair[0]}embed_tokens.weight" in names)
        root, outside = next(roots, self.hf_roots[0])
        if (root, outside) == ("model.", ""):
            return named

        def source(config: ModelConfig, name: str) -> Source:
            own = named(config, name)
            inside = own.name.removeprefix("model.")
            where = outside + own.name if inside == own.name else root + inside
            return replace(own, name=where)

        return source
