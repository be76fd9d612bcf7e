"""Receive traces as an OpenTelemetry collector does."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tests.http_server import ReceivedRequest, run_faulty_server


@contextmanager
def run_collector() -> Iterator[tuple[str, list[bytes]]]:
    """Run a collector while the block runs. Yield its address, and the bodies of the requests that it has received."""
    received: list[bytes] = []

    def accept(request: ReceivedRequest, _: str) -> tuple[int, str, bytes]:
        received.append(request.body)
        return 200, "application/x-protobuf", b""

    with run_faulty_server(deque(), accept) as address:
        yield address, received
