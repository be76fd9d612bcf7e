"""Settings of TLS and proxies that all clients share.

Certificates: `SSL_CERT_FILE` names a file with the certificates of all trusted authorities (PEM), which replace the
public ones. Some libraries read other variables instead, so `share_ca_bundle` gives those the same value.

Proxies: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, as httpx, boto3 and most programs read them.
"""

import os
import re
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from gumshoe.errors import UsageError

if TYPE_CHECKING:
    import ssl

    from aiohttp import ClientSession

CA_BUNDLE = "SSL_CERT_FILE"
"""Environment variable with the trusted certificates. OpenSSL, httpx, Go and Rust read it."""
_OTHER_NAMES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # requests and pip read the first, curl the second
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY")
_MAX_IDLE = 4.0  # seconds; uvicorn closes idle connections after 5, maybe just when a request is sent
_CREDENTIAL = re.compile(r"[\x21-\x7e]+")  # ASCII without white space
_CLUSTER_DOMAINS = (".svc", ".cluster.local", ".localhost")
_SERVICE_PROTOCOLS = ("tcp://", "udp://", "sctp://")


def is_service_link(name: str, value: str) -> bool:
    """Return True if Kubernetes set an environment variable for a Service, e.g. VLLM_PORT=tcp://10.0.0.1:80 for `vllm`.

    A program that reads a variable of this name as the number of a port would fail.
    """
    return name.endswith("_PORT") and value.startswith(_SERVICE_PROTOCOLS)


def open_session(certificates: "ssl.SSLContext | bool", **options: Any) -> "ClientSession":
    """Open a session of aiohttp in the running event loop, without a limit of connections, cookies or decompression.

    `options` are further arguments of `aiohttp.ClientSession`.
    """
    import aiohttp

    connector = aiohttp.TCPConnector(
        limit=0,
        keepalive_timeout=_MAX_IDLE,
        ssl=certificates,
        resolver=aiohttp.ThreadedResolver(),  # the system's, also if aiodns is installed
    )
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, **options
    )


def share_ca_bundle(given: Path | None = None) -> None:
    """Let all libraries of this process and its children trust the given certificates, or those of `find_ca_bundle`.

    Variables that are set already stay, unless a bundle is given.

    Raises:
        UsageError: if the file contains no certificates or cannot be read.
    """
    bundle = str(given) if given else find_ca_bundle()
    if bundle is None:
        return
    try:
        state = Path(bundle).stat()
        _check_bundle(bundle, state.st_mtime_ns, state.st_size)
    except OSError as error:  # or SSLError, its subclass
        raise UsageError(
            "network.invalid-ca-bundle",
            f"cannot read certificates from {bundle}: {error.strerror or error}; set {CA_BUNDLE} (or --ca-bundle) to a "
            "file of certificates in PEM format, or unset it",
        ) from None
    for name in (CA_BUNDLE, *_OTHER_NAMES):
        if given or not os.environ.get(name):
            os.environ[name] = bundle


@lru_cache(maxsize=8)
def _check_bundle(bundle: str, _modified: int, _size: int) -> None:
    """Load a file of certificates, once per version of the file: that of a distribution takes 40 ms.

    Raises:
        OSError: if it contains no certificates or cannot be read.
    """
    import ssl  # takes as long to import as a command takes to start

    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(bundle)


def share_proxy(url: str) -> None:
    """Let all libraries of this process and its children use a proxy, except for the hosts in NO_PROXY.

    Raises:
        UsageError: if it is not the address of an HTTP proxy.
    """
    proxy = parse_proxy(url, "--proxy")
    for name in _PROXIES:
        os.environ[name] = os.environ[name.lower()] = proxy  # programs disagree on which of both wins


def parse_proxy(proxy: str, source: str) -> str:
    """Return the URL of a proxy, which is an HTTP proxy if it has no scheme, e.g. proxy:3128.

    Raises:
        UsageError: if it is not the address of an HTTP proxy. The message names `source`, and has no password.
    """
    url = proxy if "://" in proxy else f"http://{proxy}"
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        shown = re.sub("//.*@", "//", url) if proxy else ""
        raise UsageError(
            "network.invalid-proxy",
            f"{source} must be the address of an HTTP proxy, got {shown!r}; write e.g. http://proxy:3128",
        )
    return url


def find_ca_bundle() -> str | None:
    """Return the file of trusted certificates that the environment names, or None for the public ones."""
    return next((found for name in (CA_BUNDLE, *_OTHER_NAMES) if (found := os.environ.get(name))), None)


def find_proxy(url: str) -> str | None:
    """Return the proxy for a URL that the environment names, or None. For clients that do not read the environment.

    Like programs in Go, it returns none for this machine, and also none for Services of the cluster.

    Raises:
        UsageError: if it is not an HTTP proxy.
    """
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "127.0.0.1", "::1") or host.endswith(_CLUSTER_DOMAINS):
        return None
    if proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all")
    return parse_proxy(found, f"{parts.scheme.upper()}_PROXY (or ALL_PROXY)") if found else None


def proxy_headers(proxy: str) -> dict[str, str]:
    """Return the headers with the user and password in a proxy's URL, for urllib3."""
    import urllib3

    auth = urllib3.util.parse_url(proxy).auth
    return dict(urllib3.make_headers(proxy_basic_auth=unquote(auth))) if auth else {}


def clean_credential(text: str) -> str | None:
    """Return a key or token without the white space around it, or None if it cannot be sent in a header."""
    found = text.strip()
    return found if not found or _CREDENTIAL.fullmatch(found) else None


def is_local_network(url: str) -> bool:
    """Return True if the host of a URL is in the local network or in the cluster, so that no proxy is used.

    That is a private IP address, a name without a domain, or the name of a Kubernetes Service.
    """
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # malformed; the client reports it
        return False
    try:
        return ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith(_CLUSTER_DOMAINS)


def raise_if_untrusted(error: BaseException, server: str) -> None:
    """Raise a UsageError if the cause of an error is that the certificate of `server` is not trusted.

    Raises:
        UsageError: if it is.
    """
    if message := explain_untrusted(error, server):
        raise UsageError("network.untrusted-certificate", message) from None


def explain_untrusted(error: BaseException, server: str) -> str:
    """Explain that the certificate of `server` is not trusted. Return an empty string for errors with another cause."""
    found = _find_certificate_error(error)
    if found is None:
        return ""
    return (
        f"the certificate of {server} is not trusted: {found.verify_message}; set {CA_BUNDLE} (or `gumshoe --ca-bundle "
        "FILE`) to the certificates of its authority, or correct the host name"
    )


def _find_certificate_error(error: BaseException) -> "ssl.SSLCertVerificationError | None":
    """Return the failed verification among an error, its causes and the errors that libraries wrapped in it."""
    import ssl

    waiting: list[object] = [error]
    seen = set[int]()
    while waiting:
        each = waiting.pop()
        if isinstance(each, ssl.SSLCertVerificationError) and hasattr(each, "verify_message"):  # not aiohttp's own
            return each
        if isinstance(each, BaseException) and id(each) not in seen:
            seen.add(id(each))
            # urllib3 keeps the cause in `reason`, botocore in `kwargs`.
            more = [getattr(each, "reason", None), *getattr(each, "kwargs", {}).values()]
            waiting += [each.__cause__, each.__context__, *each.args, *more]
    return None
