"""Fetching from a hub on loopback, with what can go wrong on the way."""

from __future__ import annotations

import errno
import hashlib
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import constants, scan_cache_dir

from ds4trio.errors import ModelUnavailable
from ds4trio.models.hub import download
from ds4trio.models.hub import fetch as models_hub
from ds4trio.models.hub.cached import HubModel, cached, repo_folder
from ds4trio.models.hub.fetch import fetch, find
from ds4trio.models.hub.names import parse_hub_name
from tests.models.fake_hub import FakeHub, Files

REPO = "org/name"


def content(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def folder_files(seed: int = 0) -> Files:
    """A repository as transformers saves one, and what else lies about in such repositories."""
    return {
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "model.safetensors": content(5000, seed),
        "pytorch_model.bin": content(5000, seed),
        "onnx/model.onnx": b"onnx",
        "consolidated.safetensors": content(5000, seed),
        "README.md": b"# Name",
        "original/params.json": b"{}",
    }


def gguf_files(*labels: str) -> Files:
    return {f"Name-{label}.gguf": content(3000 + 7 * i, i) for i, label in enumerate(labels)}


def get(text: str = REPO, *, offline: bool = False, refresh: bool = False) -> HubModel:
    name = parse_hub_name(text)
    assert name is not None
    return find(name, offline=offline, refresh=refresh)


def names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def no_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that nobody answers for: its port is closed."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def test_a_folder_is_fetched_without_what_is_not_needed(hub: FakeHub) -> None:
    commit = hub.add(REPO, folder_files())
    reports: list[tuple[str, int, int | None]] = []
    name = parse_hub_name(REPO)
    assert name is not None
    found = fetch(name, progress=lambda *report: reports.append(report))
    assert (found.kind, found.commit) == ("folder", commit)
    wanted = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert names(found.path) == wanted
    assert all((found.path / name).read_bytes() == folder_files()[name] for name in wanted)
    assert reports[-1] == ("fetching model.safetensors (5.0 kB)", 5000, 5000)
    # As the hub library would have left it: other programs find it.
    (repo,) = scan_cache_dir(repo_folder(REPO).parent).repos
    assert repo.refs["main"].commit_hash == commit
    assert repo.size_on_disk == sum(len(folder_files()[name]) for name in wanted)


def test_shards_are_those_beside_the_index(hub: FakeHub) -> None:
    index = b'{"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}'
    hub.add(
        REPO,
        {
            "config.json": b"{}",
            "tekken.json": b"{}",
            "model.safetensors.index.json": index,
            "model-1-of-2.safetensors": content(4000, 1),
            "model-2-of-2.safetensors": content(4000, 2),
            "adapter_model.safetensors": content(4000, 3),
        },
    )
    assert names(get().path) == [
        "config.json",
        "model-1-of-2.safetensors",
        "model-2-of-2.safetensors",
        "model.safetensors.index.json",
        "tekken.json",
    ]


def test_what_is_here_is_used_without_asking(hub: FakeHub) -> None:
    hub.add(REPO, folder_files())
    first = get()
    hub.requests.clear()
    hub.add(REPO, folder_files(seed=1))
    assert get() == first
    assert get(offline=True) == first
    assert not hub.requests
    newer = get(refresh=True)
    assert newer.commit != first.commit
    assert get() == newer


def test_an_incomplete_model_is_completed(hub: FakeHub) -> None:
    hub.add(REPO, folder_files())
    found = get()
    (found.path / "model.safetensors").unlink()
    assert get() == found
    assert (found.path / "model.safetensors").read_bytes() == folder_files()["model.safetensors"]
    assert len(hub.asked("content")) == 1, "its blob was still there"


def test_without_a_tokenizer_a_model_is_not_here(hub: FakeHub) -> None:
    """As another program may have fetched it."""
    hub.add(REPO, folder_files())
    found = get()
    (found.path / "tokenizer.json").unlink()
    assert get() == found
    assert (found.path / "tokenizer.json").is_file()


def test_two_at_once_fetch_it_once(hub: FakeHub) -> None:
    hub.add(REPO, gguf_files("Q8_0"))
    with ThreadPoolExecutor(4) as pool:
        paths = {found.path for found in pool.map(get, [REPO] * 4)}
    assert [path.read_bytes() for path in paths] == [gguf_files("Q8_0")["Name-Q8_0.gguf"]]
    assert len(hub.asked("content")) == 1


def test_what_is_left_of_another_file_is_not_used(hub: FakeHub) -> None:
    """Such as after two processes wrote the same, where a file system has no locks."""
    hub.add(REPO, gguf_files("Q8_0"))
    blob = hashlib.sha256(gguf_files("Q8_0")["Name-Q8_0.gguf"]).hexdigest()
    part = repo_folder(REPO) / "blobs" / f"{blob}.ds4trio.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(4000))
    assert get().path.read_bytes() == gguf_files("Q8_0")["Name-Q8_0.gguf"]


def test_a_full_disk_while_fetching(hub: FakeHub) -> None:
    hub.add(REPO, gguf_files("Q8_0"))

    def full(what: str, done: int, total: int | None) -> None:
        if done:
            raise OSError(errno.ENOSPC, "No space left on device")

    name = parse_hub_name(REPO)
    assert name is not None
    with pytest.raises(ModelUnavailable, match="is full; what has come of org/name is kept"):
        fetch(name, progress=full)


def test_revisions(hub: FakeHub) -> None:
    main = hub.add(REPO, folder_files())
    branch = hub.add(REPO, folder_files(seed=1), "refs/pr/1")
    assert get("org/name@refs/pr/1").commit == branch
    assert get("org/name").commit == main
    assert get(f"org/name@{branch}").commit == branch
    hub.requests.clear()
    assert get("org/name@refs/pr/1", offline=True).commit == branch
    assert not hub.requests
    with pytest.raises(ModelUnavailable, match=r"org/name has no revision 'v9'"):
        get("org/name@v9")


def test_the_usual_quantisation_is_taken(hub: FakeHub) -> None:
    hub.add(REPO, {**gguf_files("Q2_K", "Q4_K_M", "Q8_0"), "mmproj-F16.gguf": content(3000)})
    found = get()
    assert (found.kind, found.path.name) == ("gguf", "Name-Q4_K_M.gguf")
    assert names(found.path.parent) == ["Name-Q4_K_M.gguf"]


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("org/name:Q8_0", "Name-Q8_0.gguf"),
        ("org/name:q8_0", "Name-Q8_0.gguf"),
        ("org/name:*Q8*.gguf", "Name-Q8_0.gguf"),
        ("org/name:Name-Q2_K.gguf", "Name-Q2_K.gguf"),
        ("org/name/Name-Q2_K.gguf", "Name-Q2_K.gguf"),
        ("org/name@main:Q2_K", "Name-Q2_K.gguf"),
    ],
)
def test_patterns(hub: FakeHub, text: str, file: str) -> None:
    hub.add(REPO, gguf_files("Q2_K", "Q4_K_M", "Q8_0"))
    assert get(text).path.name == file
    hub.requests.clear()
    assert get(text, offline=True).path.name == file
    assert get(REPO, offline=True).path.name == file, "the one that is here"
    assert not hub.requests


def test_several_and_none_are_listed_with_their_sizes(hub: FakeHub) -> None:
    hub.add(REPO, gguf_files("Q2_K", "Q8_0"))
    listed = r"org/name:Q2_K \(3\.0 kB\), org/name:Q8_0 \(3\.0 kB\)"
    with pytest.raises(ModelUnavailable, match=f"several GGUF models; name one: {listed}"):
        get()
    with pytest.raises(ModelUnavailable, match=f"no GGUF model 'Q4_K_M'; it has {listed}"):
        get("org/name:Q4_K_M")
    assert not hub.asked("content")


def test_all_parts_of_a_split_model_are_fetched(hub: FakeHub) -> None:
    parts = {f"Q4/Name-Q4_K_M-0000{n}-of-00003.gguf": content(2000, n) for n in (1, 2, 3)}
    hub.add(REPO, {**parts, **gguf_files("Q8_0")})
    found = get()
    assert found.path.name == "Name-Q4_K_M-00001-of-00003.gguf"
    assert {p.name: p.read_bytes() for p in found.path.parent.iterdir()} == {
        Path(path).name: data for path, data in parts.items()
    }
    # With a part gone, the model is not here.
    (found.path.parent / "Name-Q4_K_M-00002-of-00003.gguf").unlink()
    with pytest.raises(ModelUnavailable, match="offline"):
        get(offline=True)
    del parts["Q4/Name-Q4_K_M-00002-of-00003.gguf"]
    hub.add(REPO, parts)
    with pytest.raises(ModelUnavailable, match="2 of the 3 parts"):
        get(refresh=True)


def test_a_cut_connection_is_taken_up_where_it_ended(hub: FakeHub) -> None:
    hub.add(REPO, gguf_files("Q8_0"))
    hub.cuts["Name-Q8_0.gguf"] = [1100, 1100]
    found = get()
    assert found.path.read_bytes() == gguf_files("Q8_0")["Name-Q8_0.gguf"]
    assert [request.range for request in hub.asked("content")] == [
        None,
        "bytes=1000-2999",
        "bytes=2000-2999",
    ]


def test_an_interrupted_pull_resumes(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, gguf_files("Q8_0"))

    def interrupt(what: str, done: int, total: int | None) -> None:
        if done >= 2000:
            raise KeyboardInterrupt

    name = parse_hub_name(REPO)
    assert name is not None
    with pytest.raises(KeyboardInterrupt):
        fetch(name, progress=interrupt)
    with pytest.raises(ModelUnavailable):
        get(offline=True)
    hub.requests.clear()
    assert get().path.read_bytes() == gguf_files("Q8_0")["Name-Q8_0.gguf"]
    assert [request.range for request in hub.asked("content")] == ["bytes=2000-2999"]
    assert not list(repo_folder(REPO).rglob("*.incomplete"))


def test_a_hub_without_ranges_sends_it_all_again(hub: FakeHub) -> None:
    hub.add(REPO, gguf_files("Q8_0"))
    hub.cuts["Name-Q8_0.gguf"] = [1200]
    hub.no_ranges = True
    assert get().path.read_bytes() == gguf_files("Q8_0")["Name-Q8_0.gguf"]


def test_an_interrupted_update_leaves_what_was_here(hub: FakeHub) -> None:
    hub.add(REPO, folder_files())
    before = get()
    hub.add(REPO, folder_files(seed=1))
    hub.fail("content", 403)
    with pytest.raises(ModelUnavailable, match="refuses"):
        get(refresh=True)
    assert get(offline=True) == before


@pytest.mark.parametrize("sent", [content(3000, 9), content(3500, 9)], ids=["other", "longer"])
def test_other_content_than_announced_is_not_kept(hub: FakeHub, sent: bytes) -> None:
    hub.add(REPO, gguf_files("Q8_0"))
    hub.contents["Name-Q8_0.gguf"] = sent
    with pytest.raises(ModelUnavailable, match=r"not kept\. Try again"):
        get()
    del hub.contents["Name-Q8_0.gguf"]
    assert get().path.read_bytes() == gguf_files("Q8_0")["Name-Q8_0.gguf"]


def test_a_file_that_stays_short_is_an_error(hub: FakeHub) -> None:
    hub.add(REPO, gguf_files("Q8_0"))
    hub.cuts["Name-Q8_0.gguf"] = [1500] + [0] * 10
    with pytest.raises(ModelUnavailable, match="could not be fetched"):
        get()
    assert len(hub.asked("content")) == download.TRIES
    hub.cuts.clear()
    hub.requests.clear()
    assert get().path.stat().st_size == 3000
    assert [request.range for request in hub.asked("content")] == ["bytes=1000-2999"]


def test_a_rate_limit_is_waited_for(hub: FakeHub) -> None:
    hub.add(REPO, gguf_files("Q8_0"))
    hub.fail("info", 429, times=2, Retry_After="0")
    hub.fail("content", 429, times=1, Retry_After="0")
    assert get().path.is_file()
    hub.fail("info", 429, Retry_After="0")
    with pytest.raises(ModelUnavailable, match="limits how often"):
        get(refresh=True)


@pytest.mark.parametrize(
    ("what", "status", "headers", "says"),
    [
        ("info", 401, {"X_Error_Code": "GatedRepo"}, "accept its terms on .*/org/name, then set"),
        ("resolve", 403, {"X_Error_Code": "GatedRepo"}, "accept its terms"),
        ("info", 401, {"X_Error_Code": "RepoNotFound"}, "no model org/name, or it is private"),
        ("info", 404, {"X_Error_Code": "RepoNotFound"}, "no model org/name, or it is private"),
        ("info", 403, {}, r"refuses org/name \(403\)"),
        (
            "info",
            401,
            {"X_Error_Message": "Invalid credentials in Authorization header"},
            r"refuses org/name \(401\): HF_TOKEN is wrong",
        ),
        ("info", 503, {}, r"problem of its own \(503\)"),
        ("content", 404, {}, "could not be fetched"),
    ],
)
def test_refusals_say_what_to_do(
    hub: FakeHub, what: str, status: int, headers: dict[str, str], says: str
) -> None:
    hub.add(REPO, gguf_files("Q8_0"))
    hub.fail(what, status, times=None, **headers)
    with pytest.raises(ModelUnavailable, match=says) as caught:
        get()
    assert "\n" not in str(caught.value)


def test_an_unknown_model(hub: FakeHub) -> None:
    with pytest.raises(ModelUnavailable, match="The hub has no model org/absent"):
        get("org/absent")


def test_the_token_goes_to_the_hub_alone(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.add(REPO, folder_files())
    get()
    assert {r.token for r in hub.requests if r.what != "content"} == {"Bearer hf_secret"}
    assert {r.token for r in hub.requests if r.what == "content"} == {None}


def test_without_a_network(hub: FakeHub, no_hub: None) -> None:
    with pytest.raises(ModelUnavailable, match="cannot be reached; run 'ds4trio pull org/name'"):
        get()


def test_offline_by_the_hub_librarys_variable(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, folder_files())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelUnavailable, match="HF_HUB_OFFLINE forbids"):
        get()
    assert not hub.requests
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    found = get()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert get() == found
    with pytest.raises(ModelUnavailable, match="HF_HUB_OFFLINE forbids"):
        get(refresh=True)


def test_a_full_disk_is_noticed_before(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, gguf_files("Q8_0"))
    usage = shutil.disk_usage("/")._replace(free=download.KEPT_FREE + 2999)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelUnavailable, match=r"needs 3\.0 kB more .* 3\.0 kB are free"):
        get()
    assert not hub.asked("content")
    # What is here already needs no room.
    hub.cuts["Name-Q8_0.gguf"] = [1000] + [0] * 10
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 40))
    with pytest.raises(ModelUnavailable):
        get()
    hub.cuts.clear()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert get().path.is_file()


def test_a_cache_that_cannot_be_written(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(REPO, folder_files())
    (tmp_path / "hub").write_text("in the way")
    with pytest.raises(ModelUnavailable, match=r"hub cache .* cannot be written"):
        get()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, r"only as pytorch_model\.bin"),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}, "an adapter"),
        ({"consolidated.safetensors": b"x", "params.json": b"{}"}, "not as transformers keeps"),
        ({"README.md": b"x"}, "has no model"),
        ({"mmproj-F16.gguf": b"x"}, "has no model"),
    ],
)
def test_what_is_no_model_is_told(hub: FakeHub, files: Files, says: str) -> None:
    hub.add(REPO, files)
    with pytest.raises(ModelUnavailable, match=says):
        get()
    assert not hub.asked("resolve")


def test_a_pattern_for_safetensors_is_told(hub: FakeHub) -> None:
    hub.add(REPO, folder_files())
    with pytest.raises(ModelUnavailable, match="no GGUF files"):
        get("org/name:Q4_K_M")


@pytest.mark.parametrize(
    "path", ["../../evil.gguf", "/evil.gguf", "a/../../evil.gguf", "..\\e.gguf"]
)
def test_a_hostile_hub_writes_nowhere_else(hub: FakeHub, tmp_path: Path, path: str) -> None:
    hub.add(REPO, {path: content(3000)})
    with pytest.raises(ModelUnavailable, match="has no model"):
        get()
    assert not list(tmp_path.rglob("*evil*"))


def test_a_model_is_looked_at_before_its_weights_are_fetched(hub: FakeHub) -> None:
    hub.add(REPO, folder_files())
    seen: list[list[str]] = []

    def refuse(folder: Path) -> None:
        seen.append(names(folder))
        raise ModelUnavailable("no such architecture")

    name = parse_hub_name(REPO)
    assert name is not None
    with pytest.raises(ModelUnavailable, match="no such architecture"):
        find(name, check=refuse)
    assert seen == [["chat_template.jinja", "config.json", "tokenizer.json"]]
    assert not hub.asked("content")


def test_large_files_are_left_to_the_library_beyond_its_limit(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as can be seen here: they get to the same place."""
    monkeypatch.setattr(models_hub, "SMALL", 2000)
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 2500)
    hub.add(REPO, {"a.gguf": content(2400)})
    assert get().path.read_bytes() == content(2400)
    hub.add("org/other", {"b.gguf": content(2600)})
    with pytest.raises(ModelUnavailable, match="too large"):
        get("org/other")


def test_the_cached_blob_has_the_hash_as_its_name(hub: FakeHub) -> None:
    hub.add(REPO, gguf_files("Q8_0"))
    blob = get().path.resolve()
    assert blob.name == hashlib.sha256(blob.read_bytes()).hexdigest()
    name = parse_hub_name(REPO)
    assert name is not None
    assert cached(name) is not None
