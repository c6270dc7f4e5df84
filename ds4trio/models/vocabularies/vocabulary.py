"""What the readers of vocabularies share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NoReturn, TypeVar

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ds4trio.errors import ModelUnavailable
from ds4trio.models.vocabularies.pre_tokenizers import PreTokenizer

__all__ = ["build_byte_level", "list_of", "mark_tokens", "refuse_vocabulary"]

T = TypeVar("T")


def build_byte_level(
    tokens: Sequence[str],
    merges: Sequence[tuple[str, ...]],
    pre: PreTokenizer,
    source: str,
) -> Tokenizer:
    """Build a byte-level BPE tokenizer, as GPT-2 has it, with no token matched as a whole yet.

    Args:
        tokens: by id, in GPT-2's alphabet.
        merges: pairs of tokens; the first pair is the first to be joined.
        pre: how text is cut before.
        source: what this was read from, for errors.

    Raises:
        ModelUnavailable: a token is there twice, or the merges do not fit the tokens.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if not tokens or len(vocabulary) != len(tokens):
        refuse_vocabulary(source, "its vocabulary is empty or has a token twice")
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        # The library would panic at a union that is no token.
        if len(merge) != 2 or not {*merge, "".join(merge)} <= vocabulary.keys():
            refuse_vocabulary(source, f"its merges do not fit its vocabulary ({merge!r:.100})")
        pairs.append((merge[0], merge[1]))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre.whole_words))
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(pre.steps))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def mark_tokens(
    tokenizer: Tokenizer,
    special: Sequence[str],
    whole: Sequence[str],
    swallow: Collection[str] = (),
) -> None:
    """Say which tokens are matched as a whole, before text is normalised and cut.

    Args:
        tokenizer: changed in place.
        special: tokens that steer the model.
        whole: tokens that are text nevertheless.
        swallow: those of both that swallow the white space behind them.
    """
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False, rstrip=token in swallow)
            for token in special
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, special=False, normalized=False, rstrip=token in swallow)
            for token in whole
        ]
    )


def list_of(kind: type[T] | tuple[type[T], ...], value: Any, name: str, source: str) -> list[T]:
    """A list out of a file, each entry of the type that it should have; nothing is an empty list.

    Raises:
        ModelUnavailable: it is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, kind) for entry in value):
        refuse_vocabulary(source, f"its {name} are of the wrong type")
    return value


def refuse_vocabulary(source: str, why: str) -> NoReturn:
    """Raise ModelUnavailable: the tokenizer of ``source`` cannot be used, for that reason."""
    raise ModelUnavailable(f"The tokenizer of {source} cannot be used: {why}.")
