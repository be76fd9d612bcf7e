"""An HTTP proxy in front of an S3 server that injects faults into chosen requests.

It forwards every other request unchanged. A test injects a fault for requests of a method and key: how many times, and
after how many requests. A fault is a function of the `Exchange`.

    proxy.inject(lose_answer, "PUT", "manifest.json")              # only the next one
    proxy.inject(answer(503, "SlowDown"), "PUT", times=None)       # always
    proxy.inject(cut_answer(1000), "GET", "weights.bin", after=1)  # the second one
"""

import http.client
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace, TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pytest

from tests.http_server import run_server
from tests.waiting import Clock

_PER_HOP = {"connection", "keep-alive", "transfer-encoding", "date", "server", "expect"}


@dataclass(frozen=True, slots=True)
class Request:
    """A request that arrived. `path` is `/bucket/key`, decoded; `range` is the Range header, or empty."""

    method: str
    path: str
    query: str
    range: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The response of the server behind the proxy."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(slots=True)
class Fault:
    """A fault for matching requests: `times` of them (None: all), after `after` of them have passed."""

    act: "Callable[[Exchange], None]"
    method: str
    key: str
    query: str
    times: int | None
    after: int

    def strikes(self, request: Request) -> bool:
        """Return True if the fault applies to this request, and count it."""
        if request.method != self.method or self.key not in request.path or self.query not in request.query:
            return False
        if self.after or self.times == 0:
            self.after = max(0, self.after - 1)
            return False
        if self.times is not None:
            self.times -= 1
        return True


class Exchange:
    """One request, which a fault receives, forwards and answers, or not."""

    def __init__(self, handler: "_Handler", proxy: "FaultProxy") -> None:
        self._handler, self._proxy = handler, proxy
        self._unread = int(handler.headers.get("Content-Length", 0))

    def receive(self, amount: int | None = None) -> bytes:
        """Return the request's body, or its next bytes."""
        amount = self._unread if amount is None else min(amount, self._unread)
        body = self._handler.rfile.read(amount)
        if len(body) < amount:
            raise ConnectionResetError("the client went away")
        self._unread -= amount
        return body

    def forward(self, *, without: str = "", more: str = "") -> Answer:
        """Forward the request, optionally without one header and with more text at the end of its URL."""
        body = self.receive()
        headers = {
            name: value
            for name, value in self._handler.headers.items()
            if name.lower() not in _PER_HOP | {without.lower()}
        }
        connection = http.client.HTTPConnection(*self._proxy.backend, timeout=60)
        try:
            connection.request(self._handler.command, self._handler.path + more, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    def start_reply(self, answer: Answer) -> None:
        """Send a response's status and headers."""
        self._handler.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in _PER_HOP:
                self._handler.send_header(name, value)
        self._handler.send_header("Connection", "close")
        self._handler.end_headers()

    def send(self, data: bytes) -> None:
        self._handler.wfile.write(data)

    def reply(self, answer: Answer) -> None:
        self.start_reply(answer)
        if self._handler.command != "HEAD":
            self.send(answer.body)

    def drop(self) -> None:
        """Reset the connection, as a crashing server does."""
        connection = self._handler.connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._handler.rfile.close()
        connection.close()

    def hang(self) -> None:
        """Send nothing more, and reset the connection when the client leaves or the proxy closes."""
        port = self._handler.client_address[1]
        self._proxy.hanging.add(port)
        self.wait_for_close()
        self._proxy.hanging.discard(port)

    def wait_for_close(self) -> None:
        """Wait until the client leaves or the proxy closes, then reset the connection."""
        while not self._proxy.closing.wait(0.01) and not _has_left(self._handler.connection):
            pass
        self.drop()


def _has_left(client: socket.socket) -> bool:
    try:
        return not client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        self.close_connection = True  # one request per connection, as in moto
        proxy = self.server
        assert isinstance(proxy, _Server)
        proxy.owner.handle(Exchange(self, proxy.owner), self.command, self.path, self.headers.get("Range", ""))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the names that the base class calls

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64

    def __init__(self, owner: "FaultProxy") -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, *_: Any) -> None:
        error = sys.exception()
        if not isinstance(error, ConnectionError):  # clients may go away
            self.owner.errors.append(repr(error))


@dataclass
class FaultProxy:
    """Run the proxy as a context manager. It listens at `address` until the block ends."""

    backend: tuple[str, int]
    requests: list[Request] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Errors of the proxy itself. They invalidate the test."""
    closing: threading.Event = field(default_factory=threading.Event)
    hanging: set[int] = field(default_factory=set)
    """Ports of the clients whose connections get no more data."""
    _faults: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def before(cls, address: str) -> "FaultProxy":
        """Return a proxy in front of the server at `http://HOST:PORT`."""
        parts = urlsplit(address)
        assert parts.hostname
        assert parts.port
        return cls((parts.hostname, parts.port))

    def inject(
        self,
        act: Callable[[Exchange], None],
        method: str,
        key: str = "",
        *,
        query: str = "",
        times: int | None = 1,
        after: int = 0,
    ) -> None:
        """Apply a fault to requests of a method whose path contains `key` and whose query contains `query`."""
        with self._lock:
            self._faults.append(Fault(act, method, key, query, times, after))

    def heal(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def seen(self, method: str, key: str = "", query: str = "") -> list[Request]:
        """Return the requests of a method whose path and query contain these texts."""
        with self._lock:
            return [
                request
                for request in self.requests
                if request.method == method and key in request.path and query in request.query
            ]

    def handle(self, exchange: Exchange, method: str, target: str, wanted: str) -> None:
        parts = urlsplit(target)
        request = Request(method, unquote(parts.path), unquote(parts.query), wanted)
        with self._lock:
            self.requests.append(request)
            act = next((fault.act for fault in self._faults if fault.strikes(request)), forward)
        act(exchange)

    def __enter__(self) -> Self:
        server = _Server(self)
        self.port = server.server_port
        self._serving = run_server(server)
        self.address = self._serving.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._serving.__exit__(kind, error, trace)


def forward(exchange: Exchange) -> None:
    """Forward the request without a fault."""
    exchange.reply(exchange.forward())


def stall(exchange: Exchange) -> None:
    """Receive the request and never answer."""
    exchange.receive()
    exchange.hang()


def never_answer(exchange: Exchange) -> None:
    """Forward the request, and never send the response."""
    exchange.forward()
    exchange.hang()


def lose_answer(exchange: Exchange) -> None:
    """Forward the request, and reset the connection before the response."""
    exchange.forward()
    exchange.drop()


def strip(header: str) -> Callable[[Exchange], None]:
    """Forward the request without a header, as if the server did not know it."""
    return lambda exchange: exchange.reply(exchange.forward(without=header))


def small_pages(exchange: Exchange) -> None:
    """Return a listing two entries at a time. S3's own pages contain 1,000."""
    exchange.reply(exchange.forward(more="&max-keys=2"))


def reset_after(amount: int) -> Callable[[Exchange], None]:
    """Reset the connection after `amount` bytes of the request's body."""

    def act(exchange: Exchange) -> None:
        exchange.receive(amount)
        exchange.drop()

    return act


def cut_answer(amount: int, *, reset: bool = True) -> Callable[[Exchange], None]:
    """Reset or close the connection after `amount` bytes of the response's body."""

    def act(exchange: Exchange) -> None:
        answer = exchange.forward()
        exchange.start_reply(answer)
        exchange.send(answer.body[:amount])
        if reset:
            exchange.drop()

    return act


def stall_after(amount: int) -> Callable[[Exchange], None]:
    """Stop sending after `amount` bytes of the response's body, and keep the connection open."""

    def act(exchange: Exchange) -> None:
        answer = exchange.forward()
        exchange.start_reply(answer)
        exchange.send(answer.body[:amount])
        exchange.hang()

    return act


def trickle(clock: Clock, seconds: float) -> Callable[[Exchange], None]:
    """Send the first hundred bytes of the response's body, and advance the clock by `seconds` before each byte.

    Nothing is sent after them, however long the client waits.
    """

    def act(exchange: Exchange) -> None:
        answer = exchange.forward()
        exchange.start_reply(answer)
        for byte in answer.body[:100]:
            clock.advance(seconds)
            exchange.send(bytes([byte]))
        exchange.wait_for_close()

    return act


def corrupt(exchange: Exchange) -> None:
    """Change one byte of the response's body."""
    answer = exchange.forward()
    damaged = bytearray(answer.body)
    damaged[len(damaged) // 2] ^= 1
    exchange.reply(Answer(answer.status, answer.headers, bytes(damaged)))


def edit(change: Callable[[bytes], bytes]) -> Callable[[Exchange], None]:
    """Replace the response's body by `change(body)`."""

    def act(exchange: Exchange) -> None:
        answer = exchange.forward()
        body = change(answer.body)
        headers = [(name, value) for name, value in answer.headers if name.lower() != "content-length"]
        exchange.reply(Answer(answer.status, [*headers, ("Content-Length", str(len(body)))], body))

    return act


def meanwhile(event: Callable[[], object], act: Callable[[Exchange], None] = forward) -> Callable[[Exchange], None]:
    """Call `event` while the request is in progress, then act."""

    def both(exchange: Exchange) -> None:
        event()
        act(exchange)

    return both


def answer(
    status: int, code: str, message: str = "made up", *, headers: dict[str, str] | None = None, more: str = ""
) -> Callable[[Exchange], None]:
    """Answer with an S3 error. `more` is additional XML in the error."""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message>{more}'
        "<RequestId>4442587FB7D0A2F9</RequestId></Error>"
    ).encode()

    def act(exchange: Exchange) -> None:
        exchange.receive()
        all_headers = {"Content-Type": "application/xml", "Content-Length": str(len(body))} | (headers or {})
        exchange.reply(Answer(status, list(all_headers.items()), body))

    return act


def _goes_to(client: socket.socket, port: int) -> bool:
    try:
        return bool(client.getpeername()[1] == port)
    except OSError:  # it is closed
        return False


def _is_readable(client: socket.socket, seconds: float) -> bool:
    poll = select.poll()
    poll.register(client, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


@dataclass
class Elapsed:
    """Read timeouts and pauses between attempts that elapsed on the clock, in seconds."""

    timeouts: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(self.timeouts) + sum(self.pauses)


def elapse_at_once(proxy: FaultProxy, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Elapsed:
    """Let the S3 client of this process wait on the clock instead of in real time.

    If the proxy hangs on a connection, the client's read timeout elapses immediately, however long it is. So do the
    pauses of boto3 and tenacity between two attempts. Everything else keeps its real, long timeout.
    """
    elapsed = Elapsed()
    really_read = socket.SocketIO.readinto

    def read(self: Any, buffer: Any) -> int | None:
        client: socket.socket = self._sock
        limit = client.gettimeout()
        if limit and _goes_to(client, proxy.port):
            while not _is_readable(client, 0.01):
                if client.getsockname()[1] in proxy.hanging and not _is_readable(client, 0):
                    elapsed.timeouts.append(limit)
                    clock.advance(limit)
                    raise TimeoutError("timed out")
        return really_read(self, buffer)

    def sleep(seconds: float) -> None:
        elapsed.pauses.append(seconds)
        clock.advance(seconds)

    monkeypatch.setattr(socket.SocketIO, "readinto", read)
    for module in ("botocore.endpoint", "tenacity.nap"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(sleep=sleep))
    return elapsed
