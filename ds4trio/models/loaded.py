"""What an opened model consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ds4trio.models.config import ModelConfig

if TYPE_CHECKING:
    import torch

__all__ = ["LoadedModel"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is open and ready to become an engine and a tokenizer.

    Attributes:
        name: what clients call it.
        config: its shape.
        weights: by the names of ``tensors``. Lazy: each access reads and dequantises one tensor and
            gives a CPU tensor, float32 where the file is GGUF or quantised, else the dtype that a
            safetensors file has. Query and key rows are in the order that rotates halves.
        tokenizer_path: a ``tokenizer.json``.
        chat_template: Jinja source, None where the file has none.
        bos_token, eos_token: their text, None where there is none.
        add_bos: a prompt begins with ``bos_token`` even if its template does not write it.
        folder: where what is made of exactly these weights can be kept; None for nowhere.
    """

    name: str
    config: ModelConfig
    weights: Mapping[str, torch.Tensor]
    tokenizer_path: Path
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    add_bos: bool
    folder: Path | None = None
