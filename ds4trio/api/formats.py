"""The formats that a request may force on its answer, in each way that clients write them."""

from __future__ import annotations

from ds4trio.api.schemas.drawing import DrawingFields
from ds4trio.api.schemas.tools import ResponseFormat, StructuredOutputs
from ds4trio.chat.formats import Choice, Format, JsonObject, JsonSchema, Lark, Regex
from ds4trio.errors import InvalidRequest

__all__ = ["AskedFormat", "asked_format"]

AskedFormat = tuple[str, Format | None]
"""A field of the request, and the format that it asks for."""


def asked_format(wanted: DrawingFields) -> AskedFormat:
    """The format and the field that asks for it; ``response_format`` and None where none does.

    Raises:
        InvalidRequest: a field asks for what there is not, or two fields ask for a format each.
    """
    asked: list[tuple[str, Format | None]] = [
        ("response_format", _response_format(wanted.response_format)),
        ("json_schema", None if wanted.json_schema is None else JsonSchema(wanted.json_schema)),
        ("grammar", None if wanted.grammar is None else Lark(_filled(wanted.grammar, "grammar"))),
        ("structured_outputs", _structured_outputs(wanted.structured_outputs)),
    ]
    given = [(field, form) for field, form in asked if form is not None]
    if len(given) > 1:
        fields = " and ".join(field for field, _ in given)
        raise InvalidRequest(f"only one of {fields} can decide the format", param=given[1][0])
    return given[0] if given else asked[0]


def _response_format(wanted: ResponseFormat | None) -> Format | None:
    if wanted is None:
        return None
    if wanted.json_schema is not None and wanted.type != "json_schema":
        raise InvalidRequest(
            "json_schema needs the type json_schema", param="response_format.json_schema"
        )
    if wanted.schema is not None and wanted.type != "json_object":
        raise InvalidRequest("schema needs the type json_object", param="response_format.schema")
    match wanted.type:
        case "text":
            return None
        case "json_object":
            return JsonObject() if wanted.schema is None else JsonSchema(wanted.schema)
        case "json_schema":
            if wanted.json_schema is None:
                raise InvalidRequest(
                    "response_format.json_schema is missing",
                    param="response_format.json_schema",
                    code="missing_parameter",
                )
            schema = wanted.json_schema.schema
            return JsonObject() if schema is None else JsonSchema(schema)
    raise InvalidRequest(
        f"a response_format of type {wanted.type[:100]!r} is not supported by this server; "
        "text, json_object and json_schema are",
        param="response_format.type",
        code="unsupported_parameter",
    )


def _structured_outputs(wanted: StructuredOutputs | None) -> Format | None:
    if wanted is None:
        return None
    found: list[Format] = []
    if wanted.json is not None:
        found.append(JsonSchema(wanted.json))
    if wanted.json_object:
        found.append(JsonObject())
    if wanted.regex is not None:
        found.append(Regex(_filled(wanted.regex, "structured_outputs.regex")))
    if wanted.choice is not None:
        found.append(Choice(tuple(wanted.choice)))
    if wanted.grammar is not None:
        found.append(Lark(_filled(wanted.grammar, "structured_outputs.grammar")))
    if len(found) != 1:
        raise InvalidRequest(
            "exactly one of json, json_object, regex, choice and grammar must be given",
            param="structured_outputs",
        )
    return found[0]


def _filled(text: str, param: str) -> str:
    if not text:
        raise InvalidRequest("it must not be empty", param=param)
    return text
