"""The table of all that is served over HTTP. Who adds a route adds a line; a test names those that
are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ds4trio.api.anthropic.errors import OVERLOADED
from ds4trio.api.description.schemas import COUNT, TEXT, Schema, a_list, an_object
from ds4trio.api.schemas.chat import ChatRequest
from ds4trio.api.schemas.completions import CompletionRequest
from ds4trio.api.schemas.messages import CountTokensRequest, MessageRequest
from ds4trio.api.schemas.responses import InputTokens, ResponseCreate
from ds4trio.api.schemas.tokens import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest

__all__ = ["OPERATIONS", "Operation"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    Attributes:
        method: of HTTP.
        path: the route as the web framework writes it.
        tag: the heading below which it is shown.
        summary: one line.
        answers: by media type, what a success brings.
        request: the wire type of the body.
        query: parameters of the query, all of which may be left out.
        refusals: statuses besides those that every such operation has.
        key: it needs the API key.
        model: it needs the model, which may still be loading.
        names_model: it can name a model that is not served.
        success: the status of a success, or None where there is none.
        stores: it needs the store, which may fail.
        error: the component that its errors are.
    """

    method: str
    path: str
    tag: str
    summary: str
    answers: Mapping[str, Schema] = field(default_factory=dict)
    request: Any = None
    query: Mapping[str, Schema] = field(default_factory=dict)
    refusals: Sequence[int] = ()
    key: bool = True
    model: bool = True
    names_model: bool = False
    success: int | None = 200
    stores: bool = False
    error: str = "Error"

    @property
    def statuses(self) -> list[int]:
        """Every status that an error of it can have."""
        found = {*self.refusals, 500}
        if self.key:
            found |= {401, 403}
        if self.request is not None:
            found |= {400, 408, 413}
        if self.names_model:
            found.add(404)
        if self.model or self.stores:
            found.add(503)
        return sorted(found)


JSON = "application/json"
EVENTS = "text/event-stream"

AN_EVENT = {"type": "object", "required": ["data"], "properties": {"event": TEXT, "data": TEXT}}

A_MODEL = an_object("owned_by", id=TEXT, object={"const": "model"}, created=COUNT)
A_LIST = {"object": {"const": "list"}}

CHAT = "Chat Completions"
COMPLETIONS = "Completions"
MESSAGES = "Anthropic Messages"
RESPONSES = "Responses"
TOKENS = "Tokens and templates"
MODELS = "Models and health"
PAGE = "The page and this description"


def _json(schema: Schema) -> Mapping[str, Schema]:
    return {JSON: schema}


def _json_or_events(schema: Schema) -> Mapping[str, Schema]:
    return {JSON: schema, EVENTS: AN_EVENT}


RESPONSE = an_object("status", "output", "model", id=TEXT, object={"const": "response"})

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "POST",
        "/v1/responses",
        RESPONSES,
        "Answer input, and keep the response",
        request=ResponseCreate,
        answers=_json_or_events(RESPONSE),
        names_model=True,
    ),
    Operation(
        "POST",
        "/v1/responses/input_tokens",
        RESPONSES,
        "How many tokens the input of such a request has",
        request=InputTokens,
        answers=_json(an_object(input_tokens=COUNT)),
        names_model=True,
    ),
    Operation(
        "GET",
        "/v1/responses/<response_id>",
        RESPONSES,
        "A stored response, or its events from one of them on",
        query={
            "stream": {"type": "boolean"},
            "starting_after": {"type": "integer"},
            "include": TEXT,
        },
        answers=_json_or_events(RESPONSE),
        refusals=(400, 404),
        model=False,
        stores=True,
    ),
    Operation(
        "DELETE",
        "/v1/responses/<response_id>",
        RESPONSES,
        "Delete a stored response",
        answers=_json(an_object(deleted={"const": True}, id=TEXT)),
        refusals=(404,),
        model=False,
        stores=True,
    ),
    Operation(
        "POST",
        "/v1/responses/<response_id>/cancel",
        RESPONSES,
        "End a response that is written in the background",
        answers=_json(RESPONSE),
        refusals=(400, 404),
        model=False,
        stores=True,
    ),
    Operation(
        "GET",
        "/v1/responses/<response_id>/input_items",
        RESPONSES,
        "The items of a stored response's request, by pages",
        query={
            "limit": {"type": "integer"},
            "order": {"enum": ["asc", "desc"]},
            "after": TEXT,
            "before": TEXT,
            "include": TEXT,
        },
        answers=_json(an_object("data", "has_more", object={"const": "list"})),
        refusals=(400, 404),
        model=False,
        stores=True,
    ),
    Operation(
        "POST",
        "/v1/chat/completions",
        CHAT,
        "Answer a conversation",
        request=ChatRequest,
        answers=_json_or_events(
            an_object(
                "choices", "usage", "model", "created", id=TEXT, object={"const": "chat.completion"}
            )
        ),
        names_model=True,
    ),
    Operation(
        "POST",
        "/v1/completions",
        COMPLETIONS,
        "Go on with a text as it is",
        request=CompletionRequest,
        answers=_json_or_events(
            an_object(
                "choices", "usage", "model", "created", id=TEXT, object={"const": "text_completion"}
            )
        ),
        names_model=True,
    ),
    Operation(
        "POST",
        "/v1/messages",
        MESSAGES,
        "Answer a conversation",
        request=MessageRequest,
        answers=_json_or_events(
            an_object(
                "content", "usage", "model", "stop_reason", id=TEXT, type={"const": "message"}
            )
        ),
        names_model=True,
        refusals=(OVERLOADED,),
        error="MessagesError",
    ),
    Operation(
        "POST",
        "/v1/messages/count_tokens",
        MESSAGES,
        "How many tokens its prompt has",
        request=CountTokensRequest,
        answers=_json(an_object(input_tokens=COUNT)),
        names_model=True,
        error="MessagesError",
    ),
    Operation(
        "GET",
        "/v1/responses",
        RESPONSES,
        "A WebSocket, which /asyncapi.json describes",
        success=None,
        refusals=(426,),
        model=False,
    ),
    Operation(
        "POST",
        "/tokenize",
        TOKENS,
        "Text or a conversation to token ids",
        request=TokenizeRequest,
        answers=_json(an_object("token_strs", tokens=a_list({}), count=COUNT, max_model_len=COUNT)),
        names_model=True,
    ),
    Operation(
        "POST",
        "/detokenize",
        TOKENS,
        "Token ids to text",
        request=DetokenizeRequest,
        answers=_json(an_object(content=TEXT, prompt=TEXT)),
        names_model=True,
    ),
    Operation(
        "POST",
        "/apply-template",
        TOKENS,
        "A conversation to the prompt that the model reads",
        request=ApplyTemplateRequest,
        answers=_json(an_object(prompt=TEXT)),
        names_model=True,
    ),
    Operation(
        "GET",
        "/v1/models",
        MODELS,
        "The models that are served",
        answers=_json(an_object(data=a_list(A_MODEL), **A_LIST)),
    ),
    Operation(
        "GET",
        "/v1/models/<path:name>",
        MODELS,
        "One of them by its name, which may have slashes",
        answers=_json(A_MODEL),
        names_model=True,
    ),
    Operation(
        "GET",
        "/v1/server/events",
        MODELS,
        "How busy the server is, as it goes on",
        {EVENTS: AN_EVENT},
    ),
    Operation(
        "GET",
        "/metrics",
        MODELS,
        "Counts in Prometheus' text format",
        answers={"text/plain": TEXT},
        model=False,
    ),
    Operation(
        "GET",
        "/health",
        MODELS,
        "Whether requests are served; the answer is 503 when they are not",
        answers=_json(an_object(status={"const": "ok"})),
        key=False,
        error="Health",
    ),
    Operation(
        "GET",
        "/openapi.json",
        PAGE,
        "What is served over HTTP",
        answers=_json(an_object("openapi", "paths")),
        key=False,
        model=False,
    ),
    Operation(
        "GET",
        "/asyncapi.json",
        PAGE,
        "What the WebSocket takes and sends",
        answers=_json(an_object("asyncapi", "channels")),
        key=False,
        model=False,
    ),
    Operation(
        "GET",
        "/docs",
        PAGE,
        "The reference, and both of these, to read",
        answers={"text/html": TEXT},
        key=False,
        model=False,
    ),
    Operation(
        "GET", "/", PAGE, "The chat page", answers={"text/html": TEXT}, key=False, model=False
    ),
    Operation(
        "GET",
        "/<file:name>",
        PAGE,
        "Its files",
        answers={"*/*": {}},
        key=False,
        model=False,
        refusals=(404,),
    ),
)
