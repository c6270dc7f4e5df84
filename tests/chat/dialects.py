"""Small templates in the ways of each family, and answers told token by token."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken

from ds4trio.chat.detokenizer import Detokenizer
from ds4trio.chat.dialect import Dialect
from ds4trio.chat.output import CallArguments, CallBegun, CallEnded, Piece, ReasoningText, Text
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.chat.tool import Tool
from tests.tiny import make_tiny_tokenizer

__all__ = [
    "CONTROL",
    "LISTING",
    "TEMPLATES",
    "TOOLS",
    "call",
    "dialect",
    "merged",
    "pieces_of",
    "tokens_of",
    "told",
]

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL{{ c.function.arguments | tojson }}END{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LISTING = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
THINKING = "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"


def _with(before: str, after: str = "") -> str:
    return LISTING + TURNS.replace("CALL", before).replace("END", after)


TEMPLATES = {
    "plain": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "Hermes": _with("<tool_call>", "</tool_call>"),
    "Qwen3": _with("<tool_call>", "</tool_call>") + THINKING,
    "Qwen3-Coder": _with("<tool_call>\n<function=", "</function></tool_call>"),
    "Llama 3": LISTING + TURNS.replace("CALL", '{{ \'{"name": "\' }}"parameters": '),
    "Mistral": _with("[TOOL_CALLS]") + "{# [THINK] #}",
    "Magistral": _with("[TOOL_CALLS]") + "{{ '[THINK]' if x }}{{ '[/THINK]' if x }}",
    "DeepSeek": _with("<｜tool▁calls▁begin｜>") + "{{ '</think>' if x }}{{ '<think>' if x }}",
    "DeepSeek V4": _with("<｜DSML｜"),
    "Kimi": _with("<|tool_calls_section_begin|>"),
    "Granite": _with("<|tool_call|>") + "{{ '<think></think><response></response>' if thinking }}",
    "gpt-oss": _with("<|channel|>commentary") + "{{ reasoning_effort }}",
    "Gemma 4": LISTING + TURNS + "{{ '<|channel>thought\n<channel|>' if enable_thinking }}",
    "SmolLM3": LISTING.replace("tools", "xml_tools")
    + TURNS.replace("CALL", "").replace("{{ c.function.arguments | tojson }}END", "")
    + THINKING,
    "Gemma 3": (
        "{% set told = messages[0].content if messages[0].role == 'system' else '' %}"
        "{% for m in messages if m.role != 'system' %}"
        "{% set role = 'model' if m.role == 'assistant' else m.role %}"
        "<start_of_turn>{{ role }}\n{{ told ~ '\n\n' if told and loop.first }}{{ m.content }}"
        "<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
    ),
    "Phi-4-mini": (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        "{% if m.role == 'system' and m.tools %}<|tool|>{{ m.tools }}<|/tool|>{% endif %}"
        "<|end|>{% endfor %}<|assistant|>"
    ),
    "Seed": _with("<seed:tool_call>") + "{{ '<seed:think></seed:think>' if thinking_budget }}",
}
CONTROL: dict[str, tuple[str, ...]] = {
    "Llama 3": ("<|python_tag|>",),
    "Mistral": ("[TOOL_CALLS]",),
    "Magistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    "Kimi": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
    ),
    "gpt-oss": (
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ),
    "Gemma 4": ("<|channel>", "<channel|>"),
    "Phi-4-mini": ("<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>"),
}
"""Tokens that have no text; the markers of the others are spelled."""

TOOLS = (
    Tool(
        "weather",
        "Says how it will be.",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    ),
    Tool("mail"),
)


@functools.cache
def tokenizer(family: str) -> Tokenizer:
    native = make_tiny_tokenizer()
    native.add_special_tokens([AddedToken(text, special=True) for text in CONTROL.get(family, ())])
    return Tokenizer(native.to_str())


@functools.cache
def dialect(family: str) -> Dialect:
    return Dialect(TEMPLATES[family], tokenizer(family))


def tokens_of(family: str, answer: str) -> list[int]:
    """An answer's tokens; control tokens written in it are meant."""
    return tokenizer(family).encode(answer, special=True)


def told(family: str, tokens: Iterable[int], tail: str, tools: Sequence[Tool]) -> list[Piece]:
    """What the parser says, token by token."""
    parser = dialect(family).parser(tail, tools=tools)
    detokenizer = Detokenizer(tokenizer(family))
    pieces: list[Piece] = []
    for token in tokens:
        assert parser.inside in ("text", "reasoning", "call")
        pieces += parser.push(token, detokenizer.push([token]))
    return [*pieces, *parser.finish()]


def pieces_of(
    family: str, answer: str, *, tail: str = "", tools: Sequence[Tool] = TOOLS
) -> list[Piece]:
    """The same, with neighbours of a kind as one."""
    return merged(told(family, tokens_of(family, answer), tail, tools))


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if isinstance(piece, Text | ReasoningText | CallArguments):
            assert piece.text
            if isinstance(last, Text | ReasoningText | CallArguments) and type(last) is type(piece):
                result[-1] = type(piece)(last.text + piece.text)
                continue
        result.append(piece)
    return result


def call(name: str, arguments: str) -> list[Piece]:
    """One call, as a parser tells it."""
    return [CallBegun(name), CallArguments(arguments), CallEnded()]
