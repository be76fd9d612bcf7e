"""Check the ConfigMaps from which pods take trusted certificates and a proxy."""

import ssl
import time
from collections.abc import Iterator

from gumshoe.cluster.pod_environment import CA_CONFIG_MAP, CA_KEY, PROXY_CONFIG_MAP, PROXY_VARIABLES
from gumshoe.cluster.preflight.client import CONFIG_MAPS, ClusterReader
from gumshoe.cluster.preflight.result import Finding, ok, pluralize, problem, warning

_SCHEMES = ("http://", "https://", "socks5://", "socks5h://")


def check_trust(reader: ClusterReader) -> Iterator[Finding]:
    """Check the trusted certificates and the proxy of pods. Both are optional."""
    bundle = reader.get(CONFIG_MAPS, CA_CONFIG_MAP)
    if bundle is None:
        yield ok(f"no ConfigMap {CA_CONFIG_MAP}: pods trust the public certificates")
    else:
        yield _check_bundle(reader, bundle.get("data") or {})
    proxy = reader.get(CONFIG_MAPS, PROXY_CONFIG_MAP)
    if proxy is None:
        yield ok(f"no ConfigMap {PROXY_CONFIG_MAP}: pods use no proxy")
    else:
        yield from _check_proxy(reader, proxy.get("data") or {})


def _check_bundle(reader: ClusterReader, data: dict[str, str]) -> Finding:
    remedy = (
        f"put the certificates (PEM) into {CA_KEY} of manifests/components/trust, and apply your overlay again",
        reader.kubectl(f"describe configmap {CA_CONFIG_MAP}"),
    )
    if CA_KEY not in data:
        return problem(f"ConfigMap {CA_CONFIG_MAP} has no {CA_KEY}, so pods that mount it trust no server", *remedy)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=data[CA_KEY])
    except (ssl.SSLError, ValueError) as error:
        return problem(f"{CA_KEY} of ConfigMap {CA_CONFIG_MAP} has no valid certificates ({error})", *remedy)
    dates = [ssl.cert_time_to_seconds(str(each["notAfter"])) for each in context.get_ca_certs()]
    if not dates:
        return problem(f"{CA_KEY} of ConfigMap {CA_CONFIG_MAP} has no certificate of an authority", *remedy)
    expired = sum(each < time.time() for each in dates)
    if expired:
        return warning(f"{expired} of {len(dates)} certificates in ConfigMap {CA_CONFIG_MAP} have expired", *remedy)
    return ok(f"ConfigMap {CA_CONFIG_MAP} has {pluralize(len(dates), 'certificate')}; pods trust no others")


def _check_proxy(reader: ClusterReader, data: dict[str, str]) -> Iterator[Finding]:
    see = reader.kubectl(f"describe configmap {PROXY_CONFIG_MAP}")
    if unknown := sorted(set(data) - set(PROXY_VARIABLES)):
        yield warning(
            f"ConfigMap {PROXY_CONFIG_MAP} has keys that no step reads: {', '.join(unknown)}",
            f"check their spelling; steps read {', '.join(PROXY_VARIABLES)}",
            see,
        )
    urls = {name: data[name] for name in PROXY_VARIABLES if data.get(name) and name != "NO_PROXY"}
    if wrong := sorted(name for name, url in urls.items() if not url.startswith(_SCHEMES)):
        yield problem(
            f"ConfigMap {PROXY_CONFIG_MAP}: {', '.join(wrong)} is not a URL of a proxy",
            "write e.g. http://proxy.example.com:3128",
            see,
        )
    elif urls:
        yield ok(f"ConfigMap {PROXY_CONFIG_MAP} sets {', '.join(urls)}")
    else:
        yield warning(f"ConfigMap {PROXY_CONFIG_MAP} sets no proxy", "set HTTPS_PROXY, or delete it", see)
