"""A small server with a `/rerank` endpoint: the score of a document is the number of its words that the query has."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.http_server import run_server

Answer = tuple[int, Any]
"""Status and body of a response. Bytes are sent as they are."""


def by_common_words(request: dict[str, Any]) -> Answer:
    """Answer like a model that counts common words, best first."""
    query = set(request["query"].lower().split())
    scores = [len(query & set(text.lower().replace(".", "").split())) for text in request["documents"]]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return 200, {"results": [{"index": index, "relevance_score": scores[index]} for index in order[: request["top_n"]]]}


@dataclass
class RerankServer:
    """The address of a server, and the requests that it received."""

    url: str
    answer: Callable[[dict[str, Any]], Answer] = by_common_words
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def running_rerank_server() -> Iterator[RerankServer]:
    """Run a server while the block runs."""
    state: RerankServer

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.requests.append(request)
            state.keys.append(self.headers["Authorization"])
            status, body = state.answer(request)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state = RerankServer(f"http://127.0.0.1:{server.server_port}/v1/rerank")
    with run_server(server):
        yield state
