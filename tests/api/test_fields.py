"""Every field that the official clients can send is in ``docs/api.md``, and is what it says there:
what is honoured changes something, what is accepted changes nothing, and the rest is refused."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from pathlib import Path
from typing import Any

import anthropic.types as anthropic_types
import anthropic.types.beta as anthropic_beta
import httpx
import openai.types as openai_types
import openai.types.chat as openai_chat
import openai.types.responses as openai_responses
import pytest
from openai.types.responses import responses_client_event_param

from ds4trio.request import GenerationRequest
from tests.api.fields import DOORS, Door
from tests.api.helpers import Api, ScriptedEngine
from tests.api.speaking import Script, Speaking, finished, serving_events, text

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")

SENT_AS_HEADERS = {"betas", "workspace_id"}
"""Arguments of Anthropic's client that no body has (``tests/clients/test_anthropic.py``)."""

PARAMS: dict[str, list[Any]] = {
    "ChatRequest": [openai_chat.CompletionCreateParams],
    "CompletionRequest": [openai_types.CompletionCreateParams],
    "MessageRequest": [anthropic_types.MessageCreateParams, anthropic_beta.MessageCreateParams],
    "CountTokensRequest": [
        anthropic_types.MessageCountTokensParams,
        anthropic_beta.MessageCountTokensParams,
    ],
    "ResponseCreate": [
        openai_responses.ResponseCreateParams,
        responses_client_event_param.ResponseCreate,
    ],
    "InputTokens": [openai_responses.InputTokenCountParams],
}
"""What the official clients can send, by the table of it."""

BY_CHANCE = {"id", "item_id", "response_id", "created", "created_at", "completed_at", "signature"}
MEASURED = {"timings", "ds4trio", "usage"}
by_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.table)


def groups(table: str) -> list[list[str]]:
    """The fields of a table in the documentation: honoured, accepted and, if any, refused."""
    section = API.partition(f"<!-- fields of {table} -->")[2].partition("<!-- end")[0]
    return [
        re.findall(r"^\| `(\w+)` ", part, re.MULTILINE)
        for part in re.split(r"^\| --- .*$", section, flags=re.MULTILINE)[1:]
    ]


def arguments(params: Any) -> set[str]:
    """The fields of a type of an official client, which may be one of several."""
    kinds = typing.get_args(params) or (params,)
    return {name for kind in kinds for name in typing.get_type_hints(kind)}


@by_door
def test_what_official_clients_can_send_is_documented(door: Door) -> None:
    sent = set().union(*map(arguments, PARAMS[door.table])) - SENT_AS_HEADERS - {"type"}
    if door.table == "CountTokensRequest":
        sent -= {"user_profile_id"}  # a header where there is nothing but a count
    assert sent <= set().union(*groups(door.table))


@by_door
def test_there_is_a_case_for_every_documented_field(door: Door) -> None:
    cases = [list(group) for group in (door.honoured, door.accepted, door.refused) if group]
    assert [sorted(group) for group in cases] == [sorted(group) for group in groups(door.table)]


@by_door
async def test_each_field_does_what_its_table_says(door: Door) -> None:
    answers: list[Script] = [[text("Hello"), finished()]] * 200
    engine = ScriptedEngine(context_length=1000)
    async with serving_events(*answers, engine=engine) as (api, generator):

        async def ask(fields: Any) -> Asked:
            return await asked(api, generator, door, fields)

        plain: dict[str, Asked] = {}
        wrong = []
        for name, case in {**door.honoured, **door.accepted}.items():
            beside = repr(case.beside)
            if beside not in plain:
                plain[beside] = await ask(case.beside)
            with_it = await ask({**case.beside, name: case.value})
            changed = plain[beside].effect != with_it.effect
            if name in door.honoured and not changed:
                wrong.append(f"{name} has no effect")
            if name in door.accepted and (changed or with_it.response.status_code != 200):
                wrong.append(f"{name} has an effect: {with_it.response.text}")
        for name, case in door.refused.items():
            refused = (await ask({name: case.value})).response
            error = refused.json().get("error", {})
            told = error.get("details") or {"error_code": error.get("code"), **error}
            expected = "thread_unsupported_request" if name == "thread" else "unsupported_parameter"
            if (refused.status_code, told.get("error_code"), told.get("param")) != (
                400,
                expected,
                name,
            ):
                wrong.append(f"{name} is not refused: {refused.text}")
            harmless = door.instead.get(name)
            if (await ask({name: harmless})).response.status_code != 200:
                wrong.append(f"{name}: {harmless} is refused")
        assert not wrong, "\n".join(wrong)


@dataclasses.dataclass(frozen=True)
class Asked:
    """What came of a request.

    Attributes:
        effect: what reached the generator, and of the answer all that is not by chance.
    """

    response: httpx.Response
    effect: tuple[Any, ...]


async def asked(api: Api, generator: Speaking, door: Door, fields: Any) -> Asked:
    generator.asked.clear()
    response = await api.http.post(door.path, json={**door.least, **fields})
    kind = response.headers["content-type"].partition(";")[0]
    reached: list[GenerationRequest] = list(generator.asked)
    if kind == "application/json":
        said = [response.json()]
    else:
        lines = (line.removeprefix("data: ") for line in response.text.splitlines())
        said = [json.loads(line) for line in lines if line.startswith("{")]
    left = _without(said, BY_CHANCE | MEASURED | door.echoed)
    return Asked(response, (response.status_code, kind, reached, left))


def _without(value: Any, names: set[str]) -> Any:
    """A value of JSON less some keys."""
    if isinstance(value, dict):
        return {key: _without(inner, names) for key, inner in value.items() if key not in names}
    return [_without(inner, names) for inner in value] if isinstance(value, list) else value
