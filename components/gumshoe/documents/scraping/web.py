"""Send one HTTP request within limits of address, size and time."""

import asyncio
import ssl
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpcore
import httpx

from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.documents.scraping.guard import GuardedBackend, Network, Resolve

_CONNECT_SECONDS = 10.0
_GZIP = 31  # zlib's number for the gzip format
_MAGIC = b"\x1f\x8b"  # first bytes of each gzip member
_OK = 200
_ACCEPT = "text/html, application/xhtml+xml, text/plain;q=0.9, text/markdown;q=0.9, application/pdf;q=0.9, */*;q=0.1"


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of one request."""

    seconds: float
    """Maximum duration, from the host lookup to the last byte."""
    size: int
    """Maximum bytes of the decompressed body."""
    truncates: bool = False
    """True if a longer body is truncated. Otherwise it is an error."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The response of a server. The body is empty unless the status is 200."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case. Of repeated headers, the first."""
    body: bytes


class WebClient:
    """Send requests through a pool of connections to permitted addresses.

    No proxy is used, because the addresses that it connects to could not be checked.
    """

    def __init__(self, pool: httpcore.AsyncConnectionPool, user_agent: str) -> None:
        self._pool = pool
        self._user_agent = user_agent

    async def get(self, url: httpx.URL, bounds: FetchLimits, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Request one URL, without following redirects.

        Raises:
            PageFailure: if there is no response, or it exceeds the limits.
        """
        try:
            async with asyncio.timeout(bounds.seconds):
                return await self._get(url, bounds, headers or {})
        except httpcore.ConnectTimeout:
            limit = min(_CONNECT_SECONDS, bounds.seconds)
            raise PageFailure("timeout", f"no connection within {limit:g} seconds", may_pass=True) from None
        except (TimeoutError, httpcore.TimeoutException):
            raise PageFailure("timeout", f"no answer within {bounds.seconds:g} seconds", may_pass=True) from None
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise _connection_failure(error) from None

    async def _get(self, url: httpx.URL, bounds: FetchLimits, headers: Mapping[str, str]) -> HttpResponse:
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        request_headers: list[tuple[bytes | str, bytes | str]] = [
            ("Host", url.netloc),
            ("User-Agent", self._user_agent),
            ("Accept", _ACCEPT),
            ("Accept-Encoding", "gzip"),
            *((name, value.encode("latin-1")) for name, value in headers.items()),
        ]
        limits = {"connect": min(_CONNECT_SECONDS, bounds.seconds)}
        async with self._pool.stream(
            "GET", target, headers=request_headers, extensions={"timeout": limits}
        ) as response:
            found: dict[str, str] = {}
            for name, value in response.headers:
                found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
            body = await _read_body(response, found, bounds) if response.status == _OK else b""
            return HttpResponse(response.status, found, body)


@asynccontextmanager
async def open_web_client(
    user_agent: str, connections: int, allowed: tuple[Network, ...], resolve: Resolve, *, is_online: bool
) -> AsyncIterator[WebClient]:
    """Yield a client for public addresses and the `allowed` networks.

    A host name that does not exist is a final failure if name resolution is known to work: with `is_online`, or after
    one name was resolved.
    """
    async with httpcore.AsyncConnectionPool(
        ssl_context=httpx.create_ssl_context(),
        max_connections=connections,
        network_backend=GuardedBackend(allowed, resolve, is_online=is_online),
    ) as pool:
        yield WebClient(pool, user_agent)


async def _read_body(response: httpcore.Response, headers: Mapping[str, str], bounds: FetchLimits) -> bytes:
    """Read and decompress the body up to its limit, and read no more."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    length = headers.get("content-length", "")
    if length.isdecimal() and float(length) > bounds.size and not bounds.truncates:
        raise _too_large(bounds)
    if encoding not in {"gzip", "x-gzip", "identity", ""}:
        raise PageFailure("broken answer", f"content encoding {encoding!r} was not requested")
    members = _GzipDecoder() if "gzip" in encoding else None
    body, received = bytearray(), 0
    async for piece in response.aiter_stream():
        received += len(piece)
        try:
            body += members.decompress(piece, bounds.size + 1 - len(body)) if members else piece
        except zlib.error as error:
            raise PageFailure("broken answer", f"the body cannot be decompressed ({error})") from None
        if max(received, len(body)) > bounds.size:
            if not bounds.truncates:
                raise _too_large(bounds)
            return bytes(body[: bounds.size])
    if members and body and not members.is_complete:
        raise PageFailure("connection", "the connection ended before the whole body had arrived", may_pass=True)
    return bytes(body)


@dataclass(slots=True)
class _GzipDecoder:
    """Decompress gzip incrementally, one member after another, and ignore any data after them."""

    _member: "zlib._Decompress" = field(default_factory=lambda: zlib.decompressobj(_GZIP))

    @property
    def is_complete(self) -> bool:
        return self._member.eof

    def decompress(self, piece: bytes, max_size: int) -> bytes:
        """Decompress one piece, up to `most` bytes.

        Raises:
            zlib.error: if it is damaged.
        """
        found = b""
        while piece and len(found) < max_size:
            if self._member.eof:
                piece = piece.lstrip(b"\0")
                if not piece or not _MAGIC.startswith(piece[:2]):
                    break
                self._member = zlib.decompressobj(_GZIP)
            found += self._member.decompress(piece, max_size - len(found))
            piece = self._member.unused_data
        return found


def _too_large(bounds: FetchLimits) -> PageFailure:
    return PageFailure("too large", f"larger than {bounds.size:,} bytes")


def _connection_failure(error: Exception) -> PageFailure:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return PageFailure("certificate", cause.verify_message)
        cause = cause.__cause__ or cause.__context__
    message = str(error) or type(error).__name__
    if isinstance(error, httpcore.ProtocolError) and "closed" not in message and "disconnected" not in message:
        return PageFailure("broken answer", message)
    return PageFailure("connection", message, may_pass=True)
