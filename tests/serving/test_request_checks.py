"""Test over real sockets that no text and no header of a request makes the server fail."""

import http.client
import json
import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gumshoe.error_codes import load_error_codes
from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import ANN, DAY, ServerClient, ServerFiles, add_key
from tests.serving.in_process import make_settings, model_settings, serve_in_thread

INVALID, MALFORMED = "serving.invalid-request", "serving.malformed-request"
CODES = load_error_codes()
_LOG = "gumshoe.serving.errors"  # logs unexpected errors

BAD_TEXTS = {
    "high surrogate": '"\\ud800"',
    "low surrogate": '"a\\udfffb"',
    "swapped surrogates": '"\\ude00\\ud83d"',
    "NUL": '"a\\u0000b"',
    "surrogate in upper case": '"\\uD83D x"',
}
"""Text that cannot be stored, in JSON."""
ODD_TEXTS = {
    "emoji": '"\\ud83d\\ude00"',
    "backslash": '"\\\\ud800"',
    "escape": '"\\u001b[31m"',
    "direction": '"\\u202e\\u2066"',
    "not a character": '"\\uffff\\ufdd0"',
    "byte order mark": '"\\ufeff"',
    "line separator": '"\\u2028"',
    "combining": '"' + "\u0301" * 300 + '"',
    "quotes": '"\\" OR 1=1 -- \' NEAR( * ^ : {}"',
    "long": '"' + "x" * 50_000 + '"',
    "many lines": '"' + "\\n" * 5_000 + '"',
}
"""Text that can be stored, and is refused or answered, but is not an error of the server."""
MCP = "tools/call"

QUESTION = {"question": "What is in 7?", "inbox_address": ANN, "query_date": DAY}
FEEDBACK = {**QUESTION, "answer": "4711", "right": True, "source_ids": ["<7@example.com>"]}
ROUTES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "/invoke": ({**QUESTION, "session_id": "s"}, ("question", "inbox_address", "query_date", "session_id", "steps")),
    "/invoke/stream": (QUESTION, ("question", "inbox_address")),
    "/source": ({"source_id": "<7@example.com>", "inbox_address": ANN}, ("source_id", "inbox_address", "query_date")),
    "/feedback": ({**FEEDBACK, "right_answer": "4711"}, ("question", "answer", "source_ids", "right_answer")),
}
TOOLS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "search_inbox": ({"keywords": ["a"], "inbox_address": ANN}, ("keywords", "sender", "sent_after", "inbox_address")),
    "read_email": ({"message_id": "<7@example.com>", "inbox_address": ANN}, ("message_id",)),
    "ask": (QUESTION, ("question", "inbox_address", "query_date")),
    "none": ({}, ("x",)),
}
PLACES = [
    *((path, path, field) for path, (_, fields) in ROUTES.items() for field in fields),
    *((f"/mcp {name}", name, field) for name, (_, fields) in TOOLS.items() for field in fields),
]


@pytest.fixture(scope="module")
def fuzzed(
    place: ServerFiles, shared_model: FakeVLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerClient]:
    directory = tmp_path_factory.mktemp("fuzzed")
    key = add_key(directory / "keys", "ann", [ANN])
    given = make_settings(
        place,
        model=model_settings(place, shared_model.address),
        access={"keys": str(directory / "keys"), "jwks_url": "http://127.0.0.1:9", "issuer": "i", "audience": "a"},
        store=str(directory / "store"),
        keeping={"feedback": True},
    )
    with serve_in_thread(given, key=key) as server:
        yield server


def send(
    server: ServerClient, path: str, body: bytes = b"", headers: Any = (), method: str = "POST"
) -> tuple[int, str, bytes]:
    """Send bytes as they are. Return the status, the code of the problem, and the body."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
    own = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    own |= {"authorization": f"Bearer {server.key}", "mcp-protocol-version": "2025-06-18"}
    given = dict(own) if method == "POST" else {"authorization": own["authorization"]}
    named = [(str(name).lower(), value) for name, value in headers]
    connection.putrequest(method, "/", skip_host=any(name == "host" for name, _ in named), skip_accept_encoding=True)
    connection._buffer[0] = f"{method} {path} HTTP/1.1".encode("latin-1")  # type: ignore[attr-defined]
    for name, value in [*(item for item in given.items() if item[0] not in dict(named)), *named]:
        connection.putheader(name, value)
    if method == "POST":
        connection.putheader("content-length", str(len(body)))
    connection.endheaders(body or None)
    response = connection.getresponse()
    received = response.read()
    connection.close()
    is_problem = response.headers.get_content_type() == "application/problem+json"
    code = json.loads(received)["code"] if is_problem else ""
    assert not code or code in CODES
    return response.status, code, received


def body_with(where: str, name: str, field: str, text: str) -> tuple[str, bytes]:
    """Return the path and the body of a request with a text, written in JSON, as one field."""
    given, _ = (TOOLS if where.startswith("/mcp") else ROUTES)[name]
    value: Any = "@@"
    changed = {**given, field: [value] if isinstance(given.get(field), list) else value}
    if not where.startswith("/mcp"):
        return name, json.dumps(changed).replace('"@@"', text).encode()
    call = {"jsonrpc": "2.0", "id": 1, "method": MCP, "params": {"name": name, "arguments": changed}}
    return "/mcp", json.dumps(call).replace('"@@"', text).encode()


@pytest.mark.parametrize("text", BAD_TEXTS.values(), ids=list(BAD_TEXTS))
@pytest.mark.parametrize(("where", "name", "field"), PLACES, ids=[f"{where} {field}" for where, _, field in PLACES])
def test_text_that_cannot_be_stored_is_refused_in_every_field(
    where: str, name: str, field: str, text: str, fuzzed: ServerClient
) -> None:
    status, code, received = send(fuzzed, *body_with(where, name, field, text))
    assert (status, code) == (422, INVALID)
    assert field in json.loads(received)["detail"]


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=list(ODD_TEXTS))
@pytest.mark.parametrize(("where", "name", "field"), PLACES, ids=[f"{where} {field}" for where, _, field in PLACES])
def test_odd_text_is_no_error_of_the_server(
    where: str, name: str, field: str, text: str, fuzzed: ServerClient, caplog: pytest.LogCaptureFixture
) -> None:
    status, _, received = send(fuzzed, *body_with(where, name, field, text))
    assert status < 500, received
    assert "serving.internal-error" not in received.decode()
    assert [each for each in caplog.records if each.name == _LOG or each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"\\ud800": 1}',
        b'{"question": "\xed\xa0\x80"}',
        b'{"question": {"a": ["\\u0000"]}}',
        '{"question": "a\\u0000"}'.encode("utf-16"),
        '{"question": "\\ud800"}'.encode("utf-32-be"),
        b'["\\udfff"]',
        b'"\\ud800"',
    ],
)
@pytest.mark.parametrize("path", [*ROUTES, "/mcp"])
def test_bad_text_is_refused_anywhere_in_a_body(path: str, body: bytes, fuzzed: ServerClient) -> None:
    assert send(fuzzed, path, body)[:2] == (422, INVALID)


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b'{"question": "\xff"}',
        b'{"a": NaN}',
        b"1" * 5000,
        b"1e999",
        b"[" * 9000,
        b"\0",
        b"",
    ],
)
@pytest.mark.parametrize("path", [*ROUTES, "/mcp"])
def test_a_body_that_is_not_json_is_no_error_of_the_server(path: str, body: bytes, fuzzed: ServerClient) -> None:
    status, _, received = send(fuzzed, path, body)
    assert 400 <= status < 500, received


@pytest.mark.parametrize("bad", ["%00", "%ff", "%ed%a0%80", "%c0%af", "a%00b"])
@pytest.mark.parametrize(
    "path", ["/{}", "/invoke/{}", "/docs/{}", "/healthz?{}", "/principal?x={}", "/metrics?{}=1", "/mcp?{}"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_path_or_query_that_is_no_text_is_refused(path: str, bad: str, method: str, fuzzed: ServerClient) -> None:
    assert send(fuzzed, path.format(bad), method=method)[:2] == (400, MALFORMED)


@pytest.mark.parametrize("path", ["/mcp%0a", "/healthz%0A", "/principal%0d", "/invoke%7f", "/docs%09"])
def test_a_path_with_a_control_character_is_refused(path: str, fuzzed: ServerClient) -> None:
    assert send(fuzzed, path, method="GET")[:2] == (400, MALFORMED)


@pytest.mark.parametrize(
    "path", ["/%E2%98%83", "/%2e%2e/%2e%2e/etc", "//", "/%25", "/%", "/%zz", "/?%", "/;a=b", "/" + "a" * 9000]
)
def test_an_odd_path_is_no_error_of_the_server(path: str, fuzzed: ServerClient) -> None:
    assert send(fuzzed, path, method="GET")[0] in (200, 404)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/mcp"), ("POST", "/invoke"), ("GET", "/principal"), ("GET", "/healthz"), ("GET", "/x")],
)
def test_a_slash_at_the_end_of_a_path_changes_nothing(method: str, path: str, fuzzed: ServerClient) -> None:
    body = b"{}" if method == "POST" else b""
    assert send(fuzzed, f"{path}/", body, method=method)[:2] == send(fuzzed, path, body, method=method)[:2]


def test_the_redirection_of_a_page_holds_behind_a_proxy(fuzzed: ServerClient) -> None:
    assert httpx.get(f"{fuzzed.url}/docs/").headers["location"] == "../docs"


@pytest.mark.parametrize("name", ["authorization", "content-type", "traceparent", "accept", "x-other"])
@pytest.mark.parametrize("value", [b"\xff", b"Bearer \xed\xa0\x80", b"a\xc3"])
@pytest.mark.parametrize("path", ["/principal", "/healthz", "/docs"])
def test_a_header_that_is_no_text_is_refused(path: str, name: str, value: bytes, fuzzed: ServerClient) -> None:
    assert send(fuzzed, path, headers=[(name, value)], method="GET")[:2] == (400, MALFORMED)


@pytest.mark.parametrize(
    ("name", "value", "statuses"),
    [
        ("authorization", "Bearer grüße".encode(), {401}),
        ("authorization", "Bearer " + "x" * 9000, {401}),
        ("authorization", "Bearer a.b.c", {401}),
        ("authorization", "Bearer eyJhbGciOiJSUzI1NiIsImtpZCI6Ilx1ZDgwMCJ9.e30.e30", {401, 503}),
        ("authorization", "Basic \t", {401}),
        ("content-type", "application/json; charset=none", {200, 415, 422}),
        ("content-type", 'multipart/form-data; boundary="', {415, 422}),
        ("accept", "*/*;q=x", {200, 406}),
        ("x-request-id", "☃".encode(), {200}),
        ("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-zz", {200}),
        ("tracestate", "a=" + "b" * 600 + ",,=", {200}),
        ("baggage", "a=%ff%00", {200}),
        ("x-forwarded-for", "☃, 1.2.3.4.5".encode(), {200}),
        ("x-forwarded-proto", "☃".encode(), {200}),
        ("expect", "100-continue", {200}),
        ("connection", "upgrade", {200}),
        ("upgrade", "websocket", {200}),
        ("mcp-protocol-version", "☃".encode(), {200}),
        ("cookie", "=;=;☃".encode(), {200}),
    ],
)
def test_an_odd_header_is_no_error_of_the_server(
    name: str, value: Any, statuses: set[int], fuzzed: ServerClient
) -> None:
    body = json.dumps({"source_id": "<7@example.com>"}).encode()
    status, _, received = send(fuzzed, "/source", body, [(name, value)])
    assert status in statuses, received


@pytest.mark.parametrize("path", ["/healthz", "/docs", "/principal"])
@pytest.mark.parametrize(
    "headers",
    [
        [("host", "127.0.0.1"), ("host", "evil.example")],
        [("host", "127.0.0.1"), ("host", "127.0.0.1")],
        [("authorization", "Bearer a"), ("authorization", "Bearer b")],
        [("content-type", "application/json"), ("content-type", "text/plain")],
    ],
)
def test_a_repeated_header_is_refused(path: str, headers: list[tuple[str, str]], fuzzed: ServerClient) -> None:
    assert send(fuzzed, path, headers=headers, method="GET")[:2] == (400, MALFORMED)


TEXTS = st.text(st.characters(codec=None, categories=None), max_size=40)
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=6,
)


@pytest.mark.ci
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place_of=st.sampled_from(PLACES), value=VALUES)
def test_no_value_of_a_field_is_an_error_of_the_server(
    place_of: tuple[str, str, str], value: Any, fuzzed: ServerClient, caplog: pytest.LogCaptureFixture
) -> None:
    status, _, received = send(fuzzed, *body_with(*place_of, json.dumps(value)))
    assert status < 500, received
    assert [each for each in caplog.records if each.name == _LOG] == []


def test_a_missing_host_is_refused(fuzzed: ServerClient) -> None:
    from tests.serving.test_connections import code_in, connect, read_all

    with connect(fuzzed, b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n") as connection:
        assert code_in(read_all(connection)) == (400, MALFORMED)
    with connect(fuzzed, b"GET /healthz HTTP/1.0\r\n\r\n") as connection:
        assert b" 200 " in read_all(connection)
