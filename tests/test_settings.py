"""Where a setting comes from, which one wins, and what a wrong one says."""

from __future__ import annotations

import string
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.app import create_app
from ds4trio.settings import Settings, SettingsError, misspelt, parse_size


def test_defaults_are_those_of_the_readme() -> None:
    settings = Settings.load({})
    assert settings == Settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.coalesce_us == 2000
    assert settings.api_key == ()
    assert settings.allow_origin == ()
    assert settings.batching


def test_every_setting_has_a_flag_a_variable_and_a_help_text() -> None:
    fields = Settings.fields()
    assert {field.name for field in fields} == set(Settings.__struct_fields__)
    assert len({field.flag for field in fields}) == len(fields)
    by_name = {field.name: field for field in fields}
    assert by_name["max_sessions"].flag == "--max-sessions"
    assert by_name["max_sessions"].variable == "DS4TRIO_MAX_SESSIONS"
    assert by_name["dtype"].choices == ("auto", "float32", "bfloat16", "float16", "w8a16", "int8")
    assert by_name["api_key"].multiple
    for field in fields:
        assert field.help
        assert field.default == getattr(Settings(), field.name)


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("DS4TRIO_MODEL", "some/model", "model", "some/model"),
        ("DS4TRIO_PORT", "0", "port", 0),
        ("DS4TRIO_PORT", " 9000 ", "port", 9000),
        ("DS4TRIO_COALESCE_US", "0", "coalesce_us", 0),
        ("DS4TRIO_BATCHING", "false", "batching", False),
        ("DS4TRIO_BATCHING", "0", "batching", False),
        ("DS4TRIO_BATCHING", "1", "batching", True),
        ("DS4TRIO_SEND_TIMEOUT", "2.5", "send_timeout", 2.5),
        ("DS4TRIO_DTYPE", "int8", "dtype", "int8"),
        ("DS4TRIO_API_KEY", "one", "api_key", ("one",)),
        ("DS4TRIO_API_KEY", "one, two,", "api_key", ("one", "two")),
        ("DS4TRIO_API_KEY", "12345", "api_key", ("12345",)),
        ("DS4TRIO_ALLOW_ORIGIN", "https://a.example", "allow_origin", ("https://a.example",)),
    ],
)
def test_variables(variable: str, text: str, name: str, value: Any) -> None:
    assert getattr(Settings.load({variable: text}), name) == value


@pytest.mark.parametrize("text", ["", "  "])
def test_empty_variable_is_none(text: str) -> None:
    assert Settings.load({"DS4TRIO_PORT": text, "DS4TRIO_API_KEY": text}) == Settings()


@pytest.mark.parametrize("key", ["", " "])
def test_an_empty_key_is_refused(key: str) -> None:
    """As a flag it is what becomes of an unset variable: it must not let everybody in."""
    with pytest.raises(SettingsError, match="a key must not be empty"):
        Settings.load({}, {"api_key": (key,)})


@pytest.mark.parametrize("variable", ["DS4TRIO_API_KEY", "DS4TRIO_ALLOW_ORIGIN"])
def test_a_list_that_holds_nothing_is_not_no_list(variable: str) -> None:
    """Of two unset variables and a comma between them nobody may make a server without keys."""
    with pytest.raises(SettingsError, match=rf"{variable}: ' , ' holds nothing"):
        Settings.load({variable: " , "})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("port", "70000", "a whole number of at least 0 and of at most 65535"),
        ("port", "many", "a whole number of at least 0 and of at most 65535"),
        ("max_output_tokens", "0", "a whole number of at least 1"),
        ("send_timeout", "0", "a number above 0"),
        ("dtype", "int4", "one of auto, float32, bfloat16, float16, w8a16, int8"),
        ("batching", "perhaps", "true or false"),
    ],
)
def test_a_wrong_value_is_answered_with_the_right_ones(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError) as error:
        Settings.load({}, {name: value})
    flag = "--" + name.replace("_", "-")
    assert str(error.value) == f"{flag}: {value!r} cannot be used: it takes {said}"


def test_a_context_that_no_conversation_fits_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^--ctx: 63 tokens are too few; at least 64, or 0$"):
        Settings.load({}, {"ctx": "63"})
    assert Settings.load({}, {"ctx": "64"}).ctx == 64


def test_other_variables_do_not_matter() -> None:
    assert Settings.load({"PORT": "1", "DS4TRIO_": "x", "DS4TRIO_NONE": "1"}) == Settings()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("DS4TRIO_MODLE", "DS4TRIO_MODEL"),
        ("DS4TRIO_MAX_SESSION", "DS4TRIO_MAX_SESSIONS"),
        ("ds4trio_port", "DS4TRIO_PORT"),
        ("DS4TRIO_APIKEY", "DS4TRIO_API_KEY"),
        ("DS4TRIOMODEL", "DS4TRIO_MODEL"),
    ],
)
def test_a_misspelt_variable_is_found(written: str, meant: str) -> None:
    assert misspelt({written: "secret", "PATH": "/bin"}) == {written: meant}


def test_what_is_somebody_elses_or_right_is_not_misspelt() -> None:
    right = {field.variable: "1" for field in Settings.fields()}
    others = dict.fromkeys(
        [
            *("DS4TRIO_CACHE", "DS4TRIO_URL", "DS4_SERVER_DECODE_COALESCE_US", "MODEL", "DS4TRIO_"),
            *("DS4TRIO_SERVICE_HOST", "DS4TRIO_SERVICE_PORT", "DS4TRIO_PORT_8000_TCP_ADDR"),
        ],
        "1",
    )
    assert misspelt(right | others) == {}


def test_a_server_says_which_variable_it_does_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DS4TRIO_APIKEY", "secret")
    create_app(Settings())
    assert caplog.messages == [
        "the variable DS4TRIO_APIKEY is not read; did you mean DS4TRIO_API_KEY?"
    ]


def test_flags_win_over_variables() -> None:
    environ = {"DS4TRIO_PORT": "1000", "DS4TRIO_HOST": "::1", "DS4TRIO_API_KEY": "a,b"}
    settings = Settings.load(environ, {"port": "2000", "host": None, "api_key": ("c",)})
    assert (settings.port, settings.host, settings.api_key) == (2000, "::1", ("c",))


def test_name_of_ds4_server_is_known_and_our_own_wins() -> None:
    alias = {"DS4_SERVER_DECODE_COALESCE_US": "500"}
    assert Settings.load(alias).coalesce_us == 500
    assert Settings.load({**alias, "DS4TRIO_COALESCE_US": "700"}).coalesce_us == 700
    assert Settings.load(alias, {"coalesce_us": "0"}).coalesce_us == 0


@pytest.mark.parametrize(
    ("environ", "overrides", "named"),
    [
        ({"DS4TRIO_PORT": "many"}, {}, "DS4TRIO_PORT"),
        ({"DS4TRIO_PORT": "70000"}, {}, "DS4TRIO_PORT"),
        ({"DS4TRIO_PORT": "-1"}, {}, "DS4TRIO_PORT"),
        ({"DS4TRIO_PORT": "1"}, {"port": "x"}, "--port"),
        ({}, {"max_sessions": "0"}, "--max-sessions"),
        ({}, {"dtype": "float8"}, "--dtype"),
        ({}, {"on_batch_failure": "panic"}, "--on-batch-failure"),
        ({}, {"send_timeout": "0"}, "--send-timeout"),
        ({}, {"send_timeout": "nan"}, "--send-timeout"),
        ({"DS4TRIO_BATCHING": "perhaps"}, {}, "DS4TRIO_BATCHING"),
        ({"DS4_SERVER_DECODE_COALESCE_US": "soon"}, {}, "DS4_SERVER_DECODE_COALESCE_US"),
        ({"DS4TRIO_KV_MEMORY": "lots"}, {}, "DS4TRIO_KV_MEMORY"),
        ({}, {"kv_memory": "-1GiB"}, "--kv-memory"),
        ({}, {"kv_memory": "0"}, "--kv-memory"),
        ({"DS4TRIO_PORT": "line\nbreak"}, {}, "DS4TRIO_PORT"),
        ({}, {"port": "8000.0"}, "--port"),
        ({}, {"threads": "1e2"}, "--threads"),
        ({}, {"model": " "}, "--model"),
    ],
)
def test_wrong_value_is_one_line_that_names_it(
    environ: dict[str, str], overrides: dict[str, str], named: str
) -> None:
    with pytest.raises(SettingsError) as error:
        Settings.load(environ, overrides)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1500000", 1_500_000),
        ("512MiB", 512 * 1024**2),
        ("512 mib", 512 * 1024**2),
        ("2GiB", 2 * 1024**3),
        ("2g", 2 * 1024**3),
        ("2GB", 2 * 1024**3),
        ("1.5K", 1536),
        ("1t", 1024**4),
        (" 64KiB ", 65_536),
        ("10b", 10),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert Settings.load({"DS4TRIO_KV_MEMORY": text}).kv_memory_bytes == size


def test_memory_that_the_machine_decides() -> None:
    assert Settings().kv_memory_bytes is None


@given(st.text(alphabet=string.digits + ".kKmMgGtTiIbB -+e" + "٣²", max_size=12))
def test_size_is_a_number_above_zero_or_an_error(text: str) -> None:
    with suppress(ValueError):
        assert parse_size(text) > 0
