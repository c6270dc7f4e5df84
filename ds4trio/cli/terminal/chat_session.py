"""A chat session: questions in, answers out, and what Ctrl-C, errors and lost connections do."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass
from typing import Final

import trio

from ds4trio.cli.terminal.connection import LOADING_PATIENCE, ChatError, open_connection
from ds4trio.cli.terminal.conversation import (
    Answer,
    AnswerRefused,
    AnswerSummary,
    ConnectionLost,
    Conversation,
    RequestOptions,
)
from ds4trio.cli.terminal.endpoint import Endpoint
from ds4trio.cli.terminal.lines import Interrupted, Lines
from ds4trio.cli.terminal.screen import Screen

__all__ = ["FAILED", "ChatSession"]

STOP_PATIENCE: Final = 3.0
"""Seconds that a server has to end an answer it was asked to stop."""
LOADING_PAUSE: Final = 2.0
"""Seconds after which a question is tried again on a server that still loads its model."""
LOST_ANSWERS: Final = 3
"""Connections that one question may lose before it is given up."""
ENDINGS: Final = {
    "cancelled": "stopped",
    "disconnected": "stopped",
    "max_output_tokens": "cut at the longest answer allowed",
}

FAILED: Final = 1
"""Exit code of a session that an error ended."""
HELP: Final = """\
/new      start a new conversation
/retry    ask the last unanswered question again
/help     this list
/quit     leave (or Ctrl-D)
Ctrl-C stops an answer, or clears the line; at an empty prompt, twice leaves.
A line that begins with a space is a question even if a slash follows."""
LEAVE_HINT: Final = "Ctrl-C again, Ctrl-D or /quit leaves"
RETRY_HINT: Final = "/retry asks again"
ADVICE: Final = {"context_length_exceeded": "/new starts a new conversation"}
"""What a person can do about an error, by its code, where asking again is no use."""


@dataclass(slots=True)
class _Question:
    """A question that waits for its answer. It outlives connections."""

    text: str
    losses: int = 0
    patience_ends: float | None = None


class ChatSession:
    """Asks what ``lines`` yields and shows the answers on ``screen``.

    At a terminal an error is shown and the prompt comes back, the question kept for ``/retry``.
    From a pipe every line is a question, and the first error ends the session.
    """

    def __init__(
        self, endpoint: Endpoint, options: RequestOptions, lines: Lines, screen: Screen
    ) -> None:
        self.conversation = Conversation(options)
        self._endpoint = endpoint
        self._lines = lines
        self._screen = screen
        self._exit_code: int | None = None
        self._connected_before = False
        self._question: _Question | None = None
        self._unanswered: str | None = None
        self._answer: Answer | None = None
        self._waiting: trio.CancelScope | None = None
        self._warned = False

    async def run(self) -> int:
        """Chat until there is nothing more to ask; the exit code of the process."""
        async with trio.open_nursery() as nursery:
            if threading.current_thread() is threading.main_thread():
                await nursery.start(self._watch_signals, nursery)
            while self._exit_code is None:
                await self._keep_connection()
            nursery.cancel_scope.cancel()
        return self._exit_code or 0

    def _leave(self, code: int) -> None:
        if self._exit_code is None:
            self._exit_code = code

    async def _keep_connection(self) -> None:
        """Converse over one connection until it ends, or say why there is none."""
        failure: ChatError | None = None
        with trio.CancelScope() as self._waiting:
            try:
                async with open_connection(
                    self._endpoint,
                    on_wait=self._screen.waiting,
                    reconnecting=self._connected_before,
                ) as websocket:
                    self._waiting = None
                    self._greet()
                    self.conversation.attach(websocket)
                    while self.conversation.connected and self._exit_code is None:
                        await self._take_turn()
            except ChatError as error:
                failure = error
        if self._waiting is not None and self._waiting.cancelled_caught:
            failure = ChatError("stopped before a connection was made")
        self._waiting = None
        if failure is not None:
            self._give_up(failure)
            if not self._connected_before:
                self._leave(FAILED)
            while self._question is None and self._exit_code is None:
                await self._read_line()

    def _greet(self) -> None:
        if not self._connected_before:
            self._connected_before = True
            self._screen.notice(f"{self._endpoint.origin}, /help lists commands")

    async def _take_turn(self) -> None:
        if self._question is None:
            await self._read_line()
        else:
            await self._ask(self._question)

    async def _read_line(self) -> None:
        try:
            line = await self._lines.read()
        except Interrupted as interruption:
            if interruption.typed:
                self._warned = False  # it cleared the line, and that was all it was for
            else:
                self._interrupt_prompt()
            return
        except (OSError, ValueError) as error:
            self._screen.error(f"cannot read the input: {error}")
            self._leave(FAILED)
            return
        self._warned = False
        if line is None:
            self._screen.notice("")
            self._leave(0)
        elif self._screen.interactive and line.startswith("/"):
            self._obey(line.strip())
        elif line.strip():
            self._question = _Question(line.strip())

    def _obey(self, command: str) -> None:
        match command:
            case "/new":
                self.conversation.clear()
                self._unanswered = None
                self._screen.notice("a new conversation")
            case "/retry" if self._unanswered is not None:
                self._question = _Question(self._unanswered)
            case "/retry":
                self._screen.notice("every question has its answer")
            case "/help":
                self._screen.notice(HELP)
            case "/quit":
                self._leave(0)
            case _:
                self._screen.notice("no such command; /help lists them")

    async def _ask(self, question: _Question) -> None:
        answer = self._answer = self.conversation.ask(question.text)
        try:
            async for piece in answer:
                self._screen.piece(piece)
        except ConnectionLost as error:
            self._screen.discard_answer()
            question.losses += 1
            if question.losses == LOST_ANSWERS:
                self._give_up(error)
            elif answer.text:
                self._screen.notice(f"{error}; asking again")
        except AnswerRefused as error:
            self._screen.discard_answer()
            if error.code != "server_loading":
                self._give_up(error)
            else:
                await self._wait_for_model(question, error)
        else:
            self._screen.end_answer(_remark(answer.summary))
            self._unanswered = question.text if answer.stopping else None
            self._question = None
        finally:
            self._answer = None

    async def _wait_for_model(self, question: _Question, error: AnswerRefused) -> None:
        """Let the server load for a while before the question is asked again."""
        self._answer = None
        if question.patience_ends is None:
            question.patience_ends = trio.current_time() + LOADING_PATIENCE
            self._screen.waiting("the model is still being loaded; waiting")
        with trio.CancelScope() as self._waiting:
            await trio.sleep(LOADING_PAUSE)
        if self._waiting.cancelled_caught or trio.current_time() > question.patience_ends:
            self._give_up(error)
        self._waiting = None

    def _give_up(self, error: ChatError) -> None:
        """Show the error. The question that met it is kept, or ends a session without a person."""
        message = str(error)
        if self._screen.interactive and self._question is not None:
            self._unanswered = self._question.text
            code = error.code if isinstance(error, AnswerRefused) else ""
            message = f"{message}; {ADVICE.get(code, RETRY_HINT)}"
        self._question = None
        self._screen.error(message)
        if not self._screen.interactive:
            self._leave(FAILED)

    async def _watch_signals(
        self,
        nursery: trio.Nursery,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGTERM or not self._screen.interactive:
                    self._leave(128 + number)
                else:
                    self._interrupt(nursery)
                if self._exit_code is not None:
                    nursery.cancel_scope.cancel()

    def _interrupt(self, nursery: trio.Nursery) -> None:
        """Ctrl-C as a signal: end what goes on just now, and only that."""
        if self._answer is not None and self._answer.stopping:
            nursery.start_soon(self._answer.abort)
        elif self._answer is not None:
            nursery.start_soon(self._answer.stop, STOP_PATIENCE)
        elif self._waiting is not None:
            self._waiting.cancel()
        else:
            self._interrupt_prompt()

    def _interrupt_prompt(self) -> None:
        if self._warned:
            self._leave(0)
        else:
            self._warned = True
            self._screen.notice(LEAVE_HINT)


def _remark(summary: AnswerSummary | None) -> str:
    """How an answer went, in one line."""
    if summary is None:
        return ""
    parts = []
    if summary.output_tokens is not None:
        parts.append(f"{summary.output_tokens} token{'' if summary.output_tokens == 1 else 's'}")
    if summary.tokens_per_second is not None:
        parts.append(f"{summary.tokens_per_second:.1f} tokens/s")
    if summary.mean_batch_size is not None:
        parts.append(f"mean batch {summary.mean_batch_size:.1f}")
    if summary.ending != "completed":
        parts.append(ENDINGS.get(summary.ending, summary.ending))
    return ", ".join(parts)
