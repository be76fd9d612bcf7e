"""Test limits of connections: their number, deadlines, and what one may send."""

import json
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http_server import open_socket
from tests.inference.fake_vllm import FakeVLLM, held
from tests.serving import in_process
from tests.serving.agent_server import ServerClient, ServerFiles, question_body, start_server
from tests.serving.in_process import make_settings, model_settings, serve_in_thread
from tests.waiting import wait_until

PARTIAL = b"GET /principal HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
QUICK = {"header_deadline": 0.3, "idle_deadline": 0.3, "write_deadline": 0.3}
"""Deadlines that elapse within a test."""


# The guard alone, with a clock of the test.


@dataclass(eq=False)
class FakeConnection:
    """A connection of the guard."""

    address: str | None = "10.0.0.1"
    unsent: int = 0
    phase: Any = None
    since: float = 0.0
    closed: list[str] = field(default_factory=list)

    def expire(self, why: str) -> None:
        self.closed.append(why)

    def abort(self) -> None:
        self.closed.append("abort")


class Guarded:
    """A guard with a clock that the test moves."""

    def __init__(self, most: int = 100, **settings: Any) -> None:
        from gumshoe.serving.connections import ConnectionGuard, Phase
        from gumshoe.serving.settings import ConnectionSettings
        from gumshoe.serving.telemetry import Metrics

        self.time, self.metrics = 0.0, Metrics()
        self.guard = ConnectionGuard(ConnectionSettings(**settings), self.metrics, most, lambda: self.time)
        self.phases = Phase

    def connect(self, address: str | None = "10.0.0.1") -> FakeConnection:
        connection = FakeConnection(address)
        if not self.guard.admit(connection):
            connection.closed.append("refused")
        return connection

    def enter(self, connection: FakeConnection, phase: str) -> None:
        self.guard.enter(connection, self.phases[phase])

    @property
    def open(self) -> float:
        return self.metrics.registry.get_sample_value("gumshoe_connections") or 0

    def closed(self, why: str) -> float:
        return self.metrics.registry.get_sample_value("gumshoe_closed_connections_total", {"why": why}) or 0


def test_the_connection_that_waits_longest_makes_room_for_a_new_one() -> None:
    place = Guarded(most=3)
    first, second, third = (place.connect(f"10.0.0.{number}") for number in range(3))
    place.enter(first, "ANSWER")
    place.enter(first, "IDLE")  # it has waited for less time than the others
    place.connect("10.0.0.9")
    assert (first.closed, second.closed, third.closed) == ([], ["abort"], [])
    assert (place.open, place.closed("replaced")) == (3, 1)


def test_a_connection_that_waits_for_an_answer_is_never_replaced() -> None:
    place = Guarded(most=2)
    running = [place.connect() for _ in range(2)]
    for each in running:
        place.enter(each, "ANSWER")
    assert place.connect().closed == ["refused"]
    assert [each.closed for each in running] == [[], []]
    assert place.closed("refused") == 1
    place.guard.discard(running[0])
    assert place.connect().closed == []


def test_one_address_replaces_only_its_own_connections() -> None:
    place = Guarded(per_address=2)
    other = place.connect("10.0.0.2")
    greedy = [place.connect("10.0.0.1") for _ in range(5)]
    assert [each.closed for each in greedy] == [["abort"]] * 3 + [[]] * 2
    assert other.closed == []
    network = [place.connect(f"2001:db8::{number}") for number in range(3)]
    assert [bool(each.closed) for each in network] == [True, False, False]


def test_trusted_proxies_have_no_limit_per_address() -> None:
    place = Guarded(per_address=1, trusted_proxies=("10.1.0.0/16", "192.0.2.7"))
    for address in ("10.1.2.3", "192.0.2.7", "::ffff:10.1.2.3"):
        assert not any(each.closed for each in [place.connect(address) for _ in range(9)])
    assert [bool(place.connect("10.2.0.1").closed) for _ in range(2)] == [False, False]
    assert place.closed("replaced") == 1


@pytest.mark.parametrize(
    ("phase", "deadline", "why"), [("HEADERS", 10, "headers"), ("IDLE", 75, "idle"), ("ANSWER", None, None)]
)
def test_each_phase_has_its_deadline(phase: str, deadline: float | None, why: str | None) -> None:
    place = Guarded()
    connection = place.connect()
    place.time = 5.0
    place.enter(connection, phase)
    place.time += (deadline or 1e6) - 1
    place.guard.close_overdue()
    assert connection.closed == []
    place.time += 2
    for _ in range(3):
        place.guard.close_overdue()
    assert connection.closed == ([why] if why else [])
    assert place.closed("slow headers") == (why == "headers")


def test_a_client_must_take_what_was_sent_to_it() -> None:
    place = Guarded()
    quick, slow, closing = (place.connect(f"10.0.0.{number}") for number in range(3))
    place.enter(closing, "CLOSING")
    for each in (quick, slow, closing):
        place.enter(each, "ANSWER" if each is not closing else "CLOSING")
        each.unsent = 1000
    place.guard.close_overdue()
    place.time = 20
    quick.unsent = 0
    place.guard.close_overdue()
    quick.unsent, slow.unsent = 1000, 999  # a byte now and then is not enough
    place.time = 31
    place.guard.close_overdue()
    assert (quick.closed, slow.closed, closing.closed) == ([], ["abort"], ["abort"])
    assert (place.open, place.closed("slow reading")) == (1, 2)


def test_a_full_server_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    place = Guarded(most=10)
    flood = [place.connect(f"10.0.0.{number}") for number in range(50)]
    assert len(caplog.records) == 1
    for each in flood:
        place.guard.discard(each)
    for number in range(50):
        place.connect(f"10.0.0.{number}")
    assert len(caplog.records) == 2, "again after the flood was over"


@pytest.mark.parametrize("per_address", [1, 2, 20])
def test_a_flood_from_one_address_is_logged_once_while_others_connect(
    per_address: int, caplog: pytest.LogCaptureFixture
) -> None:
    place = Guarded(per_address=per_address)
    for number in range(40):
        place.connect("10.0.0.1")
        place.guard.discard(place.connect(f"10.0.1.{number}"))
    assert [each.getMessage().split(";")[0] for each in caplog.records] == [
        f"there are {per_address} connections from 10.0.0.1"
    ]
    flood = [place.connect(f"10.0.2.{number}") for number in range(200)]
    assert len(caplog.records) == 2, "the limit of all connections is logged too"
    assert sum(not each.closed for each in flood) <= 100


PHASES = ("HEADERS", "BODY", "ANSWER", "IDLE", "CLOSING")


@given(st.lists(st.tuples(st.sampled_from(["open", "close", *PHASES]), st.integers(0, 9)), max_size=80))
def test_nothing_is_left_of_closed_connections(actions: list[tuple[str, int]]) -> None:
    place = Guarded(most=6, per_address=3, trusted_proxies=("10.0.0.3",))
    known: list[FakeConnection] = []
    for number, (action, at) in enumerate(actions):
        place.time = float(number)
        if action == "open":
            known.append(place.connect(f"10.0.0.{at % 4}"))
        elif known and action == "close":
            place.guard.discard(known[at % len(known)])
            known[at % len(known)].closed.append("client")
        elif known:
            place.enter(known[at % len(known)], action)
        alive = [each for each in known if not each.closed]
        assert place.open == len(alive) <= 6
        for address in {each.address for each in alive} - {"10.0.0.3"}:
            assert sum(each.address == address for each in alive) <= 3
    for each in known:
        place.guard.discard(each)
    assert place.open == 0
    assert (place.guard._sizes, place.guard._waiting, place.guard._unsent_since) == ({}, {None: {}}, {})


# Real sockets.


@contextmanager
def serve(place: ServerFiles, model: FakeVLLM, **connections: Any) -> Iterator[ServerClient]:
    settings = make_settings(place, model=model_settings(place, model.address), connections=connections)
    with serve_in_thread(settings) as server:
        yield server


def connect(server: ServerClient, sent: bytes = b"") -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(sent)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Return what is received until the server closes the connection."""
    parts = []
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def read_response(connection: socket.socket) -> bytes:
    """Return one response with a Content-Length."""
    received = b""
    while (end := received.find(b"\r\n\r\n")) < 0:
        received += connection.recv(65536)
    head = received[:end].lower()
    length = int(head.partition(b"content-length: ")[2].split()[0])
    while len(received) < end + 4 + length:
        received += connection.recv(65536)
    return received


def code_in(received: bytes) -> tuple[int, str]:
    """Return the status and the problem's code of a response that ends the connection."""
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower(), received
    return int(head.split()[1]), json.loads(body)["code"]


def test_slow_headers_are_refused_at_the_deadline(place: ServerFiles, model: FakeVLLM) -> None:
    """300 connections send a byte now and then, which does not extend the deadline."""
    with serve(place, model, **{**QUICK, "idle_deadline": 60}) as server, ExitStack() as stack:
        slow = [stack.enter_context(connect(server, PARTIAL)) for _ in range(300)]
        ended = threading.Event()

        def trickle() -> None:
            while not ended.wait(0.2):
                for each in slow:
                    with suppress(OSError):
                        each.send(b"x")

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            wait_until(lambda: server.metric("gumshoe_closed_connections_total", why="slow headers") == 300)
        finally:
            ended.set()
            thread.join()
        assert server.metric("gumshoe_connections") == 1
        assert server.ask().is_success


@pytest.mark.parametrize("sent", [b"", b"G", b"\r\n", PARTIAL, b"POST /invoke HTTP/1.1\r\n"])
def test_an_incomplete_request_is_answered_once(sent: bytes, place: ServerFiles, model: FakeVLLM) -> None:
    with serve(place, model, **QUICK) as server, connect(server, sent) as connection:
        received = read_all(connection)
    assert (code_in(received) if sent else received) == ((408, "serving.request-too-slow") if sent else b"")


@pytest.mark.parametrize("more", [b"", b"\r\n", b"GET", PARTIAL])
def test_an_idle_connection_is_closed(more: bytes, place: ServerFiles, model: FakeVLLM) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with serve(place, model, **QUICK) as server, connect(server, request) as connection:
        assert read_response(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(request)
        assert read_response(connection).startswith(b"HTTP/1.1 200"), "it may be used again"
        connection.sendall(more)
        received = read_all(connection)
    assert (code_in(received)[0] if more else received) == (408 if more else b"")


def test_a_request_that_was_refused_cannot_go_on_for_ever(place: ServerFiles, model: FakeVLLM) -> None:
    """Its body is not read, and trickles in."""
    settings = make_settings(
        place,
        model=model_settings(place, model.address),
        connections=QUICK,
        access={"jwks_url": "http://127.0.0.1:9", "issuer": "i", "audience": "a"},
    )
    head = b"POST /invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50000\r\n\r\n"
    with serve_in_thread(settings) as server, connect(server, head) as connection:
        assert read_response(connection).startswith(b"HTTP/1.1 401")
        ended = threading.Event()

        def trickle() -> None:
            with suppress(OSError):
                while not ended.wait(0.02):
                    connection.send(b"x")

        thread = threading.Thread(target=trickle)
        thread.start()
        assert read_all(connection) == b""
        ended.set()
        thread.join()


def test_a_client_that_reads_nothing_is_disconnected(
    place: ServerFiles, model: FakeVLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for more than fits into the buffers of both sides, with fewer requests than may wait for answers."""

    from gumshoe.http_connection import MAX_PIPELINED

    def open_with_small_buffer() -> socket.socket:
        listening = open_socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # accepted sockets inherit it
        return listening

    monkeypatch.setattr(in_process, "open_socket", open_with_small_buffer)
    with serve(place, model, **{**QUICK, "idle_deadline": 60}) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = server.url.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * (MAX_PIPELINED - 1))
        wait_until(lambda: server.metric("gumshoe_closed_connections_total", why="slow reading") == 1)
        assert server.client.get("/healthz").is_success


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431, "serving.headers-too-large"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 300_000, 431, "serving.headers-too-large"),
        (b"GET /" + b"x" * 300_000, 431, "serving.headers-too-large"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: 1\r\n" * 50_000, 431, "serving.headers-too-large"),
        (b"GARBAGE\r\n\r\n", 400, "serving.malformed-request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "serving.malformed-request"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n", 400, "serving.malformed-request"),
        (
            b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            400,
            "serving.malformed-request",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "serving.malformed-request",
        ),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\0b\r\n\r\n", 400, "serving.malformed-request"),
        (b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400, "serving.malformed-request"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400, "serving.malformed-request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "serving.malformed-request"),
    ],
)
def test_malformed_and_huge_requests_are_refused(sent: bytes, status: int, code: str, limited: ServerClient) -> None:
    with connect(limited) as connection:
        sending = threading.Thread(target=lambda: _send(connection, sent))
        sending.start()
        received = read_all(connection)
        sending.join()
    assert not received or code_in(received) == (status, code), "the answer is lost if the client still sends"
    assert received or len(sent) > 100_000
    assert limited.client.get("/healthz").is_success


def _send(connection: socket.socket, sent: bytes) -> None:
    with suppress(OSError):
        connection.sendall(sent)


@pytest.fixture(scope="module")
def limited(place: ServerFiles, shared_model: FakeVLLM) -> Iterator[ServerClient]:
    with serve(place, shared_model) as server:
        yield server


def test_endless_chunks_and_trailers_are_refused(limited: ServerClient) -> None:
    head = b"POST /invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    for rest in (b"1\r\nx\r\n" * 1_000_000, b"0\r\nX: " + b"x" * 5_000_000, b"1;" + b"x" * 5_000_000):
        with connect(limited) as connection:
            sending = threading.Thread(target=_send, args=(connection, head + rest))
            sending.start()
            read_all(connection)
            sending.join()
    assert limited.ask().is_success


def test_trailers_are_not_headers(limited: ServerClient) -> None:
    body = json.dumps(question_body()).encode()
    sent = b"POST /invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    sent += b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nX-Request-ID: from-trailer\r\n\r\n" % (len(body), body)
    with connect(limited, sent) as connection:
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 200")
    assert b"from-trailer" not in received


def test_a_flood_of_pipelined_requests_is_refused(limited: ServerClient) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connect(limited, request * 8) as connection:
        received = b""
        while received.count(b"HTTP/1.1 200") < 8:
            received += connection.recv(65536)
    with connect(limited, request * 1000) as connection:
        assert b"HTTP/1.1 400" in read_all(connection)


def test_connections_of_one_address_are_limited(place: ServerFiles, model: FakeVLLM) -> None:
    with serve(place, model, per_address=20) as server, ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connect(server, PARTIAL))
        newest = ServerClient(server.url, server.key)  # the server may close that of `server` while it is used
        stack.callback(newest.client.close)
        assert newest.metric("gumshoe_connections") <= 20
        assert newest.ask().is_success


def test_a_connection_beyond_the_limit_is_refused_if_all_others_work(place: ServerFiles, model: FakeVLLM) -> None:
    go_on = threading.Event()
    model.inject(held(go_on), times=None)
    body = json.dumps(question_body()).encode()
    head = b"POST /invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
    with serve(place, model, total=4) as server, ExitStack() as stack:
        server.client.close()
        running = [stack.enter_context(connect(server, head + b"%d\r\n\r\n" % len(body) + body)) for _ in range(4)]
        wait_until(lambda: model.under_way == 4)
        with connect(server) as connection:
            received = read_all(connection)
        assert code_in(received) == (503, "serving.too-many-connections")
        assert b"retry-after: 1" in received.lower()
        go_on.set()
        assert all(each.recv(65536).startswith(b"HTTP/1.1 200") for each in running)


@pytest.mark.ci
def test_a_server_answers_beside_more_half_open_connections_than_it_has_descriptors(
    place: ServerFiles, model: FakeVLLM, tmp_path: Path
) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1300, "this test needs that many itself"
    more = ["--open", "--set", "connections.per_address=2000", "--set", "connections.header_deadline=3600"]
    limit = ["/bin/sh", "-c", 'ulimit -n 1024; exec "$@"', "sh"]
    with (
        start_server(place, f"vllm:{model.address}#adapter", tmp_path / "log", *more, prefix=limit) as server,
        ExitStack() as stack,
    ):
        for _ in range(1100):
            stack.enter_context(connect(server, PARTIAL))
        with httpx.Client(base_url=server.url, trust_env=False, timeout=None) as fresh:
            assert fresh.get("/healthz").status_code == 200
            assert fresh.post("/invoke", json=question_body()).status_code == 200
        assert server.metric("gumshoe_connections") <= 768
        assert server.log.read_text().count("those that wait longest are closed") == 1
        assert "connections.total is 4096" in server.log.read_text()


@pytest.mark.parametrize("proxies", ["nowhere", "10.0.0.1/8", "*"])
def test_a_wrong_proxy_is_refused(proxies: str, place: ServerFiles) -> None:
    from gumshoe.errors import UsageError

    with pytest.raises(UsageError, match="trusted_proxies") as caught:
        make_settings(place, connections={"trusted_proxies": [proxies]})
    assert caught.value.code == "serving.invalid-settings"
