"""Serve the loader's status over HTTP: `/status`, `/healthz`, `/readyz` and `/metrics`.

`/readyz` says if clients should find the server, which may serve an older adapter. The metric `ready` says if it serves
the newest one.

The trainer image has no metrics library, and four small pages need none.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gumshoe.artifacts.adapter_layout import STATUS
from gumshoe.cluster.adapter_loader import KINDS, AdapterLoader, Status
from gumshoe.errors import UsageError

_SECONDS = 10.0  # timeout of a client's request
_TEXT, _JSON, _METRICS = "text/plain; charset=utf-8", "application/json", "text/plain; version=0.0.4; charset=utf-8"


@contextmanager
def serve_status(loader: AdapterLoader, host: str, port: int) -> Iterator[str]:
    """Serve the pages while the block runs. Yields the address.

    Raises:
        UsageError: if the address is not available.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS

        def do_GET(self) -> None:
            status, kind, text = _respond(loader, self.path.partition("?")[0])
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: probes come every few seconds."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise UsageError(
            "loader.cannot-listen", f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port"
        ) from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="pages", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _respond(loader: AdapterLoader, path: str) -> tuple[int, str, str]:
    status = loader.status
    if path == STATUS:
        return 200, _JSON, json.dumps(status.to_dict(), ensure_ascii=False) + "\n"
    if path == "/metrics":
        return 200, _METRICS, format_metrics(status)
    if path == "/healthz":
        return (503, _TEXT, "the loader has stalled\n") if loader.is_stalled() else (200, _TEXT, "ok\n")
    if path == "/readyz":
        waiting = f"waiting to serve {status.wanted or 'the newest adapter of the store'}"
        return (200, _TEXT, "ok\n") if status.is_discoverable else (503, _TEXT, f"{status.error or waiting}\n")
    return 404, _TEXT, f"not found; use {STATUS}, /healthz, /readyz or /metrics\n"


def format_metrics(status: Status) -> str:
    """Return a status in the text format of Prometheus."""
    name = "gumshoe_adapter_loader_"
    since = status.since.timestamp() if status.since else 0
    described: list[tuple[str, str, str, dict[str, float]]] = [
        ("ready", "gauge", "1 if vLLM is healthy and serves the newest adapter, else 0.", {"": int(status.is_ready)}),
        ("loads_total", "counter", "Number of adapters loaded.", {"": status.loads}),
        (
            "load_seconds",
            "gauge",
            "Seconds until the last adapter was loaded, since it was first missing.",
            {"": status.load_seconds},
        ),
        ("serving_since_seconds", "gauge", "Unix time since which vLLM serves its adapter.", {"": since}),
        (
            "failures_total",
            "counter",
            "Failed checks and loads, by category. corrupt: an adapter differs from what was published; foreign: vLLM "
            "had an adapter that the loader did not load.",
            {f'{{kind="{kind}"}}': status.failures.get(kind, 0) for kind in KINDS},
        ),
    ]
    lines = [
        line
        for metric, kind, text, values in described
        for line in (
            f"# HELP {name}{metric} {text}",
            f"# TYPE {name}{metric} {kind}",
            *(f"{name}{metric}{label} {value}" for label, value in values.items()),
        )
    ]
    return "\n".join(lines) + "\n"
