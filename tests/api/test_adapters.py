"""Adapters as clients see them: models of their own names, side by side in one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from openai.types import Model
from safetensors.torch import load_file

from ds4trio.settings import Settings, SettingsError
from tests.api.helpers import Api, assert_openai_error, serving_tiny
from tests.lora_files import make_adapter
from tests.tiny import make_tiny_model

LONG = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog " * 4}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "base", scale=0.3, ends=False)


@pytest.fixture(scope="module")
def lora(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    weights = load_file(model / "model.safetensors")
    folder = tmp_path_factory.mktemp("adapters")
    return tuple(
        f"{name}={make_adapter(folder / name, weights, seed=seed)}"
        for seed, name in enumerate(("pirate", "poet"))
    )


async def text(api: Api, **fields: Any) -> str:
    answer = await api.completion(**{"temperature": 0, "max_tokens": 24, **fields})
    content: str = answer["choices"][0]["message"]["content"]
    return content


async def test_each_name_answers_in_its_own_way_alone_and_together(
    model: Path, lora: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving_tiny(model, lora=lora) as api:
        assert "with adapters: pirate, poet" in caplog.messages
        listed = (await api.http.get("/v1/models")).json()["data"]
        names = [Model.model_validate(entry).id for entry in listed]
        assert names == ["base", "pirate", "poet"]
        assert [entry.get("parent") for entry in listed] == [None, "base", "base"]
        assert (await api.http.get("/v1/models/poet")).json()["id"] == "poet"
        alone = {name: await text(api, model=name) for name in names}
        assert len(set(alone.values())) == 3
        together: list[tuple[str, str]] = []

        async def ask(name: str) -> None:
            together.append((name, await text(api, model=name)))

        async with trio.open_nursery() as nursery:
            for name in names * 3:
                nursery.start_soon(ask, name)
        assert len(together) == 9
        assert all(found == alone[name] for name, found in together)
        async with api.socket() as socket:
            answer = await socket.answer("Hello", model="pirate", temperature=0)
            assert answer["model"] == "pirate"
        assert_openai_error(await api.chat(model="parrot"), 404, code="model_not_found")


async def test_what_is_cached_of_one_is_no_use_to_another(
    model: Path, lora: tuple[str, ...]
) -> None:
    async with serving_tiny(model, lora=lora) as api:
        counts = {}
        for name in ("pirate", "poet", "base", "pirate"):
            answer = await api.completion(model=name, messages=LONG, max_tokens=2)
            counts[name] = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            if name != "pirate":
                assert counts[name] == 0
        assert counts["pirate"] > 0


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (("pirate",), "is not NAME=PATH"),
        (("=here",), "is not NAME=PATH"),
        (("a=b", "a=c"), "a name of its own, and 'a' is the name of two"),
        (("smollm2-135m-instruct=b",), "'smollm2-135m-instruct' is the name of the model"),
    ],
)
def test_wrong_settings(entries: tuple[str, ...], says: str) -> None:
    with pytest.raises(SettingsError, match=f"--lora: .*{says}"):
        Settings.load({}, {"lora": entries})
