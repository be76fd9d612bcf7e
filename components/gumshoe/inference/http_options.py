"""Choose certificates, proxy and key for connections to vLLM servers."""

import os
import ssl
from typing import TypedDict

import httpx

from gumshoe.errors import UsageError
from gumshoe.inference.vllm_access import KEY_VARIABLE
from gumshoe.network import clean_credential, is_local_network


class HttpOptions(TypedDict):
    """Options of an httpx client."""

    verify: ssl.SSLContext
    trust_env: bool
    headers: dict[str, str]


def http_options(url: str) -> HttpOptions:
    """Return the options of clients for a server: certificates and key of the environment, and its proxy unless local.

    The certificates are those of SSL_CERT_FILE or SSL_CERT_DIR, or else public ones. httpx itself ignores both
    variables if it must ignore proxies.

    Raises:
        UsageError: if the key is malformed.
    """
    return {
        "verify": httpx.create_ssl_context(),
        "trust_env": not is_local_network(url),
        "headers": key_headers(),
    }


def key_headers() -> dict[str, str]:
    """Return the headers with the key of vLLM servers (VLLM_API_KEY), or no headers if it is not set.

    Raises:
        UsageError: if the key is malformed.
    """
    key = clean_credential(os.environ.get(KEY_VARIABLE, ""))
    if key is None:
        raise UsageError(
            "inference.malformed-server-key",
            f"{KEY_VARIABLE} contains white space or characters other than ASCII; copy the whole key again",
        )
    return {"Authorization": f"Bearer {key}"} if key else {}


def raise_if_denied(status: int, url: str) -> None:
    """Raise an error if the status of an answer says that the server rejects the key, or requires one.

    Raises:
        UsageError: if it does.
    """
    if status == httpx.codes.UNAUTHORIZED:
        found = "the wrong one" if os.environ.get(KEY_VARIABLE) else "none"
        raise UsageError(
            "inference.server-key-rejected",
            f"{url} requires a key, and got {found}; set {KEY_VARIABLE} to the key that the server was started with",
        )


def pod_host() -> str | None:
    """Return the address of this pod (POD_IP) as written in a URL, or None if the variable is not set."""
    address = os.environ.get("POD_IP", "")
    return (f"[{address}]" if ":" in address else address) or None
