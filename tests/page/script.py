"""What a scripted response does, decided by the words of the last question. They combine, and come
to pass in this order:

    read         the prompt is read in steps, with progress; ``slowly`` never ends doing so
    think        it reasons first; ``ponder`` never ends doing so
    drop         after some words the socket is closed, while the response goes on
    stuck        some words, then nothing, and no ear for a cancel
    endless      a word every few milliseconds until it is cancelled
    count N      the words w1 to wN, each after 5 ms; a continued answer goes on in its count
    burst        6,000 words as fast as they go
    markdown, Explain, hostile, json    such a text, in small pieces
    call         a function is called
    fail         ends with ``response.failed`` and the code ``batch_failed``
    cut          ends at the limit of tokens

Anything else is answered with ``You said: ...``.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, Protocol

import trio
import trio.lowlevel

from tests.page.texts import EXPLAINED, HOSTILE, MARKDOWN, counted

__all__ = ["Writer", "perform"]

PAUSE = 0.005


class Writer(Protocol):
    deaf: bool

    def emit(self, kind: str, **fields: Any) -> None: ...

    def say(self, text: str) -> None: ...

    def think(self, text: str) -> None: ...


async def perform(writer: Writer, question: str, begun: str) -> None:
    """Writes the answer.

    Args:
        begun: the answer that is to be continued; empty for a new one.
    """
    writer.deaf = "stuck" in question
    if "read" in question:
        await _read(writer, for_ever="slowly" in question)
    if "think" in question or "ponder" in question:
        for number in range(1, 9):
            writer.think(f"thought{number} ")
            await trio.sleep(PAUSE)
        if "ponder" in question:
            await trio.sleep_forever()
    if "drop" in question:
        for word in ("before ", "the ", "drop "):
            writer.say(word)
            await trio.sleep(PAUSE)
        writer.emit("drop")
        await trio.sleep(0.2)
    await _answer(writer, question, begun)


async def _read(writer: Writer, *, for_ever: bool) -> None:
    for part in range(5):
        progress = {"processed": 200 * part, "total": 1000, "cached": 100}
        writer.emit("response.ds4trio.prefill", **progress)
        await trio.sleep(10 * PAUSE)
    if for_ever:
        await trio.sleep_forever()


async def _answer(writer: Writer, question: str, begun: str) -> None:
    count = re.search(r"count (\d+)", question)
    if "stuck" in question:
        writer.say("word1 word2 word3 ")
        await trio.sleep_forever()
    elif "endless" in question:
        for number in itertools.count(1):
            writer.say(f"word{number}{' ' if number % 12 else chr(10) * 2}")
            await trio.sleep(PAUSE)
    elif count:
        first = max((int(number) for number in re.findall(r"w(\d+)", begun)), default=0) + 1
        for number in range(first, int(count[1]) + 1):
            writer.say(counted(number, number))
            await trio.sleep(PAUSE)
    elif "burst" in question:
        for number in range(6000):
            writer.say(f"w{number}{' ' if number % 40 else chr(10) * 2}")
            if number % 50 == 0:
                await trio.lowlevel.checkpoint()
    elif "call" in question:
        item = {"type": "function_call", "name": "get_weather", "id": "fc_1", "call_id": "call_1"}
        writer.emit("response.output_item.added", output_index=0, item=item)
        for piece in ('{"city":', '"Paris","da', 'ys":3}'):
            writer.emit("response.function_call_arguments.delta", item_id="fc_1", delta=piece)
            await trio.sleep(PAUSE)
    else:
        await _recite(writer, _text(question))


def _text(question: str) -> str:
    if "markdown" in question:
        return MARKDOWN
    if "Explain" in question:
        return EXPLAINED
    if "hostile" in question:
        return HOSTILE
    if "json" in question:
        return '{"name":"Ada","born":1815,"known for":["notes","numbers"]}'
    return f"You said: {question}"


async def _recite(writer: Writer, text: str) -> None:
    for start in range(0, len(text), 7):
        writer.say(text[start : start + 7])
        await trio.sleep(0.001)
