"""What the doors share: the settings, and the generator once it is there."""

from __future__ import annotations

import time
from typing import NamedTuple

import trio

from ds4trio.api.responses.stored.runs import Runs
from ds4trio.api.responses.stored.store import ResponseStore
from ds4trio.errors import ModelNotFound, ServerLoading, ServerStopping
from ds4trio.generate import Generator
from ds4trio.models.cache import cache_folder
from ds4trio.settings import Settings

__all__ = ["Served", "Service"]


LONGEST_CHAIN = 4
"""A stored conversation may be so many times as long as the longest message; more would hardly fit
any context, and takes long to put together."""


class Served(NamedTuple):
    """A model as requests name it.

    Attributes:
        name: to answer with.
        adapter: that it has; empty for none.
    """

    name: str
    adapter: str


class Service:
    """The state of the server as the doors see it: loading, then ready or failed.

    Changed by the task that loads the model, between awaits; read by every request.

    Attributes:
        settled: set once it is ready or failed.
        stopping: set when the server has been told to stop.
        store: responses that outlive their connection.
        runs: those being written in the background.
        nursery: of the server, for tasks that outlive a connection; there while it serves.
        failed: set when there is no hope left: the model could not be loaded, or the engine's task
            has ended. ``failure`` then says why in one line.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.created = int(time.time())
        self.model_name: str | None = None
        self.settled = trio.Event()
        self.stopping = trio.Event()
        self.failed = trio.Event()
        self.failure: str | None = None
        self.nursery: trio.Nursery | None = None
        self.store = ResponseStore(
            _store_path(settings),
            most_bytes=settings.store_max_mb * 1_000_000,
            most_seconds=settings.store_max_days * 86_400,
            longest=LONGEST_CHAIN * settings.max_body_bytes,
        )
        self.runs = Runs(self.store, settings.max_background)
        self._generator: Generator | None = None

    @property
    def ready(self) -> bool:
        return self._generator is not None and not self.failed.is_set()

    @property
    def server_nursery(self) -> trio.Nursery:
        """For tasks that outlive a connection.

        Raises:
            ServerStopping: there is none any more.
        """
        if self.nursery is None or self.stopping.is_set():
            raise ServerStopping("the server is stopping")
        return self.nursery

    @property
    def generator(self) -> Generator:
        """The generator.

        Raises:
            ServerLoading: not yet.
            ServerStopping: no longer.
        """
        if self.failure is not None:
            raise ServerStopping(self.failure)
        if self._generator is None:
            raise ServerLoading("the model is still being loaded", retry_after=2)
        return self._generator

    def serve(self, generator: Generator, model_name: str) -> None:
        """The model is loaded: requests may come."""
        self._generator = generator
        self.model_name = model_name
        self.settled.set()

    def fail(self, why: str) -> None:
        """The model or the engine is lost; every request gets 503 from now on."""
        self.failure = why
        self.failed.set()
        self.settled.set()

    @property
    def models(self) -> tuple[Served, ...]:
        """What requests may name: the model, and the model with each of its adapters."""
        assert self.model_name is not None
        adapted = [Served(name, name) for name, _ in self.settings.adapters]
        return (Served(self.model_name, ""), *adapted)

    def find_model(self, name: str | None) -> Served:
        """What to answer with, for a request that names a model or leaves it open.

        Raises:
            ModelNotFound: it names another model than those that are served.
        """
        _ = self.generator
        own, *adapted = self.models
        if name is None or name in (own.name, self.settings.model):
            return own
        for served in adapted:
            if served.name == name:
                return served
        known = ", ".join(served.name for served in self.models)
        raise ModelNotFound(
            f"the model {name[:200]!r} is not served here; what is: {known}", param="model"
        )


def _store_path(settings: Settings) -> str | None:
    match settings.store:
        case "off":
            return None
        case "memory":
            return ":memory:"
        case "auto":
            return str(cache_folder() / "responses" / f"{settings.port}.sqlite")
        case path:
            return path
