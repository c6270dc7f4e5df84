"""The command as a process of its own, over pipes and on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from ds4trio.cli.chat import chat
from tests.cli.terminal.fake_server import FakeServer, Peer, Refusal, echo, fake_server

ROOT = Path(__file__).parents[2]
RUN = "from ds4trio.cli.chat import chat; chat()"
TAKE_TERMINAL = "import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
WITHOUT_READLINE = "import sys; sys.modules['readline'] = None; "


def environment(**more: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DS4TRIO_")}
    settings = {"TERM": "xterm", "INPUTRC": os.devnull, "LC_ALL": "C.UTF-8"}
    return {**inherited, **settings, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **more}


async def piped(
    *arguments: str, stdin: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    with trio.fail_after(30):
        return await trio.run_process(
            [sys.executable, "-c", RUN, *arguments],
            stdin=stdin.encode(),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=env or environment(),
        )


async def speaks_until_cancelled(peer: Peer) -> None:
    await peer.begin()
    await peer.say("Once ", "upon\x1b[31m ")
    await peer.cancelled.wait()
    await peer.finish("cancelled")


async def test_a_script_asks_its_questions_and_gets_bare_answers() -> None:
    async with fake_server() as server:
        done = await piped(
            stdin="first question\nsecond: é\n",
            env=environment(DS4TRIO_URL=server.url, DS4TRIO_API_KEY="secret"),
        )
        assert done.returncode == 0
        assert done.stdout.decode() == "You said: first question \nYou said: second: é \n"
        assert done.stderr == b""
        assert server.seen[-1][0] == ("user", "first question")
        assert server.headers[0][b"authorization"] == b"Bearer secret"


async def test_a_script_learns_of_errors_by_the_exit_code() -> None:
    async with fake_server() as server:
        server.refusals = [Refusal(401, "invalid_api_key")]
        done = await piped("--url", server.url, stdin="one\n")
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.decode() == (
        f"ds4trio chat: {server.url} asks for an API key (--api-key, DS4TRIO_API_KEY)\n"
    )
    done = await piped("--url", server.url, stdin="one\n")  # nobody listens there any more
    assert done.returncode == 1
    assert done.stderr.decode() == (
        f"ds4trio chat: no server reachable at {server.url}: Connection refused\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", "ftp://example"],
        ["--api-key", "two words"],
        ["--temperature", "3"],
        ["--max-output-tokens", "0"],
    ],
)
def test_wrong_options_are_told_before_anything_connects(arguments: list[str]) -> None:
    result = CliRunner().invoke(chat, arguments)
    assert result.exit_code == 2
    assert "Error" in result.output


async def test_answers_that_nobody_reads_end_it_in_silence() -> None:
    async with fake_server() as server:
        reader, writer = os.pipe()
        os.close(reader)
        try:
            with trio.fail_after(30):
                done = await trio.run_process(
                    [sys.executable, "-c", RUN, "--url", server.url],
                    stdin=b"one\n",
                    stdout=writer,
                    capture_stderr=True,
                    check=False,
                    env=environment(),
                )
        finally:
            os.close(writer)
    assert done.returncode == 1
    assert done.stderr == b""


@pytest.fixture
def full_device() -> Iterator[int]:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no device that is always full")
    with open("/dev/full", "wb") as device:
        yield device.fileno()


async def test_answers_that_cannot_be_written_are_an_error(full_device: int) -> None:
    async with fake_server() as server:
        with trio.fail_after(30):
            done = await trio.run_process(
                [sys.executable, "-c", RUN, "--url", server.url],
                stdin=b"one\n",
                stdout=full_device,
                capture_stderr=True,
                check=False,
                env=environment(),
            )
    assert done.returncode == 1
    assert done.stderr == b"ds4trio chat: cannot write the answers: No space left on device\n"


async def test_ctrl_c_ends_a_script_that_waits_for_its_input() -> None:
    async with fake_server() as server:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", RUN, "--url", server.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with trio.fail_after(30):
            async with process.stdin, process.stdout, process.stderr:
                await process.stdin.send_all(b"one\n")
                assert await process.stdout.receive_some() == b"You said: one \n"
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 130
                assert await process.stderr.receive_some() == b""


class Terminal:
    """The master's end of a pseudo-terminal with the chat on the other."""

    def __init__(self, master: int, slave: int, process: trio.Process) -> None:
        self.slave = slave
        self.process = process
        self._stream = trio.lowlevel.FdStream(master)
        self._unread = ""
        self.transcript = ""

    async def until(self, text: str) -> str:
        """What was shown since the last call, up to and with this text."""
        while text not in self._unread:
            data = (await self._stream.receive_some()).decode()
            self.transcript += data
            self._unread += data
        shown, _, self._unread = self._unread.partition(text)
        return shown + text

    async def type(self, keys: str) -> None:
        await self._stream.send_all(keys.encode())

    async def aclose(self) -> None:
        await self._stream.aclose()
        os.close(self.slave)


@asynccontextmanager
async def terminal(server: FakeServer, prelude: str = "") -> AsyncIterator[Terminal]:
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", TAKE_TERMINAL + prelude + RUN, "--url", server.url],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(),
    )
    screen = Terminal(master, slave, process)
    try:
        with trio.fail_after(30):
            yield screen
    finally:
        if process.returncode is None:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
        await screen.aclose()


@pytest.mark.parametrize("prelude", ["", WITHOUT_READLINE], ids=["readline", "bare"])
async def test_a_conversation_at_a_terminal(prelude: str) -> None:
    async with fake_server() as server, terminal(server, prelude) as screen:
        found = termios.tcgetattr(screen.slave)
        await screen.until("> ")
        await screen.type("hello\n")
        await screen.until("You said: hello")
        await screen.until("mean batch 3.2\x1b[0m")
        await screen.until("> ")

        server.answers = [speaks_until_cancelled]
        await screen.type("a story\n")
        await screen.until("upon ")
        await screen.type("\x03")
        await screen.until("stopped")
        await screen.until("> ")

        await screen.type("half a lin\x03")
        await screen.until("> ")
        await screen.type("and then?\n")
        await screen.until("You said: and then?")
        await screen.until("> ")
        assert server.seen[-1][-3:] == [
            ("user", "a story"),
            ("assistant", "Once upon\x1b[31m "),
            ("user", "and then?"),
        ]
        assert "\x1b[31m" not in screen.transcript

        await screen.type("\x03")
        await screen.until("Ctrl-C again")
        await screen.until("> ")
        await screen.type("cleared\x03")
        await screen.until("> ")
        await screen.type("\x03")
        await screen.until("Ctrl-C again")
        await screen.until("> ")
        await screen.type("\x03")
        assert await screen.process.wait() == 0
        assert termios.tcgetattr(screen.slave) == found
        assert "Traceback" not in screen.transcript


@pytest.mark.parametrize("keys", ["\x04", "/quit\n"], ids=["ctrl-d", "quit"])
async def test_leaving_a_terminal(keys: str) -> None:
    async with fake_server() as server, terminal(server) as screen:
        await screen.until("> ")
        await screen.type(keys)
        assert await screen.process.wait() == 0


@pytest.mark.parametrize("prelude", ["", WITHOUT_READLINE], ids=["readline", "bare"])
async def test_the_terminal_is_left_in_order_when_told_to_end(prelude: str) -> None:
    async with fake_server() as server, terminal(server, prelude) as screen:
        found = termios.tcgetattr(screen.slave)
        server.model = echo
        await screen.until("> ")
        screen.process.send_signal(signal.SIGTERM)
        assert await screen.process.wait() == 128 + signal.SIGTERM
        assert termios.tcgetattr(screen.slave) == found
        assert "Fatal" not in screen.transcript
