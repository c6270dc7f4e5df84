"""A GGUF file as it is opened for serving, converted once and kept in the cache folder.

Parsing the header and building the tokenizer of a file takes most of a second; reading back what
came of it takes milliseconds. The converted part (config, tensor index, tokenizer) is kept under a
name made from the file's path, size and modification time, so a changed file is converted anew.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from ds4trio.errors import ModelUnavailable
from ds4trio.models.cache import cache_folder, publish_file
from ds4trio.models.config import ModelConfig, config_from_gguf
from ds4trio.models.dequantize import dequantize
from ds4trio.models.gguf import GgufHeader, TensorInfo, read_header
from ds4trio.models.loaded import LoadedModel
from ds4trio.models.progress import Progress, silent
from ds4trio.models.tensors import ROPE_FREQS, check_tensors, hf_name

if TYPE_CHECKING:
    import torch

__all__ = ["GgufWeights", "open_gguf"]

log = logging.getLogger(__name__)

INDEX = "model.msgpack"
TOKENIZER = "tokenizer.json"
DIGEST_BYTES = 32
"""The index begins with a SHA-256 of what follows."""

FORMAT = 2
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


class GgufWeights(Mapping[str, "torch.Tensor"]):
    """The tensors of a GGUF file by Hugging Face name, float32, each decoded when asked for."""

    def __init__(self, path: Path, config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> None:
        self._tensors = tensors
        # Query and key rows of a llama GGUF are interleaved, for rotations of neighbours.
        self._interleaved = {"q_proj": config.heads, "k_proj": config.kv_heads}
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")

    def __getitem__(self, name: str) -> torch.Tensor:
        import torch  # a process that reads no weights need not have it

        info = self._tensors[name]
        raw = np.asarray(self._bytes[info.offset : info.offset + info.size])
        if heads := self._interleaved.get(name.split(".")[-2]):
            raw = _to_halves(raw, heads, info.shape[0])
        return torch.from_numpy(dequantize(raw, info.kind)).view(info.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def open_gguf(name: str, path: Path, *, progress: Progress | None = None) -> LoadedModel:
    """Open a GGUF file, converting it first if the cache folder has no conversion of it.

    Args:
        name: what clients will call the model.
        path: the file. Nothing is written next to it.
        progress: told of the conversion.

    Raises:
        ModelUnavailable: the file is damaged or of a kind that is not known, or the cache folder
            cannot be written.
    """
    folder = _folder_for(path)
    prepared = _read(folder)
    if prepared is None:
        prepared = _convert(path, folder, progress or silent)
    return LoadedModel(
        name=name,
        config=prepared.config,
        weights=GgufWeights(path, prepared.config, prepared.tensors),
        tokenizer_path=folder / TOKENIZER,
        chat_template=prepared.chat_template,
        bos_token=prepared.bos_token,
        eos_token=prepared.eos_token,
        add_bos=prepared.add_bos,
        folder=folder,
    )


def _folder_for(path: Path) -> Path:
    try:
        path = path.resolve(strict=True)
        stat = path.stat()
    except OSError as error:
        raise ModelUnavailable(f"{path} cannot be read: {error.strerror}.") from error
    place = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    stamp = hashlib.sha256(f"{FORMAT} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    return cache_folder() / "converted" / f"{place}-{stamp}"


def _read(folder: Path) -> Prepared | None:
    """The conversion in a folder; None if it is not there or not whole."""
    try:
        kept = (folder / INDEX).read_bytes()
        digest, index = kept[:DIGEST_BYTES], kept[DIGEST_BYTES:]
        whole = digest == _digest(index)
        prepared = msgspec.msgpack.decode(index, type=Prepared) if whole else None
        tokenizer = _digest((folder / TOKENIZER).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError, ModelUnavailable) as error:
        log.warning("the conversion in %s is damaged and is made anew: %s", folder, error)
        return None
    if prepared is None or tokenizer != prepared.tokenizer_digest:
        log.warning("the conversion in %s is damaged and is made anew", folder)
        return None
    return prepared


def _digest(content: bytes) -> bytes:
    """A changed number in the index would be served as another model, and without a word."""
    return hashlib.sha256(content).digest()


def _convert(path: Path, folder: Path, progress: Progress) -> Prepared:
    # Only a conversion pays for importing the tokenizer builder.
    from ds4trio.models.gguf_tokenizer import adds_bos, build_tokenizer

    step = f"converting {path.name}"
    progress(step, 0, 3)
    header = read_header(path)
    config, tensors = _model_of(path, header)
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
        tokenizer_digest=_digest(saved),
    )
    index = msgspec.msgpack.encode(prepared)
    publish_file(folder / INDEX, lambda part: _write(part, _digest(index) + index))
    _forget_older(folder)
    progress(step, 3, 3)
    return prepared


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _model_of(path: Path, header: GgufHeader) -> tuple[ModelConfig, dict[str, TensorInfo]]:
    tensors = header.tensors
    if "token_embd.weight" not in tensors:
        raise ModelUnavailable(f"{path} cannot be used: it has no tensor 'token_embd.weight'.")
    factors: list[float] | None = None
    if divisors := tensors.get(ROPE_FREQS):
        raw = np.fromfile(path, np.uint8, count=divisors.size, offset=divisors.offset)
        factors = dequantize(raw, divisors.kind).tolist()
    config = config_from_gguf(
        header.metadata,
        tensors,
        vocab_size=tensors["token_embd.weight"].shape[0],
        rope_factors=factors,
    )
    named = {renamed: info for name, info in tensors.items() if (renamed := hf_name(name))}
    wanted = check_tensors(config, {name: info.shape for name, info in named.items()})
    return config, {name: named[name] for name in wanted}


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


def _to_halves(raw: NDArray[np.uint8], heads: int, rows: int) -> NDArray[np.uint8]:
    """Put the rows of each head from (pair, member) order into (member, pair) order.

    llama.cpp stores them so that a rotation turns neighbouring rows; transformers turns row i with
    row i + head_dim / 2. Whole rows move, so this works on the undecoded bytes.
    """
    by_pair = raw.reshape(heads, rows // heads // 2, 2, -1)
    return by_pair.swapaxes(1, 2).reshape(-1)
