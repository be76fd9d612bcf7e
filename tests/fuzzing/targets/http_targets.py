"""Targets: the HTTP service, in this process, asked as its OpenAPI description allows, and in ways that it does not."""

import asyncio
import base64
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import httpx
import jsonschema  # type: ignore[import-untyped]
from anyio.from_thread import start_blocking_portal
from hypothesis import strategies as st

from tests.fuzzing.byte_inputs import NASTY_BYTES, NASTY_TEXTS, damaged, json_values, texts
from tests.fuzzing.fuzz_target import Check, FuzzTarget
from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import ANN, ServerFiles, add_key, make_files, question_body
from tests.serving.in_process import make_settings, model_settings

_LIMITS = {"concurrency": 4, "queue": 4, "deadline": 20}
_MCP = "/mcp"
_HEADERS = [
    "content-type",
    "accept",
    "x-request-id",
    "traceparent",
    "authorization",
    "origin",
    "content-length",
    "cookie",
]
_VALUES = ("", "application/json", "text/html", "Bearer x", "-1", "1e9", "http://localhost")


@cache
def _describe(*, with_keys: bool) -> dict[str, Any]:
    """Return the OpenAPI description of a server. It depends on the settings alone."""
    from gumshoe.serving.app import create_app

    access = {"keys": "keys.yaml"} if with_keys else {"open": True}
    settings = make_settings(ServerFiles(Path("index"), Path("model")), access=access)
    return create_app(settings, cast(Any, None), cast(Any, None)).openapi()


def _encode(method: str, path: str, headers: list[list[str]], body: bytes) -> bytes:
    request = {"method": method, "path": path, "headers": headers, "body": base64.b64encode(body).decode()}
    return json.dumps(request).encode()


def _encode_case(case: Any) -> bytes:
    """Return a request that schemathesis made."""
    sent = case.as_transport_kwargs(base_url="http://localhost")
    request = httpx.Request(
        sent["method"], "http://localhost" + case.formatted_path, params=cast(Any, case.query or None)
    )
    body = sent.get("data", b"")
    if "json" in sent:
        body = json.dumps(sent["json"]).encode()
    headers = [[str(name), str(value)] for name, value in dict(sent.get("headers") or {}).items()]
    content = body if isinstance(body, bytes) else str(body).encode("utf-8", "replace")
    return _encode(case.method, request.url.raw_path.decode(), headers, content)


def _described_requests(api: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Return requests that the description allows, and some that it does not."""
    import schemathesis
    from schemathesis import GenerationMode

    schema = schemathesis.openapi.from_dict(api)
    found: list[st.SearchStrategy[bytes]] = []
    for operation in schema.get_all_operations():
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            found.append(cast(Any, operation).ok().as_strategy(generation_mode=mode).map(_encode_case))
    return st.one_of(found)


@st.composite
def _odd_requests(draw: st.DrawFn, paths: list[str]) -> bytes:
    """Return requests with odd bodies, headers and paths."""
    methods = st.sampled_from(["POST", "POST", "POST", "GET", "GET", "PUT", "HEAD", "OPTIONS", "PATCH", "X"])
    ends = st.sampled_from(["", "", "", "", "?a=%00", "?%ff=%ed%a0%80", "/", "//", "/%00", "/..%2f", "?" + "a&" * 50])
    fields = st.sampled_from(
        ["question", "inbox_address", "query_date", "samples", "request_id", "right_answer", "verdict"]
    )
    body = json.dumps(question_body() | draw(st.dictionaries(fields, json_values() | texts(), max_size=3))).encode()
    call = {"name": "search_inbox", "arguments": {"keywords": draw(st.lists(texts(), max_size=3)), "inbox": ANN}}
    rpc = {
        "jsonrpc": "2.0",
        "id": draw(json_values(3)),
        "method": "tools/call",
        "params": draw(st.just(call) | json_values()),
    }
    written = [body, json.dumps(rpc).encode(), b"", b"[" * 5000, b"null"]
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    plain = [each for each in NASTY_TEXTS if each.isascii() and each.isprintable()]
    headers |= draw(st.dictionaries(st.sampled_from(_HEADERS), st.sampled_from([*_VALUES, *plain]), max_size=2))
    path = draw(st.sampled_from([*paths, *[_MCP] * 4, "/nowhere"])) + draw(ends)
    return _encode(
        draw(methods), path, [list(each) for each in headers.items()], draw(damaged(written, NASTY_BYTES, 2))
    )


def _inputs(*, with_keys: bool) -> st.SearchStrategy[bytes]:
    api = _describe(with_keys=with_keys)
    described, odd = _described_requests(api), _odd_requests(list(api["paths"]))
    return st.booleans().flatmap(lambda is_odd: odd if is_odd else described)


@asynccontextmanager
async def _open_app(place: ServerFiles, address: str, access: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    from gumshoe.environments.registry import open_env
    from gumshoe.serving.server import open_server

    settings = make_settings(place, model=model_settings(place, address), limits=_LIMITS, access=access)
    async with open_server(settings, open_env(place.index)) as (config, _):
        transport = httpx.ASGITransport(cast(Any, config.app), client=("127.0.0.1", 50_000))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            while (await client.get("/readyz")).status_code != 200:  # the model is looked for in the background
                await asyncio.sleep(0.05)
            yield client


def _opener(*, with_keys: bool) -> Callable[[], AbstractContextManager[Check]]:
    @contextmanager
    def prepare() -> Iterator[Check]:
        api = _describe(with_keys=with_keys)
        with tempfile.TemporaryDirectory() as name, FakeVLLM(models=("base", "adapter", "next")) as model:
            place, keys = make_files(Path(name)), Path(name) / "keys.yaml"
            key = add_key(keys, "ann", [ANN])
            access: dict[str, Any] = {"keys": str(keys)} if with_keys else {"open": True}
            with (
                start_blocking_portal() as portal,
                portal.wrap_async_context_manager(_open_app(place, model.address, access)) as client,
            ):
                yield lambda data: _check_request(data, api, key if with_keys else None, client, portal.call)

    return prepare


def _check_request(
    data: bytes, api: dict[str, Any], key: str | None, client: httpx.AsyncClient, call: Callable[..., httpx.Response]
) -> None:
    """Send a request, with and without a key, and check that the response is one that the description has."""
    try:
        fields = json.loads(data)
        headers = {str(name).lower(): str(value) for name, value in fields["headers"]}
        body = base64.b64decode(fields["body"])
        request = client.build_request(str(fields["method"]), str(fields["path"]), headers=headers, content=body)
    except (ValueError, TypeError, KeyError, RecursionError, httpx.InvalidURL, UnicodeError):
        return
    _check_response(api, request, call(client.send, request))
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
        request = client.build_request(str(fields["method"]), str(fields["path"]), headers=headers, content=body)
        _check_response(api, request, call(client.send, request))


def _check_response(api: dict[str, Any], request: httpx.Request, response: httpx.Response) -> None:
    """Check status, media type and schema. Requests for which there is no operation get problems alone."""
    shown = f"{request.method} {request.url.raw_path!r}: {response.status_code} {response.text[:500]}"
    operation = api["paths"].get(request.url.path, {}).get(request.method.lower())
    media_type = response.headers.get("content-type", "").partition(";")[0]
    assert response.status_code < 500 or (operation and str(response.status_code) in operation["responses"]), shown
    if operation is None or response.status_code in (307, 405):
        if request.url.path != _MCP and response.status_code >= 400 and request.method != "HEAD":
            assert media_type == "application/problem+json", shown
            _validate(api, {"$ref": "#/components/schemas/Problem"}, response.json())
        return
    described = operation["responses"].get(str(response.status_code))
    assert described, shown
    assert media_type in described["content"], shown
    if media_type.endswith("json"):
        _validate(api, described["content"][media_type].get("schema", {}), response.json())


def _validate(api: dict[str, Any], schema: dict[str, Any], value: object) -> None:
    jsonschema.Draft202012Validator({**schema, "components": api["components"]}).validate(value)


HTTP_TARGETS = (
    FuzzTarget("http-open", lambda: _inputs(with_keys=False), _opener(with_keys=False), 40, is_slow=True),
    FuzzTarget("http-keys", lambda: _inputs(with_keys=True), _opener(with_keys=True), 40, is_slow=True),
)
