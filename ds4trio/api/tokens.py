"""``/tokenize``, ``/detokenize``, ``/apply-template``: what the model reads, as llama.cpp's server
and vLLM show it. One answer has the fields of both."""

from __future__ import annotations

from typing import Any

from quart import Blueprint, Response, request

from ds4trio.api.chat_completions.request import continues, read_message, read_tools
from ds4trio.api.requests import asks, refuse_unsupported
from ds4trio.api.schemas.tokens import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
from ds4trio.api.service import Service
from ds4trio.api.wire import decode, json_response
from ds4trio.errors import InvalidRequest
from ds4trio.prompting import Piece, PromptWriter
from ds4trio.request import GenerationRequest, Tools

__all__ = ["tokens"]


def tokens(service: Service) -> Blueprint:
    """The doors, as a blueprint."""
    blueprint = Blueprint("tokens", __name__)

    @blueprint.post("/tokenize")
    async def tokenize() -> Response:
        wanted = decode(await request.get_data(), TokenizeRequest)
        service.find_model(wanted.model)
        prompts = service.generator.prompts
        _refuse_what_is_not_done(wanted)
        found = await _tokens(wanted, prompts)
        named = wanted.with_pieces or wanted.return_token_strs
        pieces = await prompts.pieces(found) if named else []
        return json_response(
            {
                "tokens": [_piece(piece) for piece in pieces] if wanted.with_pieces else found,
                "count": len(found),
                "max_model_len": service.generator.coalescer.info.longest_sequence,
                "token_strs": [p.text for p in pieces] if wanted.return_token_strs else None,
            }
        )

    @blueprint.post("/detokenize")
    async def detokenize() -> Response:
        wanted = decode(await request.get_data(), DetokenizeRequest)
        service.find_model(wanted.model)
        text = await service.generator.prompts.detokenize(wanted.tokens)
        return json_response({"content": text, "prompt": text})

    @blueprint.post("/apply-template")
    async def apply_template() -> Response:
        wanted = decode(await request.get_data(), ApplyTemplateRequest)
        service.find_model(wanted.model)
        _refuse_what_is_not_done(wanted)
        asked = _conversation(wanted)
        return json_response({"prompt": await service.generator.prompts.text(asked)})

    return blueprint


async def _tokens(wanted: TokenizeRequest, prompts: PromptWriter) -> list[int]:
    texts = {"content": wanted.content, "prompt": wanted.prompt}
    given = [(name, text) for name, text in texts.items() if text is not None]
    if len(given) + (wanted.messages is not None) != 1:
        raise InvalidRequest("name one of content, prompt and messages", param="content")
    if wanted.messages is not None:
        return (await prompts.write(_conversation(wanted))).tokens
    ((field, text),) = given
    # without a word about it each client gets what its own server does
    add_special = field == "prompt"
    for said in (wanted.add_special, wanted.add_special_tokens):
        add_special = add_special if said is None else said
    return await prompts.tokenize(
        text,
        special=wanted.parse_special,
        add_special=add_special,
        field=field,
    )


def _refuse_what_is_not_done(wanted: TokenizeRequest | ApplyTemplateRequest) -> None:
    refuse_unsupported(
        {
            "chat_template": asks(wanted.chat_template),
            "mm_processor_kwargs": isinstance(wanted, TokenizeRequest)
            and asks(wanted.mm_processor_kwargs),
        }
    )


def _conversation(wanted: TokenizeRequest | ApplyTemplateRequest) -> GenerationRequest:
    messages = wanted.messages or []
    return GenerationRequest(
        [read_message(one, index) for index, one in enumerate(messages)],
        tools=Tools(read_tools(wanted.tools)),
        template_switches=wanted.chat_template_kwargs or {},
        continues=continues(wanted),
    )


def _piece(piece: Piece) -> dict[str, Any]:
    """As llama.cpp's server has it: a text, or bytes that are none by themselves as numbers."""
    try:
        return {"id": piece.id, "piece": piece.bytes.decode()}
    except UnicodeDecodeError:
        return {"id": piece.id, "piece": list(piece.bytes)}
