"""Servers of a private network on real sockets: TLS with a private authority, and an HTTP proxy as the only way out."""

import re
import socket
import ssl
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from urllib.parse import urlsplit

from tests.certificates import CertificateAuthority

_BLOCK = 1 << 16
_SECONDS = 60.0
NAMES = ("localhost", "127.0.0.1", "service.example.com", "s3.example.com")
"""Names in the certificate of `serve_tls`. Those under example.com exist only for `ForwardProxy`."""


@contextmanager
def serve_tls(url: str, authority: CertificateAuthority, directory: Path) -> Iterator[str]:
    """Accept TLS connections for an HTTP server while the block runs, and yield the `https` address of localhost."""
    place = directory / "server.pem"
    place.write_bytes(authority.issue(*NAMES))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place)
    target = urlsplit(url)

    def handle(connection: socket.socket) -> None:
        with (
            suppress(OSError),
            context.wrap_socket(connection, server_side=True) as secure,
            socket.create_connection((target.hostname or "", target.port or 80), _SECONDS) as upstream,
        ):
            _relay(secure, upstream)

    with _listen(handle) as port:
        yield f"https://localhost:{port}"


@dataclass
class ForwardProxy:
    """A proxy that opens tunnels (CONNECT) and forwards plain HTTP requests. It keeps a record of them."""

    hosts: dict[str, str] = field(default_factory=dict)
    """`HOST:PORT` that the proxy knows, and the `HOST:PORT` where that is. Others are connected to as they are."""
    requested: list[str] = field(default_factory=list)
    """`HOST:PORT` of each request."""
    credentials: list[str] = field(default_factory=list)
    """User and password of each request that has them."""
    status: int = 200
    """Status of its answers. With another one than 200, it refuses to connect."""
    url: str = ""

    def handle(self, connection: socket.socket) -> None:
        """Answer one connection."""
        with suppress(OSError), connection:
            head = _read_head(connection)
            method, _, rest = head.partition(b" ")
            if not method:
                return
            address = rest.partition(b" ")[0].decode()
            target = address if method == b"CONNECT" else urlsplit(address).netloc
            target = target if ":" in target else f"{target}:80"
            self.requested.append(target)
            if basic := re.search(rb"(?i)\r\nproxy-authorization: basic (\S+)", head):
                self.credentials.append(b64decode(basic[1]).decode())
            if self.status != 200:
                connection.sendall(b"HTTP/1.1 %d Refused\r\nContent-Length: 0\r\n\r\n" % self.status)
                return
            host, _, port = self.hosts.get(target, target).rpartition(":")
            with socket.create_connection((host, int(port)), _SECONDS) as upstream:
                if method == b"CONNECT":
                    connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                else:
                    path = urlsplit(address)._replace(scheme="", netloc="").geturl()
                    upstream.sendall(head.replace(address.encode(), path.encode(), 1))
                _relay(connection, upstream)


@contextmanager
def forward_proxy() -> Iterator[ForwardProxy]:
    """Run a proxy while the block runs."""
    proxy = ForwardProxy()
    with _listen(proxy.handle) as port:
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy


@contextmanager
def _listen(handle: Callable[[socket.socket], None]) -> Iterator[int]:
    """Handle each connection in a thread while the block runs, and yield the port."""
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):  # until it is closed
            while True:
                connection, _ = server.accept()
                connection.settimeout(_SECONDS)
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def _read_head(connection: socket.socket) -> bytes:
    """Return the bytes of a request up to its body, with what follows in the same packet."""
    head = b""
    while b"\r\n\r\n" not in head:
        block = connection.recv(_BLOCK)
        if not block:
            break
        head += block
    return head


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Copy bytes in both directions until either side closes."""
    opposite = {one: other, other: one}
    while True:
        pending = [each for each in opposite if isinstance(each, ssl.SSLSocket) and each.pending()]
        ready = pending or wait(opposite, _SECONDS)
        for source in (each for each in opposite if each in ready):
            block = source.recv(_BLOCK)
            if not block:
                return
            opposite[source].sendall(block)
        if not ready:
            return
