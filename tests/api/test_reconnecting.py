"""The official client connects anew by itself when the server has ended its connection, and goes
on with the conversation."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import openai
import trio
from openai.resources.responses.responses import ResponsesConnection
from openai.types.websocket_reconnection import ReconnectingEvent, ReconnectingOverrides

from tests.api.helpers import Api, ScriptedEngine, serving_script

LIMIT = "websocket_connection_limit_reached"


def talk(api: Api) -> tuple[list[Any], list[int]]:
    """Ask, wait for the end of the connection, ask on while there is none, on a lane each time.

    Returns:
        the events, and the close codes that were met.
    """
    events: list[Any] = []
    codes: list[int] = []
    connection: ResponsesConnection

    def reconnecting(event: ReconnectingEvent) -> ReconnectingOverrides:
        codes.append(event.close_code)
        first = next(event for event in events if event.type == "response.completed")
        connection.response.create(  # it waits for the new connection
            model="scripted",
            input="And now?",
            previous_response_id=first.response.id,
            stream_id="b",
        )
        return {}

    with closing(openai.OpenAI(base_url=f"{api.server.url}/v1", api_key="none")) as client:
        with client.responses.connect(
            on_reconnecting=reconnecting, initial_delay=0.01
        ) as connection:
            connection.response.create(model="scripted", input="Hi", stream_id="a")
            for event in connection:
                events.append(event)
                if codes and event.type == "response.completed":
                    break
    return events, codes


async def test_a_conversation_outlives_the_limit_of_its_connection() -> None:
    async with serving_script(ScriptedEngine("Hello"), websocket_minutes=1 / 60) as api:
        events, codes = await trio.to_thread.run_sync(talk, api)
        assert codes == [1001]
        ends = [event for event in events if event.type in ("response.completed", "error")]
        assert [event.type for event in ends] == [
            "response.completed",
            "error",
            "response.completed",
        ]
        first, announced, second = ends
        assert announced.error.code == LIMIT
        assert (first.stream_id, second.stream_id) == ("a", "b")
        assert second.response.previous_response_id == first.response.id
        assert second.response.output_text == "Hello"
        assert second.response.usage.input_tokens > first.response.usage.input_tokens
