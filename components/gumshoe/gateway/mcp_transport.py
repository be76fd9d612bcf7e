"""Send the HTTP requests of the MCP SDK's client, bound their responses, and remember how each ended."""

from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

import httpx2
from mcp import MCPError

MAX_RESPONSE = 4 * 1024 * 1024
"""Maximum number of bytes of a response of a server."""


@dataclass(slots=True)
class McpExchange:
    """The HTTP exchange of a request, as the transport saw it. Errors of the SDK do not say it."""

    status: int = 0
    """Status of the server's response; 0 without a response."""
    fault: str = ""
    """Name of the error of the connection; empty if there was none."""
    was_sent: bool = True
    """False if the connection could not be opened, so that the server did not receive the request."""
    is_too_large: bool = False

    def describe(self, error: BaseException) -> str:
        """Return what went wrong, without text of the server, which may be anything."""
        if self.is_too_large:
            return f"its response has more than {MAX_RESPONSE:,} bytes"
        if self.fault:
            return self.fault
        if self.status >= 400:
            return f"HTTP status {self.status}"
        return f"{type(error).__name__} {error.code}" if isinstance(error, MCPError) else type(error).__name__


current_exchange: ContextVar[McpExchange | None] = ContextVar("mcp_exchange", default=None)
"""The exchange of the request that runs. The SDK's tasks inherit it."""


class _ResponseError(httpx2.StreamError):
    """Report a response that cannot be read. The SDK answers its request with an error, and others are not affected."""


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of a response, up to a maximum number of bytes."""

    def __init__(self, stream: httpx2.AsyncByteStream, seen: McpExchange) -> None:
        self._stream, self._seen = stream, seen

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for block in self._stream:
                size += len(block)
                if size > MAX_RESPONSE:
                    self._seen.is_too_large = True
                    raise _ResponseError("the response is too large")
                yield block
        except httpx2.TransportError as error:
            self._seen.fault = type(error).__name__
            raise _ResponseError("the connection was lost") from None

    async def aclose(self) -> None:
        await self._stream.aclose()


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Send requests, and bound their responses.

    Failed connections become responses with an error: an exception would end the SDK's client with all its requests.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request."""
        seen = current_exchange.get() or McpExchange()
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            seen.fault = type(error).__name__
            seen.was_sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
            return httpx2.Response(503, request=request)
        seen.status = response.status_code
        if response.headers.get("content-encoding", "identity") != "identity":  # its real size is not known
            await response.aclose()
            return httpx2.Response(502, request=request)
        stream = cast(httpx2.AsyncByteStream, response.stream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(stream, seen),
            extensions=response.extensions,
            request=request,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()
