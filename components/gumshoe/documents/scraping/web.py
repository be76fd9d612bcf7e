"""One HTTP request within its bounds of place, size and time."""

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
_MAGIC = b"\x1f\x8b"  # what each of its members begins with
_OK = 200


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one request."""

    seconds: float
    """From looking its host up to the last byte, however busily they trickle."""
    size: int
    """Bytes of the body, unpacked."""
    is_cut: bool = False
    """Whether a longer body is cut off there; otherwise it is refused."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a server answered; the body is that of 200 alone."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case; of several, the first."""
    body: bytes


class Web:
    """A pool of connections to what may be connected to. No proxy is used: where it connects could not be checked."""

    def __init__(self, pool: httpcore.AsyncConnectionPool, user_agent: str) -> None:
        self._pool = pool
        self._user_agent = user_agent

    async def get(self, url: httpx.URL, bounds: Bounds, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Ask for one address; no redirect is followed.

        Raises:
            PageFailure: there is no answer, or one that goes beyond the bounds.
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
            raise _failure(error) from None

    async def _get(self, url: httpx.URL, bounds: Bounds, headers: Mapping[str, str]) -> HttpResponse:
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        sent: list[tuple[bytes | str, bytes | str]] = [
            ("Host", url.netloc),
            ("User-Agent", self._user_agent),
            ("Accept", "text/html, application/xhtml+xml, text/plain;q=0.9, application/pdf;q=0.9, */*;q=0.1"),
            ("Accept-Encoding", "gzip"),
            *((name, value.encode("latin-1")) for name, value in headers.items()),
        ]
        limits = {"connect": min(_CONNECT_SECONDS, bounds.seconds)}
        async with self._pool.stream("GET", target, headers=sent, extensions={"timeout": limits}) as response:
            found: dict[str, str] = {}
            for name, value in response.headers:
                found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
            body = await _body(response, found, bounds) if response.status == _OK else b""
            return HttpResponse(response.status, found, body)


@asynccontextmanager
async def web(
    user_agent: str, connections: int, allowed: tuple[Network, ...], resolve: Resolve, *, is_online: bool
) -> AsyncIterator[Web]:
    """The web as far as it may be reached: public addresses, and `allowed` networks.

    Names that do not exist are final where it is known that names can be found: `is_online`, or once one was.
    """
    async with httpcore.AsyncConnectionPool(
        ssl_context=httpx.create_ssl_context(),
        max_connections=connections,
        network_backend=GuardedBackend(allowed, resolve, is_online=is_online),
    ) as pool:
        yield Web(pool, user_agent)


async def _body(response: httpcore.Response, headers: Mapping[str, str], bounds: Bounds) -> bytes:
    """The body, unpacked no further than to its bound, and no more of it read."""
    packing = headers.get("content-encoding", "identity").strip().lower()
    length = headers.get("content-length", "")
    if length.isdecimal() and float(length) > bounds.size and not bounds.is_cut:
        raise _too_large(bounds)
    if packing not in {"gzip", "x-gzip", "identity", ""}:
        raise PageFailure("broken answer", f"content encoding {packing!r} was not requested")
    members = _Members() if "gzip" in packing else None
    body, came = bytearray(), 0
    async for piece in response.aiter_stream():
        came += len(piece)
        try:
            body += members.unpacked(piece, bounds.size + 1 - len(body)) if members else piece
        except zlib.error as error:
            raise PageFailure("broken answer", f"the body cannot be decompressed ({error})") from None
        if max(came, len(body)) > bounds.size:
            if not bounds.is_cut:
                raise _too_large(bounds)
            return bytes(body[: bounds.size])
    if members and body and not members.are_whole:
        raise PageFailure("connection", "the connection ended before the whole body had arrived", may_pass=True)
    return bytes(body)


@dataclass(slots=True)
class _Members:
    """Unpacks gzip as it comes: one member after another, and nothing of what may stand behind them."""

    _member: "zlib._Decompress" = field(default_factory=lambda: zlib.decompressobj(_GZIP))

    @property
    def are_whole(self) -> bool:
        return self._member.eof

    def unpacked(self, piece: bytes, most: int) -> bytes:
        """What a piece holds, as far as there is room.

        Raises:
            zlib.error: it is damaged.
        """
        found = b""
        while piece and len(found) < most:
            if self._member.eof:
                piece = piece.lstrip(b"\0")
                if not piece or not _MAGIC.startswith(piece[:2]):
                    break
                self._member = zlib.decompressobj(_GZIP)
            found += self._member.decompress(piece, most - len(found))
            piece = self._member.unused_data
        return found


def _too_large(bounds: Bounds) -> PageFailure:
    return PageFailure("too large", f"larger than {bounds.size:,} bytes")


def _failure(error: Exception) -> PageFailure:
    told: BaseException | None = error
    while told is not None:
        if isinstance(told, ssl.SSLCertVerificationError):
            return PageFailure("certificate", told.verify_message)
        told = told.__cause__ or told.__context__
    said = str(error) or type(error).__name__
    if isinstance(error, httpcore.ProtocolError) and "closed" not in said and "disconnected" not in said:
        return PageFailure("broken answer", said)
    return PageFailure("connection", said, may_pass=True)
