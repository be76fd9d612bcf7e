"""What the loader says of itself over HTTP: `/status`, `/healthz`, `/readyz` and `/metrics`.

`/readyz` is whether clients are to find the server, which may have an older adapter; the metric `ready`, whether it has
the newest.

The trainer's image has no library for metrics, and four small pages need none.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gumshoe.artifacts.adapter_layout import STATUS
from gumshoe.cluster.adapter_loader import KINDS, AdapterLoader, Status
from gumshoe.errors import UsageError

_SECONDS = 10.0  # for a client to say what it wants
_TEXT, _JSON, _METRICS = "text/plain; charset=utf-8", "application/json", "text/plain; version=0.0.4; charset=utf-8"


@contextmanager
def pages(loader: AdapterLoader, host: str, port: int) -> Iterator[str]:
    """Answer while the block runs: the address.

    Raises:
        UsageError: the address cannot be used.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS

        def do_GET(self) -> None:
            status, kind, text = _answer(loader, self.path.partition("?")[0])
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Probes come every few seconds."""

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


def _answer(loader: AdapterLoader, path: str) -> tuple[int, str, str]:
    status = loader.status
    if path == STATUS:
        return 200, _JSON, json.dumps(status.described(), ensure_ascii=False) + "\n"
    if path == "/metrics":
        return 200, _METRICS, metrics(status)
    if path == "/healthz":
        return (503, _TEXT, "nothing has moved for too long\n") if loader.hangs() else (200, _TEXT, "ok\n")
    if path == "/readyz":
        waits = f"waiting to serve {status.wanted or 'what the store has'}"
        return (200, _TEXT, "ok\n") if status.is_to_be_found else (503, _TEXT, f"{status.error or waits}\n")
    return 404, _TEXT, f"there is {STATUS}, /healthz, /readyz and /metrics\n"


def metrics(status: Status) -> str:
    """A status in Prometheus' text format."""
    name = "gumshoe_adapter_loader_"
    since = status.since.timestamp() if status.since else 0
    described: list[tuple[str, str, str, dict[str, float]]] = [
        ("ready", "gauge", "Whether vLLM is healthy and has the newest adapter.", {"": int(status.is_ready)}),
        ("loads_total", "counter", "Adapters that were loaded.", {"": status.loads}),
        (
            "load_seconds",
            "gauge",
            "From missing the last adapter to having it.",
            {"": status.load_seconds},
        ),
        ("serving_since_seconds", "gauge", "When the adapter in vLLM was first seen there, Unix time.", {"": since}),
        (
            "failures_total",
            "counter",
            "Looks and tries that failed, by what they are about; corrupt: an adapter is not what was published.",
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
