"""``create_app()``: wires settings, model, engine, coalescer and doors. The target of hypercorn.

The lifespan of the ASGI server is the life of everything here: its nursery is the parent of the one
task that loads the model and then runs the coalescer.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import trio
from quart_trio import QuartTrio

from ds4trio.api.anthropic.door import messages
from ds4trio.api.auth import guard
from ds4trio.api.chat_completions.door import chat_completions
from ds4trio.api.completions.door import completions
from ds4trio.api.description.door import description
from ds4trio.api.live import live
from ds4trio.api.ops import ops
from ds4trio.api.page import page
from ds4trio.api.responses.http import responses
from ds4trio.api.responses.websocket import responses_ws
from ds4trio.api.service import Service
from ds4trio.api.tokens import tokens
from ds4trio.api.transport.worker import harden_hypercorn
from ds4trio.api.wire import handle_errors
from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.failure import policy_named
from ds4trio.batching.schedule import Budget
from ds4trio.engine.interface import EngineLike
from ds4trio.engine.ledger import Ledger
from ds4trio.engine.process import ProcessRunner
from ds4trio.engine.spec import RunnerSpec
from ds4trio.engine.turns import InTurn
from ds4trio.errors import EngineDied, ModelUnavailable
from ds4trio.generate import Generator
from ds4trio.models.resolve import ModelSource
from ds4trio.settings import Settings, misspelt

__all__ = ["Load", "build_coalescer", "create_app", "load_generator"]

_log = logging.getLogger(__name__)


END_ANSWERS_AFTER = 0.7
"""Of the time that a stopping server has: what runs then is ended with an error that still arrives
before connections are cut."""

Load = Callable[[Settings], tuple[Generator, str]]
"""Makes the generator and says what clients call its model. Blocks; runs in a worker thread."""


def create_app(settings: Settings | None = None, *, load: Load | None = None) -> QuartTrio:
    """The application, for ``ds4trio serve``, hypercorn's trio worker, and tests.

    Args:
        settings: read from the environment (``DS4TRIO_*``) when omitted.
        load: makes the generator; tests put an engine of their own in place of the model's.

    Returns:
        The ASGI application. ``app.config["SERVICE"]`` is its ``Service``: the state of the model.

    Raises:
        SettingsError: a variable has a value that it cannot have.
    """
    if settings is None:
        settings = Settings.load(os.environ)
    _log_to_stderr(settings.log_level)
    for written, meant in misspelt(os.environ).items():
        _log.warning("the variable %s is not read; did you mean %s?", written, meant)
    service = Service(settings)
    harden_hypercorn(
        send_timeout=settings.send_timeout,
        max_message_bytes=settings.max_body_bytes,
        max_connections=settings.max_connections,
        on_stopping=service.stopping.set,
    )
    app = _App("ds4trio", static_folder=None)
    app.config["SERVICE"] = service
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["BODY_TIMEOUT"] = settings.send_timeout
    app.config["RESPONSE_TIMEOUT"] = None  # an answer takes as long as it takes
    app.config["BACKGROUND_TASK_SHUTDOWN_TIMEOUT"] = None  # connections have ended by then
    guard(app, settings)
    handle_errors(app)
    for door in (
        ops(service),
        live(service),
        chat_completions(service),
        completions(service),
        messages(service),
        responses(service),
        responses_ws(service),
        tokens(service),
        description(),
        page(),
    ):
        app.register_blueprint(door)

    @app.before_serving
    async def start() -> None:
        service.nursery = app.nursery
        await service.store.give_up_unfinished()
        app.nursery.start_soon(_load_and_run, service, load or load_generator)
        app.nursery.start_soon(_end_answers_in_time, service)

    @app.after_serving
    async def end() -> None:
        service.nursery = None
        await service.store.aclose()

    return app


class _App(QuartTrio):
    """Quart's application, for any request target that a client may come up with."""

    async def asgi_app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan" and not scope["path"].startswith("/"):
            # Absolute or broken targets (RFC 9112, section 3.2): Quart expects a path.
            try:
                path = urlsplit(scope["path"]).path
            except ValueError:
                path = ""
            scope["path"] = path if path.startswith("/") else "/" + path
        await super().asgi_app(scope, receive, send)


def _log_to_stderr(level: str) -> None:
    """For our own loggers only: hypercorn has its own, and a host program may have set up all."""
    logger = logging.getLogger("ds4trio")
    logger.setLevel(level.upper())
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(
            logging.Formatter("[%(asctime)s] [%(levelname)s] %(message)s", "%Y-%m-%d %H:%M:%S")
        )
        logger.addHandler(handler)


def build_coalescer(engine: EngineLike, settings: Settings) -> Coalescer:
    """The coalescer that the settings ask for, around any engine."""
    return Coalescer(
        engine,
        max_sessions=settings.max_sessions,
        max_waiting=settings.max_waiting,
        window=settings.coalesce_us / 1e6 if settings.batching else 0.0,
        budget=Budget(
            step_tokens=settings.step_tokens,
            prefill_chunk=settings.prefill_chunk,
            sessions=settings.max_sessions if settings.batching else 1,
        ),
        on_failure=policy_named(settings.on_batch_failure),
        speculate=settings.speculate,
        step_timeout=settings.step_timeout or math.inf,
    )


async def _end_answers_in_time(service: Service) -> None:
    """When the server stops, end the answers that still run while their clients can be told."""
    await service.stopping.wait()
    seconds = service.settings.shutdown_timeout * END_ANSWERS_AFTER
    if service.ready and (running := service.generator.coalescer.sessions):
        _log.info("stopping: %d answers have %.1f s to end", running, seconds)
    await trio.sleep(seconds)
    if service.ready:
        # also for requests that were still arriving, or waiting their turn
        service.generator.coalescer.stop()


async def _load_and_run(service: Service, load: Load) -> None:
    """Load the model off the event loop, open the doors, run the coalescer until the end."""
    started = trio.current_time()
    _log.info("loading %s", service.settings.model)
    try:
        # Abandoned when the server is told to stop meanwhile: it only reads, or writes files whole.
        generator, name = await trio.to_thread.run_sync(
            load, service.settings, abandon_on_cancel=True
        )
        info = generator.coalescer.info
        _log.info(
            "%s is ready after %.1f s: %s on %s, %d tokens of context, %d pages of %d positions",
            name,
            trio.current_time() - started,
            info.dtype,
            info.device,
            info.longest_sequence,
            info.total_pages,
            info.page_size,
        )
        if service.settings.adapters:
            _log.info("with adapters: %s", ", ".join(name for name, _ in service.settings.adapters))
        service.serve(generator, name)
        await generator.run()
    except (ModelUnavailable, EngineDied) as error:
        _log.error("%s", error)
        service.fail(f"the model could not be loaded: {error}")
    except Exception as error:
        _log.critical("the engine's task has ended", exc_info=error)
        service.fail("the engine has stopped; the server's log says why")


def load_generator(
    settings: Settings, runner: ProcessRunner | None = None
) -> tuple[Generator, str]:
    """Resolve and load the model, build engine and generator. Blocks for seconds.

    Args:
        runner: one that was started for the same settings before.

    Raises:
        ModelUnavailable: the model cannot be found, fetched, read or held.
        EngineDied: the engine's process ended before it had loaded the model.
    """
    from ds4trio.chat.dialect import Dialect
    from ds4trio.chat.template import ChatTemplate
    from ds4trio.chat.tokenizer import Tokenizer
    from ds4trio.models.load import load_model
    from ds4trio.models.resolve import resolve

    source = resolve(settings.model)
    model = load_model(source)
    if any(name == model.name for name, _ in settings.adapters):
        raise ModelUnavailable(f"an adapter cannot have the model's own name, {model.name!r}.")
    if settings.ctx > model.config.context_length:
        _log.warning("--ctx is beyond what %s was made for and is not used", model.name)
    if settings.engine == "process" and runner is None:
        runner = ProcessRunner(RunnerSpec.of(settings, source))
    tokenizer = Tokenizer.load(model.tokenizer_path)
    engine = _make_engine(settings, source, runner)
    template = ChatTemplate(
        model.chat_template,
        bos_token=model.bos_token,
        eos_token=model.eos_token,
        control_tokens=tokenizer.control_tokens,
    )
    generator = Generator(
        build_coalescer(engine, settings),
        tokenizer,
        template,
        stop_tokens=frozenset(model.config.eos_token_ids),
        bos_token=model.bos_token,
        add_bos=model.add_bos,
        default_max_tokens=settings.max_output_tokens,
        dialect=Dialect(model.chat_template, tokenizer, template=template),
    )
    return generator, model.name


def _make_engine(
    settings: Settings, source: ModelSource, runner: ProcessRunner | None
) -> EngineLike:
    if runner is not None:
        return Ledger(runner, prefix_cache=settings.prefix_cache)
    in_this_process = InTurn(RunnerSpec.of(settings, source).load())
    return Ledger(in_this_process, prefix_cache=settings.prefix_cache)
