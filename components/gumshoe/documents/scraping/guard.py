"""Where a scraper may connect to: public addresses, and networks that the user names; checked as it connects.

A name is resolved once, each of its addresses is checked, and the connection goes to one that was checked: a name
that answers differently the next time (DNS rebinding) changes nothing. TLS still asks for, and checks, the name.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import httpcore
import httpx

from gumshoe.documents.document import one_form
from gumshoe.documents.scraping.failure import PageFailure
from gumshoe.errors import UsageError

Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host and port. Raises OSError where there are none."""

_MOST_ADDRESSES = 4  # of one name that are tried
_LONGEST = 2000  # characters of an address
_WEB_PORTS = {80, 443}
_NO_SUCH_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
_FIRST_FREE_PORT = 1024  # below it lie other protocols' ports
_NAT64 = ip_network("64:ff9b::/96")  # how hosts without IPv4 reach it (RFC 6052)
_SPECIAL = tuple(
    map(
        ip_network,
        (
            "100.64.0.0/10",  # shared by a provider's customers (RFC 6598)
            "168.63.129.16/32",  # Azure's own server, which each virtual machine reaches
            "192.0.0.0/24",
            "fec0::/10",
        ),
    )
)


def as_network(text: str) -> Network:
    """A network such as `10.0.0.0/8`, or one address.

    Raises:
        UsageError: the text is neither.
    """
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise UsageError(
            "scraping.invalid-network",
            f"network must be e.g. 10.0.0.0/8, fd00::/8 or 192.168.1.20, got {text!r}",
        ) from None


def normal_address(text: str) -> httpx.URL:
    """The one form of a page's address: lower case, no default port, dot segments or fragment; the rest escaped.

    Raises:
        PageFailure: it is no address of a web page, or one that is not to be asked for.
    """
    try:
        url = httpx.URL(one_form(text.strip()))
    except (httpx.InvalidURL, ValueError) as error:
        raise PageFailure("address", f"malformed ({error})") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise PageFailure("address", "must begin with http:// or https:// and a host")
    if url.userinfo:
        raise PageFailure("address", "must not contain a user name or password")
    if url.port is not None and url.port not in _WEB_PORTS and url.port < _FIRST_FREE_PORT:
        raise PageFailure("address", f"port must be 80, 443 or >= {_FIRST_FREE_PORT}, got {url.port}")
    if len(str(url)) > _LONGEST:
        raise PageFailure("address", f"longer than {_LONGEST} characters")
    return url


def is_allowed(address: str, allowed: Iterable[Network] = ()) -> bool:
    """Whether an IP address may be connected to: it is public, in whatever form it is written, or in a network that is
    allowed.
    """
    whole = ip_address(address.partition("%")[0])
    return all(_is_open(each, allowed) for each in _meant(whole))


def _meant(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    """The addresses that a connection may end at: an IPv6 address can carry an IPv4 address that it leads to."""
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


def _is_open(address: IPv4Address | IPv6Address, allowed: Iterable[Network]) -> bool:
    if any(address in network for network in allowed):
        return True
    special = any(address in network for network in _SPECIAL)
    return address.is_global and not (address.is_multicast or address.is_reserved or special)


async def resolve(host: str, port: int) -> list[str]:
    """The addresses that the system knows for a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """The network as it may be used: `connect_tcp` raises PageFailure for what may not be connected to."""

    def __init__(self, allowed: Iterable[Network], resolve: Resolve, *, is_online: bool) -> None:
        self._allowed = tuple(allowed)
        self._resolve = resolve
        self._is_online = is_online  # known to be: else a name that does not exist may be for want of a network
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._resolved(host, port)
        for address in addresses:
            if not is_allowed(address, self._allowed):
                raise PageFailure("private address", f"{host} is at {address}, which is not on the public internet")
        failed: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses[:_MOST_ADDRESSES]:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed

    async def _resolved(self, host: str, port: int) -> list[str]:
        try:
            found = await self._resolve(host, port)
        except socket.gaierror as error:
            final = self._is_online and error.errno in _NO_SUCH_NAME
            raise PageFailure("no such host", f"{host}: {error.strerror}", may_pass=not final) from None
        except (OSError, UnicodeError) as error:  # such as a label that is too long
            raise PageFailure("no such host", f"{host}: {error}") from None
        self._is_online = True
        return found
