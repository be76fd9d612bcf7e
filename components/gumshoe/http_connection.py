"""Bound what clients of an HTTP server may send: uvicorn's connection with limits of headers and pipelined requests."""

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Literal

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

Fault = Literal["malformed request", "large headers"]
MAX_PIPELINED = 16
"""Maximum number of requests that a connection may send before their answers."""


class BoundedConnection(HttpToolsProtocol, ABC):
    """Connection that refuses requests with large headers, and too many requests before their answers.

    `max_header_bytes` limits the header fields and the URL of a request. Subclasses answer with `refuse`.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop | None,
        max_header_bytes: int,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self.unanswered = 0
        """Number of requests with complete headers and without a complete answer."""
        self.is_in_headers = self.is_in_body = False
        self._max_header_bytes, self._header_bytes = max_header_bytes, 0
        self._fault: Fault = "malformed request"

    @abstractmethod
    def refuse(self, fault: Fault) -> None:
        """Answer a request that is not handled, and close the connection."""

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.is_in_headers, self._header_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Fields after the body (trailers) are ignored, because they would look like headers."""
        if self.is_in_headers:
            self._header_bytes += len(name) + len(value)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start to answer a request.

        Raises:
            ValueError: if its headers are too large, or too many requests wait for their answers. The parser stops, and
                reports it as a malformed request.
        """
        if self._header_bytes + len(self.url) > self._max_header_bytes:
            self._fault = "large headers"
            raise ValueError(self._fault)
        if self.unanswered >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
        super().on_headers_complete()
        self.is_in_headers, self.is_in_body = False, True
        self.unanswered += 1

    def on_message_complete(self) -> None:
        """End a request."""
        self.is_in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Continue with the next request."""
        self.unanswered -= 1
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the fault says more
        """Answer a request that cannot be parsed."""
        self.refuse(self._fault)
