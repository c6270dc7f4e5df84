"""A real model of another family and format than the default one: Gemma 3 270M, Q4_K_M."""

from __future__ import annotations

import contextlib
from pathlib import Path

import gguf
import pytest
import torch
import trio
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from ds4trio.app import load_generator
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.engine.attention import Span
from ds4trio.generate import Finished, GenerationRequest, Generator, TextDelta
from ds4trio.models.gguf.header import read_header
from ds4trio.models.gguf.prepared import open_gguf
from ds4trio.models.gguf.weights import GgufWeights
from ds4trio.models.loaded import LoadedModel
from ds4trio.sampling import Sampling
from ds4trio.settings import Settings
from tests.engine.builders import Bench, Pair
from tests.engine.test_parity import TEXT
from tests.show.gemma import gemma_file

pytestmark = pytest.mark.model

LAYERS, PAGE = 18, 16


@pytest.fixture(scope="module")
def path() -> Path:
    return gemma_file()


@pytest.fixture(scope="module")
def model(path: Path) -> LoadedModel:
    return open_gguf("gemma", path)


@pytest.fixture(scope="module")
def generator(path: Path) -> Generator:
    settings = Settings(model=str(path), engine="thread", device="cpu", kv_memory="64MiB")
    return load_generator(settings)[0]


def reference(path: Path) -> Gemma3ForCausalLM:
    """transformers' model, of the file's tensors under the names that the gguf library has."""
    config = Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=512,
        max_position_embeddings=32768,
    )
    with torch.device("meta"):
        model = Gemma3ForCausalLM(config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, LAYERS)
    header = read_header(path)
    stored = GgufWeights([path], header.tensors)
    state = {}
    for name in model.state_dict():
        own = names.get_name(name, try_suffixes=(".weight",))
        if own is None or own not in stored.shapes:
            continue  # the head, which is the embedding
        values = stored[own]
        state[name] = values - 1 if "norm" in name else values  # the converter has added one
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.model.embed_tokens.embed_scale = torch.tensor(640**0.5)
    return model


def test_its_logits_are_those_of_transformers_beyond_its_windows(
    path: Path, model: LoadedModel
) -> None:
    tokenizer = Tokenizer.load(model.tokenizer_path)
    tokens = [2, *tokenizer.encode(TEXT * 2, special=False)][:560]
    assert len(tokens) == 560
    transformers = reference(path)
    bench = Bench(Pair(transformers, model.config, model.weights), pages=40)
    pieces = [(0, 300), (300, 540), (540, 550), *((at, at + 1) for at in range(550, 560))]
    found = [bench.logits([(Span(list(range(35)), a, b - a), tokens[a:b])])[0] for a, b in pieces]
    with torch.inference_mode():
        expected = transformers(torch.tensor([tokens]), logits_to_keep=20).logits[0]
    last = torch.cat(found[2:])
    assert float((last - expected).abs().max()) < 2e-3
    assert torch.equal(last.argmax(-1), expected.argmax(-1))


async def answer(generator: Generator, text: str, most: int) -> tuple[str, Finished]:
    """What follows a plain text, and why it ends."""
    asked = GenerationRequest(prompt=text, sampling=Sampling(temperature=0.0), max_tokens=most)
    prompt = await generator.prepare(asked)
    said = ""
    async with contextlib.aclosing(generator.generate(prompt)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                said += event.text
            elif isinstance(event, Finished):
                return said, event
    raise AssertionError("an answer without an end")


async def test_it_goes_on_sensibly_and_ends_where_it_says(generator: Generator) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generator.run)
        said, end = await answer(generator, "The first ten prime numbers are 2, 3, 5, 7,", 24)
        assert said.startswith(" 11, 13, 17, 19, 23, 29")
        assert end.reason == "length"
        said, _ = await answer(generator, "Monday, Tuesday, Wednesday,", 8)
        assert said.startswith(" Thursday, Friday, Saturday, Sunday")
        # A whole document: the model says that it ends, and nothing of that is text.
        said, end = await answer(generator, '{"name": "Ann", "age": 5}', 40)
        assert end.reason == "stop"
        assert "<" not in said
        nursery.cancel_scope.cancel()
