"""Refuse requests that a web page makes a browser send to this server without its user's knowledge.

Three headers of browsers are checked. `Host` must be a name that the operator knows, or a page could reach the server
under its own name (DNS rebinding). `Origin` must be this server or an origin that the operator allows, as MCP demands.
`Sec-Fetch-Site` says the same for requests without an origin. Other clients may leave out the last two.

https://modelcontextprotocol.io/specification/2026-07-28/basic/transports
https://www.w3.org/TR/fetch-metadata/
"""

import re

from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Scope

from gumshoe.serving.access_settings import AccessSettings
from gumshoe.serving.callers import parse_address
from gumshoe.serving.errors import RefusedRequestError

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<host>[^/:]+|\[[0-9a-f:.]+\])(:(?P<port>\d+))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_PORT = re.compile(r":(\d*)$")
_FOREIGN_SITES = ("same-site", "cross-site")
_READING = ("GET", "HEAD")
_SHOWN = 100  # characters of a header in a message
_ALLOWED_HEADERS = (
    *("authorization", "content-type", "x-request-id"),
    *("mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"),
)
_EXPOSED_HEADERS = ("retry-after", "www-authenticate", "x-request-id")


def check_browser(scope: Scope, headers: Headers, access: AccessSettings, *, is_public: bool) -> None:
    """Check the headers of a request that only browsers set, and with open access also its client.

    A public page may be opened from a link on any site.

    Raises:
        RefusedRequestError: if the host, the client or the origin is not allowed.
    """
    _check_host(scope, headers.get("host", ""), access)
    if not (is_public and scope["method"] in _READING):
        _check_origin(headers, access)


def _check_host(scope: Scope, host: str, access: AccessSettings) -> None:
    if not (access.open or access.allowed_hosts):
        return
    name = _PORT.sub("", host).lower()
    if name in access.allowed_hosts:
        return
    if not access.open or name not in _LOCAL_HOSTS:
        raise RefusedRequestError(
            "serving.host-not-allowed",
            f"Host header {name[:_SHOWN]!r} is not allowed. The operator can add it to access.allowed_hosts.",
        )
    client = parse_address((scope.get("client") or [""])[0])
    if client is None or not client.is_loopback:  # anybody can send the header `Host: localhost`
        raise RefusedRequestError("serving.client-not-local")


def _check_origin(headers: Headers, access: AccessSettings) -> None:
    origins = headers.getlist("origin")
    for origin in origins:
        if origin not in access.allowed_origins and not _is_same_origin(origin, headers.get("host", "")):
            raise _refuse_origin(f"Origin header {origin[:_SHOWN]!r}")
    if not any(origin in access.allowed_origins for origin in origins):
        for site in headers.getlist("sec-fetch-site"):
            if site.lower() in _FOREIGN_SITES:
                raise _refuse_origin(f"Sec-Fetch-Site header {site[:_SHOWN]!r}")


def _refuse_origin(what: str) -> RefusedRequestError:
    return RefusedRequestError(
        "serving.origin-not-allowed",
        f"{what} is not allowed. The operator can add the page's origin to access.allowed_origins.",
    )


def _is_same_origin(origin: str, host: str) -> bool:
    """Return True if an origin has the host and the port of a request. A proxy may change the scheme."""
    found = _ORIGIN.fullmatch(origin.lower())
    if found is None:
        return False
    default = _DEFAULT_PORTS[found["scheme"]]
    given = _PORT.search(host)
    own = _PORT.sub("", host).lower(), (given[1] if given else "") or default
    return (found["host"], found["port"] or default) == own


def allow_origins(app: ASGIApp, access: AccessSettings) -> ASGIApp:
    """Let pages of the allowed origins read responses (CORS). Browsers never send them cookies or stored passwords."""
    if not access.allowed_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=access.allowed_origins,
        allow_methods=("GET", "POST"),
        allow_headers=_ALLOWED_HEADERS,
        expose_headers=_EXPOSED_HEADERS,
        allow_private_network=True,
    )


def transport_security(access: AccessSettings) -> TransportSecuritySettings:
    """Return the settings of the MCP server's own check of hosts and origins.

    It compares with lists, so it is on if the hosts are known. `check_browser` is always on.
    """
    hosts = [*access.allowed_hosts, *(_LOCAL_HOSTS if access.open else ())]
    pages = [f"{scheme}://{host}" for scheme in _DEFAULT_PORTS for host in hosts]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=bool(hosts),
        allowed_hosts=[form for host in hosts for form in (host, f"{host}:*")],
        allowed_origins=[*access.allowed_origins, *(form for page in pages for form in (page, f"{page}:*"))],
    )
