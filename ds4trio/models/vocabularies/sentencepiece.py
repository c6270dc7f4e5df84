"""SentencePiece vocabularies as the ``tokenizers`` library builds them
(https://github.com/google/sentencepiece).

Such a vocabulary has a score for each piece and no merges. SentencePiece's BPE joins the two
neighbours whose union scores best, the leftmost first. So every way to cut a piece into two others
is a merge, in the order of the scores of what comes of it: this is how the ``tokenizer.json`` of
Llama 2, Mistral, Phi-3 and Gemma were made, and the merges here are theirs, in their order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from ds4trio.models.vocabularies.vocabulary import mark_tokens, refuse_vocabulary

__all__ = ["NORMAL", "Pieces", "Prefix", "build_sentencepiece", "puts_space_behind_markers"]

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Kinds of pieces, in SentencePiece's files and in GGUF's; others never come of text."""

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What stands for a space in a piece."""

MISTRAL_MARKER = "[INST]"

LONGEST_PIECE = 512
MOST_CUTS = 4_000_000
"""Limits of what a vocabulary may cost to convert; Gemma's 262,144 pieces have 2 million cuts."""


class Prefix(Enum):
    """Where a space is put before text."""

    NONE = "nowhere"
    FIRST = "at the beginning"
    EACH = "at the beginning and behind every token that is matched as a whole"


@dataclass(frozen=True)
class Pieces:
    """A vocabulary.

    Attributes:
        tokens: by id.
        scores: the higher, the sooner it is joined; as many as tokens.
        kinds: as many as tokens.
        unknown: id of the piece for what cannot be written.
        prefix: where a space is put before text.
        swallow: tokens that swallow the white space behind them.
    """

    tokens: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    unknown: int
    prefix: Prefix
    swallow: Collection[str] = ()


def puts_space_behind_markers(tokens: Sequence[str], kinds: Sequence[int]) -> bool:
    """Whether a vocabulary with a prefix has it behind markers too, where nothing says so.

    Llama 2, Phi-3 and the first Mistrals do; the ones whose ``[INST]`` is a token do not.
    """
    return (MISTRAL_MARKER, CONTROL) not in zip(tokens, kinds, strict=False)


def build_sentencepiece(pieces: Pieces, source: str) -> Tokenizer:
    """Build the tokenizer of a vocabulary.

    Args:
        pieces: the vocabulary.
        source: what it was read from, for errors.

    Raises:
        ModelUnavailable: it is damaged.
    """
    tokens = list(pieces.tokens)
    if not len(tokens) == len(pieces.scores) == len(pieces.kinds):
        refuse_vocabulary(source, "it has not one score and one kind for each token")
    there = set(tokens)
    for index, kind in enumerate(pieces.kinds):
        # GGUF writes the spaces of pieces that users define as such.
        run = SPACE * len(tokens[index])
        if kind == USER_DEFINED and not tokens[index].strip(" ") and run not in there:
            tokens[index] = run
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if not tokens or len(vocabulary) != len(tokens):
        refuse_vocabulary(source, "its vocabulary is empty or has a token twice")
    if not 0 <= pieces.unknown < len(tokens):
        refuse_vocabulary(source, "its unknown token is none of its tokens")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(tokens, vocabulary, pieces, source),
            unk_token=tokens[pieces.unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    _write_spaces(tokenizer, pieces.prefix)
    steering = {index for index, kind in enumerate(pieces.kinds) if kind == CONTROL}
    steering.add(pieces.unknown)
    mark_tokens(
        tokenizer,
        special=[tokens[index] for index in sorted(steering)],
        whole=[
            token
            for index, (token, kind) in enumerate(zip(tokens, pieces.kinds, strict=True))
            if kind == USER_DEFINED and index not in steering
        ],
        swallow=pieces.swallow,
    )
    return tokenizer


def _merges(
    tokens: Sequence[str], vocabulary: dict[str, int], pieces: Pieces, source: str
) -> list[tuple[str, str]]:
    # Cuts of the same score come in the order of the tokens and of their halves, by id, where there
    # is a prefix; else the longest halves come first. So it is in the families' files.
    by_length = pieces.prefix is Prefix.NONE
    found: list[tuple[tuple[float, ...], str, str]] = []
    lengths = [
        len(token)
        for token, kind in zip(tokens, pieces.kinds, strict=True)
        if kind in (NORMAL, USER_DEFINED)
    ]
    if max(lengths, default=0) > LONGEST_PIECE or sum(lengths) > MOST_CUTS:
        refuse_vocabulary(source, "its tokens are too long")
    for index, token in enumerate(tokens):
        score, kind = pieces.scores[index], pieces.kinds[index]
        if kind not in (NORMAL, USER_DEFINED):
            continue
        rank = 0.0 if kind == USER_DEFINED else -score
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            first, second = vocabulary.get(left), vocabulary.get(right)
            if first is not None and second is not None:
                tie = (-at, at - len(token)) if by_length else (index, first, second)
                found.append(((rank, *tie), left, right))
    found.sort(key=lambda entry: entry[0])
    return [(left, right) for _, left, right in found]


def _write_spaces(tokenizer: Tokenizer, prefix: Prefix) -> None:
    """How spaces become pieces, and pieces spaces."""
    spaces = normalizers.Replace(" ", SPACE)
    if prefix is Prefix.EACH:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
    elif prefix is Prefix.NONE:
        tokenizer.normalizer = spaces
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=SPACE, prepend_scheme="first", split=False
        )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix is not Prefix.NONE:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
