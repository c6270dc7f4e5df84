from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import pytest
from click.testing import CliRunner, Result
from huggingface_hub import constants

from ds4trio.cli import inspect_model as command
from ds4trio.cli.inspect_model import inspect_model, position_bytes
from ds4trio.engine.machine import MachineMemory
from ds4trio.engine.outlook import Outlook, outlook, weights_bytes
from ds4trio.models import headers
from ds4trio.models.config import config_from_hf
from ds4trio.models.default import ALIASES, DEFAULT_MODEL
from ds4trio.models.facts import TensorFact
from ds4trio.models.gguf.header import read_header
from tests.models.fake_hub import FakeHub, Files
from tests.models.gguf_files import write_gguf
from tests.tiny import CHATML, tiny_config

GIB = 1 << 30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with 16 GiB, 12 of them free."""
    memory = MachineMemory(16 * GIB, 12 * GIB)
    here = Outlook("cpu", "w8a16", 2, memory, shared=True)
    monkeypatch.setattr(command, "outlook", lambda: here)


@pytest.fixture
def folder_files(tiny_model: Path) -> Files:
    return {path.name: path.read_bytes() for path in tiny_model.iterdir()}


@pytest.fixture
def tiny_gguf(tiny_model: Path, tmp_path: Path) -> Path:
    return write_gguf(
        tmp_path / "tiny.gguf",
        tiny_model,
        kind=gguf.GGMLQuantizationType.Q8_0,
        metadata={"general.license": "mit"},
    )


def run(*arguments: str) -> Result:
    return CliRunner().invoke(inspect_model, arguments)


def inspected(model: str) -> dict[str, Any]:
    result = run(model, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def shown(model: str) -> str:
    result = run(model)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_gguf_file(cache: Path, tiny_gguf: Path) -> None:
    found = inspected(str(tiny_gguf))
    assert found["architecture"] == "llama"
    assert (found["layers"], found["heads"], found["kv_heads"], found["head_dim"]) == (2, 4, 2, 16)
    assert (found["vocabulary"], found["context"]) == (320, 512)
    assert (found["format"], found["license"]) == ("gguf", "mit")
    assert found["numbers"].keys() == {"Q8_0", "F32"}
    assert found["size"] == tiny_gguf.stat().st_size
    assert found["template"] == CHATML
    assert found["end_tokens"] == ["<|im_end|>", "<|endoftext|>"]
    assert (found["begin_token"], found["adds_begin_token"]) == ("<|im_start|>", False)
    here = found["here"]
    assert (here["runs"], here["problem"], here["context"]) == (True, None, 512)
    assert here["kv_bytes_per_1000_tokens"] == 1000 * 2 * 2 * 2 * 16 * 2
    assert not cache.exists(), "nothing is converted for a look"


def test_a_folder_says_the_same(cache: Path, tiny_model: Path, tiny_gguf: Path) -> None:
    folder, file = inspected(str(tiny_model)), inspected(str(tiny_gguf))
    assert folder["parameters"] == file["parameters"]
    for key in ("layers", "heads", "kv_heads", "head_dim", "vocabulary", "context", "template"):
        assert folder[key] == file[key]
    assert folder["numbers"] == {"F32": 1.0}
    assert "<|im_end|>" in folder["end_tokens"]
    assert folder["here"]["runs"]
    assert folder["here"]["weights"] == file["here"]["weights"]


def test_what_people_read(cache: Path, tiny_gguf: Path) -> None:
    text = shown(str(tiny_gguf))
    assert "layers        2, 4 heads of 16, 2 for keys and values" in text
    assert "context       512 tokens" in text
    assert "memory here (cpu, w8a16)" in text
    assert text.endswith("It will run here.\n")


def test_the_template_whole(cache: Path, tiny_model: Path, tmp_path: Path) -> None:
    assert run(str(tiny_model), "--template").stdout == CHATML + "\n"
    bare = write_gguf(tmp_path / "b.gguf", tiny_model, without=("tokenizer.chat_template",))
    result = run(str(bare), "--template")
    assert result.exit_code == 1
    assert "has no chat template" in result.stderr
    assert "template      none" in shown(str(bare))


def test_a_models_texts_do_nothing_to_the_terminal(
    cache: Path, tiny_model: Path, tmp_path: Path
) -> None:
    path = write_gguf(
        tmp_path / "x.gguf",
        tiny_model,
        architecture="llama\x1b[2J",
        metadata={
            "tokenizer.chat_template": "\x1b]0;owned\x07{{ messages }}\x9b2J",
            "general.license": "mit\x1b[31m",
        },
    )
    for output in (shown(str(path)), run(str(path), "--template").stdout):
        assert not any(char != "\n" and unicodedata.category(char) == "Cc" for char in output)
    assert "unknown architecture" in shown(str(path))


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_an_unknown_architecture_is_described_and_told(
    cache: Path, tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    if kind == "gguf":
        path = write_gguf(tmp_path / "x.gguf", tiny_model, architecture="quipu")
    else:
        path = tmp_path / "x"
        path.mkdir()
        for file in tiny_model.iterdir():
            (path / file.name).write_bytes(file.read_bytes())
        (path / "config.json").write_text(json.dumps(tiny_config(model_type="quipu")))
    found = inspected(str(path))
    assert found["architecture"] == "quipu"
    assert (found["layers"], found["heads"], found["kv_heads"], found["head_dim"]) == (2, 4, 2, 16)
    assert (found["vocabulary"], found["context"]) == (320, 512)
    assert found["parameters"] > 50_000
    assert found["here"]["runs"] is False
    assert "unknown architecture 'quipu'; known: " in found["here"]["problem"]
    assert "llama" in found["here"]["problem"]
    assert "It will not run here." in shown(str(path))


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_template_that_serve_would_refuse(
    cache: Path, tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    template = "{% for message in messages %}{{ message.content }"
    if kind == "gguf":
        path = write_gguf(
            tmp_path / "x.gguf", tiny_model, metadata={"tokenizer.chat_template": template}
        )
    else:
        path = tmp_path / "x"
        shutil.copytree(tiny_model, path)
        (path / "chat_template.jinja").write_text(template)
    assert "It will not run here. The model's chat template is not valid" in shown(str(path))
    assert inspected(str(path))["here"]["runs"] is False
    assert run(str(path), "--template").stdout.strip() == template


def test_a_tokenizer_that_serve_would_refuse(cache: Path, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "x"
    shutil.copytree(tiny_model, path)
    (path / "tokenizer.json").write_text("{}")
    assert f"It will not run here. The tokenizer {path}" in shown(str(path))


def test_too_little_memory_is_told(
    cache: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Outlook("cpu", "float32", 4, MachineMemory(1 << 20, 100_000), shared=True)
    monkeypatch.setattr(command, "outlook", lambda: small)
    text = shown(str(tiny_gguf))
    assert "It will not run here. The weights need" in text
    assert inspected(str(tiny_gguf))["here"]["runs"] is False


def test_the_alias(cache: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run()
    assert result.exit_code == 1
    assert "'ds4trio pull' fetches it" in result.stderr
    wheel = ALIASES[DEFAULT_MODEL]
    wheel.path.parent.mkdir(parents=True)
    wheel.path.write_bytes(tiny_gguf.read_bytes())
    monkeypatch.setattr(wheel, "size", tiny_gguf.stat().st_size)
    assert inspected(DEFAULT_MODEL)["layers"] == 2


@pytest.mark.parametrize("cut", [0, 3, 100, 5000])
def test_damaged_files_are_one_line(cache: Path, tiny_gguf: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(tiny_gguf.read_bytes()[:cut])
    result = run(str(path))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff" * 16,
        (1 << 40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (15).to_bytes(8, "little") + b'{"a":{"dtype":1',
        (44).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[-1],"more":[0]}}',
    ],
)
def test_damaged_folders_are_one_line(
    cache: Path, tiny_model: Path, tmp_path: Path, header: bytes
) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((tiny_model / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(header)
    result = run(str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_of_a_gguf_file_at_the_hub_only_the_header_comes(
    hub: FakeHub, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "x-F32.gguf", tiny_model)
    end = min(info.offset for info in read_header(path).tensors.values())
    content = path.read_bytes()
    hub.add("org/name", {"x-F32.gguf": content})
    here = inspected(str(path))
    # Wherever the first piece ends, in the middle of what is needed too.
    for first in (1, 30, 1000, end // 2, *range(end - 70, end, 7), end, end + 1, len(content)):
        monkeypatch.setattr(headers, "FIRST_PIECE", first)
        hub.requests.clear()
        there = inspected("org/name")
        assert {**there, "model": "", "path": ""} == {**here, "model": "", "path": ""}
        ends = [int(r.range.split("-")[1]) + 1 for r in hub.asked("content") if r.range]
        assert max(ends) == len(content) if first == len(content) else max(ends) <= 4 * end
    assert not list((tmp_path / "hub").rglob("*.gguf"))


def test_of_a_folder_at_the_hub_no_weights_come(hub: FakeHub, folder_files: Files) -> None:
    hub.add("org/name", folder_files)
    hub.licenses["org/name"] = "apache-2.0"
    found = inspected("org/name")
    assert (found["layers"], found["license"], found["path"]) == (2, "apache-2.0", None)
    assert found["parameters"] == 82_240
    assert found["here"]["runs"]
    assert found["size"] == sum(map(len, folder_files.values()))
    ranges = [request.range for request in hub.asked("content")]
    assert len(ranges) == 2
    assert all(text and int(text.split("-")[1]) < 5000 for text in ranges)


def test_all_parts_count(hub: FakeHub, tiny_gguf: Path) -> None:
    """As far as this release reads split files; the sizes are known in any case."""
    parts = {f"x-0000{n}-of-00002.gguf": tiny_gguf.read_bytes() for n in (1, 2)}
    hub.add("org/name", parts)
    assert inspected("org/name")["size"] == 2 * tiny_gguf.stat().st_size


def test_a_model_that_is_here_is_not_asked_for(
    hub: FakeHub, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.cli.test_list_and_rm import pulled

    hub.add("org/name", {"x.gguf": tiny_gguf.read_bytes()})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    result = run("org/name")
    assert result.exit_code == 1
    assert "HF_HUB_OFFLINE forbids" in result.stderr
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    pulled("org/name")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert inspected("org/name")["layers"] == 2
    assert not hub.requests


def test_what_is_nowhere(hub: FakeHub) -> None:
    assert "has no model org/absent" in run("org/absent").stderr
    assert "There is no model 'x'" in run("x").stderr


def test_a_model_card_says_the_licence(cache: Path, folder_files: Files, tmp_path: Path) -> None:
    for name, content in folder_files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "README.md").write_text("---\nlanguage: en\nlicense: gemma\n---\n# Name\n")
    assert inspected(str(tmp_path))["license"] == "gemma"


def test_weights_by_number_format() -> None:
    matrix, four, vector = (
        TensorFact("F16", (64, 64)),
        TensorFact("Q4_K", (64, 64)),
        TensorFact("F32", (64,)),
    )
    assert weights_bytes([matrix, vector], "float32") == 4 * (4096 + 64)
    assert weights_bytes([matrix], "bfloat16") == 2 * 4096
    assert weights_bytes([matrix, vector], "w8a16") == 128 * 36 + 4 * 64
    assert weights_bytes([four], "int8") == 128 * 20


def test_bytes_of_a_position() -> None:
    assert position_bytes(config_from_hf(tiny_config()), 2) == 2 * 2 * 2 * 16 * 2


def test_this_machine_has_an_outlook() -> None:
    here = outlook()
    assert here.device in ("cpu", "cuda", "mps")
    assert 0 < here.memory.available <= here.memory.total


def test_the_command_itself_does_not_import_torch(
    cache: Path, tiny_model: Path, tiny_gguf: Path
) -> None:
    for path in (tiny_model, tiny_gguf):
        script = (
            "import sys\nfrom ds4trio.cli.main import main\n"
            f"try:\n    main(['inspect', {str(path)!r}])\n"
            "except SystemExit as end:\n    assert not end.code\n"
            "assert 'torch' not in sys.modules\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        assert "memory here" in ran.stdout
