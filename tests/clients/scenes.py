"""What the tests of all clients talk about."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from pydantic import BaseModel, Field

__all__ = ["PARAMETERS", "QUESTION", "WEATHER", "Place", "forecast", "talk", "weather"]

QUESTION = "What is the capital of France?"
"""The default model knows it."""

WEATHER = "What is the weather in Paris?"
"""The scripted model calls ``get_weather``, if it may."""

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
"""Of ``get_weather``. The texts are few, so that a small model ends them too."""

_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)


class Place(BaseModel):
    """A structured answer."""

    name: str = Field(max_length=12)
    country: Literal["France", "Italy"]
    large: bool


def weather(city: str) -> str:
    """The tool."""
    return f"sunny in {city}"


def talk(prompt: str) -> str:
    """The scripted model: calls a function when asked for the weather and told of the function,
    tells its result, and otherwise repeats the user's words and counts how often they spoke."""
    turns = _TURN.findall(prompt)
    role, words = turns[-1]
    if role == "tool":
        return f"It is {words}. ☀️"
    if "weather" in words and "get_weather" in prompt:
        return _CALL
    return f"{sum(role == 'user' for role, _ in turns)}: {words}"


def forecast(arguments: str | dict[str, Any]) -> str:
    """Run the tool with arguments as a client hands them out; they must be right."""
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert set(given) == {"city"}
    assert given["city"] in ("Paris", "Rome")
    return weather(**given)
