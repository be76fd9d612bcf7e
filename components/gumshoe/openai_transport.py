"""Send the requests of OpenAI's client with aiohttp: for hundreds at once, httpx takes twice the processor time.

OpenAI's own transport with aiohttp (`DefaultAioHttpClient`) reports a refused or a broken connection as a timeout.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import httpx2

from gumshoe.network import find_proxy, open_session

_KINDS: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
    (aiohttp.ServerTimeoutError, httpx2.ReadTimeout),
    (aiohttp.ClientProxyConnectionError, httpx2.ProxyError),
    (aiohttp.ClientHttpProxyError, httpx2.ProxyError),
    (aiohttp.ClientConnectorError, httpx2.ConnectError),
    (aiohttp.InvalidURL, httpx2.UnsupportedProtocol),
    (aiohttp.ClientOSError, httpx2.ReadError),
    (aiohttp.ClientError, httpx2.RemoteProtocolError),
    (asyncio.IncompleteReadError, httpx2.RemoteProtocolError),
    (OSError, httpx2.ReadError),
)
"""Errors of aiohttp, each with the error that OpenAI's client has for it. The first that fits counts."""


class OpenAITransport(httpx2.AsyncBaseTransport):
    """Transport for one event loop. Certificates and proxy are those of the environment."""

    def __init__(self) -> None:
        self._certificates = httpx2.create_ssl_context()
        self._session: aiohttp.ClientSession | None = None
        self._proxies: dict[bytes, str | None] = {}
        """Proxy of each server, because it takes long to find in the environment."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and return the response as soon as its headers are there.

        Raises:
            httpx2.TransportError: if no response arrives.
        """
        limits = request.extensions.get("timeout", {})
        url = str(request.url.copy_with(userinfo=b""))  # the client has made a header of the credentials
        timeout = aiohttp.ClientTimeout(None, sock_connect=limits.get("connect"), sock_read=limits.get("read"))
        with _translate_errors():
            response = await self._open_session().request(
                request.method,
                url,
                data=await request.aread() or None,
                headers=request.headers.multi_items(),
                proxy=self._find_proxy(request.url),
                timeout=timeout,
                allow_redirects=False,
            )
        stream = _ResponseStream(response)
        return httpx2.Response(response.status, headers=list(response.raw_headers), stream=stream)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def _find_proxy(self, url: httpx2.URL) -> str | None:
        server = url.raw_scheme + b"://" + url.netloc
        if server not in self._proxies:
            self._proxies[server] = find_proxy(server.decode())
        return self._proxies[server]

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            own = ("User-Agent", "Content-Type", "Accept", "Accept-Encoding")  # OpenAI's client sets them
            self._session = open_session(self._certificates, skip_auto_headers=own)
        return self._session


class _ResponseStream(httpx2.AsyncByteStream):
    """The body of a response."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translate_errors():
            async for part in self._response.content.iter_any():
                yield part

    async def aclose(self) -> None:
        self._response.release()


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except tuple(each for each, _ in _KINDS) as error:
        kind: Any = next(to for source, to in _KINDS if isinstance(error, source))
        raise kind(str(error) or type(error).__name__) from error
