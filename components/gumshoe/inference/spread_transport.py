"""Spread the requests to one server over several connection pools."""

import ssl

import httpx

_POOLS = 32
_MAX_IDLE = 16  # connections that each pool keeps open


class SpreadTransport(httpx.AsyncBaseTransport):
    """Transport that sends each request through its least busy connection pool.

    For each request, a pool of httpx checks every connection against every other one, which takes longer than all else
    if hundreds of requests are under way. Among equally busy pools, the first one is used, so that few requests share
    few connections.

    A client with a transport of its own ignores the proxy of the environment, so that of `proxy` is used, if any.
    """

    def __init__(self, verify: ssl.SSLContext, proxy: str | None = None) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=_MAX_IDLE)
        self._pools = [httpx.AsyncHTTPTransport(verify=verify, limits=limits, proxy=proxy) for _ in range(_POOLS)]
        self._busy = [0] * _POOLS

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        place = self._busy.index(min(self._busy))
        self._busy[place] += 1
        try:
            return await self._pools[place].handle_async_request(request)
        finally:
            self._busy[place] -= 1

    async def aclose(self) -> None:
        """Close every connection."""
        for each in self._pools:
            await each.aclose()
