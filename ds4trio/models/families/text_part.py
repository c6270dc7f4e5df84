"""Models that also see pictures: their text part is served, by itself.

Its config is nested, its tensors have a prefix, and those of the other parts, known by theirs, are
left alone. Anything else in such a file is refused as everywhere.
"""

from __future__ import annotations

import re

from ds4trio.models.families.hf_file import HfFile
from ds4trio.models.fields import refuse, token_ids

__all__ = ["TEXT_ROOTS", "TEXT_UNUSED", "text_part"]

TEXT_ROOTS = (
    ("model.", ""),  # the text part alone
    ("language_model.model.", "language_model."),  # how such models are published
    ("model.language_model.", ""),  # how transformers 4.52 and later name them in memory
)
"""What files have in place of ``model.``, and in front of ``lm_head``."""

TEXT_UNUSED = re.compile(
    r"(model\.)?(vision_tower|multi_modal_projector)\..+"
    r"|(language_model\.)?lm_head\.weight"
    r"|.*\.rotary_emb\.inv_freq"
)
"""Tensors of the part that sees, and of what is between that and the text part."""


def text_part(file: HfFile) -> HfFile:
    """The config of the text part, with what the whole says about tokens and the head.

    Raises:
        ModelUnavailable: there is no such part.
    """
    text = file.mapping("text_config")
    if not text:
        refuse("its config has no text_config")
    head = file.values.get("tie_word_embeddings")
    whole = {} if head is None else {"tie_word_embeddings": head}
    return HfFile({**text, **whole}, (*file.ends, *token_ids(file.values.get("eos_token_id"))))
