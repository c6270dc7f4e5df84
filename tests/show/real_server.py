"""``ds4trio serve`` as a user runs it: the command, in a process of its own, a real model."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

__all__ = ["KEY", "RealServer", "real_server"]

KEY = "a-key-for-tests"

START_SECONDS = 180.0
STOP_SECONDS = 30.0
ANSWER_SECONDS = 120.0

_ADDRESS = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
_READY = re.compile(r"\bis ready after\b")
_IMPORTED = re.compile(r"^import time:\s+\d+ \|\s+\d+ \|\s*(\S+)$")


@dataclass(slots=True)
class RealServer:
    """A server that has loaded its model.

    Attributes:
        url: where it listens.
        command_at: when its command was given, on ``time.perf_counter()``.
        imported: names of the modules that its process has imported so far.
    """

    url: str
    command_at: float
    imported: set[str] = field(default_factory=set)

    @property
    def websocket_url(self) -> str:
        return self.url.replace("http", "ws", 1) + "/v1/responses"

    def get(self, path: str) -> str:
        return self._open(urllib.request.Request(self.url + path))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """JSON to JSON. Raises ``urllib.error.HTTPError`` unless the status is 2xx."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        return json.loads(self._open(request))

    def metric(self, name: str) -> float:
        """A number from ``/metrics``."""
        for line in self.get("/metrics").splitlines():
            sample, _, value = line.partition(" ")
            if sample == name:
                return float(value)
        raise LookupError(f"/metrics has no {name}")

    def _open(self, request: urllib.request.Request) -> str:
        request.add_header("Authorization", f"Bearer {KEY}")
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
            text: str = response.read().decode()
        return text


@contextmanager
def real_server(*flags: str) -> Iterator[RealServer]:
    """Run the command until the block ends; the block begins when the model is loaded.

    Python tells what the process imports (``PYTHONPROFILEIMPORTTIME``) on the error stream, among
    the lines of the log. A thread reads them, so that the server never waits for its reader.

    Raises:
        AssertionError: it ended, or was not ready in time; the message holds its log.
    """
    environ = {name: value for name, value in os.environ.items() if not _chosen_by_user(name)}
    environ |= {"PYTHONPROFILEIMPORTTIME": "1", "DS4TRIO_API_KEY": KEY}
    command = [sys.executable, "-m", "ds4trio", "serve", "--port", "0", *flags]
    command_at = time.perf_counter()
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        server = RealServer("", command_at)
        log: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(process.stderr, server.imported, log))
        reader.start()
        try:
            server.url = _wait_until_ready(log)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            finally:
                reader.join()


def _chosen_by_user(variable: str) -> bool:
    """Settings of whoever runs the tests do not reach the server; the cache folder does."""
    return variable.startswith(("DS4TRIO_", "DS4_")) and variable != "DS4TRIO_CACHE"


def _read(stream: IO[str], imported: set[str], log: queue.Queue[str | None]) -> None:
    for line in stream:
        if match := _IMPORTED.match(line):
            imported.add(match.group(1))
        else:
            log.put(line)
    log.put(None)


def _wait_until_ready(log: queue.Queue[str | None]) -> str:
    """The address, once the log has said both that and that the model is there."""
    deadline = time.monotonic() + START_SECONDS
    seen: list[str] = []
    address: str | None = None
    ready = False
    while address is None or not ready:
        try:
            line = log.get(timeout=max(deadline - time.monotonic(), 0.0))
        except queue.Empty:
            line = None
        if line is None:
            raise AssertionError(f"the server did not become ready:\n{''.join(seen)}")
        seen.append(line)
        if match := _ADDRESS.search(line):
            address = match.group(1)
        ready = ready or _READY.search(line) is not None
    return address
