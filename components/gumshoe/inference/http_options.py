"""Choose certificates and proxy for connections to vLLM servers."""

import ssl
from typing import TypedDict

import httpx

from gumshoe.network import is_local_network


class HttpOptions(TypedDict):
    """Options of an httpx client."""

    verify: ssl.SSLContext
    trust_env: bool


def http_options(url: str) -> HttpOptions:
    """Return the options of clients for a server: the environment's certificates, and its proxy unless it is local.

    The certificates are those of SSL_CERT_FILE or SSL_CERT_DIR, or else public ones. httpx itself ignores both
    variables if it must ignore proxies.
    """
    return {"verify": httpx.create_ssl_context(), "trust_env": not is_local_network(url)}
