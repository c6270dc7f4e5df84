"""A Hugging Face model folder: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ds4trio.errors import ModelUnavailable
from ds4trio.models.checkpoints.opening import open_checkpoint
from ds4trio.models.config import config_from_hf, find_hf_tensors
from ds4trio.models.loaded import LoadedModel
from ds4trio.models.sources import SourcedWeights

__all__ = ["open_folder"]

T = TypeVar("T")


class AddedToken(msgspec.Struct):
    """A token that is matched before the text is split."""

    id: int
    content: str


class TokenizerFile(msgspec.Struct):
    """The small parts of a ``tokenizer.json``; the vocabulary is skipped over."""

    added_tokens: list[AddedToken] = []
    post_processor: Any = None


def open_folder(name: str, folder: Path) -> LoadedModel:
    """Open a Hugging Face folder.

    Raises:
        ModelUnavailable: a file is missing or damaged, or the model is of a kind not known.
    """
    tokenizer_path = folder / "tokenizer.json"
    if not tokenizer_path.is_file():
        raise ModelUnavailable(f"{folder} has no tokenizer.json; other tokenizers are not known.")
    tokenizer = _decode(tokenizer_path, TokenizerFile)
    settings = _optional(folder / "tokenizer_config.json")
    raw_config = _decode(folder / "config.json", dict[str, Any])
    generation = _optional(folder / "generation_config.json")
    bos, eos = _special(folder, settings, "bos_token"), _special(folder, settings, "eos_token")
    ids = {token.content: token.id for token in tokenizer.added_tokens}
    config = config_from_hf(
        raw_config, generation, extra_eos=[ids[eos]] if eos is not None and eos in ids else []
    )
    weights = open_checkpoint(folder, raw_config)
    sources = find_hf_tensors(config, weights.shapes)
    weights.keep({source.name for source in sources.values()})
    return LoadedModel(
        name=name,
        config=config,
        weights=SourcedWeights(weights, sources),
        tokenizer_path=tokenizer_path,
        chat_template=_template(folder, settings),
        bos_token=bos,
        eos_token=eos,
        add_bos=_adds_bos(settings, tokenizer.post_processor, bos),
    )


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The template's own file comes before the one in the tokenizer's settings."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelUnavailable(f"{path} cannot be read: {error}.") from error
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    return template if isinstance(template, str) else None


def _special(folder: Path, settings: Mapping[str, Any], key: str) -> str | None:
    value = settings.get(key) or _optional(folder / "special_tokens_map.json").get(key)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _adds_bos(settings: Mapping[str, Any], post_processor: Any, bos: str | None) -> bool:
    """What the settings say; else whether the tokenizer's own post-processing adds it."""
    says = settings.get("add_bos_token")
    if bos is None or says is not None:
        return bos is not None and bool(says)
    return _mentions(post_processor, bos)


def _mentions(node: Any, bos: str) -> bool:
    if isinstance(node, dict):
        if node.get("type") == "TemplateProcessing":
            single = node.get("single") or []
            return any((part.get("SpecialToken") or {}).get("id") == bos for part in single)
        return any(_mentions(value, bos) for value in node.get("processors") or [])
    return False


def _optional(path: Path) -> dict[str, Any]:
    return _decode(path, dict[str, Any]) if path.is_file() else {}


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise ModelUnavailable(f"{path.parent} has no {path.name}.") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error
