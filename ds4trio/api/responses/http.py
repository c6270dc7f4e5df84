"""``/v1/responses`` over HTTP: OpenAI's Responses API, streamed or not, stored, in the
background."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from quart import Blueprint, Response, request

from ds4trio.api.auth import tenant, user
from ds4trio.api.requests import refuse_unsupported
from ds4trio.api.responses.conversation import Turn
from ds4trio.api.responses.events import Event, ResponseEvents
from ds4trio.api.responses.items import references
from ds4trio.api.responses.request import Asked, count_response, prepare_response
from ds4trio.api.responses.stored.database import Record
from ds4trio.api.responses.stored.pages import know, number_of, page_of, truth_of
from ds4trio.api.responses.stored.replay import check_place, events_after
from ds4trio.api.responses.stored.runs import record_of
from ds4trio.api.responses.stored.store import not_ended, owner_of
from ds4trio.api.schemas.responses import InputTokens, ResponseCreate
from ds4trio.api.service import Service
from ds4trio.api.sse import EventStreamBody, SendEvent, event_stream
from ds4trio.api.wire import decode, encode, json_response
from ds4trio.errors import (
    InvalidRequest,
    PreviousResponseNotFound,
    StoreUnavailable,
    WireError,
)

__all__ = ["responses"]

Say = Callable[[list[Event]], Awaitable[None]]


def responses(service: Service) -> Blueprint:
    """The doors, as a blueprint."""
    blueprint = Blueprint("responses", __name__)
    store, runs = service.store, service.runs

    @blueprint.post("/v1/responses")
    async def create() -> Response:
        wanted = decode(await request.get_data(), ResponseCreate)
        refuse_unsupported({"stream_id": wanted.stream_id is not None})
        stored = wanted.store is not False and (store.keeps or wanted.store is True)
        if wanted.background and wanted.store is False:
            raise InvalidRequest("background needs store: true", param="background")
        if (wanted.background or stored) and not store.keeps:
            raise StoreUnavailable("this server stores no responses (--store off)")
        model = service.find_model(wanted.model)
        owner = owner_of(tenant(request, None))
        asked = await prepare_response(
            service.generator,
            wanted,
            await _previous(service, owner, wanted.previous_response_id),
            known=await store.items(owner, references(wanted)),
            adapter=model.adapter,
            cache_salt=tenant(request, wanted.cache_salt),
            user=user(request, service.settings),
        )
        events = ResponseEvents(wanted, model.name, stored=stored)
        if wanted.background:
            return await _in_background(service, owner, wanted, events, asked)
        answer = _Answer(service, owner, events, asked, stored=stored, must=bool(wanted.store))
        if not wanted.stream:
            return json_response(await answer.whole(only_warms=wanted.only_warms))

        async def produce(send: SendEvent) -> None:
            async def say(told: list[Event]) -> None:
                for event in told:
                    await send(encode(event), event=event["type"])

            await answer.write(say, only_warms=wanted.only_warms)

        return _stream(service, produce)

    @blueprint.post("/v1/responses/input_tokens")
    async def input_tokens() -> Response:
        wanted = decode(await request.get_data(), InputTokens)
        service.find_model(wanted.model)
        owner = owner_of(tenant(request, None))
        previous = await _previous(service, owner, wanted.previous_response_id)
        known = await store.items(owner, references(wanted))
        count = await count_response(service.generator, wanted, previous, known)
        return json_response({"object": "response.input_tokens", "input_tokens": count})

    @blueprint.get("/v1/responses/<response_id>")
    async def retrieve(response_id: str) -> Response:
        owner = owner_of(tenant(request, None))
        know(request.args, "stream", "starting_after", "include", "include_obfuscation")
        after = number_of(request.args, "starting_after", -1)
        streams = truth_of(request.args, "stream")
        if "starting_after" in request.args and not streams:
            raise InvalidRequest("starting_after needs stream=true", param="starting_after")
        run = runs.find(owner, response_id)
        if run is None:
            record = await store.get(owner, response_id)
            if not streams:
                return json_response(record.response)
            check_place(after, len(record.events))
            return _stream(service, lambda send: _say_again(record, after, send))
        if not streams:
            return json_response(run.response)
        check_place(after, run.said)

        async def follow(send: SendEvent) -> None:
            async with contextlib.aclosing(run.follow(after)) as said:
                async for event in said:
                    await send(event, event=_type_of(event))

        return _stream(service, follow)

    @blueprint.delete("/v1/responses/<response_id>")
    async def delete(response_id: str) -> Response:
        know(request.args)
        owner = owner_of(tenant(request, None))
        if (run := runs.find(owner, response_id)) is not None:
            run.cancel()
            await run.until_ended()
        await store.delete(owner, response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @blueprint.post("/v1/responses/<response_id>/cancel")
    async def cancel(response_id: str) -> Response:
        know(request.args)
        owner = owner_of(tenant(request, None))
        if (run := runs.find(owner, response_id)) is not None:
            run.cancel()
            await run.until_ended()
            return json_response(run.response)
        record = await store.get(owner, response_id)
        if not record.response["background"]:
            raise InvalidRequest(
                "only a response that is written in the background can be cancelled",
                param="response_id",
                code="response_cancel_not_active",
            )
        return json_response(record.response)

    @blueprint.get("/v1/responses/<response_id>/input_items")
    async def input_items(response_id: str) -> Response:
        know(request.args, "limit", "order", "after", "before", "include")
        record = await store.get(owner_of(tenant(request, None)), response_id)
        return json_response(page_of(record.input, request.args))

    return blueprint


async def _previous(service: Service, owner: str, response_id: str | None) -> Turn | None:
    if response_id is None:
        return None
    if service.runs.find(owner, response_id) is not None:
        raise not_ended(response_id)
    turn = await service.store.turn(owner, response_id)
    if turn is None:
        raise PreviousResponseNotFound(
            f"the response {response_id[:100]!r} is not here to be continued, or no longer; "
            "please send the whole conversation as input",
            param="previous_response_id",
        )
    return turn


async def _in_background(
    service: Service, owner: str, wanted: ResponseCreate, events: ResponseEvents, asked: Asked
) -> Response:
    if wanted.only_warms:
        raise InvalidRequest(
            "with generate: false there is nothing to wait for", param="background"
        )
    run = await service.runs.start(service.server_nursery, service.generator, owner, events, asked)
    if not wanted.stream:
        return json_response(run.response)

    async def follow(send: SendEvent) -> None:
        async with contextlib.aclosing(run.follow()) as said:
            async for event in said:
                await send(event, event=_type_of(event))

    return _stream(service, follow)


class _Answer:
    """A response that lives as long as its request.

    Args:
        stored: it is to be stored.
        must: the client insists on that.
    """

    def __init__(
        self,
        service: Service,
        owner: str,
        events: ResponseEvents,
        asked: Asked,
        *,
        stored: bool,
        must: bool,
    ) -> None:
        self._service = service
        self._owner = owner
        self._events = events
        self._asked = asked
        self._stored = stored
        self._must = must

    async def whole(self, *, only_warms: bool) -> dict[str, Any]:
        """The final object.

        Raises:
            WireError: there is none, since the answer failed.
        """

        async def say(told: list[Event]) -> None:
            pass

        if (failure := await self.write(say, only_warms=only_warms)) is not None:
            raise failure
        return self._events.response

    async def write(self, say: Say, *, only_warms: bool) -> WireError | None:
        """Say all events; the last ones when the response is stored and can be continued.

        Returns:
            What went wrong, which the events tell too.
        """
        events, generator, prompt = self._events, self._service.generator, self._asked.prompt
        said: list[bytes] = []

        async def tell(told: list[Event]) -> None:
            if self._stored:
                said.extend(map(encode, told))
            await say(told)

        await tell(events.begin())
        failure: WireError | None = None
        last: list[Event] = []
        try:
            if only_warms:
                last = events.warmed(await generator.warm(prompt))
            else:
                async with contextlib.aclosing(generator.generate(prompt)) as generated:
                    async for event in generated:
                        told = events.take(event)
                        if events.ended:
                            last = told
                        else:
                            await tell(told)
        except WireError as error:
            failure, last = error, events.failed(error)
        if self._stored:
            record = record_of(events, self._asked, [*said, *map(encode, last)])
            try:
                await self._service.store.put(self._owner, record)
            except StoreUnavailable as error:
                # Who did not ask for it gets the answer nevertheless, and is told.
                failure = failure or (error if self._must else None)
                last = events.unstored(last)
        await say(last)
        return failure


async def _say_again(record: Record, after: int, send: SendEvent) -> None:
    for event in events_after(record, after):
        await send(event, event=_type_of(event))


class _Typed(msgspec.Struct):
    type: str


def _type_of(event: bytes) -> str:
    return msgspec.json.decode(event, type=_Typed).type


def _stream(service: Service, produce: Callable[[SendEvent], Awaitable[Any]]) -> Response:
    async def to_the_end(send: SendEvent) -> None:
        await produce(send)

    return event_stream(EventStreamBody(to_the_end, send_timeout=service.settings.send_timeout))
