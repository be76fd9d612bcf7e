"""Restrict the scraper's connections to public addresses and networks that the user allows.

A name is resolved once, each of its addresses is checked, and the connection goes to a checked address. A name that
resolves differently the next time (DNS rebinding) has no effect. TLS still verifies the name.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import httpcore
import httpx

from gumshoe.documents.document import canonicalize_url
from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.errors import UsageError

Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Return the addresses of a host and port. Raises OSError if the host has no address."""

_MAX_ADDRESSES = 4  # tried per name
_MAX_URL_LENGTH = 2000
_WEB_PORTS = {80, 443}
_NO_SUCH_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
_FIRST_UNRESERVED_PORT = 1024  # lower ports belong to other protocols
_NAT64 = ip_network("64:ff9b::/96")  # how hosts without IPv4 reach it (RFC 6052)
_SPECIAL = tuple(
    map(
        ip_network,
        (
            "100.64.0.0/10",  # shared address space of providers (RFC 6598)
            "168.63.129.16/32",  # Azure's platform server, reachable from each virtual machine
            "192.0.0.0/24",
            "fec0::/10",
        ),
    )
)


def parse_network(text: str) -> Network:
    """Parse a network such as `10.0.0.0/8`, or one address.

    Raises:
        UsageError: if the text is neither.
    """
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise UsageError(
            "scraping.invalid-network",
            f"network must be e.g. 10.0.0.0/8, fd00::/8 or 192.168.1.20, got {text!r}",
        ) from None


def normalize_url(text: str) -> httpx.URL:
    """Return the canonical form of a page's URL: lower case, no default port, dot segments or fragment, and escaped.

    Raises:
        PageFailure: if it is not the URL of a web page, or is not permitted.
    """
    try:
        url = httpx.URL(canonicalize_url(text.strip()))
    except (httpx.InvalidURL, ValueError) as error:
        raise PageFailure("address", f"malformed ({error})") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise PageFailure("address", "must begin with http:// or https:// and a host")
    if url.userinfo:
        raise PageFailure("address", "must not contain a user name or password")
    if url.port is not None and url.port not in _WEB_PORTS and url.port < _FIRST_UNRESERVED_PORT:
        raise PageFailure("address", f"port must be 80, 443 or >= {_FIRST_UNRESERVED_PORT}, got {url.port}")
    if len(str(url)) > _MAX_URL_LENGTH:
        raise PageFailure("address", f"longer than {_MAX_URL_LENGTH} characters")
    return url


def is_allowed(address: str, allowed: Iterable[Network] = ()) -> bool:
    """Return True if an IP address is public, in any notation, or in an allowed network."""
    whole = ip_address(address.partition("%")[0])
    return all(_is_reachable(each, allowed) for each in _list_target_addresses(whole))


def _list_target_addresses(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    """Yield the addresses that a connection may reach. An IPv6 address can contain an IPv4 address."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
            return
        if address in _NAT64:
            yield IPv4Address(int(address) & 0xFFFFFFFF)
            return
        if address.sixtofour is not None:
            yield address.sixtofour
        if address.teredo is not None:
            yield from address.teredo
    yield address


def _is_reachable(address: IPv4Address | IPv6Address, allowed: Iterable[Network]) -> bool:
    if any(address in network for network in allowed):
        return True
    special = any(address in network for network in _SPECIAL)
    return address.is_global and not (address.is_multicast or address.is_reserved or special)


async def resolve_host(host: str, port: int) -> list[str]:
    """Resolve a host with the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Open connections only to permitted addresses. `connect_tcp` raises PageFailure for others."""

    def __init__(self, allowed: Iterable[Network], resolve: Resolve, *, is_online: bool) -> None:
        self._allowed = tuple(allowed)
        self._resolve = resolve
        self._is_online = is_online  # if unknown, an unknown name may be due to a missing network
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._find_addresses(host, port)
        for address in addresses:
            if not is_allowed(address, self._allowed):
                raise PageFailure("private address", f"{host} is at {address}, which is not on the public internet")
        last_error: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses[:_MAX_ADDRESSES]:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last_error = error
        raise last_error

    async def _find_addresses(self, host: str, port: int) -> list[str]:
        try:
            found = await self._resolve(host, port)
        except socket.gaierror as error:
            final = self._is_online and error.errno in _NO_SUCH_NAME
            raise PageFailure("no such host", f"{host}: {error.strerror}", may_pass=not final) from None
        except (OSError, UnicodeError) as error:  # e.g. a label that is too long
            raise PageFailure("no such host", f"{host}: {error}") from None
        self._is_online = True
        return found
