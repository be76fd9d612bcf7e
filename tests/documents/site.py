"""A local web site with configurable faults."""

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.http_server import run_server

_GONE = (BrokenPipeError, ConnectionResetError)


@dataclass(frozen=True)
class Request:
    """A request, with its time of arrival."""

    host: str
    path: str
    headers: dict[str, str]
    at: float


Behave = Callable[["Visit"], None]


class Visit(BaseHTTPRequestHandler):
    """One request, with ways to answer it."""

    protocol_version = "HTTP/1.1"
    site: "Site"

    def do_GET(self) -> None:
        host = self.headers["Host"].partition(":")[0]
        self.site.requests.append(Request(host, self.path, dict(self.headers), time.monotonic()))
        behave = self.site.paths.get(self.path) or self.site.otherwise
        with suppress(*_GONE):
            behave(self)

    def answer(
        self, body: bytes | str, *, status: int = 200, kind: str = "text/html; charset=utf-8", **headers: str
    ) -> None:
        """Send a complete response. Header names are written with _ instead of -."""
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def begin(self, **headers: str) -> None:
        """Send the headers of a response whose body ends when the connection closes."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Connection", "close")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.close_connection = True

    def wait_for_client_to_leave(self) -> None:
        """Send nothing until the client closes the connection."""
        while self.connection.recv(1 << 16):
            pass
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def missing(visit: Visit) -> None:
    """Answer with status 404."""
    visit.answer("<title>Not Found</title>", status=404)


@dataclass
class Site:
    """The pages of a site by path, and the requests it received."""

    port: int
    paths: dict[str, Behave] = field(default_factory=dict)
    otherwise: Behave = missing
    requests: list[Request] = field(default_factory=list)
    pass_time: Callable[[float], None] = time.sleep
    """Advance the clock by `seconds` before a response is sent."""

    def url(self, path: str, host: str = "site.example", scheme: str = "http") -> str:
        """Return the URL of a path."""
        return f"{scheme}://{host}:{self.port}{path}"

    def count_requests(self, path: str) -> int:
        """Return how many times a path was requested."""
        return sum(request.path == path for request in self.requests)


@contextmanager
def running_site(tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    """Run a site while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Visit)
    server.daemon_threads = True  # some responses never end
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    site = Site(server.server_port)
    server.RequestHandlerClass = type("VisitOfSite", (Visit,), {"site": site})
    with run_server(server):
        yield site


def page(title: str = "Fenwick disease", *paragraphs: str) -> str:
    """Return a page with menus around its text."""
    menu = "".join(f'<li><a href="/topic/{number}">Topic {number}</a></li>' for number in range(20))
    text = "".join(f"<p>{each}</p>" for each in paragraphs or (f"{title} makes the left elbow itch for a week.",))
    return (
        f"<!DOCTYPE html><html><head><title>{title} | Invented Health</title></head><body>"
        f"<header><nav><ul>{menu}</ul></nav></header><main><h1>{title}</h1>{text}</main>"
        "<footer><p>All rights reserved.</p></footer></body></html>"
    )
