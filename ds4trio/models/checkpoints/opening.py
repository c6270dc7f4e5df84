"""Which way a folder's weights are quantised, and the mapping that undoes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ds4trio.models.checkpoints.assembly import Assembly, DecodedWeights, refuse_format
from ds4trio.models.checkpoints.awq import awq
from ds4trio.models.checkpoints.bitsandbytes import bitsandbytes
from ds4trio.models.checkpoints.compressed import compressed_tensors
from ds4trio.models.checkpoints.fp8 import fp8
from ds4trio.models.checkpoints.gptq import gptq
from ds4trio.models.checkpoints.mxfp4 import mxfp4
from ds4trio.models.safetensors import SafetensorsWeights

__all__ = ["METHODS", "open_checkpoint"]

METHODS: Mapping[str, Callable[[Assembly, Mapping[str, Any]], None]] = {
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fbgemm_fp8": fp8,
    "fp8": fp8,
    "gptq": gptq,
    "mxfp4": mxfp4,
}
"""By ``quant_method``: what says how weights are made of a checkpoint's tensors."""


def open_checkpoint(
    folder: Path, raw_config: Mapping[str, Any]
) -> SafetensorsWeights | DecodedWeights:
    """Open the weights of a Hugging Face folder. Reads headers and names only.

    Args:
        folder: has the safetensors files.
        raw_config: the content of its ``config.json``.

    Returns:
        Its tensors by plain name (such as ``x.weight``), decoded when they are asked for: float32
        where they are quantised, else in the files' own dtype.

    Raises:
        ModelUnavailable: a file is missing or damaged, the way it is quantised is not known, or its
            tensors do not fit together.
    """
    settings = _settings(raw_config)
    method = _method(settings)
    raw = SafetensorsWeights(folder)
    if method is None:
        return raw
    if method not in METHODS:
        refuse_format(f"they are quantised by {method!r}; known: {', '.join(sorted(METHODS))}")
    parts = Assembly(raw)
    METHODS[method](parts, settings)
    return DecodedWeights(parts)


def _settings(raw_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The quantisation's settings; models that also see have them in the text model's config."""
    text = raw_config.get("text_config")
    for config in (raw_config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config"):
            if settings := config.get(key):
                if not isinstance(settings, dict):
                    refuse_format(f"{key} is not an object")
                return settings
    return {}


def _method(settings: Mapping[str, Any]) -> str | None:
    if not settings:
        return None
    if method := settings.get("quant_method"):
        return str(method).lower()
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        return "bitsandbytes"  # its older files do not say so
    return refuse_format("quantization_config does not say its quant_method")
