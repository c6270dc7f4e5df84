"""One typed settings object: every field is a flag of ``ds4trio serve`` and a DS4TRIO_ variable."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

__all__ = ["Field", "Settings", "SettingsError", "misspelt", "parse_size"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)", re.IGNORECASE)
_WHOLE = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_ALIASES = {"coalesce_us": ("DS4_SERVER_DECODE_COALESCE_US",)}
"""Names that other servers use for the same thing."""


LEAST_CONTEXT = 64
"""Tokens: what a chat template writes around a word, and an answer of a few."""

_ELSEWHERE = ("DS4TRIO_CACHE", "DS4TRIO_URL")
"""Variables of other parts."""


class SettingsError(ValueError):
    """A setting has a value that it cannot have. The message is one line and names it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator can choose. ``Settings.load()`` reads the environment."""

    model: Annotated[
        str, Meta(description="alias, GGUF file, Hugging Face folder, or hub id of the model")
    ] = "smollm2-135m-instruct"
    lora: Annotated[
        tuple[str, ...],
        Meta(description="LoRA adapters as NAME=PATH; requests whose model is NAME get it"),
    ] = ()
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0 takes any")] = 8000

    engine: Annotated[
        Literal["process", "thread"],
        Meta(description="run the model in a process of its own, or in the server's"),
    ] = "process"
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], Meta(description="where the tensors live")
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "w8a16", "int8"],
        Meta(description="number format of weights and products"),
    ] = "auto"
    batch_invariant: Annotated[
        bool,
        Meta(
            description="same tokens and logprobs in any company, in every dtype and on any device"
        ),
    ] = False
    threads: Annotated[
        int, Meta(ge=0, le=1024, description="CPU threads of the engine; 0 lets torch choose")
    ] = 0
    ctx: Annotated[
        int,
        Meta(
            ge=0,
            description="most tokens in one conversation; 0: what the model and the memory allow",
        ),
    ] = 0
    kv_memory: Annotated[
        str, Meta(description="memory for keys and values, such as 2GiB; auto looks at the machine")
    ] = "auto"
    page_size: Annotated[
        int,
        Meta(
            ge=16,
            le=1024,
            multiple_of=16,
            description="positions in one page of the KV cache, a multiple of 16",
        ),
    ] = 16

    prefix_cache: Annotated[
        bool, Meta(description="evaluate the common beginning of conversations only once")
    ] = True

    batching: Annotated[
        bool, Meta(description="evaluate the sessions of one step together, or one at a time")
    ] = True
    max_sessions: Annotated[
        int, Meta(ge=1, le=4096, description="most sessions that share the batch")
    ] = 64
    max_waiting: Annotated[
        int,
        Meta(ge=0, le=100_000, description="most requests that wait for a session; more get 503"),
    ] = 256
    coalesce_us: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="microseconds that an idle server waits for others to join; 0 is off",
        ),
    ] = 2000
    step_tokens: Annotated[
        int, Meta(ge=1, le=65536, description="most tokens evaluated in one step")
    ] = 512
    prefill_chunk: Annotated[
        int,
        Meta(ge=1, le=65536, description="most prompt tokens in a step that others decode in"),
    ] = 128
    speculate: Annotated[
        bool,
        Meta(description="guess what repeats the conversation, and verify it in the same step"),
    ] = True
    on_batch_failure: Annotated[
        Literal["recover", "fail"],
        Meta(description="what a failed step does to its members: try them anew, or end them"),
    ] = "recover"
    step_timeout: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="seconds that a step may take before its engine counts as dead; 0 is never",
        ),
    ] = 120.0

    max_output_tokens: Annotated[
        int, Meta(ge=1, description="most tokens of an answer when the request names no limit")
    ] = 2048
    api_key: Annotated[
        tuple[str, ...], Meta(description="keys that may use the server; none means no check")
    ] = ()
    allow_origin: Annotated[
        tuple[str, ...], Meta(description="origins of other pages that may use it from a browser")
    ] = ()
    max_body_bytes: Annotated[
        int, Meta(ge=1024, description="largest request body or WebSocket message, in bytes")
    ] = 4 * 1024 * 1024
    send_timeout: Annotated[
        float,
        Meta(gt=0, description="seconds a client may neither take its data nor send its body"),
    ] = 30.0
    shutdown_timeout: Annotated[
        float,
        Meta(gt=0, le=86400, description="seconds that running answers get when the server stops"),
    ] = 5.0
    websocket_minutes: Annotated[
        float,
        Meta(gt=0, le=525600, description="minutes after which a WebSocket takes no more requests"),
    ] = 60.0
    max_background: Annotated[
        int, Meta(ge=0, description="most responses that are written in the background at once")
    ] = 64
    store: Annotated[
        str,
        Meta(
            description="file that responses are stored in; `auto` is one for each port in the "
            "cache folder, `memory` forgets them when the server ends, `off` stores none"
        ),
    ] = "auto"
    store_max_mb: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="most megabytes of stored responses; the oldest go"),
    ] = 256
    store_max_days: Annotated[
        float,
        Meta(gt=0, le=36_500, description="days after which a stored response goes, if unused"),
    ] = 30.0
    max_connections: Annotated[
        int, Meta(ge=1, description="most connections at once; more are closed unread")
    ] = 4096
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="least severe line logged")
    ] = "info"

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ValueError("model: a name must not be empty")
        try:
            _ = self.kv_memory_bytes
        except ValueError as error:
            raise ValueError(f"kv_memory: {error}") from None
        if 0 < self.ctx < LEAST_CONTEXT:
            raise ValueError(f"ctx: {self.ctx} tokens are too few; at least {LEAST_CONTEXT}, or 0")
        names = [name for name, _ in self.adapters]
        if len(set(names)) < len(names) or self.model in names:
            taken = next(name for name in names if name == self.model or names.count(name) > 1)
            raise ValueError(
                f"lora: every adapter needs a name of its own, and {taken!r} is the name of "
                f"{'the model' if taken == self.model else 'two'}"
            )
        if not all(key.strip() for key in self.api_key):
            raise ValueError("api_key: a key must not be empty; leave it out for no check")
        for origin in self.allow_origin:
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise ValueError(
                    f"allow_origin: {origin!r} is not an origin such as https://chat.example.org "
                    "(no path, no slash at the end)"
                )

    @property
    def kv_memory_bytes(self) -> int | None:
        """Bytes for the KV cache, or None when the machine decides."""
        return None if self.kv_memory == "auto" else parse_size(self.kv_memory)

    @property
    def adapters(self) -> tuple[tuple[str, Path], ...]:
        """Names and places of the adapters.

        Raises:
            ValueError: an entry is not NAME=PATH.
        """
        split = []
        for entry in self.lora:
            name, _, place = entry.partition("=")
            if not name.strip() or not place.strip():
                raise ValueError(f"lora: {entry!r} is not NAME=PATH")
            split.append((name.strip(), Path(place.strip()).expanduser()))
        return tuple(split)

    @classmethod
    def fields(cls) -> tuple[Field, ...]:
        """Every setting, in order, with what flags and documentation need."""
        hints = get_type_hints(cls, include_extras=True)
        return tuple(
            Field(
                name=info.name,
                type=get_args(hints[info.name])[0],
                default=info.default,
                help=get_args(hints[info.name])[1].description,
                bounds=get_args(hints[info.name])[1],
            )
            for info in msgspec.structs.fields(cls)
        )

    @classmethod
    def load(
        cls, environ: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None
    ) -> Settings:
        """Read the environment, then let explicit values (flags) win.

        Args:
            environ: variables to read; none when omitted.
            overrides: values by field name, as strings or typed; None values are skipped.

        Raises:
            SettingsError: a value does not fit its field.
        """
        values: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for field in cls.fields():
            for variable in (*_ALIASES.get(field.name, ()), field.variable):
                text = (environ or {}).get(variable)
                if text is not None and text.strip() != "":
                    values[field.name] = field.split(text)
                    origin[field.name] = variable
                    if field.multiple and not values[field.name]:
                        raise SettingsError(f"{variable}: {text!r} holds nothing")
            override = (overrides or {}).get(field.name)
            if override is not None:
                values[field.name] = override
                origin[field.name] = field.flag
            text = values.get(field.name)
            if field.type is int and isinstance(text, str) and not _WHOLE.fullmatch(text):
                raise SettingsError(f"{origin[field.name]}: {field.refusal(text)}")
        try:
            return msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as error:
            # msgspec says where with a path; __post_init__ begins with the field.
            detail, _, path = str(error).partition(" - at `$.")
            field_name, _, rest = detail.partition(": ")
            if path:
                field_name = path.rstrip("`").split("[")[0]
                field = next(field for field in cls.fields() if field.name == field_name)
                rest = field.refusal(values[field_name])
            raise SettingsError(f"{origin.get(field_name, field_name)}: {rest}") from None


def misspelt(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that nothing reads and that look like one of a setting: as written, as meant.

    Those that look like none may be somebody else's, such as a container platform's.
    """
    known = [field.variable for field in Settings.fields()]
    found = {}
    for name in sorted(environ):
        if name.upper().startswith("DS4TRIO") and name not in (*known, *_ELSEWHERE):
            for meant in difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.85):
                found[name] = meant
    return found


@dataclass(frozen=True, slots=True)
class Field:
    """A setting as flags, variables and documentation show it."""

    name: str
    type: Any
    default: Any
    help: str
    bounds: Meta

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "DS4TRIO_" + self.name.upper()

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def multiple(self) -> bool:
        return get_origin(self.type) is tuple

    def refusal(self, value: Any) -> str:
        """What is said of a value that it cannot have."""
        return f"{value!r} cannot be used: it takes {self._takes()}"

    def _takes(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.type is bool:
            return "true or false"
        kind = {int: "a whole number", float: "a number"}.get(self.type, "a text")
        bounds = self.bounds
        limits = []
        if bounds.gt is not None:
            limits.append(f"above {bounds.gt}")
        if bounds.ge is not None:
            limits.append(f"of at least {bounds.ge}")
        if bounds.le is not None:
            limits.append(f"of at most {bounds.le}")
        if bounds.multiple_of is not None:
            limits.append(f"that is a multiple of {bounds.multiple_of}")
        return " ".join([kind, " and ".join(limits)])

    def split(self, text: str) -> Any:
        """A variable's text as a value: several values are separated by commas."""
        if self.multiple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        return text.strip()


def parse_size(text: str) -> int:
    """Bytes from a text such as ``1500000``, ``512MiB`` or ``2g`` (powers of 1024).

    Raises:
        ValueError: the text is not a size above zero.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match.group(1)) * 1024 ** _POWER[match.group(2).lower()]) if match else 0
    if size <= 0:
        raise ValueError(f"{text!r} is not a size such as 512MiB or 2GiB")
    return size
