"""Who may come in: keys, and the origins of pages, over HTTP and before a WebSocket is accepted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ds4trio.api.auth import KEY_SUBPROTOCOL
from tests.api.helpers import Api, ScriptedEngine, assert_openai_error, serving_script

KEY = "sk-the-right-key"
BEARER = {"Authorization": f"Bearer {KEY}"}
OFFER = ["realtime", f"openai-insecure-api-key.{KEY}"]
FRIEND = "https://friend.example"


@asynccontextmanager
async def guarded(*keys: str, origins: tuple[str, ...] = ()) -> AsyncIterator[Api]:
    engine = ScriptedEngine("HELLO")
    async with serving_script(engine, api_key=keys, allow_origin=origins) as api:
        yield api


# -- keys

WRONG = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer wrong"},
    {"Authorization": f"Bearer {KEY}x"},
    {"Authorization": f"Bearer {KEY[:-1]}"},
    {"Authorization": f"Bearer {KEY.upper()}"},
    {"Authorization": f"Bearer {KEY} {KEY}"},
    {"Authorization": KEY},
    {"Authorization": f"Basic {KEY}"},
    {"Authorization": b"Bearer \xff\xfe"},
    {"X-Api-Key": "wrong"},
    {"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key.wrong"},
    {"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key."},
    {"Sec-WebSocket-Protocol": f"realtime, {KEY}"},
]


@pytest.mark.parametrize("headers", WRONG, ids=str)
async def test_without_the_right_key_nothing_is_served(headers: dict[str, Any]) -> None:  # 10
    async with guarded(KEY) as api:
        for method, path in (
            ("GET", "/v1/models"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/metrics"),
            ("GET", "/v1/responses"),
            ("GET", "/v1/nothing"),
        ):
            response = await api.http.request(method, path, headers=headers)
            error = assert_openai_error(response, 401, code="invalid_api_key")
            assert KEY not in str(error)
            assert "bearer" in response.headers["www-authenticate"].lower()
        # before it is accepted: the answer to the handshake is no 101
        refusal = await api.handshake(**{k: v for k, v in headers.items() if isinstance(v, str)})
        assert_openai_error(refusal, 401, code="invalid_api_key")
        assert api.coalescer.sessions == 0


@pytest.mark.parametrize(
    "authorization", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER   {KEY}"], ids=str
)
async def test_right_key_over_http(authorization: str) -> None:
    async with guarded("another", KEY) as api:
        api.http.headers["Authorization"] = authorization
        assert (await api.http.get("/v1/models")).status_code == 200
        assert (await api.http.get("/metrics")).status_code == 200
        assert (await api.chat()).status_code == 200


async def test_health_and_the_page_need_no_key() -> None:
    async with guarded(KEY) as api:
        page = await api.http.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        for path in ("/health", "/main.js", "/style.css"):
            assert (await api.http.get(path)).status_code == 200


async def test_other_spellings_of_a_path_do_not_pass_the_check() -> None:
    async with guarded(KEY) as api:
        for path in (
            "//v1/models",
            "/v1//models",
            "/%76%31/models",
            "/v1%2Fmodels",
            "/V1/models",
            "/./v1/models",
            "/health/../v1/models",
            "/health/..%2fv1/models",
            "/v1/models/",
            "/v1/models?key=1",
            "/v1/models;x",
            "\\v1\\models",
            "/metrics/",
        ):
            client = await api.raw()
            await client.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            status = (await client.exactly(len("HTTP/1.1 200"))).split(b" ")[1]
            assert status not in (b"200", b"500"), (path, status)


async def test_websocket_with_the_right_key() -> None:  # 10
    async with guarded(KEY) as api:
        async with api.socket(headers=BEARER) as socket:
            assert (await socket.answer())["status"] == "completed"
            assert socket.connection.subprotocol is None


async def test_websocket_with_the_key_as_a_subprotocol() -> None:
    async with guarded(KEY) as api:
        async with api.socket(subprotocols=OFFER) as socket:
            assert socket.connection.subprotocol == "realtime"
            assert (await socket.answer())["status"] == "completed"


async def test_server_without_keys_takes_any() -> None:
    async with guarded() as api:
        assert (await api.http.get("/v1/models", headers=BEARER)).status_code == 200
        async with api.socket(subprotocols=OFFER) as socket:
            assert (await socket.answer())["status"] == "completed"


# -- origins


def foreign_origins(port: int) -> list[str]:
    return [
        "https://evil.example",
        "http://localhost.evil.example",
        f"http://localhost.evil.example:{port}",
        f"http://127.0.0.1.evil.example:{port}",
        f"http://evil.example#127.0.0.1:{port}",
        f"http://127.0.0.1:{port}@evil.example",
        "null",
        "",
        f"https://127.0.0.1:{port}",
        f"http://127.0.0.1:{port}0",
        "http://127.0.0.1",
        "http://127.0.0.1:1",
        f"http://127.0.0.1:{port}/",
        f"http://127.0.0.1:{port}, https://evil.example",
        f"HTTP://127.0.0.1:{port}",
        "file://",
        "*",
        "https://friend.example.evil.example",
        "http://friend.example",
        "https://friend.example:444",
        "https://www.friend.example",
    ]


async def test_pages_of_other_origins_are_refused() -> None:  # 11
    async with guarded(origins=(FRIEND,)) as api:
        for origin in foreign_origins(api.server.port):
            headers = {"Origin": origin}
            for response in (
                await api.http.get("/v1/models", headers=headers),
                await api.http.post("/v1/chat/completions", headers=headers, json={}),
                await api.handshake(**headers),
            ):
                assert_openai_error(response, 403, code="origin_not_allowed")
                assert "access-control-allow-origin" not in response.headers
        assert api.coalescer.stats.steps == 0


async def test_own_page_named_pages_and_native_clients_are_allowed() -> None:  # 11
    async with guarded(origins=(FRIEND,)) as api:
        port = api.server.port
        for headers in (
            {},
            {"Origin": FRIEND},
            {"Origin": f"http://127.0.0.1:{port}"},
            {"Origin": f"http://localhost:{port}", "Host": f"localhost:{port}"},
            {"Origin": f"http://[::1]:{port}", "Host": f"[::1]:{port}"},
        ):
            assert (await api.http.get("/v1/models", headers=headers)).status_code == 200
            assert (await api.handshake(**headers)).status_code == 101
        async with api.socket(headers={"Origin": f"http://127.0.0.1:{port}"}) as socket:
            assert (await socket.answer())["status"] == "completed"


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "1.2.3.4", ""])
async def test_name_that_was_made_to_point_here_is_not_our_own(host: str) -> None:  # 11
    """DNS rebinding: to the browser page and server are then of the same origin."""
    async with guarded() as api:
        name = f"{host}:{api.server.port}" if host else ""
        headers = {"Host": name, "Origin": f"http://{name}"}
        refusal = await api.http.get("/v1/models", headers=headers)
        assert_openai_error(refusal, 403, code="origin_not_allowed")
        assert_openai_error(await api.handshake(**headers), 403, code="origin_not_allowed")


async def test_origin_does_not_stand_in_for_the_key() -> None:
    async with guarded(KEY, origins=(FRIEND,)) as api:
        own = f"http://127.0.0.1:{api.server.port}"
        for origin in (own, FRIEND):
            refusal = await api.http.get("/v1/models", headers={"Origin": origin})
            assert_openai_error(refusal, 401)
            assert_openai_error(await api.handshake(Origin=origin), 401)
            allowed = await api.http.get("/v1/models", headers={"Origin": origin, **BEARER})
            assert allowed.status_code == 200


PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type",
}


async def test_named_origin_may_ask_first() -> None:
    async with guarded(KEY, origins=(FRIEND, "https://other.example")) as api:
        response = await api.http.request(
            "OPTIONS", "/v1/chat/completions", headers={"Origin": FRIEND, **PREFLIGHT}
        )
        assert response.status_code in (200, 204)
        assert response.headers["access-control-allow-origin"] == FRIEND
        assert "POST" in response.headers["access-control-allow-methods"]
        allowed = response.headers["access-control-allow-headers"].lower()
        assert "authorization" in allowed
        assert "content-type" in allowed
        assert "Origin" in response.headers["vary"]

        answer = await api.chat_with({"Origin": FRIEND, **BEARER})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == FRIEND
        refusal = await api.chat_with({"Origin": FRIEND})
        assert_openai_error(refusal, 401)
        assert refusal.headers["access-control-allow-origin"] == FRIEND  # so that it can be read


async def test_foreign_origin_is_not_allowed_when_it_asks_first() -> None:
    async with guarded(origins=(FRIEND,)) as api:
        for origin in ("https://evil.example", "null"):
            response = await api.http.request(
                "OPTIONS", "/v1/chat/completions", headers={"Origin": origin, **PREFLIGHT}
            )
            assert response.status_code >= 400
            assert "access-control-allow-origin" not in response.headers


async def users(api: Api, *requests: tuple[str | None, str | None]) -> list[str]:
    """Whom the server takes for the user of requests with these keys: header and subprotocol."""
    seen = []
    for bearer, subprotocol in requests:
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        protocols = [f"{KEY_SUBPROTOCOL}{subprotocol}", "realtime"] if subprotocol else []
        async with api.socket(headers, protocols) as socket:
            await socket.create()
            await socket.until_type("response.output_text.delta")
            (session,) = api.coalescer._roster.sessions
            seen.append(session.user)
        await api.at_rest()
    return seen


async def test_users_are_keys_where_there_are_several_and_connections_where_not() -> None:
    async with serving_script(ScriptedEngine(repeat=True), api_key=("alice", "bob")) as api:
        alice, again, bob, disguised = await users(
            api, ("alice", None), (None, "alice"), ("bob", None), ("alice", "no key")
        )
        assert alice == again == disguised != bob
        assert "alice" not in alice, "keys are nobody's business but the check's"
    async with serving_script(ScriptedEngine(repeat=True), api_key=("alice",)) as api:
        one, other = await users(api, ("alice", None), ("alice", None))
        assert one != other
