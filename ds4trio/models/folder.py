"""A Hugging Face model folder: config.json, safetensors, a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ds4trio.models.checkpoints.opening import open_checkpoint
from ds4trio.models.config import config_from_hf, find_hf_tensors
from ds4trio.models.loaded import LoadedModel
from ds4trio.models.sources import SourcedWeights
from ds4trio.models.vocabularies.folder import (
    decode_json,
    find_template,
    find_tokenizer,
    optional_json,
)

__all__ = ["open_folder"]


def open_folder(name: str, folder: Path) -> LoadedModel:
    """Open a Hugging Face folder.

    Raises:
        ModelUnavailable: a file is missing or damaged, or the model is of a kind not known.
    """
    raw_config = decode_json(folder / "config.json", dict[str, Any])
    tokenizer = find_tokenizer(folder)
    generation = optional_json(folder / "generation_config.json")
    config = config_from_hf(raw_config, generation, extra_eos=tokenizer.eos_ids)
    weights = open_checkpoint(folder, raw_config)
    sources = find_hf_tensors(config, weights.shapes)
    weights.keep({source.name for source in sources.values()})
    return LoadedModel(
        name=name,
        config=config,
        weights=SourcedWeights(weights, sources),
        tokenizer_path=tokenizer.path,
        chat_template=find_template(folder, tokenizer.settings),
        bos_token=tokenizer.bos,
        eos_token=tokenizer.eos,
        add_bos=tokenizer.add_bos,
    )
