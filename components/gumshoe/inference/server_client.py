"""HTTP client of a vLLM server that many episodes share.

It is aiohttp: choosing a connection takes httpx longer than all else if hundreds of requests are under way.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
import orjson

from gumshoe.inference.http_options import http_options
from gumshoe.network import find_proxy, open_session, raise_if_untrusted

_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


class ServerRequestError(Exception):
    """Report a request without a usable answer.

    `kind` is `unreachable` if no connection could be opened, `broken` if it failed later, and `unreadable` if the
    answer is encoded in another way than was asked for.
    """

    def __init__(self, kind: Literal["unreachable", "broken", "unreadable"], message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """The answer of a server, whatever its status."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """Return the value of the body.

        Raises:
            ValueError: if it is not JSON.
        """
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return json.loads(self.body)  # numbers such as NaN are refused with a better message


def _describe(error: Exception) -> ServerRequestError:
    if isinstance(error, aiohttp.ClientConnectorError):  # its own message says the address again
        cause = error.os_error
        known = os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror
        return ServerRequestError("unreachable", f"cannot connect: {known or cause}")
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ServerRequestError("unreachable", "cannot connect in time")
    return ServerRequestError("broken", f"{type(error).__name__}: {error}")


class ServerClient:
    """Client of one server, in one event loop.

    Certificates, proxy and key are those of the environment: see `http_options`. Redirects are not followed.
    """

    def __init__(self, url: str, connect: float) -> None:
        """`connect` is the maximum number of seconds for opening a connection."""
        self.url = url
        options = http_options(url)
        self._headers, self._certificates = {**_HEADERS, **options["headers"]}, options["verify"]
        self._proxy = find_proxy(url) if options["trust_env"] else None
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect)
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> ServerAnswer:
        """Send a GET request. See `post`."""
        return await self._send("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> ServerAnswer:
        """Send a POST request with a JSON body. There is no limit on the time of the answer.

        Raises:
            ServerRequestError: if there is no usable answer.
            UsageError: if the server's certificate is not trusted.
        """
        return await self._send("POST", path, orjson.dumps(body))

    async def _send(self, method: str, path: str, body: bytes | None) -> ServerAnswer:
        try:
            async with self._open_session().request(
                method, f"{self.url}{path}", data=body, proxy=self._proxy, allow_redirects=False
            ) as response:
                encoding = response.headers.get("Content-Encoding", "identity")
                if encoding != "identity":
                    raise ServerRequestError("unreadable", f"its content encoding is {encoding[:40]!r}")
                return ServerAnswer(response.status, await response.read())
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            raise_if_untrusted(error, self.url)
            raise _describe(error) from None

    def _open_session(self) -> aiohttp.ClientSession:
        """Return the session, which belongs to the event loop that sends the first request."""
        if self._session is None:
            self._session = open_session(self._certificates, headers=self._headers, timeout=self._timeout)
        return self._session
