"""The documentation says what the code says.

``python -m tests.test_docs`` writes the table of settings anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from quart import Quart

from ds4trio import errors
from ds4trio.api.schemas.chat import ChatRequest
from ds4trio.api.schemas.completions import CompletionRequest
from ds4trio.api.schemas.messages import CountTokensRequest, MessageRequest
from ds4trio.api.schemas.responses import InputTokens, ResponseCreate
from ds4trio.api.schemas.tokens import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
from ds4trio.api.service import Service
from ds4trio.app import build_coalescer, create_app
from ds4trio.chat.template import ChatTemplate
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.generate import Generator
from ds4trio.settings import Settings
from tests.fake_engine import FakeEngine
from tests.tiny import CHATML, make_tiny_tokenizer

DOCS = Path(__file__).parent.parent / "docs"
OPERATION = DOCS / "operation.md"
API = (DOCS / "api.md").read_text(encoding="utf-8")

BEGIN, END = "<!-- settings -->\n", "<!-- end of settings -->"

SERVER_METHODS = {"HEAD", "OPTIONS"}
"""What the web framework answers by itself."""


def settings_table() -> str:
    """The settings as the documentation shows them."""
    rows = ["| Flag | Variable | Default | What it is |", "| --- | --- | --- | --- |"]
    for field in Settings.fields():
        flag, default = f"`{field.flag}`", f"`{field.default}`"
        if field.type is bool:
            flag, default = f"{flag}, `--no-{field.flag[2:]}`", f"`{field.default}`".lower()
        if field.multiple:
            default = "none"
        what = field.help
        if field.choices:
            what += ": " + ", ".join(f"`{choice}`" for choice in field.choices)
        rows.append(f"| {flag} | `{field.variable}` | {default} | {what} |")
    return "\n".join(rows) + "\n"


def rows(text: str) -> Iterator[list[str]]:
    """The rows of every table in a text, headings left out."""
    after_heading = False
    for line in text.splitlines():
        if not line.startswith("| "):
            after_heading = False
        elif line.startswith("| --- "):
            after_heading = True
        elif after_heading:
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def section(text: str, heading: str) -> str:
    """A part of a document, from its heading to the next one."""
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    assert found, f"there is no section {heading!r}"
    return found.group(1)


def code(cell: str) -> str:
    """A table's cell that is one piece of code, without its marks."""
    assert re.fullmatch(r"`[^`]+`", cell), cell
    return cell.strip("`")


def test_the_table_of_settings_is_the_settings() -> None:
    text = OPERATION.read_text(encoding="utf-8")
    table = text.partition(BEGIN)[2].partition(END)[0]
    assert table == settings_table(), "run python -m tests.test_docs"


def test_every_endpoint_is_documented_and_every_documented_one_exists() -> None:
    documented = {(row[0], code(row[1])) for row in rows(section(API, "Endpoints"))}
    assert documented == set(endpoints(create_app(Settings())))


def endpoints(app: Quart) -> Iterator[tuple[str, str]]:
    for rule in app.url_map.iter_rules():
        if rule.websocket:
            yield "WebSocket", rule.rule
        else:
            for method in (rule.methods or set()) - SERVER_METHODS:
                yield method, rule.rule


@pytest.mark.parametrize(
    "kind",
    [
        ChatRequest,
        CompletionRequest,
        CountTokensRequest,
        InputTokens,
        MessageRequest,
        ResponseCreate,
        TokenizeRequest,
        DetokenizeRequest,
        ApplyTemplateRequest,
    ],
)
def test_every_field_of_a_request_is_in_one_group(kind: type[msgspec.Struct]) -> None:
    text = API.partition(f"<!-- fields of {kind.__name__} -->")[2].partition("<!-- end")[0]
    documented = [code(row[0]) for row in rows(text)]
    assert sorted(documented) == sorted(field.name for field in msgspec.structs.fields(kind))


def test_every_error_has_its_status() -> None:
    documented = {(int(row[0]), code(row[1])) for row in rows(section(API, "Errors"))}
    leaves = {
        (error.status, error.code)
        for error in vars(errors).values()
        if isinstance(error, type)
        and issubclass(error, errors.WireError)
        and error not in (errors.WireError, errors.RequestError, errors.ServerError)
    }
    assert leaves <= documented


async def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    text = section(OPERATION.read_text(encoding="utf-8"), "Logs and metrics")
    documented = {(code(row[0]), row[1]) for row in rows(text)}
    settings = Settings()
    app = create_app(settings)
    service: Service = app.config["SERVICE"]
    tokenizer = Tokenizer(make_tiny_tokenizer().to_str())
    generator = Generator(
        build_coalescer(FakeEngine(), settings),
        tokenizer,
        ChatTemplate(CHATML),
        stop_tokens=frozenset(),
        bos_token=None,
        add_bos=False,
        default_max_tokens=1,
    )
    service.serve(generator, "fake")
    response = await app.test_client().get("/metrics")
    exposed = (await response.get_data(as_text=True)) or ""
    families = text_string_to_metric_families(exposed)
    found = {(sample.name, family.type) for family in families for sample in family.samples}
    assert found == documented


def write_settings_table() -> None:
    text = OPERATION.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    OPERATION.write_text(f"{before}{BEGIN}{settings_table()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write_settings_table()
