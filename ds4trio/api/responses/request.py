"""From a request of the Responses API to a prompt, the same for its doors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ds4trio.api.requests import asks, refuse_unsupported
from ds4trio.api.responses.conversation import Turn
from ds4trio.api.responses.items import Item, as_messages, read_input
from ds4trio.api.responses.tools import format_of, reasoning_of, tools_of
from ds4trio.api.schemas.responses import InputTokens, ResponseCreate
from ds4trio.errors import ContextLengthExceeded, InvalidRequest, WireError
from ds4trio.generate import GenerationRequest, Generator, Prompt, Sampling

__all__ = ["Asked", "count_response", "prepare_response", "wants_logprobs"]

LOGPROBS = "message.output_text.logprobs"

INCLUDABLE = frozenset(
    {
        LOGPROBS,
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
    }
)
"""All but the first are about items that there are none of, or that hide nothing here."""

_PARAMS: dict[str | None, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "format": "text.format",
    "continues": "input",
}
"""What this API calls the fields that the generator complains about."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be answered.

    Attributes:
        input: the items of this request.
        previous: the turn that it continues.
        prompt: what the generator takes.
        dropped: how many of the oldest items the model is not told, since they did not fit.
    """

    input: tuple[Item, ...]
    previous: Turn | None
    prompt: Prompt
    dropped: int = 0


def wants_logprobs(wanted: ResponseCreate) -> bool:
    """Whether the answer carries log-probabilities."""
    return LOGPROBS in (wanted.include or ()) or bool(wanted.top_logprobs)


async def prepare_response(
    generator: Generator,
    wanted: ResponseCreate,
    previous: Turn | None = None,
    *,
    known: Mapping[str, Item] | None = None,
    adapter: str = "",
    cache_salt: str = "",
    user: str = "",
) -> Asked:
    """Read and check everything; what is refused is refused here.

    Args:
        previous: the turn that ``previous_response_id`` names.
        known: items that ``item_reference`` may mean; those of ``previous`` are known anyway.

    Raises:
        WireError: as ``Generator.prepare``, with the names that fields have in this API.
    """
    items, request = _read(wanted, previous, known)
    request = replace(request, cache_salt=cache_salt, user=user, adapter=adapter)
    conversation = (*(previous.items if previous else ()), *items)
    instructions = wanted.instructions or ""
    try:
        if wanted.truncation == "auto":
            prompt, dropped = await _prepare_what_fits(
                generator, request, instructions, conversation
            )
            return Asked(items, previous, prompt, dropped)
        whole = _with_messages(request, instructions, conversation)
        return Asked(items, previous, await generator.prepare(whole))
    except WireError as error:
        error.param = _PARAMS.get(error.param, error.param)
        raise


async def count_response(
    generator: Generator,
    wanted: InputTokens,
    previous: Turn | None,
    known: Mapping[str, Item] | None = None,
) -> int:
    """How many tokens the input of a request has, with all that the model is told before it.

    Raises:
        WireError: as ``prepare_response``.
    """
    refuse_unsupported({"personality": asks(wanted.personality)})
    names = [name for name in InputTokens.__struct_fields__ if name in _SHARED]
    created = ResponseCreate(**{name: getattr(wanted, name) for name in names})
    items, request = _read(created, previous, known)
    conversation = (*(previous.items if previous else ()), *items)
    try:
        return await generator.count(
            _with_messages(request, created.instructions or "", conversation)
        )
    except WireError as error:
        error.param = _PARAMS.get(error.param, error.param)
        raise


def _read(
    wanted: ResponseCreate, previous: Turn | None, known: Mapping[str, Item] | None = None
) -> tuple[tuple[Item, ...], GenerationRequest]:
    """The items of a request, and all that it asks of the generator but its messages."""
    refuse_unsupported(_asks_too_much(wanted))
    for value in wanted.include or ():
        if value not in INCLUDABLE:
            raise InvalidRequest(f"include does not know {value[:100]!r}", param="include")
    held = {item["id"]: item for item in previous.items} if previous else {}
    items = read_input(wanted, {**held, **(known or {})})
    return items, GenerationRequest(
        sampling=replace(Sampling.of(wanted), logprobs=wants_logprobs(wanted)),
        tools=tools_of(wanted),
        format=format_of(wanted),
        reasoning=reasoning_of(wanted),
        template_switches=wanted.chat_template_kwargs or {},
        continues=bool(wanted.continue_final_message),
        progress=bool(wanted.return_progress),
        max_tokens=wanted.max_output_tokens,
        stop=(wanted.stop,) if isinstance(wanted.stop, str) else tuple(wanted.stop or ()),
    )


_SHARED = frozenset(InputTokens.__struct_fields__) & frozenset(ResponseCreate.__struct_fields__)


def _with_messages(
    request: GenerationRequest, instructions: str, conversation: Sequence[Item]
) -> GenerationRequest:
    """Instructions come first and hold for this response alone, as in OpenAI's API."""
    messages = as_messages(conversation)
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    return replace(request, messages=messages)


async def _prepare_what_fits(
    generator: Generator,
    request: GenerationRequest,
    instructions: str,
    conversation: Sequence[Item],
) -> tuple[Prompt, int]:
    """Leave out the oldest turns until prompt and answer fit, as few as will do.

    A turn begins with a message of the user. What is cut off before one leaves no result without
    its call and no answer without its question; system messages at the very beginning stay.
    A quarter of the context at most is kept free for the answer.
    """
    lead = next((n for n, item in enumerate(conversation) if not _steers(item)), 0)
    starts = [n for n, item in enumerate(conversation) if n > lead and item.get("role") == "user"]
    cuts = [lead, *starts]

    async def fits(cut: int) -> Prompt | None:
        left = (*conversation[:lead], *conversation[cut:])
        try:
            prompt = await generator.prepare(_with_messages(request, instructions, left))
        except ContextLengthExceeded:
            if cut == cuts[-1]:
                raise
            return None
        longest = generator.coalescer.info.longest_sequence
        needed = len(prompt.tokens) + min(prompt.max_tokens, longest // 4)
        return prompt if needed <= longest or cut == cuts[-1] else None

    if (prompt := await fits(cuts[0])) is not None:
        return prompt, 0
    low, high, best = 1, len(cuts) - 1, await fits(cuts[-1])
    while low < high:
        middle = (low + high) // 2
        if (found := await fits(cuts[middle])) is not None:
            high, best = middle, found
        else:
            low = middle + 1
    assert best is not None
    return best, cuts[high] - lead


def _steers(item: Item) -> bool:
    return item.get("role") in ("system", "developer")


def _asks_too_much(wanted: ResponseCreate) -> dict[str, bool]:
    text = wanted.text
    return {
        "access_programs": asks(wanted.access_programs),
        "background_options": asks(wanted.background_options),
        "conversation": asks(wanted.conversation),
        "context_management": asks(wanted.context_management),
        "image": asks(wanted.image),
        "moderation": asks(wanted.moderation),
        "prompt": asks(wanted.prompt),
        "text.verbosity": text is not None and text.verbosity not in (None, "medium"),
    }
