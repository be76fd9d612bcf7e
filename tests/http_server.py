"""Run an HTTP server of the standard library while a test needs it."""

import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from urllib.parse import parse_qs, urlsplit


def open_socket(port: int = 0) -> socket.socket:
    """Return a listening socket on a port of this machine, by default a free one, for a server in an event loop.

    Without TCP_NODELAY, the second part of each response waits 40 ms for the client's acknowledgement. asyncio sets it
    only for sockets that it has created.
    """
    listening = socket.create_server(("127.0.0.1", port))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
    return listening


@contextmanager
def run_server(server: ThreadingHTTPServer) -> Iterator[str]:
    """Run a server while the block runs, and yield its address; at the end, wait for its requests."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://{server.server_address[0]!s}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


Dialogue = Callable[[BufferedIOBase, BufferedIOBase], object]
"""A function that reads from a connection and writes to it, from the status line on."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request that a server received."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    authorization: str | None
    content_type: str
    user_agent: str = ""
    cookie: str = ""
    websocket_key: str = ""
    websocket_protocol: str = ""


@contextmanager
def run_faulty_server(
    faults: deque[str], answer: Callable[[ReceivedRequest, str], tuple[int, str, bytes | Iterator[bytes] | Dialogue]]
) -> Iterator[str]:
    """Run a server that takes one fault per request from `faults`, and yield its address.

    The fault `reset` closes the connection, and `hang` keeps the client waiting until the server closes. Other faults
    are passed to `answer` as its second argument, which is `fine` if there is no fault.

    `answer` returns status, content type and body. A body in blocks is sent block by block, and stops at a
    `ConnectionError`. Status 0 means no answer. Status 429 gets a Retry-After header. The body of status 302 is the
    address of its Location header. With status 101, the body is a function that takes over the connection.
    """

    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # send head and body in one packet, or each answer waits for an acknowledgement

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            fault = faults.popleft() if faults else "fine"
            headers = (
                self.headers.get("authorization"),
                self.headers.get("content-type", ""),
                self.headers.get("user-agent", ""),
                self.headers.get("cookie", ""),
                self.headers.get("sec-websocket-key", ""),
                self.headers.get("sec-websocket-protocol", ""),
            )
            request = ReceivedRequest(self.command, parts.path, query, body, *headers)
            status, kind, text = answer(request, fault)
            if fault in ("reset", "hang") or status == 0:
                self.close_connection = True
                if fault == "hang":
                    closing.wait()
                else:
                    self.connection.close()
                return
            if callable(text):
                self.close_connection = True
                text(self.rfile, self.wfile)
                return
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status == 429:
                self.send_header("Retry-After", "1")
            if status == 302 and isinstance(text, bytes):
                self.send_header("Location", text.decode())
                text = b""
            if isinstance(text, bytes):
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(ConnectionError):
                for block in text:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
                return
            self.close_connection = True

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _respond  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            pass

    failed: list[BaseException] = []

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            error = sys.exception()
            if error is not None and not isinstance(error, ConnectionError):  # a client that disconnects is no error
                failed.append(error)

    with run_server(Server(("127.0.0.1", 0), Handler)) as url:
        try:
            yield url
        finally:
            closing.set()
    assert not failed, failed
