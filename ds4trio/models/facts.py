"""What a model's files say about it, read from headers alone, whether or not it can be served."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import (
    ROPE_DIVISORS,
    GgufFile,
    ModelConfig,
    config_from_gguf,
    config_from_hf,
    find_gguf_tensors,
    find_hf_tensors,
)
from ds4trio.models.damaged import BAD_JSON
from ds4trio.models.fields import token_ids
from ds4trio.models.tensors import tensor_shapes
from ds4trio.models.vocabularies.folder import find_template

__all__ = ["Facts", "TensorFact", "folder_facts", "gguf_facts", "read_json"]


class TensorFact(msgspec.Struct, frozen=True):
    """A tensor as its file has it.

    Attributes:
        kind: of its numbers, as the format calls it: ``Q4_K``, ``BF16``.
        shape: outermost dimension first.
    """

    kind: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class AddedToken(msgspec.Struct):
    """One of a ``tokenizer.json``."""

    id: int
    content: str


class TokenizerFile(msgspec.Struct):
    """The part of it that is needed."""

    added_tokens: list[AddedToken] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A model. What its files do not say is None.

    Attributes:
        format: of the files.
        architecture: as the files call it.
        tensors: all of them by name.
        parameters: numbers that are learnt; of a quantised model those that it stands for.
        layers, heads, kv_heads, head_dim, vocabulary, context: as in ``ModelConfig``.
        template: the chat template's source.
        end_tokens, begin_token: their texts.
        adds_begin: a prompt begins with ``begin_token`` even if the template does not write it.
        license: as the metadata says.
        config: what the engine would build; None where it cannot.
        problem: why the model cannot be served anywhere; None where it can.
    """

    format: Literal["gguf", "safetensors"]
    architecture: str | None
    tensors: Mapping[str, TensorFact]
    parameters: int
    layers: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    vocabulary: int | None
    context: int | None
    template: str | None
    end_tokens: tuple[str, ...]
    begin_token: str | None
    adds_begin: bool | None
    license: str | None
    config: ModelConfig | None
    problem: str | None


def gguf_facts(metadata: Mapping[str, Any], tensors: Mapping[str, TensorFact]) -> Facts:
    """Of a GGUF file, or of all parts of one."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    # Their number is all that matters here; the numbers themselves may be far away.
    divisors = {
        name: [1.0] * tensors[name].elements
        for name in ROPE_DIVISORS
        if name in tensors and tensors[name].elements < 1 << 16
    }
    config, problem = None, None
    try:
        config = config_from_gguf(GgufFile(metadata, shapes, divisors))
        find_gguf_tensors(config, shapes)
        _require_tokenizer(metadata)
    except ModelUnavailable as error:
        config, problem = None, str(error)
    kind = _text(metadata.get("general.architecture"))
    embedding = shapes.get("token_embd.weight", ())
    tokens = metadata.get("tokenizer.ggml.tokens")
    heads = _count(metadata.get(f"{kind}.attention.head_count"))
    hidden = _count(metadata.get(f"{kind}.embedding_length"))
    ends = config.eos_token_ids if config else _gguf_ends(metadata)
    begins = token_ids(metadata.get("tokenizer.ggml.bos_token_id"))
    adds = metadata.get("tokenizer.ggml.add_bos_token")
    return Facts(
        format="gguf",
        architecture=kind,
        tensors=tensors,
        parameters=sum(tensor.elements for tensor in tensors.values()),
        layers=config.layers if config else _count(metadata.get(f"{kind}.block_count")),
        heads=config.heads if config else heads,
        kv_heads=config.kv_heads
        if config
        else _count(metadata.get(f"{kind}.attention.head_count_kv"), heads),
        head_dim=config.head_dim
        if config
        else _count(metadata.get(f"{kind}.attention.key_length"), _quotient(hidden, heads)),
        vocabulary=embedding[0] if len(embedding) == 2 else _length(tokens),
        context=config.context_length if config else _count(metadata.get(f"{kind}.context_length")),
        template=_text(metadata.get("tokenizer.chat_template")),
        end_tokens=_named(ends, tokens),
        begin_token=next(iter(_named(begins, tokens)), None),
        adds_begin=adds if isinstance(adds, bool) else None,
        license=_text(metadata.get("general.license")),
        config=config,
        problem=problem,
    )


def _require_tokenizer(metadata: Mapping[str, Any]) -> None:
    from ds4trio.models.vocabularies.gguf import build_tokenizer

    build_tokenizer(metadata)


def _gguf_ends(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    keys = [f"tokenizer.ggml.{role}_token_id" for role in ("eos", "eot", "eom")]
    return tuple(dict.fromkeys(end for key in keys for end in token_ids(metadata.get(key))))


def folder_facts(
    folder: Path, tensors: Mapping[str, TensorFact], license: str | None = None
) -> Facts:
    """Of a Hugging Face folder, of which the weights may be elsewhere.

    Args:
        folder: with ``config.json`` and what belongs to it.
        tensors: all that the weights have, by name.
        license: as the hub says it.

    Raises:
        ModelUnavailable: ``config.json`` cannot be read.
    """
    raw = read_json(folder / "config.json", required=True)
    generation = read_json(folder / "generation_config.json")
    settings = read_json(folder / "tokenizer_config.json")
    special = read_json(folder / "special_tokens_map.json")
    config, problem = None, None
    try:
        config = config_from_hf(raw, generation)
        if not raw.get("quantization_config"):
            find_hf_tensors(config, {name: tensor.shape for name, tensor in tensors.items()})
    except ModelUnavailable as error:
        config, problem = None, str(error)
    inner = raw.get("text_config")
    values = {**(inner if isinstance(inner, dict) else {}), **raw}
    heads = _count(values.get("num_attention_heads"))
    end = _special(settings, special, "eos_token")
    names = _added_tokens(folder)
    ids = token_ids(generation.get("eos_token_id")) + token_ids(values.get("eos_token_id"))
    ends = dict.fromkeys(
        [*(names.get(token, f"token {token}") for token in ids), *([end] * bool(end))]
    )
    adds = settings.get("add_bos_token")
    return Facts(
        format="safetensors",
        architecture=_text(raw.get("model_type")),
        tensors=tensors,
        parameters=_parameters(config, tensors),
        layers=config.layers if config else _count(values.get("num_hidden_layers")),
        heads=config.heads if config else heads,
        kv_heads=config.kv_heads if config else _count(values.get("num_key_value_heads"), heads),
        head_dim=config.head_dim
        if config
        else _count(values.get("head_dim"), _quotient(_count(values.get("hidden_size")), heads)),
        vocabulary=config.vocab_size if config else _count(values.get("vocab_size")),
        context=config.context_length if config else _count(values.get("max_position_embeddings")),
        template=find_template(folder, settings),
        end_tokens=tuple(str(text) for text in ends),
        begin_token=_special(settings, special, "bos_token"),
        adds_begin=adds if isinstance(adds, bool) else None,
        license=license,
        config=config,
        problem=problem,
    )


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """A JSON object from a file; empty where there is none, if none is required.

    Raises:
        ModelUnavailable: it cannot be read.
    """
    if not required and not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, *BAD_JSON) as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error


def _parameters(config: ModelConfig | None, tensors: Mapping[str, TensorFact]) -> int:
    if config is not None:
        return sum(map(math.prod, tensor_shapes(config).values()))
    return sum(tensor.elements for tensor in tensors.values())


def _added_tokens(folder: Path) -> dict[int, str]:
    try:
        file = msgspec.json.decode((folder / "tokenizer.json").read_bytes(), type=TokenizerFile)
    except (OSError, *BAD_JSON):
        return {}
    return {token.id: token.content for token in file.added_tokens}


def _special(settings: Mapping[str, Any], special: Mapping[str, Any], key: str) -> str | None:
    value = settings.get(key) or special.get(key)
    return _text(value.get("content") if isinstance(value, dict) else value)


def _named(ids: Sequence[int], tokens: Any) -> tuple[str, ...]:
    known = tokens if isinstance(tokens, list) else []
    return tuple(str(known[token]) if token < len(known) else f"token {token}" for token in ids)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any, default: int | None = None) -> int | None:
    """A positive number; of a list, one for each layer, the largest."""
    if isinstance(value, list):
        value = max((item for item in value if isinstance(item, int)), default=None)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return default


def _quotient(whole: int | None, parts: int | None) -> int | None:
    return whole // parts if whole and parts else None


def _length(tokens: Any) -> int | None:
    return len(tokens) if isinstance(tokens, list) else None
