"""Test fetching models and adapters for vLLM, from stores and from a fake of the Hugging Face hub."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.cluster.model_fetch import FetchedFiles, fetch_model_files
from tests.charts.test_agent_chart import merge, of_kind, render, values_of
from tests.cluster.conftest import STORE, overwrite, publish_adapter
from tests.conftest import CommandResult
from tests.errors import raises
from tests.http_server import run_server
from tests.waiting import wait_until

COMMIT = "c" * 40
FILES = {
    "config.json": b'{"model_type": "qwen2"}',
    "tokenizer/vocab [1].json": b"{}",
    "model.safetensors": b"\x00" * 5000,
    "pytorch_model.bin": b"\x01" * 5000,
}
LARGE = ("model.safetensors", "pytorch_model.bin")
"""Files that the hub keeps outside of git, and names by their SHA-256."""


def uri_of(store: Store, version: str) -> str:
    """Return the URI of an adapter's files, as `gumshoe artifacts show` prints it."""
    manifest = store.manifest(f"adapters/{version}")
    return f"{store.uri}/{manifest.reference}/{manifest.data}/"


def test_an_adapter_is_verified_against_its_manifest(store: Store, tmp_path: Path) -> None:
    weights = publish_adapter(store, tmp_path, "v1")
    place = tmp_path / "lora" / "v1"
    assert fetch_model_files(uri_of(store, "v1"), place, STORE) == FetchedFiles(files=2, verified=2)
    assert (place / "adapter_model.safetensors").read_bytes() == weights
    (place / "adapter_model.safetensors").write_bytes(b"damaged")
    fetch_model_files(uri_of(store, "v1"), place, STORE)
    assert (place / "adapter_model.safetensors").read_bytes() == weights


def test_a_damaged_adapter_and_a_uri_of_other_content_are_refused(store: Store, tmp_path: Path) -> None:
    publish_adapter(store, tmp_path, "v1")
    uri = uri_of(store, "v1")
    with raises("model-fetch.other-content", "adapters/v1"):
        fetch_model_files(re.sub(r"sha256-[0-9a-f]+", "sha256-00", uri), tmp_path / "other", STORE)
    key = f"{uri.removeprefix(store.uri + '/')}adapter_model.safetensors"
    overwrite(store, key, b"v2" * 1000, tmp_path)
    with raises("artifacts.damaged-in-store", "adapter_model.safetensors"):
        fetch_model_files(uri, tmp_path / "damaged", STORE)
    assert not (tmp_path / "damaged").exists()


def test_a_folder_without_a_manifest_is_copied(store: Store, tmp_path: Path) -> None:
    for name in ("models/base/config.json", "models/base/part/model.safetensors", "models/base-2/config.json"):
        overwrite(store, name, name.encode(), tmp_path)
    place = tmp_path / "base"
    assert fetch_model_files(f"{store.uri}/models/base", place, STORE) == FetchedFiles(files=2, verified=0)
    found = {path.relative_to(place).as_posix(): path.read_text() for path in place.rglob("*") if path.is_file()}
    assert found == {name: f"models/base/{name}" for name in ("config.json", "part/model.safetensors")}
    with raises("store.not-found", "models/none"):
        fetch_model_files(f"{store.uri}/models/none", place, STORE)


def test_a_name_that_leads_out_of_the_directory_is_refused(s3_bucket: str, tmp_path: Path) -> None:
    overwrite(Store(f"s3://{s3_bucket}"), "base/../../out.json", b"{}", tmp_path)
    with raises("model-fetch.unsafe-name", "../../out.json"):
        fetch_model_files(f"s3://{s3_bucket}/base", tmp_path / "a" / "b", STORE)
    assert not list(tmp_path.rglob("out.json"))


class _Hub(BaseHTTPRequestHandler):
    """The part of the hub's API through which a repository is downloaded."""

    received: ClassVar[list[tuple[str, str | None]]] = []
    """Path and token of each request."""
    changed: ClassVar[dict[str, bytes]] = {}
    """Files that arrive with other content than stated."""
    is_failing: ClassVar[bool] = False
    stopped: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        self.received.append((self.path, self.headers["Authorization"]))
        api = re.fullmatch(
            r"/api/models/(?P<name>acme/\w+)(/(?P<list>revision|tree)/(?P<revision>\w+))?(\?.*)?", self.path
        )
        name = api["name"] if api else "/".join(self.path.split("/")[1:3])
        if name == "acme/silent":
            self.stopped.wait()
        if self.is_failing or (name == "acme/gated" and self.headers["Authorization"] != "Bearer hf_secret"):
            self._answer(503 if self.is_failing else 403, b"{}")
        elif name not in ("acme/base", "acme/gated") or (api and api["revision"] not in (None, "v2", COMMIT)):
            code = "RevisionNotFound" if api and api["revision"] else "RepoNotFound"
            self._answer(404, b"{}", {"X-Error-Code": code})
        elif api and api["list"] == "tree":
            self._answer(200, json.dumps([_list_file(each) for each in FILES]).encode())
        elif api:
            self._answer(200, json.dumps({"id": name, "sha": COMMIT, "siblings": list(map(_describe, FILES))}).encode())
        else:
            file = self.path.partition(f"/resolve/{COMMIT}/")[2].replace("%20", " ")
            file = file.replace("%5B", "[").replace("%5D", "]")
            etag = _describe(file)["lfs"]["sha256"] if file in LARGE else _describe(file)["blobId"]
            self._answer(200, self.changed.get(file, FILES[file]), {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'})

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        with suppress(ConnectionError):  # of a client that was ended
            self.end_headers()
            self.wfile.write(body if self.command == "GET" else b"")

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def _describe(name: str) -> dict[str, Any]:
    """Return the description of a file as the hub's API gives it."""
    content = FILES[name]
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    digest = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return {"rfilename": name, "size": len(content), "blobId": blob} | ({"lfs": digest} if name in LARGE else {})


def _list_file(name: str) -> dict[str, Any]:
    """Return the entry of a file in the hub's list of a directory tree."""
    found = _describe(name)
    large = {"lfs": {**found["lfs"], "oid": found["lfs"]["sha256"]}} if name in LARGE else {}
    return {"type": "file", "path": name, "size": found["size"], "oid": found["blobId"], **large}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the address of a fake hub."""
    monkeypatch.setattr(_Hub, "received", [])
    monkeypatch.setattr(_Hub, "changed", {})
    monkeypatch.setattr(_Hub, "stopped", threading.Event())
    with run_server(ThreadingHTTPServer(("127.0.0.1", 0), _Hub)) as address:
        try:
            yield address
        finally:
            _Hub.stopped.set()


@contextmanager
def failing() -> Iterator[None]:
    _Hub.is_failing = True
    try:
        yield
    finally:
        _Hub.is_failing = False


@pytest.fixture
def fetch(hub: str, gumshoe: Callable[..., CommandResult], tmp_path: Path) -> Callable[..., CommandResult]:
    """Return a function that fetches from the hub. Its library reads its settings on import: a process for each."""
    settings = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
    return lambda *arguments, **more: gumshoe("model-fetch", *arguments, env={**settings, "HF_TOKEN": "", **more})


def test_a_model_of_the_hub_is_fetched_and_verified(fetch: Callable[..., CommandResult], tmp_path: Path) -> None:
    place = tmp_path / "base"
    done = fetch(f"hf://acme/gated:v2={place}", HF_TOKEN="hf_secret")
    assert (done.status, "3 files, 3 verified" in done.out) == (0, True), done.err
    found = {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert found == {name: content for name, content in FILES.items() if not name.endswith(".bin")}
    assert {token for path, token in _Hub.received if "acme" in path} == {"Bearer hf_secret"}


@pytest.mark.ci
def test_a_file_that_differs_from_the_hub_s_digest_is_refused(
    fetch: Callable[..., CommandResult], tmp_path: Path
) -> None:
    for name in ("model.safetensors", "config.json"):
        _Hub.changed = {name: bytes(reversed(FILES[name][:-1])) + b"x"}
        done = fetch(f"hf://acme/base={tmp_path / name}")
        assert (done.status, done.code, name in done.err) == (1, "model-fetch.damaged", True)
        assert not (tmp_path / name / name).exists()


@pytest.mark.ci
def test_refusals_and_failures_of_the_hub_are_told_apart(fetch: Callable[..., CommandResult], tmp_path: Path) -> None:
    results = [
        fetch(f"hf://acme/gated={tmp_path / 'a'}"),
        fetch(f"hf://acme/missing={tmp_path / 'a'}"),
        fetch(f"hf://acme/base:v9={tmp_path / 'a'}"),
        fetch(f"hf://acme/base/models={tmp_path / 'a'}"),
        fetch(f"hf://acme/base={tmp_path / 'a'}", HF_HUB_OFFLINE="1"),
        fetch(f"hf://acme/base={tmp_path / 'a'}", HF_ENDPOINT="http://127.0.0.1:9"),
        fetch("hf://acme/base"),
    ]
    with failing():
        results.append(fetch(f"hf://acme/base={tmp_path / 'a'}"))
    assert [(each.status, each.code) for each in results] == [
        (2, "model-fetch.access-denied"),
        (2, "model-fetch.not-found"),
        (2, "model-fetch.not-found"),
        (2, "model-fetch.not-found"),
        (2, "model-fetch.offline"),
        (75, "model-fetch.hub-unavailable"),
        (2, "model-fetch.invalid-argument"),
        (75, "model-fetch.hub-unavailable"),
    ]


def test_a_fetch_ends_at_once_on_sigterm(hub: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "NO_PROXY": "*"}
    command = [sys.executable, "-m", "gumshoe", "model-fetch", f"hf://acme/silent={tmp_path / 'a'}"]
    with subprocess.Popen(command, env=environment) as process:
        wait_until(lambda: any("acme/silent" in path for path, _ in _Hub.received))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


@pytest.mark.ci
def test_the_chart_s_init_container_fetches_what_vllm_loads(
    s3_bucket: str, s3_server: str, gumshoe: Callable[..., CommandResult], tmp_path: Path
) -> None:
    """Run the container as the chart renders it, with a directory in place of its volume."""
    store = Store(f"s3://{s3_bucket}/project", STORE)
    weights = publish_adapter(store, tmp_path, "v1")
    overwrite(Store(f"s3://{s3_bucket}", STORE), "models/base/config.json", b"{}", tmp_path)
    changes = {
        "model": {"uri": f"s3://{s3_bucket}/models/base"},
        "adapter": {"name": "v1", "uri": uri_of(store, "v1")},
        "serving": {"storage": {"endpoint": s3_server.removeprefix("http://"), "https": False, "region": "us-east-1"}},
    }
    predictor = of_kind(render(merge(values_of("standard"), changes)), "InferenceService")["spec"]["predictor"]
    (container,) = predictor["initContainers"]
    volume = tmp_path / "volume"
    arguments = [argument.replace("=/files/", f"={volume}/") for argument in container["args"]]
    settings = {each["name"]: each["value"] for each in container["env"] if each["name"].startswith("AWS_")}
    done = gumshoe(*container["command"][1:], *arguments, env=settings)
    assert done.status == 0, done.err
    files = {each["mountPath"]: volume / each["subPath"] for each in predictor["model"]["volumeMounts"]}
    assert (files["/mnt/models"] / "config.json").read_bytes() == b"{}"
    assert (files["/mnt/lora/v1"] / "adapter_model.safetensors").read_bytes() == weights
