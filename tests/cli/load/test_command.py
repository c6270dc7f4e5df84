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
    with trio.fail_after(90):
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


async def test_the_engine_alone_is_measured_beside_a_server_and_drawn(
    tiny_model: Path, tmp_path: Path
) -> None:
    found, drawn = tmp_path / "found.json", tmp_path / "found.svg"
    async with fake_server() as server:
        done = await run(
            *("--url", server.url, "--users", "2", "--requests", "2", "--rounds", "2", "--raw"),
            *("--raw-model", str(tiny_model), "--dtype", "int8", "--threads", "1"),
            *("--json", str(found), "--plot", str(drawn)),
        )
    assert done.returncode == 0, done.stderr
    assert "2 users, the engine alone, round 2 of 2: 4 requests" in done.stderr.decode()
    text = done.stdout.decode()
    assert "raw: the engine alone, model tiny, int8 on cpu, 1 thread\n" in text
    assert re.search(r"served/raw\n2 users +[\d.]+ \([\d.]+ to [\d.]+\)\n", text)
    document = json.loads(found.read_bytes())
    assert document["raw"]["dtype"] == "int8"
    raw = document["levels"][0]["raw"]
    assert [done["output_tokens"] for done in raw["rounds"]] == [28, 28]
    assert len(raw["served_by_raw"]["rounds"]) == 2
    assert "engine alone" in drawn.read_text(encoding="utf-8")


async def test_an_engine_alone_without_its_model_is_one_line() -> None:
    async with fake_server() as server:
        done = await run("--url", server.url, "--raw", "--raw-model", "/no/such/model.gguf")
        assert not server.seen
    assert done.returncode == 1
    assert done.stderr.startswith(b"ds4trio bench: There is no model '/no/such/model.gguf'")


async def test_quality_needs_no_server(tiny_model: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    text = ("--quality", str(ROOT / "README.md"), "--quality-tokens", "700")
    done = await run(
        *text, *("--raw-model", str(tiny_model), "--dtype", "int8", "--json", str(found))
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        b"tiny in int8 on cpu, against float32: 698 tokens of README.md\n"
    )
    document = json.loads(found.read_bytes())
    assert 0 < document["mean_kl"] < 0.1
    assert 0.8 < document["top_1_agreement"] <= 1
    assert document["perplexity"] == pytest.approx(document["reference_perplexity"], rel=0.1)
    same = await run(*text, "--raw-model", str(tiny_model), "--dtype", "float32")
    assert b"mean KL          0.00000 nats\ntop-1 agreement  1.0000\n" in same.stdout


async def test_quality_of_next_to_no_text_is_one_line(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("x")
    done = await run(
        *("--quality", str(tmp_path / "short.txt")),
        *("--raw-model", str(tiny_model), "--dtype", "int8"),
    )
    assert done.returncode == 1
    assert done.stderr.decode().endswith(
        "ds4trio bench: the text is too short: it needs two tokens\n"
    )


def test_without_matplotlib_a_plot_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(bench, ["--plot", "x.svg"])
    assert result.exit_code == 2
    assert "--plot needs matplotlib: pip install 'ds4trio[plot]'" in result.output


async def test_prompts_come_from_the_file_or_are_code_to_copy() -> None:
    words = (ROOT / "README.md").read_text(encoding="utf-8").split()
    async with sse_server() as server:
        url = ("--url", server.url, "--api", "sse", "--users", "1")
        for more in (["--prompt-file", str(ROOT / "README.md")], ["--workload", "copy"]):
            done = await run(*url, *more)
            assert done.returncode == 0, done.stderr
        asked = [body["messages"][0]["content"] for body in server.bodies]
    assert len(asked) == len(set(asked)) == 2 * 5
    for prompt in asked[:5]:
        assert set(prompt.partition("\n\nGo on")[0].split()) <= set(words)
    assert all(prompt.startswith("Change the name `") for prompt in asked[5:])


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
        (["--json", "/no/such/folder/x.json"], "--json: there is no folder"),
        (["--plot", "/no/such/folder/x.svg"], "--plot: there is no folder"),
        (["--plot", "x.pdf"], "neither in .svg nor in .png"),
        (["--dtype", "int8"], "--dtype goes with --raw or --quality"),
        (["--raw-model", "x"], "--raw-model goes with --raw"),
        (["--raw", "--rate", "2"], "no arrivals"),
        (["--raw", "--threads", "5000"], "threads"),
        (["--quality", __file__], "name it"),
        (["--quality", __file__, "--dtype", "int8", "--raw"], "without a server and --raw"),
        (["--quality", "/no/such/file"], "does not exist"),
        (["--prompt-file", __file__, "--prompt-tokens", "100000"], "has only about"),
        (["--workload", "copy", "--prompt-tokens", "5000"], "a built-in Python file"),
    ],
)
def test_wrong_options_are_told_before_anything_connects(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DS4TRIO_DTYPE", raising=False)
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_every_option_is_documented_and_every_documented_one_exists() -> None:
    text = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    table = text.partition("## All options")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `(--[a-z-]+)`", table, re.MULTILINE))
    assert documented == {option for parameter in bench.params for option in parameter.opts}
