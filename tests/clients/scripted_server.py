"""A server in a thread of its own whose model says what a function makes of the prompt.

Clients block, or bring an event loop of their own; so the server has a thread, and Trio, to itself.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from ds4trio.chat.template import ChatTemplate
from ds4trio.engine.step import Opening
from ds4trio.generate import Generator
from ds4trio.settings import Settings
from tests.api.helpers import END, PATIENCE, ScriptedEngine, scripted_generator, tiny_tokenizer
from tests.server import RunningServer, running_server
from tests.tiny import make_tiny_tokenizer

__all__ = ["KEY", "MODEL", "TOOL_TEMPLATE", "Talk", "TalkingServer", "talking_server"]

KEY = "a-key-for-tests"
MODEL = "scripted"

Talk = Callable[[str], str]
"""What the model says after a prompt, as its template wrote it."""

TOOL_TEMPLATE = """\
{%- if tools %}<|im_start|>system
You may call functions, which are described here, one a line:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}A call is an object with name and arguments between <tool_call> and </tool_call>.\
<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Calls in the way of Hermes and Qwen."""

_NATIVE = make_tiny_tokenizer()


class TalkingEngine(ScriptedEngine):
    """Speaks what ``talk`` makes of the prompt."""

    def __init__(self, talk: Talk) -> None:
        super().__init__()
        self._talk = talk
        self._answers: dict[tuple[int, int], list[int]] = {}
        self.fake.speak = self._say

    def _say(self, opening: Opening, tokens: Sequence[int]) -> int:
        length = opening.sampling.prompt_length
        key = opening.sequence, length
        if key not in self._answers:
            prompt = _NATIVE.decode(list(tokens[:length]), skip_special_tokens=False)
            self._answers[key] = tiny_tokenizer().encode(self._talk(prompt), special=False)
        place = len(tokens) - length
        answer = self._answers[key]
        return answer[place] if place < len(answer) else END


@dataclass(frozen=True, slots=True)
class TalkingServer:
    """A running server.

    Attributes:
        url: where it listens, without a path.
    """

    url: str

    @property
    def v1(self) -> str:
        """What clients of OpenAI's API take for its address."""
        return f"{self.url}/v1"


@contextmanager
def talking_server(talk: Talk, folder: Path) -> Iterator[TalkingServer]:
    """Serve until the block ends; files of the server are in ``folder``."""
    settings = Settings(model=MODEL, api_key=(KEY,), shutdown_timeout=0.5)
    engine = TalkingEngine(talk)
    started: queue.Queue[tuple[RunningServer, trio.lowlevel.TrioToken] | None] = queue.Queue()

    def load(settings: Settings) -> tuple[Generator, str]:
        template = ChatTemplate(TOOL_TEMPLATE, control_tokens=tiny_tokenizer().control_tokens)
        return scripted_generator(engine, settings, template), MODEL

    async def serve() -> None:
        async with running_server(settings, load=load) as server:
            started.put((server, trio.lowlevel.current_trio_token()))
            await server.stop.wait()

    def run() -> None:
        try:
            trio.run(serve)
        finally:
            started.put(None)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        running = started.get(timeout=PATIENCE)
        assert running is not None, "the server did not start"
        server, token = running
        try:
            yield TalkingServer(server.url)
        finally:
            trio.from_thread.run_sync(server.stop.set, trio_token=token)
    finally:
        thread.join(PATIENCE)
