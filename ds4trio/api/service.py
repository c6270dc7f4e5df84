"""What the doors share: the settings, and the generator once it is there."""

from __future__ import annotations

import time

import trio

from ds4trio.errors import ModelNotFound, ServerLoading, ServerStopping
from ds4trio.generate import Generator
from ds4trio.settings import Settings

__all__ = ["Service"]


class Service:
    """The state of the server as the doors see it: loading, then ready or failed.

    Changed by the task that loads the model, between awaits; read by every request.

    Attributes:
        settled: set once it is ready or failed.
        stopping: set when the server has been told to stop.
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
        self._generator: Generator | None = None

    @property
    def ready(self) -> bool:
        return self._generator is not None and not self.failed.is_set()

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

    def check_model(self, name: str | None) -> str:
        """The name to answer with, for a request that names a model or leaves it open.

        Raises:
            ModelNotFound: it names another model than the one that is served.
        """
        _ = self.generator
        assert self.model_name is not None
        if name is not None and name not in (self.model_name, self.settings.model):
            raise ModelNotFound(
                f"the model {name[:200]!r} is not served here; the one that is: {self.model_name}",
                param="model",
            )
        return self.model_name
