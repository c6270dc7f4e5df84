"""A tiny random checkpoint of any family, made by transformers, and whether it means the same here.

The reference is always transformers' own model of the same weights, evaluated one text at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

from ds4trio.engine.attention import Span
from ds4trio.models.folder import open_folder
from ds4trio.models.gguf.prepared import open_gguf
from ds4trio.models.gguf.weights import GgufWeights
from ds4trio.models.loaded import LoadedModel
from ds4trio.models.sources import SourcedWeights
from tests.engine.builders import Bench, Pair, prompts
from tests.models.gguf_files import add_value, tokenizer_metadata
from tests.tiny import write_tokenizer

__all__ = ["DECODED", "TOLERANCE", "VERIFIED", "agree", "as_folder", "as_gguf", "randomise"]

TOLERANCE = 2e-3
"""Largest difference of a logit. Logits of these models are between -10 and 10 or so; float32 sums
in another order differ by 1e-5 to 1e-4."""

DECODED = 64
"""Steps of one token after each prompt."""

PAGE = 16

VERIFIED: set[tuple[str, str, str]] = set()
"""What has agreed so far: transformers' name of the architecture, the kind of file, and the way of
attending."""


def randomise(model: PreTrainedModel, seed: int = 0, scale: float = 0.15) -> PreTrainedModel:
    """Give every parameter and buffer of weights random numbers; norms around what they are."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
            else:
                parameter.normal_(0.0, scale, generator=generator)
    model.train(False)
    return model


def as_folder(model: PreTrainedModel, folder: Path) -> LoadedModel:
    """Save as transformers does, and open it here."""
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return open_folder("tiny", folder)


def as_gguf(
    tensors: Mapping[str, torch.Tensor],
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    *,
    layers: int,
    extra: Mapping[str, torch.Tensor] | None = None,
) -> LoadedModel:
    """Write a GGUF file under the names that the gguf library has for an architecture, open it.

    Args:
        tensors: by Hugging Face names, already changed as llama.cpp's converter changes them (rows
            in pairs, experts stacked, one added to norms: the test says so by the format's rules).
        path: of the file.
        architecture: ``general.architecture``.
        metadata: keys less the architecture's prefix.
        layers: how many.
        extra: tensors by names of GGUF.
    """
    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, layers)
    writer = gguf.GGUFWriter(path, architecture)
    write_tokenizer(path.parent)
    named = {f"{architecture}.{key}": value for key, value in metadata.items()}
    for key, value in {**named, **tokenizer_metadata(path.parent)}.items():
        add_value(writer, key, value)
    for name, tensor in tensors.items():
        renamed = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert renamed is not None, name
        writer.add_tensor(renamed, np.ascontiguousarray(tensor.float().numpy()))
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_gguf("tiny", path)


def agree(
    reference: PreTrainedModel,
    model: LoadedModel,
    *,
    plain: bool = False,
    tolerance: float = TOLERANCE,
    longest: int = 90,
) -> None:
    """Prompts of unequal lengths in chunks, then ``DECODED`` steps of all of them together.

    Args:
        reference: transformers' model.
        model: the same weights, opened here.
        plain: attention in torch's operations, as on devices without kernels of our own.
        tolerance: largest difference of any logit at any position.
        longest: prompt, tokens.
    """
    pair = Pair(reference, model.config, model.weights)
    bench = Bench(pair, pages=128, plain=plain)
    vocabulary = model.config.vocab_size
    texts = prompts(5, vocabulary, longest=longest)
    generator = torch.Generator().manual_seed(2)
    more = torch.randint(0, vocabulary, (len(texts), DECODED), generator=generator).tolist()
    whole = [[*text, *rest] for text, rest in zip(texts, more, strict=True)]
    # Pages in no order, and none shared.
    free = torch.randperm(128, generator=generator).tolist()
    tables = [[free.pop() for _ in range(-(-len(text) // PAGE))] for text in whole]
    cuts = [1, 8, 9, 40, 7, 64]
    done = [0] * len(whole)
    found: list[list[torch.Tensor]] = [[] for _ in whole]
    while any(at < len(text) for at, text in zip(done, whole, strict=True)):
        step, active = [], []
        for i, text in enumerate(whole):
            left = len(texts[i]) - done[i]
            count = min(cuts[(i + sum(done)) % len(cuts)], left) if left > 0 else 1
            if done[i] < len(text):
                active.append(i)
                step.append((Span(tables[i], done[i], count), text[done[i] : done[i] + count]))
        for i, logits in zip(active, bench.logits(step), strict=True):
            found[i].append(logits)
            done[i] += len(logits)
    for text, pieces in zip(whole, found, strict=True):
        difference = (torch.cat(pieces) - pair.expected(text)).abs().max()
        assert float(difference) < tolerance, float(difference)
    raw = model.weights._raw if isinstance(model.weights, SourcedWeights) else None
    file = "GGUF" if isinstance(raw, GgufWeights) else "safetensors"
    VERIFIED.add((reference.config.model_type, file, "torch" if plain else "native"))
