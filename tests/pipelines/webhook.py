"""Run a webhook on a real socket that stores notifications and may reject them."""

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Webhook:
    """The received notifications, and the next status codes."""

    url: str = ""
    received: list[dict[str, Any]] = field(default_factory=list)
    statuses: deque[int] = field(default_factory=deque)
    """Status codes of the next answers; then 200."""


@contextmanager
def webhook() -> Iterator[Webhook]:
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = hook.statuses.popleft() if hook.statuses else 200
            if status < 400:
                hook.received.append(json.loads(body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hook.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
