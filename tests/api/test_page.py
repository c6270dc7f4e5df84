"""The page's files, as a browser fetches them."""

from __future__ import annotations

import pytest

from ds4trio.api.built import built_folder
from tests.api.helpers import serving_script

NAMES = sorted(file.name for file in built_folder().iterdir())


@pytest.mark.parametrize("name", NAMES)
async def test_a_file_comes_as_it_was_built(name: str) -> None:
    built = (built_folder() / name).read_bytes()
    async with serving_script() as api:
        for accepted in ("gzip", "identity", "gzip;q=0, *;q=0.5", "br"):
            answer = await api.http.get(f"/{name}", headers={"Accept-Encoding": accepted})
            assert answer.status_code == 200
            assert answer.content == built, accepted  # unpacked by the client
            zipped = answer.headers.get("Content-Encoding") == "gzip"
            assert zipped == (accepted == "gzip"), accepted
            assert answer.headers["Vary"] == "Accept-Encoding"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            if zipped:
                assert int(answer.headers["Content-Length"]) < len(built)


async def test_an_unchanged_file_is_not_sent_again_and_each_encoding_has_its_tag() -> None:
    async with serving_script() as api:
        tags = set()
        for accepted in ("gzip", "identity"):
            headers = {"Accept-Encoding": accepted}
            tag = (await api.http.get("/", headers=headers)).headers["ETag"]
            again = await api.http.get("/", headers={**headers, "If-None-Match": tag})
            assert again.status_code == 304
            assert again.content == b""
            assert again.headers["ETag"] == tag
            assert "Content-Length" not in again.headers
            weak = await api.http.get("/", headers={**headers, "If-None-Match": f"W/{tag}"})
            assert weak.status_code == 304
            tags.add(tag)
        assert len(tags) == 2
        stale = await api.http.get("/", headers={"If-None-Match": '"old"'})
        assert stale.status_code == 200
