"""Connections of agents, which may be slow or hostile: uvicorn's protocol with deadlines and limits.

If there are too many connections, one that waits for its client makes room for a new one: first those without a valid
key, then those of the episode that has the most. Each stays open for `_PATIENCE` seconds at least, and new ones wait
that long. So an agent that opens many connections delays others, and takes the places of its own.
"""

import asyncio
import errno
import logging
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from gumshoe.gateway.error_responses import find_status, write_error
from gumshoe.gateway.gateway_errors import InvalidRequestError, RequestTooLargeError, RequestTooSlowError
from gumshoe.gateway.gateway_limits import GatewayLimits
from gumshoe.http_connection import BoundedConnection, Fault

_DESCRIPTORS = 0.5  # fraction of the file descriptors that connections may use
_SHUTDOWN = 5  # seconds that running requests have when the gateway closes
_PATIENCE = 2.0  # seconds that a connection may wait for its client although others wait to be accepted
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE = 1.0  # seconds until the next try if the process or the system has no more file descriptors

_log = logging.getLogger(__name__)
# Uvicorn logs each malformed request, and exceptions with their texts. Agents could fill the log.
_silent = logging.getLogger(f"{__name__}.silent")
_silent.disabled = True


@dataclass(slots=True)
class _Connections:
    """All open connections."""

    most: int
    open: dict["GatewayConnection", str] = field(default_factory=dict)
    """The oldest first, each with the key of the episode that its last valid request named; empty without one."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set if there may be room for another connection."""

    def discard(self, connection: "GatewayConnection") -> None:
        """Remove a connection."""
        self.open.pop(connection, None)
        self.changed.set()

    async def make_room(self) -> None:
        """Wait until another connection may be opened. If there are too many, close one."""
        now = asyncio.get_running_loop().time
        while len(self.open) >= self.most:
            self.changed.clear()
            found, since = self._choose()
            if found is not None and now() - since >= _PATIENCE:
                self.discard(found)
                found.transport.abort()
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(since + _PATIENCE - now() if found is not None else _PAUSE):
                    await self.changed.wait()

    def _choose(self) -> tuple["GatewayConnection | None", float]:
        """Return the connection to close, and the time from which it counts as slow; or None and 0."""
        sizes = Counter(self.open.values())
        waiting = ((key != "", -sizes[key], each) for each, key in self.open.items() if not each.unanswered)
        if found := min(waiting, key=lambda group: group[:2], default=None):
            return found[2], found[2].begun
        stalled = [(each, each.stalled_since) for each in self.open if each.stalled_since is not None]
        return min(stalled, key=lambda pair: pair[1], default=(None, 0.0))


class _JoiningTransport:
    """Transport that can send several writes at once: each one is a system call, and wakes the client up."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._parts = list[bytes]()
        self._is_joining = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @contextmanager
    def join_writes(self) -> Iterator[None]:
        """Send everything that the block writes together, at its end."""
        self._is_joining = True
        try:
            yield
        finally:
            self._is_joining = False
            self._send()

    def write(self, data: bytes) -> None:
        """Send data. See `asyncio.WriteTransport.write`."""
        if self._is_joining:
            self._parts.append(data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send the rest, and close the connection."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._transport.write(data)


class ConnectionConfig(uvicorn.Config):
    """Configuration of the HTTP server."""

    def __init__(self, app: ASGIApp, limits: GatewayLimits) -> None:
        super().__init__(
            app,
            http=GatewayConnection,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            proxy_headers=False,
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=_SHUTDOWN,
        )
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.limits = limits
        self.connected = _Connections(max(1, min(limits.connections, int(files * _DESCRIPTORS))))


class GatewayConnection(BoundedConnection):
    """Connection with a deadline for the headers of each request.

    It is in the state of each request as `connection`.
    """

    config: ConnectionConfig
    transport: _JoiningTransport  # type: ignore[assignment]

    def __init__(
        self,
        config: ConnectionConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        state = {**app_state, "connection": self}
        super().__init__(config, server_state, state, _loop, config.limits.header_bytes)
        self.logger = _silent
        self.request: asyncio.Task[Any] | None = None
        """Task of the request that is being answered. It is cancelled if the client disconnects."""
        self.is_lost = False
        """True if the client has disconnected."""
        self.begun = self.loop.time()
        """Time at which it was accepted, in seconds of the event loop."""
        self.stalled_since: float | None = None
        """Time since which the client does not read what is sent."""
        self._deadline: asyncio.TimerHandle | None = None
        self._received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self.transport = _JoiningTransport(transport)
        self.config.connected.open[self] = ""
        self._wait_for_headers()

    def join_writes(self) -> AbstractContextManager[None]:
        """Send everything that the block writes together, at its end."""
        return self.transport.join_writes()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request that is being answered."""
        self.is_lost = True
        self.config.connected.discard(self)
        self._stop_waiting()
        super().connection_lost(exc)
        if self.request is not None:
            self.request.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse data, unless a request has sent too much."""
        if self.transport.is_closing():
            return
        if self._deadline is None and not self.unanswered:
            self._wait_for_headers()
        self._received += len(data)
        super().data_received(data)
        limits = self.config.limits
        if not self.unanswered and self._received > (limits.body_bytes if self.is_in_body else limits.header_bytes):
            self._refuse(_large_headers())

    def on_headers_complete(self) -> None:
        """Start to answer a request. See `BoundedConnection.on_headers_complete`."""
        super().on_headers_complete()
        self._received = 0
        self._stop_waiting()

    def on_message_complete(self) -> None:
        """End a request."""
        self._received = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self.config.connected.changed.set()

    def pause_writing(self) -> None:
        """Note that the client does not read what is sent."""
        super().pause_writing()
        self.stalled_since = self.loop.time()

    def resume_writing(self) -> None:
        """Note that the client has read what was sent."""
        super().resume_writing()
        self.stalled_since = None

    def identify(self, key: str) -> None:
        """Note that a request has the valid key of an episode."""
        if self in self.config.connected.open:
            self.config.connected.open[self] = key

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if its client has not read everything."""
        self.transport.abort()

    def refuse(self, fault: Fault) -> None:
        """Answer a request that is not handled, and close the connection."""
        if fault == "large headers":
            self._refuse(_large_headers())
        else:
            self._refuse(InvalidRequestError("gateway.malformed-request", "this is not a request of HTTP/1.1"))

    def _wait_for_headers(self) -> None:
        self._deadline = self.loop.call_later(self.config.limits.header_seconds, self._expire)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        if self._received:
            self._refuse(RequestTooSlowError("gateway.request-too-slow", "the headers did not arrive in time"))
        else:
            self.transport.abort()

    def _refuse(self, error: InvalidRequestError) -> None:
        """Answer with an error outside the application, and close the connection.

        A request that was or is being answered gets no second answer.
        """
        if self.transport.is_closing():
            return
        if not self.unanswered and not self.is_in_body:
            headers, body = write_error(error)
            head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
            self.transport.write(STATUS_LINE[find_status(error)] + head + b"connection: close\r\n\r\n" + body)
        self.transport.close()


async def accept_connections(
    listening: socket.socket, config: ConnectionConfig, create: Callable[[], asyncio.Protocol]
) -> None:
    """Accept connections until it is cancelled. The next one waits for room, and others behind it in the backlog."""
    loop = asyncio.get_running_loop()
    listening.setblocking(False)
    while True:
        try:
            accepted, _ = await loop.sock_accept(listening)
        except OSError as error:  # the client has gone, or there is no file descriptor for it
            await asyncio.sleep(_PAUSE if error.errno in _NO_DESCRIPTORS else 0)
            continue
        try:
            await config.connected.make_room()
            await loop.connect_accepted_socket(create, accepted)
        except Exception as error:  # noqa: BLE001 - of one connection
            accepted.close()
            if not isinstance(error, OSError):
                _log.error("a connection of an agent failed: %s", type(error).__name__)
        except BaseException:
            accepted.close()
            raise


def _large_headers() -> RequestTooLargeError:
    return RequestTooLargeError("gateway.headers-too-large", "the headers are too large")
