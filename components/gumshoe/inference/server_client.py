"""HTTP client of a vLLM server that many episodes share.

It is aiohttp: choosing a connection takes httpx longer than all else if hundreds of requests are under way.
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
import orjson

from gumshoe.inference.http_options import http_options
from gumshoe.network import find_proxy, open_session, raise_if_untrusted

_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
_ABORTED = re.compile(rb'"finish_reason": ?"abort"')  # not in a string of JSON, which has no bare quotes


class ServerRequestError(Exception):
    """Report a request without a usable answer.

    `kind` is `unreachable` if no connection could be opened, `broken` if it failed later, `unreadable` if the answer is
    encoded in another way than was asked for, and `aborted` if the server aborted the request, as vLLM does when it is
    stopped.
    """

    def __init__(self, kind: Literal["unreachable", "broken", "unreadable", "aborted"], message: str) -> None:
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
        self._abandoned: list[aiohttp.ClientSession] = []

    async def aclose(self) -> None:
        """Close every connection."""
        for session in (self._session, *self._abandoned):
            if session is not None:
                await session.close()

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
        session = self._open_session()
        try:
            async with session.request(
                method, f"{self.url}{path}", data=body, proxy=self._proxy, allow_redirects=False
            ) as response:
                encoding = response.headers.get("Content-Encoding", "identity")
                if encoding != "identity":
                    raise ServerRequestError("unreadable", f"its content encoding is {encoding[:40]!r}")
                answer = ServerAnswer(response.status, await response.read())
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            raise_if_untrusted(error, self.url)
            raise _describe(error) from None
        if _ABORTED.search(answer.body):
            self._abandon(session)
            raise ServerRequestError("aborted", "it aborted the request, as vLLM does when it is stopped")
        return answer

    def _abandon(self, session: aiohttp.ClientSession) -> None:
        """Send no more requests over the open connections: another server may have the address, e.g. of a Service."""
        if session is self._session:
            self._session = None
            self._abandoned.append(session)

    def _open_session(self) -> aiohttp.ClientSession:
        """Return the session, which belongs to the event loop that sends the first request."""
        if self._session is None:
            self._session = open_session(self._certificates, headers=self._headers, timeout=self._timeout)
        return self._session
