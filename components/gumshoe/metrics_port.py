"""Serve metrics on a port of their own, with limits on what slow and many clients take."""

import io
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from threading import Lock, Thread
from typing import Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

MAX_CONNECTIONS = 32
"""Maximum number of connections. The oldest one is closed for a new one."""
_TIMEOUT = 10.0  # seconds for each part of a request, and for the response


@contextmanager
def serve_registry(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serve metrics in a thread while the block runs, also if the event loop is busy. Yield the port.

    Raises:
        OSError: if the port is not available.
    """
    server = _MetricsServer(host, port)
    server.set_app(make_wsgi_app(registry))
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _MetricsHandler(WSGIRequestHandler):
    """Answer one request of a connection, and log nothing."""

    timeout = _TIMEOUT

    def get_stderr(self) -> TextIO:
        return io.StringIO()  # where a traceback is written if the client does not read

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the names of the base class
        pass


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """Server with one thread for each connection, and a maximum number of both."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._open: dict[socket.socket, None] = {}
        """Connections, the oldest one first."""
        self._lock = Lock()
        super().__init__((host, port), _MetricsHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):  # its client may have closed it
                    oldest.shutdown(socket.SHUT_RDWR)  # which ends its thread
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: the client has closed the connection, or was too slow."""
