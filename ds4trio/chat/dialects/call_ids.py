"""Identifiers of calls in the form that a template insists on, or its model has learned.

Clients send back the identifiers that they were given, by this server or another one. Mistral's
templates refuse all but nine letters and digits; Kimi's write them into the prompt, where its
models know ``functions.NAME:NUMBER``, counted through the whole conversation.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["Namer", "nine_characters", "numbered", "renamed"]

Namer = Callable[[str, str, int], str]
"""Given an identifier, the function's name, and how many calls came before."""

ALPHABET = string.digits + string.ascii_letters
NINE = re.compile(r"[0-9A-Za-z]{9}")


def nine_characters(call_id: str, name: str = "", number: int = 0) -> str:
    """The same nine letters and digits for the same identifier; itself if it has that form."""
    if NINE.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()
    rest = int.from_bytes(digest, "big")
    characters = []
    for _ in range(9):
        rest, index = divmod(rest, len(ALPHABET))
        characters.append(ALPHABET[index])
    return "".join(characters)


def numbered(call_id: str, name: str, number: int) -> str:
    """Kimi's."""
    return f"functions.{name}:{number}"


def renamed(messages: Iterable[Mapping[str, Any]], namer: Namer) -> list[dict[str, Any]]:
    """The messages with other identifiers of calls; a result has that of the latest call before it
    that had the same. What is no identifier stays as it is."""
    result: list[dict[str, Any]] = []
    given: dict[str, str] = {}
    count = 0
    for message in messages:
        told = dict(message)
        calls = told.get("tool_calls")
        if isinstance(calls, list | tuple):
            written = []
            for call in calls:
                if isinstance(call, Mapping) and isinstance(call_id := call.get("id"), str):
                    call = {**call, "id": namer(call_id, _name(call), count)}
                    given[call_id] = call["id"]
                count += 1
                written.append(call)
            told["tool_calls"] = written
        call_id = told.get("tool_call_id")
        if isinstance(call_id, str):
            found = given.get(call_id)
            told["tool_call_id"] = found or namer(call_id, str(told.get("name", "")), count)
        result.append(told)
    return result


def _name(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    return str((function if isinstance(function, Mapping) else call).get("name", ""))
