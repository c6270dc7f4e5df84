from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.models.hub.names import HubName, parse_hub_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/name", HubName("org/name")),
        ("org/na.me-1_x", HubName("org/na.me-1_x")),
        ("org/name@v1.0", HubName("org/name", "v1.0")),
        ("org/name@refs/pr/1", HubName("org/name", "refs/pr/1")),
        ("org/name:Q4_K_M", HubName("org/name", None, "Q4_K_M")),
        ("org/name:*Q4_K_M*.gguf", HubName("org/name", None, "*Q4_K_M*.gguf")),
        ("org/name:sub folder/x.gguf", HubName("org/name", None, "sub folder/x.gguf")),
        ("org/name/x.gguf", HubName("org/name", None, "x.gguf")),
        ("org/name/sub/x.gguf", HubName("org/name", None, "sub/x.gguf")),
        ("org/name@main:Q8_0", HubName("org/name", "main", "Q8_0")),
    ],
)
def test_what_one_may_write(text: str, name: HubName) -> None:
    assert parse_hub_name(text) == name
    assert parse_hub_name(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "/org/name",
        "org/name/",
        "org/name/sub",
        "org/name@",
        "org/name:",
        "org/name:/x",
        "org/name:x/",
        "org/name:a:b",
        "org/name@a@b",
        "org/name@/x",
        "org/name@x/",
        "org/name@..",
        "org/name:../x.gguf",
        "org/name/../x.gguf",
        "org/../x",
        "../org/name",
        "./org/name",
        "org--x/name",
        "org/name.git",
        "org/name:a\\b",
        "org/name:a\nb",
        "C:\\models\\x.gguf",
        "https://example.org/x",
        "o" * 90 + "/name12",
    ],
)
def test_what_is_no_name_on_the_hub(text: str) -> None:
    assert parse_hub_name(text) is None


@given(st.text("ab./@:*\\-~ \0é", max_size=20).map(lambda rest: "org/name" + rest))
def test_no_name_leads_out_of_a_folder(text: str) -> None:
    name = parse_hub_name(text)
    if name is not None:
        assert parse_hub_name(str(name)) == name
        for part in (name.repo, name.revision or "x", name.pattern or "x"):
            assert not PurePosixPath(part).is_absolute()
            assert not {"..", ""} & set(part.split("/"))
