"""Speak HTTP with clients that may be slow or hostile: uvicorn's protocol with deadlines and limits."""

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from gumshoe.http_connection import BoundedConnection, Fault
from gumshoe.serving.connections import ConnectionGuard, Overdue, Phase
from gumshoe.serving.errors import RefusedRequestError, build_error_response
from gumshoe.serving.settings import ServeSettings

_CHUNKED = 8  # a chunked body may have this many times the bytes of its content
_CHECK_EVERY = 2  # ticks of 0.1 seconds


class ServerConfig(uvicorn.Config):
    """Configuration of the HTTP server."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, guard: ConnectionGuard) -> None:
        proxies = list(settings.connections.trusted_proxies)
        super().__init__(
            app,
            http=GuardedProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            proxy_headers=bool(proxies),
            forwarded_allow_ips=proxies,
            timeout_keep_alive=int(settings.connections.idle_deadline) + 1,  # the guard closes them before
            timeout_graceful_shutdown=int(settings.limits.shutdown),
        )
        self.guard = guard
        self.max_header_bytes = settings.connections.header_bytes
        self.max_request_bytes = settings.connections.header_bytes + _CHUNKED * settings.limits.body


class GuardedServer(uvicorn.Server):
    """Server that closes overdue connections."""

    config: ServerConfig

    async def on_tick(self, counter: int) -> bool:
        """Run every 0.1 seconds. Return True if the server should stop."""
        if counter % _CHECK_EVERY == 0:
            self.config.guard.close_overdue()
        return await super().on_tick(counter)


class GuardedProtocol(BoundedConnection):
    """Connection that its guard may close, with limits on what one request may send."""

    config: ServerConfig

    def __init__(
        self,
        config: ServerConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, config.max_header_bytes)
        self._guard = config.guard
        self.phase, self.since = Phase.HEADERS, 0.0
        self._received = 0  # bytes since the last complete request

    @property
    def address(self) -> str | None:
        """IP address of the peer."""
        return self.client[0] if self.client else None

    @property
    def unsent(self) -> int:
        """Number of bytes that the client has not taken yet."""
        return self.transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection if there is room for it."""
        super().connection_made(transport)
        if not self._guard.admit(self):
            self._refuse("serving.too-many-connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._guard.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, unless a request has sent too much."""
        if self.transport.is_closing():
            return
        if self.phase is Phase.IDLE:
            self._guard.enter(self, Phase.HEADERS)
        self._received += len(data)
        super().data_received(data)
        if self.phase is Phase.HEADERS and not self.is_in_body and self._received > self.config.max_header_bytes:
            self._refuse("serving.headers-too-large")
        elif self._received > self.config.max_request_bytes:
            self._refuse("serving.request-too-large")

    def on_headers_complete(self) -> None:
        """Start to answer a request. See `BoundedConnection.on_headers_complete`."""
        super().on_headers_complete()
        self._update_phase()

    def on_message_complete(self) -> None:
        """End a request."""
        self._received = 0
        super().on_message_complete()
        self._update_phase()

    def on_response_complete(self) -> None:
        """Continue with the next request."""
        super().on_response_complete()
        self._update_phase()

    def _update_phase(self) -> None:
        if self.transport.is_closing():
            phase = Phase.CLOSING
        elif self.unanswered > (1 if self.is_in_body else 0):
            phase = Phase.ANSWER
        elif self.unanswered:
            phase = Phase.BODY
        else:  # the rest of a request that was answered early has the deadline of headers
            phase = Phase.HEADERS if self.is_in_headers or self.is_in_body else Phase.IDLE
        if phase is not self.phase:
            self._guard.enter(self, phase)

    def expire(self, why: Overdue) -> None:
        """Close the connection because of a deadline, and say so if a request has begun."""
        if why == "headers" and self._received:
            self._refuse("serving.request-too-slow", "The headers did not arrive in time.")
        else:
            self.transport.close()

    def abort(self) -> None:
        """Close the connection at once, without sending the rest."""
        self.transport.abort()

    def refuse(self, fault: Fault) -> None:
        """Answer a request that is not handled, and close the connection."""
        self._refuse("serving.headers-too-large" if fault == "large headers" else "serving.malformed-request")

    def _refuse(self, code: str, detail: str | None = None) -> None:
        """Answer with a problem outside the application, and close the connection.

        A request that was or is being answered gets no second answer.
        """
        if self.transport.is_closing():
            return
        if self.is_in_body and (not self.unanswered or self.cycle.response_started):
            self.transport.close()
            return
        response = build_error_response(RefusedRequestError(code, detail))
        response.headers["connection"] = "close"
        headers = [*self.server_state.default_headers, *response.raw_headers]
        head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[response.status_code] + head + b"\r\n" + bytes(response.body))
        self.transport.close()
