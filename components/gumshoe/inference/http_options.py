"""Choose certificates and proxy for connections to vLLM servers."""

import ssl
from ipaddress import ip_address
from typing import TypedDict

import httpx


class HttpOptions(TypedDict):
    """Options of an httpx client."""

    verify: ssl.SSLContext
    trust_env: bool


def http_options(url: str) -> HttpOptions:
    """Return the options of clients for a server: the environment's certificates, and its proxy unless it is local.

    The certificates are those of SSL_CERT_FILE or SSL_CERT_DIR, or else public ones. httpx itself ignores both
    variables if it is told to ignore proxies.
    """
    return {"verify": httpx.create_ssl_context(), "trust_env": not _is_local_network(url)}


def _is_local_network(url: str) -> bool:
    """Return True if an address is in the local network, so that no proxy is used.

    That is a private IP address, or a name without a domain, such as that of a Kubernetes Service.
    """
    try:
        host = httpx.URL(url).host
        return ip_address(host).is_private
    except httpx.InvalidURL:
        return False
    except ValueError:
        return "." not in host
