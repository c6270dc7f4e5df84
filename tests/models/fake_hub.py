"""A hub on loopback: the few routes that fetching a model uses, over real HTTP.

Large files (``LFS``) are redirected to another host, as the real hub does it. What a test wants to
go wrong is set on the instance; ``requests`` has what was asked for.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

from ds4trio.models.hub import download
from ds4trio.models.hub import fetch as models_hub

__all__ = ["LFS", "FakeHub", "Request", "use_hub"]

LFS = (".safetensors", ".gguf", ".bin")

Files = dict[str, bytes]


@dataclass
class Request:
    """One that came: ``what`` is ``info``, ``resolve`` or ``content``."""

    method: str
    what: str
    path: str
    range: str | None
    token: str | None


@dataclass
class Fault:
    """An answer in place of the right one."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


class FakeHub:
    """Repositories, and what is to go wrong.

    Attributes:
        cuts: by path, after how many bytes each content answer in turn ends.
        faults: by ``what``, answers that come before the right one; the last of a list that ends
            with None is given for ever.
        contents: by path, bytes that are sent in place of the announced ones.
        pause_after: by path, bytes after which content waits for ``resume``.
        no_ranges: answer whole files whatever part was asked for.
    """

    def __init__(self) -> None:
        self.revisions: defaultdict[str, dict[str, Files]] = defaultdict(dict)
        self.refs: dict[tuple[str, str], str] = {}
        self.licenses: dict[str, str] = {}
        self.cuts: defaultdict[str, list[int]] = defaultdict(list)
        self.faults: defaultdict[str, list[Fault | None]] = defaultdict(list)
        self.contents: Files = {}
        self.pause_after: dict[str, int] = {}
        self.resume = threading.Event()
        self.no_ranges = False
        self.requests: list[Request] = []
        self.url = ""
        self.content_url = ""

    def add(self, repo: str, files: Files, revision: str = "main") -> str:
        """Put files under a branch or tag; returns the commit."""
        digest = hashlib.sha1(repr((repo, sorted(files.items()))).encode())
        commit = digest.hexdigest()
        self.revisions[repo][commit] = files
        self.refs[repo, revision] = commit
        return commit

    def fail(self, what: str, status: int, *, times: int | None = None, **headers: str) -> None:
        """Give an error, so often or for ever."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        fault = Fault(status, named)
        self.faults[what] = [fault, None] if times is None else [fault] * times

    def asked(self, what: str, path: str = "", method: str = "GET") -> list[Request]:
        """The requests of a kind."""
        return [
            request
            for request in self.requests
            if request.what == what and path in request.path and request.method == method
        ]

    def next_fault(self, what: str) -> Fault | None:
        faults = self.faults[what]
        if not faults:
            return None
        return faults[0] if len(faults) == 2 and faults[1] is None else faults.pop(0)

    def found(self, repo: str, revision: str) -> tuple[str, Files] | None:
        commit = self.refs.get((repo, revision), revision)
        files = self.revisions[repo].get(commit)
        return None if files is None else (commit, files)

    @contextmanager
    def served(self) -> Iterator[FakeHub]:
        """On a port of its own, until the end of the context."""
        hub = self

        class Handler(_Handler):
            state = hub

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.content_url = f"http://localhost:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quietly."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            what = "info"
        else:
            what = "content" if parts[0] == "content" else "resolve"
        self.state.requests.append(
            Request(self.command, what, path, self.headers["Range"], self.headers["Authorization"])
        )
        if fault := self.state.next_fault(what):
            self._send(fault.status, b"", fault.headers)
        elif what == "info":
            self._info("/".join(parts[2:4]), "/".join(parts[5:]))
        elif what == "resolve" and (len(parts) < 5 or parts[2] != "resolve"):
            self._send(404, b"", {})  # something else that the library asks for by the way
        elif what == "resolve":
            raw = urlsplit(self.path).path.strip("/").split("/")
            self._resolve("/".join(parts[:2]), unquote(raw[3]), unquote("/".join(raw[4:])))
        else:
            self._content("/".join(parts[1:3]), parts[3], "/".join(parts[4:]))

    def _info(self, repo: str, revision: str) -> None:
        if repo not in self.state.revisions:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
            return
        found = self.state.found(repo, revision)
        if found is None:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        commit, files = found
        siblings = [_sibling(path, content) for path, content in files.items()]
        answer: dict[str, Any] = {"id": repo, "sha": commit, "siblings": siblings, "tags": []}
        if repo in self.state.licenses:
            answer["cardData"] = {"license": self.state.licenses[repo]}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _resolve(self, repo: str, revision: str, path: str) -> None:
        found = self.state.found(repo, revision)
        if found is None or path not in found[1]:
            code = "RevisionNotFound" if found is None else "EntryNotFound"
            self._send(404, b"", {"X-Error-Code": code})
            return
        commit, files = found
        content = files[path]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_etag(path, content)}"'}
        if path.endswith(LFS):
            headers["X-Linked-Etag"] = headers["ETag"]
            headers["X-Linked-Size"] = str(len(content))
            headers["Location"] = f"{self.state.content_url}/content/{repo}/{commit}/{path}"
            self._send(302, b"", headers)
        else:
            self._send(200, self.state.contents.get(path, content), headers, len(content))

    def _content(self, repo: str, commit: str, path: str) -> None:
        content = self.state.contents.get(path, self.state.revisions[repo][commit][path])
        begin, status, headers = 0, 200, {}
        if self.headers["Range"] and not self.state.no_ranges:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            begin = int(first)
            end = min(int(last) + 1 if last else len(content), len(content))
            if begin >= end:
                self._send(416, b"", {})
                return
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
            content, status = content[begin:end], 206
        cuts = self.state.cuts[path]
        sent = content[: cuts.pop(0)] if cuts else content
        self._send(status, sent, headers, len(content), self.state.pause_after.get(path))

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str],
        length: int | None = None,
        pause_after: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        length = len(body) if length is None else length
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command == "GET":
            self.close_connection = len(body) != length
            with suppress(ConnectionError):  # a client that was interrupted
                if pause_after is not None:
                    self.wfile.write(body[:pause_after])
                    self.state.resume.wait(60)
                    body = body[pause_after:]
                self.wfile.write(body)


def _etag(path: str, content: bytes) -> str:
    kind = hashlib.sha256 if path.endswith(LFS) else hashlib.sha1
    return kind(content).hexdigest()


def _sibling(path: str, content: bytes) -> dict[str, Any]:
    sibling: dict[str, Any] = {
        "rfilename": path,
        "size": len(content),
        "blobId": hashlib.sha1(content).hexdigest(),
    }
    if path.endswith(LFS):
        sha256 = hashlib.sha256(content).hexdigest()
        sibling["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
    return sibling


@contextmanager
def use_hub(hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Serve a hub to this process: the hub library asks it, and keeps what comes in
    ``folder/hub``. Files of more than 1000 bytes count as large, and waits are short."""
    with hub.served():
        for name, value in {
            "ENDPOINT": hub.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(folder / "hub"),
            "HF_HUB_OFFLINE": False,
            "HF_TOKEN_PATH": str(folder / "token"),
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(models_hub, "SMALL", 1000)
        monkeypatch.setattr(download, "CHUNK", 1000)
        monkeypatch.setattr(download, "FIRST_WAIT", 0.01)
        yield hub
