"""The engine's process: it says what an engine in this one says, and dies alone."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ds4trio.chat.formats import Regex
from ds4trio.chat.grammar import compose
from ds4trio.engine import process
from ds4trio.engine.engine import Engine
from ds4trio.engine.ledger import Ledger
from ds4trio.engine.process import ProcessRunner
from ds4trio.engine.spec import RunnerSpec
from ds4trio.engine.step import Command, Evaluated, Opening, Row, SamplingParams, StepItem
from ds4trio.errors import EngineDied, EngineLost, ModelUnavailable, StepFailed, StepVoid
from ds4trio.models.load import load_model
from ds4trio.models.resolve import ModelSource
from tests.tiny import make_tiny_model

DRAWN = SamplingParams(temperature=0.8, seed=3, logprobs=True, top_logprobs=2)
PATIENCE = 60.0

KV_MEMORY = 2**20


def spec_for(folder: Path) -> RunnerSpec:
    return RunnerSpec(
        ModelSource("tiny", "folder", folder),
        device="cpu",
        dtype="float32",
        kv_memory=KV_MEMORY,
        threads=1,
    )


@pytest.fixture(scope="module")
def runner(tiny_model: Path) -> Iterator[ProcessRunner]:
    """One for all tests that leave it alive; each has a ledger of its own."""
    runner = ProcessRunner(spec_for(tiny_model))
    assert runner.info.device == "cpu"
    yield runner
    runner.stop()


def answers(engine: Ledger, prompts: Sequence[Sequence[int]], count: int) -> list[list[object]]:
    """What each is answered, all of them in the same steps."""
    said: list[list[object]] = [[] for _ in prompts]
    for number in range(len(prompts)):
        engine.open(number, DRAWN)
    items = [StepItem(number, tuple(prompt)) for number, prompt in enumerate(prompts)]
    for _ in range(count):
        for tokens, outcome in zip(said, engine.eval_batch(items).outcomes, strict=True):
            assert isinstance(outcome, Evaluated), outcome
            tokens += outcome.sampled
        items = [StepItem(number) for number in range(len(prompts))]
    for number in range(len(prompts)):
        engine.close(number)
    return said


PROMPTS = [[5, 6, 7], [8] * 20, [9, 10]]


def in_this_process(tiny_model: Path) -> Engine:
    model = load_model(ModelSource("tiny", "folder", tiny_model))
    return Engine(model.config, model.weights, device="cpu", dtype="float32", kv_memory=KV_MEMORY)


def test_it_lives_and_dies_and_says_the_same(tiny_model: Path) -> None:
    """Killed between two steps, and in the middle of a batch that is two steps deep."""
    expected = answers(in_this_process(tiny_model), PROMPTS, 6)
    runner = ProcessRunner(spec_for(tiny_model))
    engine = Ledger(runner)
    assert engine.info == in_this_process(tiny_model).info
    assert answers(engine, PROMPTS, 6) == expected
    assert runner.pid is not None
    os.kill(runner.pid, signal.SIGKILL)
    engine.open(0, DRAWN)
    first = engine.prepare([StepItem(0, (5, 6, 7))])
    second = engine.prepare([StepItem(0)])
    for step in (first, second):
        with pytest.raises(EngineDied, match="process"):
            engine.run(step)
    engine.abandon(first)
    engine.abandon(second)
    engine.close(0)
    assert engine.free_pages == engine.info.total_pages
    assert answers(engine, PROMPTS, 6) == expected
    assert engine.ready
    engine.stop()
    engine.open(0, DRAWN)
    with pytest.raises(StepVoid):
        engine.eval_batch([StepItem(0, (5,))])


def test_a_command_that_raises_is_told_apart_from_a_death(tiny_model: Path) -> None:
    runner = ProcessRunner(spec_for(tiny_model))
    assert runner.info.total_pages > 0
    lost = Command(0, True, (), (), (Row(7, (1, 2), (0,), True),))
    with pytest.raises(StepFailed) as caught:
        runner.run(lost)
    assert caught.value.kind == "KeyError"
    assert "Traceback" in "".join(caught.value.__notes__)
    opening = Opening(1, DRAWN, array("q"), ())
    with pytest.raises(StepVoid):
        runner.run(Command(1, False, (), (opening,), ()))
    ran = runner.run(Command(2, True, (), (opening,), (Row(1, (5, 6), (0,), True),)))
    assert [len(tokens) for tokens in ran.sampled] == [1]
    assert ran.seconds > 0
    runner.stop()


def test_signals_meant_for_the_server_do_not_end_it(runner: ProcessRunner) -> None:
    assert runner.pid is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(runner.pid, number)
    ran = runner.run(Command(0, True, (), (), ()))
    assert ran.sampled == ()


def test_two_threads_are_answered_in_order(runner: ProcessRunner) -> None:
    opening = Opening(1, DRAWN, array("q"), ())
    commands = [
        Command(1, True, (), (opening,), (Row(1, (5, 6), (0,), True),)),
        Command(2, False, (), (), (Row(1, (), (), True),)),
        Command(3, False, (1,), (), ()),
    ]
    lengths: dict[int, int] = {}

    def run(command: Command) -> None:
        lengths[command.number] = len(runner.run(command).sampled)

    threads = [threading.Thread(target=run, args=(command,)) for command in reversed(commands)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert lengths == {1: 1, 2: 1, 3: 0}


def test_what_cannot_be_loaded_is_said_in_one_line(tmp_path: Path) -> None:
    runner = ProcessRunner(spec_for(tmp_path))
    with pytest.raises(ModelUnavailable, match=r"config\.json") as caught:
        _ = runner.info
    assert "\n" not in str(caught.value)
    runner.stop()


class Unlucky(RunnerSpec):
    def load(self) -> NoReturn:
        raise LookupError("it is not there")


def test_a_fault_of_ours_at_loading_is_said_and_no_signal(tiny_model: Path) -> None:
    runner = ProcessRunner(Unlucky(spec_for(tiny_model).source))
    with pytest.raises(ModelUnavailable, match="LookupError: it is not there"):
        _ = runner.info
    runner.stop()


def test_whoever_watches_hears_of_a_death_whether_idle_or_in_a_step(tiny_model: Path) -> None:
    """And that it was stopped, which is none."""
    runner = ProcessRunner(spec_for(tiny_model))
    engine = Ledger(runner)
    heard: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def watch() -> None:
        while runner.watch():
            heard.put(runner.ready)
        heard.put(True)

    watcher = threading.Thread(target=watch)
    watcher.start()
    engine.eval_batch([])
    assert runner.pid is not None
    os.kill(runner.pid, signal.SIGKILL)
    assert heard.get(timeout=PATIENCE) is False
    with pytest.raises(EngineDied, match="SIGKILL"):
        engine.eval_batch([])
    engine.eval_batch([])
    assert engine.ready
    os.kill(runner.pid, signal.SIGSTOP)  # it hangs
    killer = threading.Timer(0.2, runner.interrupt)
    killer.start()
    with pytest.raises(EngineDied, match="SIGKILL"):
        engine.eval_batch([])
    assert heard.get(timeout=PATIENCE) is False
    engine.eval_batch([])
    assert engine.ready
    engine.stop()
    assert heard.get(timeout=PATIENCE) is True
    watcher.join(PATIENCE)
    killer.join(PATIENCE)


def test_one_that_is_being_started_is_not_interrupted(tiny_model: Path) -> None:
    runner = ProcessRunner(spec_for(tiny_model))
    engine = Ledger(runner)
    assert runner.pid is not None
    os.kill(runner.pid, signal.SIGKILL)
    with pytest.raises(EngineDied):
        engine.eval_batch([])
    starting = threading.Thread(target=engine.eval_batch, args=([],))
    starting.start()
    while starting.is_alive() and not engine.ready:
        runner.interrupt()
        time.sleep(0.001)
    starting.join(PATIENCE)
    assert engine.ready
    engine.stop()


def test_more_memory_than_there_is_is_said_in_one_line(tiny_model: Path) -> None:
    runner = ProcessRunner(replace(spec_for(tiny_model), kv_memory=2**60))
    with pytest.raises(ModelUnavailable, match=r"--kv-memory: .* are asked for") as caught:
        _ = runner.info
    assert "\n" not in str(caught.value)
    runner.stop()


def test_one_that_cannot_be_started_again_is_lost(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "PAUSES", (0.0, 0.0))
    folder = tmp_path / "model"
    folder.symlink_to(tiny_model)
    runner = ProcessRunner(spec_for(folder))
    engine = Ledger(runner)
    folder.unlink()
    assert runner.pid is not None
    os.kill(runner.pid, signal.SIGKILL)
    for error in (EngineDied, EngineLost):
        with pytest.raises(error):
            engine.eval_batch([])
    assert not engine.ready
    engine.stop()


def test_another_model_in_the_place_of_the_first_is_not_taken(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the tokenizer and the limits of the first."""
    monkeypatch.setattr(process, "PAUSES", (0.0,))
    other = make_tiny_model(tmp_path / "other", max_position_embeddings=64)
    folder = tmp_path / "model"
    folder.symlink_to(tiny_model)
    runner = ProcessRunner(spec_for(folder))
    engine = Ledger(runner)
    folder.unlink()
    folder.symlink_to(other)
    assert runner.pid is not None
    os.kill(runner.pid, signal.SIGKILL)
    for error in (EngineDied, EngineLost):
        with pytest.raises(error):
            engine.eval_batch([])
    engine.stop()


def test_a_start_that_the_system_refuses_is_tried_again(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of descriptors or memory, say, which others give back."""
    monkeypatch.setattr(process, "PAUSES", (0.0, 0.0))
    runner = ProcessRunner(spec_for(tiny_model))
    engine = Ledger(runner)
    popen = subprocess.Popen

    def refuse_once(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(subprocess, "Popen", popen)
        raise OSError(24, "Too many open files")

    assert runner.pid is not None
    os.kill(runner.pid, signal.SIGKILL)
    with pytest.raises(EngineDied):
        engine.eval_batch([])
    monkeypatch.setattr(subprocess, "Popen", refuse_once)
    engine.eval_batch([])
    assert engine.ready
    engine.stop()


ORPHAN = """
import sys
from pathlib import Path
from tests.engine.test_process import spec_for
from ds4trio.engine.process import ProcessRunner
runner = ProcessRunner(spec_for(Path(sys.argv[1])))
print(runner.pid, flush=True)
sys.stdin.read()
"""


def test_it_does_not_outlive_the_server(tiny_model: Path) -> None:
    """Though that is killed, and cannot say goodbye."""
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tiny_model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        child = int(server.stdout.readline())
        server.kill()
    deadline = time.monotonic() + PATIENCE
    while _runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


NO_TORCH = """
import sys
from ds4trio.app import create_app, load_generator
from ds4trio.settings import Settings
settings = Settings(model=sys.argv[1], device="cpu", kv_memory="1MiB", threads=1)
generator, _ = load_generator(settings)
create_app(settings)
print(*sorted({"torch", "transformers", "numpy"} & sys.modules.keys()))
"""


def test_a_server_with_such_an_engine_does_without_torch(tiny_model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH, str(tiny_model)],
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
        check=True,
    )
    assert "torch" not in done.stdout.split(), done.stdout
    assert "transformers" not in done.stdout.split(), done.stdout


def test_a_grammar_is_held_to_in_the_process_too_and_after_its_death(tiny_model: Path) -> None:
    grammar = compose("start: @answer", answer=Regex("(ab|cd){30,40}"))
    params = replace(DRAWN, grammar=grammar, prompt_length=3)
    runner = ProcessRunner(spec_for(tiny_model))
    try:
        engine = Ledger(runner)
        engine.prepare_grammar(grammar)
        whole = said_under(engine, params, (), 12)
        begun = said_under(engine, params, (), 5)
        assert begun == whole[:5]
        assert runner.pid is not None
        os.kill(runner.pid, signal.SIGKILL)
        with pytest.raises(EngineDied):
            said_under(engine, params, begun, 7)
        engine.close(0)
        engine.prepare_grammar(grammar)  # nobody hears it
        assert begun + said_under(engine, params, begun, 7) == whole
    finally:
        runner.stop()


def said_under(
    engine: Ledger, params: SamplingParams, begun: Sequence[int], count: int
) -> list[int]:
    """The next tokens of an answer to one prompt, of which some are there already."""
    said: list[int] = []
    engine.open(0, params)
    item = StepItem(0, (5, 6, 7, *begun))
    for _ in range(count):
        (outcome,) = engine.eval_batch([item]).outcomes
        assert isinstance(outcome, Evaluated), outcome
        said += [token.token for token in outcome.sampled]
        item = StepItem(0)
    engine.close(0)
    return said
