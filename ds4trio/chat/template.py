"""Messages -> prompt, through the model's own chat template.

Templates are written for the transformers library, so they get the environment that its
documentation promises (https://huggingface.co/docs/transformers/chat_templating_writing): Jinja in
the immutable sandbox, blocks trimmed, loop controls, ``tojson`` without HTML escapes,
``raise_exception``, ``strftime_now`` and the ``generation`` block.

What a client writes is data. A role marker typed into a message is that text, not the marker: see
``markers.py``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ds4trio.chat.markers import Markers, Segment
from ds4trio.chat.messages import find_wants
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.errors import InvalidRequest, ModelUnavailable

__all__ = ["ChatTemplate", "Segment", "check_template", "encode_prompt", "template_words"]

log = logging.getLogger(__name__)

RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}
)
"""Names that a client cannot choose for a template."""

CHATML = """\
{% for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

PLAIN = """\
{% for message in messages -%}
{{ message.role + ': ' + message.content + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"""

PLAIN_ENDS = ("\nuser:",)
"""A model that has no tokens for turns goes on with the user's next line; its answer ends there."""


class ChatTemplate:
    """A compiled chat template.

    Args of the constructor:
        source: Jinja source. None, a model without a template, is served nevertheless and logged
            as a warning: in ChatML if the model has its markers, otherwise as plain lines
            "role: content".
        bos_token, eos_token: given to the template under these names; None as the empty text.
        control_tokens: texts of the tokenizer's control tokens; a client cannot write them.

    Attributes:
        ends: texts that end an answer besides the model's end tokens.

    Raises:
        ModelUnavailable: the template is not valid Jinja.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        control_tokens: Iterable[str] = (),
    ) -> None:
        control = tuple(control_tokens)
        self._markers = Markers(control)
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self.ends: tuple[str, ...] = ()
        if source is None:
            source = _fallback(control)
            self.ends = PLAIN_ENDS if source == PLAIN else ()
        with _clear_errors():
            self._template = _environment().from_string(source)
        self._wants = find_wants(
            functools.partial(
                self._template.render, **self._tokens, documents=None, add_generation_prompt=False
            )
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        switches: Mapping[str, Any] | None = None,
        **variables: Any,
    ) -> list[Segment]:
        """Write the messages as one prompt.

        Args:
            messages: with ``role``, ``content`` (a text or a list of parts; None or missing is the
                empty text) and whatever else the template knows. They are brought into the form
                that the template takes (``messages.py``).
            add_generation_prompt: end with the beginning of an answer.
            switches: names for the template that a client chose, such as ``enable_thinking`` or
                ``reasoning_effort``. Data, like the messages.
            variables: further names for the template: ``tools``, ``documents``.

        Returns:
            The prompt in pieces, in order; joined, their texts are what the template wrote.

        Raises:
            InvalidRequest: the template refuses the messages, or cannot write them, or a switch has
                a name that is taken.
        """
        for name in switches or {}:
            if name in RESERVED:
                raise InvalidRequest(
                    f"the chat template's {name[:100]!r} cannot be set; it is the server's",
                    param="chat_template_kwargs",
                )
        data = {"tools": None, "documents": None, **variables, **(switches or {})}
        try:
            data["messages"] = [self._wants.form(message) for message in messages]
            guarded = self._markers.guard(data)
            text = self._template.render(
                **self._tokens, **guarded.data, add_generation_prompt=add_generation_prompt
            )
        except _Refusal as error:
            raise InvalidRequest(str(error), param="messages") from None
        except Exception as error:
            # A template is a program of the model's makers: what it does with messages that they
            # did not think of can fail in any way.
            log.debug("the chat template failed", exc_info=True)
            raise InvalidRequest(
                f"The model's chat template cannot write these messages: {_first_line(error)}",
                param="messages",
            ) from None
        return guarded.split(text)


def check_template(source: str) -> None:
    """Read a template of somebody who need not be trusted: nothing in it runs.

    Raises:
        ModelUnavailable: it is not valid Jinja.
    """
    with _clear_errors():
        _environment().parse(source)


def template_words(source: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """The names that a template looks up, and the texts that are in it, comments left out.

    Raises:
        ModelUnavailable: it is not valid Jinja.
    """
    with _clear_errors():
        tree = _environment().parse(source)
        names = frozenset(node.name for node in tree.find_all(nodes.Name) if node.ctx == "load")
        written = [node.data for node in tree.find_all(nodes.TemplateData)]
        constants = [node.value for node in tree.find_all(nodes.Const)]
        return names, (*written, *(text for text in constants if isinstance(text, str)))


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise ModelUnavailable("The model's chat template is nested too deeply.") from error
    except jinja2.TemplateSyntaxError as error:
        raise ModelUnavailable(
            f"The model's chat template is not valid, line {error.lineno}: {error.message}."
        ) from error
    except Exception as error:
        # Jinja makes a Python program of it, which may be none: a break without a loop, blocks
        # nested too deeply, numbers and texts without end.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelUnavailable(f"The model's chat template is not valid: {reason}.") from error


def encode_prompt(
    tokenizer: Tokenizer, segments: Iterable[Segment], *, bos_token: str | None, add_bos: bool
) -> list[int]:
    """The ids of a rendered prompt.

    Args:
        tokenizer: the model's.
        segments: what ``ChatTemplate.render`` returned, or a plain prompt in one segment.
        bos_token: the token that begins a text, if the model has one.
        add_bos: begin with it even if the segments do not.

    Returns:
        Ids with exactly one BOS at the beginning where there is one at all, also when the template
        writes it and the model asks for it (https://github.com/abetlen/llama-cpp-python/issues/1501).
    """
    ids: list[int] = []
    before = ""
    for segment in segments:
        text = segment.text
        if not segment.special and tokenizer.swallows(before):
            text = text.lstrip()
        ids += tokenizer.encode(text, special=segment.special, begins=not before)
        before = segment.text or before
    bos = None if bos_token is None else tokenizer.token_id(bos_token)
    if bos is None:
        return ids
    begun = 0
    while begun < len(ids) and ids[begun] == bos:
        begun += 1
    return ([bos] if begun or add_bos else []) + ids[begun:]


class _Refusal(Exception):
    """A template called ``raise_exception``."""


def _fallback(control_tokens: Sequence[str]) -> str:
    chatml = {"<|im_start|>", "<|im_end|>"} <= set(control_tokens)
    log.warning(
        "the model has no chat template: using %s",
        "ChatML" if chatml else "plain 'role: content' lines",
    )
    return CHATML if chatml else PLAIN


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it writes them."""

    tags = {"generation"}  # noqa: RUF012  (the base class has it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> None:
    raise _Refusal(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
