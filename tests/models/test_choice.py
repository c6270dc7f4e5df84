from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.errors import ModelUnavailable
from ds4trio.models.hub.choice import RepoFile, choose, gguf_models, size_text, written
from ds4trio.models.hub.names import HubName, parse_hub_name


def files(*paths: str) -> list[RepoFile]:
    return [RepoFile(path, 1000) for path in paths]


def path_of(pattern: str | None, *paths: str) -> str:
    return choose(HubName("org/name", None, pattern), files(*paths)).path


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("Name-7B-Q4_K_M.gguf", "Q4_K_M"),
        ("name.Q4_0.gguf", "Q4_0"),
        ("name_q8_0.gguf", "Q8_0"),
        ("name-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("name-IQ2_XXS.gguf", "IQ2_XXS"),
        ("name-IQ4_NL.gguf", "IQ4_NL"),
        ("name-Q6_K-00001-of-00002.gguf", "Q6_K"),
        ("Q5_K_S/name-00001-of-00002.gguf", "Q5_K_S"),
        ("name-bf16.gguf", "BF16"),
        ("name-fp16.gguf", "FP16"),
        ("name-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("name-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("ggml-model-i2_s.gguf", ""),
        ("Q4_K_Mname.gguf", ""),
        ("name.gguf", ""),
    ],
)
def test_quantisations_are_read_from_names(path: str, label: str) -> None:
    assert gguf_models(files(path))[0].label == label


def test_a_quantisation_is_a_whole_word() -> None:
    with pytest.raises(ModelUnavailable, match="no GGUF model 'Q4_K'"):
        path_of("Q4_K", "a-Q4_K_M.gguf", "a-Q4_K_S.gguf")
    assert path_of("Q4_K", "a-Q4_K_M.gguf", "a-Q4_K.gguf") == "a-Q4_K.gguf"


def test_the_one_that_is_exactly_it_is_meant() -> None:
    both = ("a-Q4_K_XL.gguf", "a-UD-Q4_K_XL.gguf")
    assert path_of("Q4_K_XL", *both) == "a-Q4_K_XL.gguf"
    assert path_of("UD-Q4_K_XL", *both) == "a-UD-Q4_K_XL.gguf"
    assert path_of("Q4_K_XL", both[1]) == both[1]


def test_without_a_pattern() -> None:
    assert path_of(None, "a-Q8_0.gguf") == "a-Q8_0.gguf"
    assert path_of(None, "a-Q8_0.gguf", "a-Q4_K_M.gguf") == "a-Q4_K_M.gguf"
    assert path_of(None, "a-Q8_0.gguf", "a-UD-Q4_K_M.gguf") == "a-UD-Q4_K_M.gguf"
    with pytest.raises(ModelUnavailable, match="several"):
        path_of(None, "a-Q4_K_M.gguf", "b-Q4_K_M.gguf")
    with pytest.raises(ModelUnavailable, match="several"):
        path_of("*.gguf", "a-Q4_K_M.gguf", "b-Q4_K_M.gguf")


def test_safetensors_come_before_gguf_files_unless_these_are_named() -> None:
    both = ("config.json", "model.safetensors", "a-Q8_0.gguf")
    assert choose(HubName("org/name"), files(*both)).kind == "folder"
    assert path_of("Q8_0", *both) == "a-Q8_0.gguf"
    assert path_of(None, "config.json", "a-Q8_0.gguf") == "a-Q8_0.gguf"


def test_any_part_of_a_split_model_names_it() -> None:
    parts = [f"a-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    for pattern in (*parts, "Q8_0", "*Q8*"):
        assert path_of(pattern, *reversed(parts)) == parts[0]


def test_a_long_list_is_cut() -> None:
    many = files(*(f"a{n}-Q8_0.gguf" for n in range(100)))
    with pytest.raises(ModelUnavailable, match="and 76 more") as caught:
        choose(HubName("org/name"), many)
    assert len(str(caught.value)) < 2000


WORDS = st.sampled_from(["a", "Q4_K_M", "q4_k_m", "Q4_K", "UD-Q4_K", "-", "-", ".", "/", "F16"])
PATHS = st.lists(WORDS, min_size=1, max_size=5).map(lambda words: "".join(words) + ".gguf")


@given(st.lists(PATHS, min_size=1, max_size=6, unique=True))
def test_what_is_listed_can_be_written_to_choose_it(paths: list[str]) -> None:
    models = gguf_models(files(*paths))
    for model in models:
        text = written(HubName("org/name"), model, models)
        name = parse_hub_name(text)
        if name is not None:
            assert choose(name, files(*paths)).path == model.path


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (98_362_432, "98.4 MB"),
        (999_600, "1.0 MB"),
        (123_456_789, "123 MB"),
        (4_700_000_000, "4.7 GB"),
        (2_000_000_000_000, "2.0 TB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text
