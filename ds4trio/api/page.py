"""The chat page, and the one about the API: the files that ``static/`` is built into, read once at
the start and zipped then, with a strict content policy."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from pathlib import Path

from flask.sansio.blueprints import BlueprintSetupState
from quart import Blueprint, Response, request
from werkzeug.routing import AnyConverter, Map

from ds4trio.api.built import built_folder

__all__ = ["page"]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page() -> Blueprint:
    """The door, as a blueprint."""
    blueprint = Blueprint("page", __name__)
    files = {file.name: _StaticFile(file) for file in built_folder().iterdir() if file.is_file()}

    class FileName(AnyConverter):
        """Only names of files: another door's path is not taken from it, nor its other methods."""

        def __init__(self, map: Map) -> None:
            super().__init__(map, *files)

    @blueprint.record
    def name_files(state: BlueprintSetupState) -> None:
        state.app.url_map.converters["file"] = FileName

    @blueprint.get("/")
    async def index() -> Response:
        return files["index.html"].response()

    @blueprint.get("/docs")
    async def docs() -> Response:
        return files["docs.html"].response()

    @blueprint.get("/<file:name>")
    async def file(name: str) -> Response:
        return files[name].response()

    return blueprint


class _StaticFile:
    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        if path.suffix == ".js":
            kind = "text/javascript"  # some systems map it to something a browser refuses
        text = kind.startswith("text/") or kind.endswith(("json", "xml"))
        self._content_type = f"{kind}; charset=utf-8" if text else kind
        self._plain = _Encoded(content)
        self._zipped = _Encoded(gzip.compress(content, mtime=0)) if text else None

    def response(self) -> Response:
        zipped = self._zipped if request.accept_encodings.quality("gzip") > 0 else None
        sent = zipped or self._plain
        unchanged = request.if_none_match.contains_weak(sent.etag)
        response = Response(
            b"" if unchanged else sent.content,
            status=304 if unchanged else 200,
            content_type=self._content_type,
        )
        if zipped:
            response.headers["Content-Encoding"] = "gzip"
        if self._zipped:
            response.headers["Vary"] = "Accept-Encoding"
        if unchanged:
            response.headers.pop("Content-Length", None)  # of what is not sent (RFC 9110, 8.6)
        response.set_etag(sent.etag)
        response.headers["Cache-Control"] = "no-cache"  # ask again; it costs one small answer
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


class _Encoded:
    """Each encoding has a tag of its own (RFC 9110, 8.8.3.3)."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.etag = hashlib.sha256(content).hexdigest()[:32]
