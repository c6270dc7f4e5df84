"""A GGUF file as it is opened for serving, converted once and kept in the cache folder.

Parsing the header and building the tokenizer of a file takes most of a second; reading back what
came of it takes milliseconds. The converted part (config, tensor index, tokenizer) is kept under a
name made from the file's path, size and modification time, so a changed file is converted anew. Of
a model that is split over several files, the sizes and times of all count.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from ds4trio.errors import ModelUnavailable
from ds4trio.models.architecture import MOST_DIMENSIONS
from ds4trio.models.cache import cache_folder, publish_file
from ds4trio.models.config import (
    ROPE_DIVISORS,
    GgufFile,
    ModelConfig,
    config_from_gguf,
    find_gguf_tensors,
    gguf_sources,
)
from ds4trio.models.gguf.dequantize import dequantize
from ds4trio.models.gguf.header import GgufHeader, TensorInfo
from ds4trio.models.gguf.parts import part_paths, read_parts
from ds4trio.models.gguf.weights import GgufWeights
from ds4trio.models.loaded import LoadedModel
from ds4trio.models.progress import Progress, silent
from ds4trio.models.sources import SourcedWeights

__all__ = ["open_gguf"]

log = logging.getLogger(__name__)

INDEX = "model.msgpack"
TOKENIZER = "tokenizer.json"
DIGEST_BYTES = 32
"""The index begins with a SHA-256 of what follows."""

FORMAT = 5
"""Raised whenever what is kept changes, so that older conversions are not read."""


class Prepared(msgspec.Struct, frozen=True):
    """The converted part of a GGUF file; ``tokenizer.json``, whose checksum this has, lies beside
    it."""

    config: ModelConfig
    tensors: dict[str, TensorInfo]
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    add_bos: bool
    tokenizer_digest: bytes


def open_gguf(name: str, path: Path, *, progress: Progress | None = None) -> LoadedModel:
    """Open a GGUF file, converting it first if the cache folder has no conversion of it.

    Args:
        name: what clients will call the model.
        path: the file, or any part of a model that is split (see ``gguf_parts``). Nothing is
            written next to it.
        progress: told of the conversion.

    Raises:
        ModelUnavailable: a file is damaged, missing or of a kind that is not known, or the cache
            folder cannot be written.
    """
    paths = part_paths(path)
    folder = _folder_for(paths)
    prepared = _read(folder)
    if prepared is None:
        prepared = _convert(paths, folder, progress or silent)
    return LoadedModel(
        name=name,
        config=prepared.config,
        weights=SourcedWeights(GgufWeights(paths, prepared.tensors), gguf_sources(prepared.config)),
        tokenizer_path=folder / TOKENIZER,
        chat_template=prepared.chat_template,
        bos_token=prepared.bos_token,
        eos_token=prepared.eos_token,
        add_bos=prepared.add_bos,
        folder=folder,
    )


def _folder_for(paths: Sequence[Path]) -> Path:
    places: list[Path] = []
    stamps: list[str] = []
    for path in paths:
        try:
            places.append(path.resolve(strict=True))
            stat = path.stat()
        except OSError as error:
            raise ModelUnavailable(f"{path} cannot be read: {error.strerror}.") from error
        stamps.append(f"{stat.st_size} {stat.st_mtime_ns}")
    place = _digest(str(places[0]))
    stamp = _digest(" ".join((str(FORMAT), *stamps)))
    return cache_folder() / "converted" / f"{place}-{stamp}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _read(folder: Path) -> Prepared | None:
    """The conversion in a folder; None if it is not there or not whole."""
    try:
        kept = (folder / INDEX).read_bytes()
        digest, index = kept[:DIGEST_BYTES], kept[DIGEST_BYTES:]
        whole = digest == _checksum(index)
        prepared = msgspec.msgpack.decode(index, type=Prepared) if whole else None
        tokenizer = _checksum((folder / TOKENIZER).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError, ModelUnavailable) as error:
        log.warning("the conversion in %s is damaged and is made anew: %s", folder, error)
        return None
    if prepared is None or tokenizer != prepared.tokenizer_digest:
        log.warning("the conversion in %s is damaged and is made anew", folder)
        return None
    return prepared


def _checksum(content: bytes) -> bytes:
    """A changed number in the index would be served as another model, and without a word."""
    return hashlib.sha256(content).digest()


def _convert(paths: Sequence[Path], folder: Path, progress: Progress) -> Prepared:
    # Only a conversion pays for importing the tokenizer builder.
    from ds4trio.models.vocabularies.gguf import adds_bos, build_tokenizer

    step = f"converting {paths[0].name}"
    progress(step, 0, 3)
    header = read_parts(paths)
    config, tensors = _model_of(paths, header)
    progress(step, 1, 3)
    metadata = header.metadata
    tokenizer = build_tokenizer(metadata)
    progress(step, 2, 3)
    template = metadata.get("tokenizer.chat_template")
    # The same file gives the same bytes, so processes that convert it at the same time may replace
    # each other's; the index comes last, since it is what says that the conversion is there.
    saved = tokenizer.to_str().encode()
    publish_file(folder / TOKENIZER, lambda part: _write(part, saved))
    prepared = Prepared(
        config=config,
        tensors=tensors,
        chat_template=template if isinstance(template, str) else None,
        bos_token=_token(metadata, "bos"),
        eos_token=_token(metadata, "eos"),
        add_bos=adds_bos(metadata),
        tokenizer_digest=_checksum(saved),
    )
    index = msgspec.msgpack.encode(prepared)
    publish_file(folder / INDEX, lambda part: _write(part, _checksum(index) + index))
    _forget_older(folder)
    progress(step, 3, 3)
    return prepared


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _model_of(
    paths: Sequence[Path], header: GgufHeader
) -> tuple[ModelConfig, dict[str, TensorInfo]]:
    tensors = header.tensors
    if "token_embd.weight" not in tensors:
        raise ModelUnavailable(f"{paths[0]} cannot be used: it has no tensor 'token_embd.weight'.")
    shapes = {name: info.shape for name, info in tensors.items()}
    divisors = {name: _numbers(paths, tensors[name]) for name in ROPE_DIVISORS if name in tensors}
    config = config_from_gguf(GgufFile(header.metadata, shapes, divisors))
    used = {source.name for source in find_gguf_tensors(config, shapes).values()}
    return config, {name: info for name, info in tensors.items() if name in used}


def _numbers(paths: Sequence[Path], info: TensorInfo) -> list[float]:
    if info.elements > MOST_DIMENSIONS:
        raise ModelUnavailable(
            f"{paths[info.part]} cannot be used: {info.name!r} has {info.elements} numbers."
        )
    raw = np.fromfile(paths[info.part], np.uint8, count=info.size, offset=info.offset)
    numbers: list[float] = dequantize(raw, info.kind).tolist()
    return numbers


def _token(metadata: Mapping[str, object], role: str) -> str | None:
    index = metadata.get(f"tokenizer.ggml.{role}_token_id")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(index, int) and isinstance(tokens, list) and 0 <= index < len(tokens):
        return str(tokens[index])
    return None


def _forget_older(folder: Path) -> None:
    """Remove conversions of what the file at this path was before."""
    place = folder.name.split("-")[0]
    for other in folder.parent.glob(f"{place}-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
