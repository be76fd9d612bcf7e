"""Test that web pages of other sites, and clients with false host names, cannot use the server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import CommandResult
from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import (
    ANN,
    SECRET,
    AgentProcess,
    ServerClient,
    ServerFiles,
    code_of,
    question_body,
    start_server,
)
from tests.serving.in_process import make_settings, model_settings, serve_in_thread

HOST, ORIGIN, CLIENT = "serving.host-not-allowed", "serving.origin-not-allowed", "serving.client-not-local"
EVIL = "https://evil.example"
MCP_CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
MCP_KINDS = {"Accept": "application/json, text/event-stream"}
POSTS: dict[str, dict[str, Any]] = {
    "/invoke": question_body(),
    "/invoke/stream": question_body(),
    "/source": {"source_id": "<7@example.com>", "inbox_address": ANN, "query_date": "2001-06-01"},
    "/feedback": question_body() | {"answer": "x", "right": False},
    "/mcp": MCP_CALL,
}


def check(headers: dict[str, str], client: str = "127.0.0.1", method: str = "POST", **access: Any) -> str:
    """Return the code with which a request is refused; empty if it is allowed."""
    from starlette.datastructures import Headers

    from gumshoe.serving.access_settings import AccessSettings
    from gumshoe.serving.browser_checks import check_browser
    from gumshoe.serving.errors import RefusedRequestError

    is_public = access.pop("is_public", False)
    scope = {"type": "http", "method": method, "client": (client, 5000)}
    given = AccessSettings(**({"open": True} if not access.keys() & {"open", "keys"} else {}), **access)
    try:
        check_browser(scope, Headers(headers), given, is_public=is_public)
    except RefusedRequestError as error:
        return error.code
    return ""


LOCAL = {"host": "localhost:8000"}


@pytest.mark.parametrize(
    ("host", "client", "code"),
    [
        ("localhost:8000", "127.0.0.1", ""),
        ("LOCALHOST", "127.3.2.1", ""),
        ("127.0.0.1:8000", "127.0.0.1", ""),
        ("[::1]:8000", "::1", ""),
        ("localhost", "::ffff:127.0.0.1", ""),
        ("localhost", "10.0.0.7", CLIENT),
        ("localhost", "::ffff:10.0.0.7", CLIENT),
        ("localhost", "2001:db8::1", CLIENT),
        ("localhost", "fe80::1%eth0", CLIENT),
        ("localhost", "", CLIENT),
        ("evil.example", "127.0.0.1", HOST),
        ("localhost.evil.example", "127.0.0.1", HOST),
        ("127.0.0.1.evil.example", "127.0.0.1", HOST),
        ("localhost:8000:1", "127.0.0.1", HOST),
        ("localhost ", "127.0.0.1", HOST),
        ("", "127.0.0.1", HOST),
    ],
)
def test_open_access_is_for_local_names_and_local_clients(host: str, client: str, code: str) -> None:
    assert check({"host": host}, client) == code


def test_hosts_that_the_operator_names_are_allowed_for_all_clients() -> None:
    named: dict[str, Any] = {"allowed_hosts": ["Agent.example", "[2001:DB8::1]"]}
    assert check({"host": "agent.example:80"}, "10.0.0.7", **named) == ""
    assert check({"host": "[2001:db8::1]:80"}, "10.0.0.7", **named) == ""
    assert check({"host": "localhost"}, "127.0.0.1", **named) == ""
    assert check({"host": "localhost"}, "10.0.0.7", **named) == CLIENT
    assert check({"host": "evil.example"}, "127.0.0.1", **named) == HOST
    with_keys: dict[str, Any] = {"keys": "keys.yaml", **named}
    assert check({"host": "agent.example"}, "10.0.0.7", **with_keys) == ""
    assert check({"host": "localhost"}, "127.0.0.1", **with_keys) == HOST
    assert check({"host": "anything.example"}, "10.0.0.7", keys="keys.yaml") == ""


@pytest.mark.parametrize(
    ("origin", "host", "code"),
    [
        ("http://localhost:8000", "localhost:8000", ""),
        ("http://LOCALHOST:8000", "localhost:8000", ""),
        ("http://localhost", "localhost", ""),
        ("http://localhost:80", "localhost", ""),
        ("https://localhost", "localhost:443", ""),
        ("https://localhost", "localhost", ""),
        ("http://[::1]:8000", "[::1]:8000", ""),
        ("http://localhost:8001", "localhost:8000", ORIGIN),
        ("http://127.0.0.1:8000", "localhost:8000", ORIGIN),
        ("http://localhost", "localhost:8000", ORIGIN),
        ("http://localhost:8000.evil.example", "localhost:8000", ORIGIN),
        ("http://localhost:8000@evil.example", "localhost:8000", ORIGIN),
        ("http://evil.example/localhost:8000", "localhost:8000", ORIGIN),
        ("http://localhost:8000/", "localhost:8000", ORIGIN),
        ("file://localhost:8000", "localhost:8000", ORIGIN),
        ("localhost:8000", "localhost:8000", ORIGIN),
        ("null", "localhost:8000", ORIGIN),
        ("", "localhost:8000", ORIGIN),
        (EVIL, "localhost:8000", ORIGIN),
    ],
)
def test_an_origin_must_be_the_server_itself(origin: str, host: str, code: str) -> None:
    assert check({"host": host, "origin": origin}) == code
    assert check({"host": host, "origin": origin}, keys="keys.yaml") == code


def test_origins_that_the_operator_allows() -> None:
    page = "https://tools.example:8443"
    allowed: dict[str, Any] = {"allowed_origins": [page]}
    assert check({**LOCAL, "origin": page}, **allowed) == ""
    assert check({**LOCAL, "origin": page, "sec-fetch-site": "cross-site"}, **allowed) == ""
    for other in ("https://tools.example", "http://tools.example:8443", f"{page}.evil.example", EVIL):
        assert check({**LOCAL, "origin": other}, **allowed) == ORIGIN
    assert check({**LOCAL, "sec-fetch-site": "cross-site"}, **allowed) == ORIGIN


@pytest.mark.parametrize(
    ("site", "code"),
    [("same-origin", ""), ("none", ""), ("same-site", ORIGIN), ("cross-site", ORIGIN), ("Cross-Site", ORIGIN)],
)
def test_the_site_of_a_request_must_be_the_server(site: str, code: str) -> None:
    for method in ("GET", "POST"):
        assert check({**LOCAL, "sec-fetch-site": site}, method=method) == code
    assert check({**LOCAL, "sec-fetch-site": site}, method="GET", is_public=True) == "", "a link on another site"
    assert check({**LOCAL, "sec-fetch-site": site}, method="POST", is_public=True) == code


def send(server: ServerClient, path: str, **headers: str) -> httpx.Response:
    return server.client.post(path, json=POSTS[path], headers={**MCP_KINDS, **headers})


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("kind", ["open", "keys"])
def test_a_page_of_another_site_is_refused(
    kind: str, path: str, server: AgentProcess, server_with_key: AgentProcess
) -> None:
    used = server if kind == "open" else server_with_key
    for headers in ({"Origin": EVIL}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        response = send(used, path, **headers)
        assert (response.status_code, code_of(response)) == (403, ORIGIN)
        assert "access-control-allow-origin" not in response.headers
    assert send(used, path, Origin=used.url, **{"Sec-Fetch-Site": "same-origin"}).status_code != 403
    preflight = used.client.options(path, headers={"Origin": EVIL, "Access-Control-Request-Method": "POST"})
    assert not any(name.startswith("access-control") for name in preflight.headers)


@pytest.mark.parametrize("path", POSTS)
def test_a_rebound_name_is_refused(path: str, server: AgentProcess) -> None:
    response = send(server, path, Host="evil.example:8000", Origin="http://evil.example:8000")
    assert (response.status_code, code_of(response)) == (421, HOST)


def test_an_allowed_page_can_use_the_server(place: ServerFiles, model: FakeVLLM) -> None:
    page = "https://tools.example"
    access = {"open": True, "allowed_origins": [page]}
    with serve_in_thread(make_settings(place, model=model_settings(place, model.address), access=access)) as server:
        asked = {
            "Origin": page,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,mcp-method,mcp-name,mcp-protocol-version",
        }
        preflight = server.client.options("/mcp", headers=asked)
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, page)
        assert "access-control-allow-credentials" not in preflight.headers
        assert server.client.options("/mcp", headers={**asked, "Origin": EVIL}).status_code == 400
        for path in POSTS:
            answered = send(server, path, Origin=page, **{"Sec-Fetch-Site": "cross-site"})
            assert code_of(answered) != ORIGIN if answered.is_error else answered.is_success
            assert answered.headers["access-control-allow-origin"] == page
            assert send(server, path, Origin=EVIL).status_code == 403


def test_the_mcp_server_checks_hosts_and_origins_itself(server: AgentProcess) -> None:
    from gumshoe.serving.access_settings import AccessSettings
    from gumshoe.serving.browser_checks import transport_security

    opened = transport_security(AccessSettings(open=True))
    assert opened.enable_dns_rebinding_protection
    assert "localhost:*" in opened.allowed_hosts
    named = transport_security(AccessSettings(keys=Path("keys"), allowed_hosts=("agent.example",)))
    assert (named.enable_dns_rebinding_protection, named.allowed_hosts) == (True, ["agent.example", "agent.example:*"])
    assert send(server, "/mcp").is_success
    assert send(server, "/mcp", Origin=server.url).is_success


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "agent.example", ""])
def test_open_access_to_the_network_needs_a_decision_and_names(
    host: str, run: Callable[..., CommandResult], tmp_path: Path
) -> None:
    words = ["serve", "--index", tmp_path, "--policy", "chat:x", "--open", "--port", 0, "--host", host]
    ran = run(*words)
    assert (ran.status, ran.code) == (2, "serving.open-to-network"), ran.err
    for value in (host, "--keys", "--i-know"):
        assert value in ran.err
    ran = run(*words, "--i-know")
    assert (ran.status, ran.code) == (2, "serving.hosts-not-named"), ran.err
    assert "access.allowed_hosts" in ran.err


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("allowed_origins", "*"),
        ("allowed_origins", "https://page.example/"),
        ("allowed_origins", "page.example"),
        ("allowed_origins", "https://Page.example"),
        ("allowed_hosts", "*"),
        ("allowed_hosts", "agent.example:8000"),
        ("allowed_hosts", "https://agent.example"),
    ],
)
def test_a_malformed_host_or_origin_is_named(
    setting: str, value: str, run: Callable[..., CommandResult], tmp_path: Path
) -> None:
    words = ["--policy", "chat:x", "--open", "--set", f"access.{setting}=['{value}']"]
    ran = run("serve", "--index", tmp_path, *words)
    assert (ran.status, ran.code) == (2, "serving.invalid-settings"), ran.err
    assert f"access.{setting}" in ran.err


def test_a_server_that_is_open_to_the_network_answers_under_its_names(
    place: ServerFiles, model: FakeVLLM, tmp_path: Path
) -> None:
    words = ["--open", "--host", "0.0.0.0", "--i-know", "--set", "access.allowed_hosts=[agent.example]"]
    with start_server(place, f"vllm:{model.address}#adapter", tmp_path / "log", *words) as server:
        assert send(server, "/invoke", Host="agent.example").status_code == 200
        assert send(server, "/invoke", Host="localhost").status_code == 200, "from this machine"
        for host in ("evil.example", "0.0.0.0", "10.0.0.7"):
            response = send(server, "/invoke", Host=host)
            assert (response.status_code, code_of(response)) == (421, HOST)
            assert SECRET not in response.text
