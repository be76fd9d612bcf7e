"""Test the middleware of vLLM servers: who may ask, and which adapters are loaded."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from gumshoe.artifacts.store import Store
from gumshoe.inference.http_options import http_options
from gumshoe.inference.vllm_access import AccessControl
from gumshoe.inference.vllm_policy import VLLMPolicy
from gumshoe.inference.vllm_server import check_server, load_adapter
from tests.errors import raises
from tests.http_server import open_socket

KEY = "k3y-of-this-run-0123456789abcdef"
ROUTES = [
    "/v1/models",
    "/v1/completions",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/tokenize",
    "/pause",
    "/collective_rpc",
    "/invocations",
    "/adapters",
    "/inference/v1/generate",
    "/docs",
    "/openapi.json",
]
Make = Callable[..., TestClient]


async def _answer(request: Request) -> JSONResponse:
    return JSONResponse({"path": request.url.path, "body": (await request.body()).decode()})


async def _talk(opened: WebSocket) -> None:
    await opened.accept()
    await opened.send_text("open")


@contextmanager
def serve_asgi(app: Any) -> Iterator[str]:
    """Serve an application over a real socket while the block runs, and yield its address."""
    with open_socket() as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=asyncio.run, args=(server.serve([listening]),))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that returns a client of an application behind the middleware."""

    def build(
        key: str = "", directories: list[Path] | None = None, *, verify: bool = False, root: str = ""
    ) -> TestClient:
        monkeypatch.setenv("VLLM_API_KEY", key)
        if directories is not None:
            monkeypatch.setenv("GUMSHOE_ADAPTER_DIRECTORIES", json.dumps(list(map(str, directories))))
        if verify:
            monkeypatch.setenv("GUMSHOE_VERIFY_ADAPTERS", "1")
        methods = ["GET", "POST", "DELETE", "OPTIONS", "HEAD", "PUT"]
        app = Starlette(
            routes=[
                WebSocketRoute("/v1/realtime", _talk),
                Route("/{path:path}", _answer, methods=methods),
            ]
        )
        return TestClient(AccessControl(app), base_url="http://vllm", root_path=root)

    return build


def _load(client: TestClient, name: str, path: Path | str, **more: Any) -> int:
    return client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path), **more}).status_code


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE", "HEAD"])
def test_no_route_is_open_without_the_key(make: Make, route: str, method: str) -> None:
    client = make(KEY)
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": "Bearer "},
        {"X-Api-Key": KEY},
    ):
        assert client.request(method, route, headers=headers).status_code == 401
    assert client.request(method, f"{route}/", headers={}).status_code == 401
    assert client.request(method, f"/health/..{route}", headers={}).status_code == 401
    assert client.request(method, f"{route}?token={KEY}").status_code == 401


def test_two_authorization_headers_are_refused(make: Make) -> None:
    headers = [("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {KEY}")]
    assert make(KEY).get("/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize("route", ["/health", "/metrics", "/metrics/"])
def test_probes_and_prometheus_need_no_key(make: Make, route: str) -> None:
    client = make(KEY)
    assert client.get(route).status_code == 200
    assert client.post(route).status_code == 401
    assert make(KEY, root="/prefix").get(f"{route}x").status_code == 401


def test_the_key_opens_the_api_and_an_unset_key_does_too(make: Make) -> None:
    headers = {"Authorization": f"bearer {KEY}"}
    assert make(KEY).post("/v1/completions", json={"a": 1}, headers=headers).json()["body"] == '{"a":1}'
    assert make().post("/v1/completions", json={"a": 1}).status_code == 200


def test_a_websocket_needs_the_key(make: Make) -> None:
    client = make(KEY)
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime"):
        pass
    with client.websocket_connect("/v1/realtime", headers={"Authorization": f"Bearer {KEY}"}) as opened:
        assert opened.receive_text() == "open"


def test_adapters_are_loaded_from_the_directory_of_the_run_only(make: Make, tmp_path: Path) -> None:
    own, other = tmp_path / "adapters", tmp_path / "adapters-of-others"
    for each in (own / "r1-1-policy-2", other / "r1-1-policy-2"):
        each.mkdir(parents=True)
    (own / "link").symlink_to(other / "r1-1-policy-2")
    (own / "r1-1-policy-2" / "nested").mkdir()
    client = make(directories=[own])
    assert _load(client, "r1-1-policy-2", own / "r1-1-policy-2") == 200
    refused: dict[str, Path | str] = {
        "another name": own / "r1-1-policy-2",
        "r1-1-policy-2": other / "r1-1-policy-2",
        "link": own / "link",
        "nested": own / "r1-1-policy-2" / "nested",
        "adapters": own / "..",
        "missing": own / "missing",
        "somebody": "somebody/adapter-on-the-hub",
        "": "",
    }
    for name, path in refused.items():
        assert _load(client, name, path) == 403, (name, path)
    assert _load(client, "r1-1-policy-2", f"{own}/../adapters-of-others/r1-1-policy-2") == 403
    assert _load(client, "r1-1-policy-2", own / "r1-1-policy-2", load_inplace=True) == 403
    assert _load(make(directories=[]), "r1-1-policy-2", own / "r1-1-policy-2") == 403, "a server without adapters"
    assert _load(make(directories=[own / "r1-1-policy-2"]), "any", own / "r1-1-policy-2") == 200, "one adapter"


def test_the_body_reaches_vllm_as_it_was_checked(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    client = make(directories=[tmp_path])
    body = json.dumps({"lora_name": "a", "lora_path": str(tmp_path / "a")}, indent=3)
    assert client.post("/v1/load_lora_adapter", content=body).json()["body"] == body
    twice = f'{{"lora_name": "a", "lora_path": "{tmp_path}/a", "lora_path": "/etc"}}'
    assert client.post("/v1/load_lora_adapter", content=twice).status_code == 403, "vLLM reads the last one"
    places = [json.dumps({"lora_name": "a", "lora_path": each}) for each in ("/a\0", "/\ud800", f"/{'a' * 9_000}")]
    for wrong in ("", "[]", '"x"', "{", '{"lora_name": 1, "lora_path": []}', "\x00", "[" * 60_000, *places):
        assert client.post("/v1/load_lora_adapter", content=wrong).status_code == 403
    assert client.post("/v1/load_lora_adapter", content=b" " * 70_000).status_code == 413
    assert client.post("/v1/load_lora_adapter/", content=twice).status_code == 403


@pytest.mark.parametrize(
    ("method", "route"), [("POST", "/adapters"), ("DELETE", "/adapters/a"), ("POST", "/adapters/")]
)
def test_the_second_way_to_load_adapters_is_closed(make: Make, method: str, route: str) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    assert make(KEY).request(method, route, json={"name": "a", "src": "/x"}, headers=headers).status_code == 403


@pytest.mark.parametrize("end", ["", "%0a", "%0A", "/%0a", "%0d", "%00", "%e2%80%8b"])
@pytest.mark.parametrize("route", ["/v1/load_lora_adapter", "/adapters"])
def test_no_spelling_of_a_path_evades_the_rules(monkeypatch: pytest.MonkeyPatch, route: str, end: str) -> None:
    monkeypatch.setenv("GUMSHOE_ADAPTER_DIRECTORIES", "[]")
    app = AccessControl(Starlette(routes=[Route(route, _answer, methods=["POST"])]))
    with serve_asgi(app) as url:
        for path in (route, f"/{route}", route.replace("/", "/./"), route.replace("_", "%5f"), route.upper()):
            answer = httpx.post(f"{url}{path}{end}", json={"lora_name": "a", "lora_path": "/etc"}, trust_env=False)
            assert answer.status_code in (400, 403, 404), path


def test_only_what_was_published_is_loaded(make: Make, tmp_path: Path) -> None:
    source, place = tmp_path / "made", tmp_path / "adapters" / "r1-1-policy-2"
    source.mkdir()
    (source / "adapter_config.json").write_text("{}")
    (source / "adapter_model.safetensors").write_bytes(b"weights")
    store = Store(f"file://{tmp_path}/store")
    store.publish(source, "adapters", "r1-1-policy-2")
    store.fetch("adapters/r1-1-policy-2", place)
    client = make(directories=[tmp_path / "adapters"], verify=True)
    assert _load(client, place.name, place) == 200
    (place / "adapter_model.safetensors").write_bytes(b"foreign")
    assert _load(client, place.name, place) == 403, "other bytes"
    renamed = place.rename(place.with_name("r1-1-policy-3"))
    assert _load(client, renamed.name, renamed) == 403, "another adapter under that name"
    (tmp_path / "adapters" / "bare").mkdir()
    assert _load(client, "bare", tmp_path / "adapters" / "bare") == 403, "no manifest"


def test_clients_send_the_key_and_name_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    models = {"data": [{"id": "base", "max_model_len": 4096}, {"id": "a", "root": str(tmp_path)}]}
    app = AccessControl(Starlette(routes=[Route("/v1/models", lambda _: JSONResponse(models))]))
    with serve_asgi(app) as url:
        check_server(url, 4096)

        async def check() -> None:
            async with VLLMPolicy([url], "base") as policy:
                await policy.check(4096)

        asyncio.run(check())
        assert httpx.get(f"{url}/v1/models", **http_options(url)).status_code == 200
        for key in ("", "another-key-of-another-run"):
            monkeypatch.setenv("VLLM_API_KEY", key)
            with raises("inference.server-key-rejected", "VLLM_API_KEY"):
                check_server(url, 4096)
            with raises("inference.server-key-rejected"):
                asyncio.run(check())
            with raises("inference.server-key-rejected"):
                load_adapter(url, "a", tmp_path, 5)
        monkeypatch.setenv("VLLM_API_KEY", "two words")
        with raises("inference.malformed-server-key"):
            http_options(url)
