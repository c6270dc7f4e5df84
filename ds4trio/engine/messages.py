"""What the server and the engine's process say to each other, over two pipes.

Each message is its length (8 bytes, little endian) and a pickle. Both ends are the same program of
the same user, and nobody else can write to the pipes.
"""

from __future__ import annotations

import pickle
import struct
import traceback
from dataclasses import dataclass
from typing import IO, Any

from ds4trio.engine.step import EngineInfo

__all__ = ["Failed", "NotStarted", "PrepareGrammar", "Started", "Void", "receive", "send"]

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Started:
    """The first answer: the model is loaded."""

    info: EngineInfo


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The first answer: the model cannot be loaded, for a reason that fits in a line."""

    why: str


@dataclass(frozen=True, slots=True)
class PrepareGrammar:
    """A sequence with this grammar will come. Between commands; it has no answer."""

    grammar: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer to a command that raised. The answer to one that succeeded is a ``Ran``."""

    kind: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        text = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, str(error), text)


@dataclass(frozen=True, slots=True)
class Void:
    """The answer to a command that was not carried out, since one before it had failed."""


def send(pipe: IO[bytes], message: object) -> None:
    """Write a message. Raises OSError when nobody reads any more."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Wait for a message. Raises EOFError when none will come."""
    (length,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    return pickle.loads(_exactly(pipe, length))


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError("the other end has gone")
    return data
