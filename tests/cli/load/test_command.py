"""The command as a process of its own, and what it says of wrong options."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from ds4trio.cli.bench import bench
from tests.cli.load.sse_server import Reply, sse_server
from tests.cli.terminal.fake_server import Peer, Refusal, fake_server

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-c", "from ds4trio.cli.bench import bench; bench()"]


def environment() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DS4TRIO_")}
    return {**inherited, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "COLUMNS": "80"}


async def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    with trio.fail_after(30):
        return await trio.run_process(
            [*COMMAND, *arguments],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=environment(),
        )


async def test_two_servers_are_measured_in_turns_over_two_protocols(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    async with fake_server() as ours, sse_server() as theirs:
        done = await run(
            *("--url", ours.url, "--api-key", "ours", "--users", "1,3", "--requests", "2"),
            *("--against", theirs.url, "--against-api", "sse", "--rounds", "2"),
            *("--json", str(found), "--turns", "2", "--seed", "7"),
        )
        assert done.returncode == 0, done.stderr
        # warm-ups of two levels, then rounds x users x conversations, all in two turns
        measured = (2 + 2 * (1 + 3) * 2) * 2
        assert len(ours.seen) == len(theirs.bodies) == measured
        assert ours.headers[0][b"authorization"] == b"Bearer ours"
        assert b"authorization" not in theirs.headers[0]  # a key is for its own server only
        assert theirs.bodies[0]["model"] == "fake-model"
    text = done.stdout.decode()
    assert "A by B" in text
    assert "3 users" in text
    assert "\x1b" not in text + done.stderr.decode()
    assert "3 users, server B, round 2 of 2: 12 requests" in done.stderr.decode()
    document = json.loads(found.read_bytes())
    assert document["settings"]["seed"] == 7
    assert document["settings"]["same_words"]
    assert document["servers"]["B"] == {"url": theirs.url, "api": "sse", "model": "fake-model"}
    level = document["levels"][1]
    assert level["users"] == 3
    assert level["servers"]["A"]["overall"]["requests"] == 24
    assert level["servers"]["A"]["overall"]["output_tokens"] == 24 * 7
    assert set(level["servers"]["B"]["rounds"][1]["first_token_seconds"]) == {
        *("p50", "p95", "p99", "max")
    }
    assert len(level["ratios"]["tokens_per_second"]["rounds"]) == 2


@pytest.mark.parametrize("api", ["ws", "sse"])
async def test_a_server_that_is_not_there_is_one_line(api: str) -> None:
    done = await run("--url", "127.0.0.1:1", "--api", api)
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.decode() == (
        "ds4trio bench: no server reachable at http://127.0.0.1:1: Connection refused\n"
    )


async def test_a_server_that_refuses_is_one_line() -> None:
    async with fake_server() as server:
        server.refusals = [Refusal(401, "invalid_api_key")]
        done = await run("--url", server.url)
    assert done.returncode == 1
    assert done.stderr.decode() == (
        f"ds4trio bench: {server.url} asks for an API key (--api-key, DS4TRIO_API_KEY)\n"
    )
    async with sse_server() as other:
        other.replies = [Reply((b'{"error": {"message": "no such\\u001b[1m model"}}',), status=404)]
        done = await run("--url", other.url, "--api", "sse")
    assert done.returncode == 1
    assert done.stderr.decode() == "ds4trio bench: no such model\n"


async def test_ctrl_c_ends_it_with_the_report_of_what_was_measured() -> None:
    enough = trio.Event()

    async def falls_silent(peer: Peer) -> None:
        await peer.begin()
        await peer.say("a", "b")
        if len(peer.server.seen) > 3:
            enough.set()
            await trio.sleep_forever()
        await peer.finish()

    async with fake_server() as server:
        server.model = falls_silent
        process = await trio.lowlevel.open_process(
            [*COMMAND, "--url", server.url, "--users", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert process.stdout is not None
        assert process.stderr is not None
        with trio.fail_after(30):
            async with process.stdout, process.stderr:
                await enough.wait()
                process.send_signal(signal.SIGINT)
                text = b"".join([piece async for piece in process.stdout]).decode()
                errors = b"".join([piece async for piece in process.stderr]).decode()
                assert await process.wait() == 130
    row = next(line for line in text.splitlines() if line.startswith("1 user "))
    assert row.split()[2:5] == ["A", "2", "14"]
    assert "cut short" in text
    assert errors == "ds4trio bench: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--users", "1,x"], "1,8,32"),
        (["--users", "0"], "positive"),
        (["--rate", "nan"], "positive"),
        (["--users", "1", "--rate", "2"], "one of them"),
        (["--shared-prefix", "64"], "--prompt-tokens"),
        (["--against-api", "sse"], "--against"),
        (["--url", "ftp://x"], "ftp"),
        (["--json", "/no/such/folder/x.json"], "no folder"),
    ],
)
def test_wrong_options_are_told_before_anything_connects(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_every_option_is_documented_and_every_documented_one_exists() -> None:
    text = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    table = text.partition("## All options")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `(--[a-z-]+)`", table, re.MULTILINE))
    assert documented == {option for parameter in bench.params for option in parameter.opts}
