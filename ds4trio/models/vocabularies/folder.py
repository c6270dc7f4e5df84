"""The tokenizer of a Hugging Face folder, whatever form it has there.

``tokenizer.json`` is used as it lies; Mistral's ``tekken.json`` and SentencePiece's
``tokenizer.model`` are converted into one, which is kept in the cache folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ds4trio.errors import ModelUnavailable
from ds4trio.models.cache import cache_folder, publish_file
from ds4trio.models.damaged import BAD_JSON

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["FolderTokenizer", "decode_json", "find_template", "find_tokenizer", "optional_json"]

T = TypeVar("T")

TOKENIZER, TEKKEN, SENTENCEPIECE = "tokenizer.json", "tekken.json", "tokenizer.model"
SETTINGS, ADDED, SPECIAL = "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"

LONGEST_ID = 12
"""Digits. Of thousands of them Python makes no number."""

FORMAT = 1
"""Raised whenever a conversion changes, so that older ones are not read."""


@dataclass(frozen=True)
class FolderTokenizer:
    """A tokenizer that was found.

    Attributes:
        path: a ``tokenizer.json``.
        settings: the content of ``tokenizer_config.json``, empty where there is none.
        bos, eos: text of the tokens that begin and end a text, None where there are none.
        eos_ids: the id of ``eos``, if it has one.
        add_bos: a prompt begins with ``bos`` even if its template does not write it.
    """

    path: Path
    settings: Mapping[str, Any]
    bos: str | None
    eos: str | None
    eos_ids: tuple[int, ...]
    add_bos: bool


class _Added(msgspec.Struct):
    """A token that is matched before the text is split."""

    id: int
    content: str


class _TokenizerFile(msgspec.Struct):
    """The small parts of a ``tokenizer.json``; the vocabulary is skipped over."""

    added_tokens: list[_Added] = []
    post_processor: Any = None


def find_tokenizer(folder: Path) -> FolderTokenizer:
    """Find the tokenizer of a folder, converting it if need be.

    Raises:
        ModelUnavailable: there is none, it is damaged or of a kind that is not known, or the cache
            folder cannot be written.
    """
    settings = optional_json(folder / SETTINGS)
    bos, eos = _special(folder, settings, "bos_token"), _special(folder, settings, "eos_token")
    path, adds = folder / TOKENIZER, settings.get("add_bos_token")
    if not path.is_file() and (folder / TEKKEN).is_file():
        from ds4trio.models.vocabularies.tekken import BOS, EOS

        path = _converted(folder, TEKKEN, _from_tekken)
        bos, eos, adds = bos or BOS, eos or EOS, True if adds is None else adds
    elif not path.is_file() and (folder / SENTENCEPIECE).is_file():
        path = _converted(folder, SENTENCEPIECE, _from_sentencepiece)
        named = _sentencepiece_names(folder)
        bos, eos, adds = bos or named[0], eos or named[1], True if adds is None else adds
    elif not path.is_file():
        raise ModelUnavailable(
            f"{folder} has no {TOKENIZER}, {TEKKEN} or {SENTENCEPIECE}; other tokenizers are not "
            "known."
        )
    file = decode_json(path, _TokenizerFile)
    ids = {token.content: token.id for token in file.added_tokens}
    return FolderTokenizer(
        path=path,
        settings=settings,
        bos=bos,
        eos=eos,
        eos_ids=(ids[eos],) if eos is not None and eos in ids else (),
        # What the settings say; else whether the tokenizer's own post-processing adds it.
        add_bos=bos is not None
        and (_mentions(file.post_processor, bos) if adds is None else bool(adds)),
    )


def _from_tekken(folder: Path) -> Tokenizer:
    from ds4trio.models.vocabularies.tekken import build_tekken

    path = folder / TEKKEN
    return build_tekken(_read(path), str(path))


def _from_sentencepiece(folder: Path) -> Tokenizer:
    from tokenizers import AddedToken

    from ds4trio.models.vocabularies.sentencepiece import build_sentencepiece
    from ds4trio.models.vocabularies.sentencepiece_file import read_sentencepiece
    from ds4trio.models.vocabularies.vocabulary import refuse_vocabulary

    path = folder / SENTENCEPIECE
    file = read_sentencepiece(_read(path), str(path))
    legacy = optional_json(folder / SETTINGS).get("legacy")
    tokenizer = build_sentencepiece(file.pieces(behind_markers=legacy), str(path))
    added = _added_tokens(folder)
    for index in sorted(added):
        token = added[index]
        flags = {flag: bool(token.get(flag)) for flag in ("lstrip", "rstrip", "single_word")}
        mark = AddedToken(
            token["content"], special=token.get("special") is True, normalized=False, **flags
        )
        (tokenizer.add_special_tokens if mark.special else tokenizer.add_tokens)([mark])
        if tokenizer.token_to_id(token["content"]) != index:
            refuse_vocabulary(str(folder), f"its token {index} does not fit the vocabulary")
    return tokenizer


def _added_tokens(folder: Path) -> dict[int, dict[str, Any]]:
    """Tokens that the model's makers added to the vocabulary, by id."""
    added: dict[int, dict[str, Any]] = {}
    for content, index in optional_json(folder / ADDED).items():
        if isinstance(index, int):
            added[index] = {"content": content, "special": True}
    described = optional_json(folder / SETTINGS).get("added_tokens_decoder")
    for index, token in (described if isinstance(described, dict) else {}).items():
        if (
            index.isdecimal()
            and len(index) < LONGEST_ID
            and isinstance(token, dict)
            and isinstance(token.get("content"), str)
        ):
            added[int(index)] = token
    return added


def _sentencepiece_names(folder: Path) -> tuple[str | None, str | None]:
    from ds4trio.models.vocabularies.sentencepiece_file import read_sentencepiece

    path = folder / SENTENCEPIECE
    file = read_sentencepiece(_read(path), str(path))
    return file.token(file.bos), file.token(file.eos)


def _converted(folder: Path, name: str, build: Callable[[Path], Tokenizer]) -> Path:
    """The conversion of the file of that name, made if the cache folder has none."""
    stamp = hashlib.sha256(str(FORMAT).encode())
    for part in (name, SETTINGS, ADDED):
        path = folder / part
        if path.is_file():
            stat = path.resolve().stat()
            stamp.update(f" {part} {stat.st_size} {stat.st_mtime_ns}".encode())
    place = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape"))
    kept = f"{place.hexdigest()[:16]}-{stamp.hexdigest()[:16]}"
    target = cache_folder() / "tokenizers" / kept / TOKENIZER
    if not target.is_file():
        saved = build(folder).to_str().encode()

        def write(part: Path) -> None:
            part.write_bytes(saved)

        publish_file(target, write)
    return target


def _special(folder: Path, settings: Mapping[str, Any], key: str) -> str | None:
    value = settings.get(key) or optional_json(folder / SPECIAL).get(key)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _mentions(node: Any, bos: str) -> bool:
    if isinstance(node, dict):
        if node.get("type") == "TemplateProcessing":
            return any(_names(part, bos) for part in _listed(node.get("single")))
        return any(_mentions(value, bos) for value in _listed(node.get("processors")))
    return False


def _names(part: Any, token: str) -> bool:
    special = part.get("SpecialToken") if isinstance(part, dict) else None
    return isinstance(special, dict) and special.get("id") == token


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error


def optional_json(path: Path) -> dict[str, Any]:
    """The object in a file; an empty one where there is no file.

    Raises:
        ModelUnavailable: the file is damaged.
    """
    return decode_json(path, dict[str, Any]) if path.is_file() else {}


def decode_json(path: Path, kind: type[T]) -> T:
    """The content of a file.

    Raises:
        ModelUnavailable: it is missing, damaged, or of another type.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise ModelUnavailable(f"{path.parent} has no {path.name}.") from None
    except (OSError, *BAD_JSON) as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error


def find_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The source of a folder's chat template; its own file comes before the tokenizer's settings.

    Raises:
        ModelUnavailable: the file cannot be read.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelUnavailable(f"{path} cannot be read: {error}.") from error
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = [entry for entry in template if isinstance(entry, dict)]
        template = next((e.get("template") for e in named if e.get("name") == "default"), None)
    return template if isinstance(template, str) else None
