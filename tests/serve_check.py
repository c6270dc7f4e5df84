"""Starts a server by a shell command, as a user would, and uses it once. For CI.

``python -m tests.serve_check COMMAND`` exits 0 when the server came up, gave the page with all of
its files, answered a question over HTTP, and ended cleanly on SIGTERM.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import IO

STATIC = Path(__file__).parent.parent / "static" / "dist"

START_SECONDS = 180.0
STOP_SECONDS = 20.0


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [
            value.removeprefix("./")
            for name, value in attrs
            if name in ("href", "src") and value and not value.startswith(("data:", "#"))
        ]


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextmanager
def started(command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the address it says it listens on."""
    environ = {**os.environ, "DS4TRIO_PORT": "0", "PORT": "0", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            ["bash", "-ec", command],
            env=environ,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield process, _address(process, log)
        except BaseException:
            log.seek(0)
            print(log.read(), file=sys.stderr)
            raise
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _address(process: subprocess.Popen[str], log: IO[str]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        log.seek(0)
        found = re.search(r"Running on http://([^ ]+):(\d+)", log.read())
        if found:
            return f"http://127.0.0.1:{found.group(2)}"
        time.sleep(0.1)
    raise AssertionError("the server did not start")


def wait_until_ready(address: str) -> None:
    """Until ``/health`` says that requests are served."""
    deadline = time.monotonic() + START_SECONDS
    while (health := get(f"{address}/health"))[0] != 200:
        assert "loading" in health[1], health
        assert time.monotonic() < deadline, health
        time.sleep(0.1)


def check(command: str) -> None:
    with started(command) as (process, address):
        wait_until_ready(address)
        status, page = get(f"{address}/")
        links = _Links()
        links.feed(page)
        assert (status, bool(links.found)) == (200, True), "the page is missing"
        files = {*links.found, *(file.name for file in STATIC.iterdir())}
        for name in sorted(files):
            assert get(f"{address}/{name}")[0] == 200, f"the page's file {name} is missing"
        question = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
        request = urllib.request.Request(
            f"{address}/v1/chat/completions",
            json.dumps({**question, "temperature": 0}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)["choices"][0]["message"]["content"]
        assert "Paris" in answer, answer
        os.killpg(process.pid, signal.SIGTERM)
        code = process.wait(STOP_SECONDS)
        assert code in (0, -signal.SIGTERM, 128 + signal.SIGTERM), f"it ended with {code}"
        print(f"{command}\n  the page and {len(files)} files; {answer!r}; ended with {code}")


if __name__ == "__main__":
    check(sys.argv[1])
