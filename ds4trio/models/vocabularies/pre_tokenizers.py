"""How the families with byte-level vocabularies cut text into pieces that merges cannot cross.

A GGUF file has only a name for it (``tokenizer.ggml.pre``). The table gives each known name the
cutting of the Hugging Face tokenizer that the name stands for. The names are llama.cpp's
(https://github.com/ggml-org/llama.cpp, ``llama-vocab.cpp``), the expressions those of the families'
``tokenizer.json``; the ``tokenizers`` library runs them with the same engine (Oniguruma) here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

__all__ = ["PRE_TOKENIZERS", "PreTokenizer", "byte_characters", "tekken_pattern"]

Step = pre_tokenizers.PreTokenizer


@dataclass(frozen=True)
class PreTokenizer:
    """One way of cutting.

    Attributes:
        steps: carried out one after the other, each on the pieces of the one before; one of them
            writes the bytes in GPT-2's alphabet.
        whole_words: a piece that is a token is taken as it is, whatever the merges say.
        nfc: text is brought into Unicode's composed form first.
        add_bos: what a file means that does not say whether prompts begin with BOS.
    """

    steps: tuple[Step, ...]
    whole_words: bool = False
    nfc: bool = False
    add_bos: bool = False


def cut(pattern: str) -> Step:
    """Every match is a piece, and so is what lies between two."""
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
"""GPT-2's words, then its alphabet."""
EACH_DIGIT = pre_tokenizers.Digits(individual_digits=True)

# The parts that the expressions have in common.
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LINE_ENDS = r"[\r\n]"


def words(digits: str, *, letters: str = r"\p{L}", apart: str = "") -> str:
    """Words with one sign before them, digits in groups, signs, spaces: as OpenAI's cl100k has it.

    Args:
        digits: one group of them.
        letters: what a word is made of.
        apart: further classes that are no sign.
    """
    return (
        rf"{SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}"
        rf"| ?[^\s\p{{L}}{apart}\p{{N}}]+[\r\n]*|{SPACES}"
    )


def cased_words(digits: str, suffix: str = "") -> str:
    """Words that end where a small letter is followed by a capital, as OpenAI's o200k has it."""
    small, capital = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
    sign = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{sign}{capital}*{small}+{suffix}|{sign}{capital}+{small}*{suffix}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
    )


GROUPS, SINGLE = r"\p{N}{1,3}", r"\p{N}"

DEEPSEEK_ALPHABETS = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386
388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA
1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57
1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB
1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D
212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3
A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A
FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF
1E900-1E943
"""
"""The letters with case that DeepSeek's first tokenizers know, code points in hexadecimal: those of
Latin, Greek, Cyrillic and a few more as an older Unicode had them."""

IDEOGRAPHS = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
IDEOGRAPHS_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
FULL_WIDTH_SIGNS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]"


def _class(ranges: str) -> str:
    """A character class out of hexadecimal ranges."""
    ends = [[chr(int(end, 16)) for end in entry.split("-")] for entry in ranges.split()]
    return f"[{''.join('-'.join(pair) for pair in ends)}]"


def byte_characters() -> list[str]:
    """GPT-2's character for each of the 256 bytes: printable Latin-1 stands for itself, the others
    are numbered from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    numbers = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(numbers)) for byte in range(256)]


def tekken_pattern(pattern: str) -> PreTokenizer:
    """The cutting of a ``tekken.json`` that has this expression.

    Raises:
        Exception: the expression is not valid.
    """
    return PreTokenizer((cut(pattern), BYTES), whole_words=True, add_bos=True)


GPT2 = PreTokenizer((GPT2_WORDS,))
DIGITS_THEN_GPT2 = PreTokenizer((EACH_DIGIT, GPT2_WORDS))
LLAMA3 = PreTokenizer((cut(words(GROUPS)), BYTES), whole_words=True, add_bos=True)
# Llama 3's without BOS: SmolLM3 and others were converted under this name.
SMAUG = PreTokenizer(LLAMA3.steps, whole_words=True)
CL100K = PreTokenizer(LLAMA3.steps)
QWEN2 = PreTokenizer((cut(words(SINGLE)), BYTES), nfc=True)
QWEN35 = PreTokenizer((cut(words(SINGLE, letters=r"\p{L}\p{M}", apart=r"\p{M}")), BYTES), nfc=True)
O200K = PreTokenizer((cut(cased_words(GROUPS, f"{SUFFIX}?")), BYTES), whole_words=True)
TEKKEN = tekken_pattern(cased_words(SINGLE))
DEEPSEEK_LLM = PreTokenizer(
    (
        cut(LINE_ENDS),
        cut(rf"\s?{_class(DEEPSEEK_ALPHABETS)}+"),
        cut(rf"\s?{FULL_WIDTH_SIGNS}+"),
        cut(r"\s+$"),
        cut(IDEOGRAPHS),
        EACH_DIGIT,
        BYTES,
    )
)
DEEPSEEK_CODER = PreTokenizer(
    (
        cut(LINE_ENDS),
        cut(r"\s?\p{L}+"),
        cut(r"\s?\p{P}+"),
        cut(IDEOGRAPHS),
        EACH_DIGIT,
        BYTES,
    )
)
DEEPSEEK_V3 = PreTokenizer(
    (
        cut(GROUPS),
        cut(IDEOGRAPHS_AND_KANA),
        cut(
            r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
        ),
        BYTES,
    )
)
FALCON = PreTokenizer(
    (
        pre_tokenizers.Punctuation(behavior="contiguous"),
        GPT2_WORDS,
        pre_tokenizers.Digits(individual_digits=False),
        cut("[0-9][0-9][0-9]"),
    )
)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": GPT2,
    "gpt-2": GPT2,
    "phi-2": GPT2,
    "mpt": GPT2,
    "olmo": GPT2,
    "smollm": DIGITS_THEN_GPT2,
    "starcoder": DIGITS_THEN_GPT2,
    "refact": DIGITS_THEN_GPT2,  # Granite 3
    "command-r": PreTokenizer(DIGITS_THEN_GPT2.steps, nfc=True),
    "falcon": FALCON,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "smaug-bpe": SMAUG,
    "dbrx": CL100K,  # OLMo 2, Phi-4
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "qwen35": QWEN35,
    "gpt-4o": O200K,  # gpt-oss, Phi-4-mini
    "llama4": O200K,
    "tekken": TEKKEN,
    "deepseek-llm": DEEPSEEK_LLM,
    "deepseek-coder": DEEPSEEK_CODER,
    "deepseek-v3": DEEPSEEK_V3,  # and V4
    "joyai-llm": DEEPSEEK_V3,
}
