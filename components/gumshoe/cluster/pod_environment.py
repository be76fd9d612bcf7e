"""Name what administrators may put into a namespace for pods: certificates, a proxy, and keys of agents.

All of it is optional. The ConfigMap `gumshoe-ca` has a file of trusted certificates, and the ConfigMap
`gumshoe-proxy` has environment variables. Pipeline steps take them from there. Pods that a step creates get what the
step itself has. The Secret `gumshoe-agent` has environment variables of agents, judges, rewards and environments of
one's own, for the pods that open them.
"""

import os
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

CA_CONFIG_MAP, CA_KEY = "gumshoe-ca", "ca-bundle.crt"
TRUST_DIRECTORY = "/etc/gumshoe-trust"
"""Directory where pods have the file of the ConfigMap."""
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE")
"""Environment variables that name the file: for OpenSSL and httpx, for requests, and for boto3."""
PROXY_CONFIG_MAP = "gumshoe-proxy"
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Keys of the ConfigMap, and the environment variables that they become."""
PROXY_PREFIX = "GUMSHOE_"
"""Prefix of these variables in the pods of steps, until `set_proxy` sets them."""
NO_PROXY_HOSTS = ("localhost", "127.0.0.1", "::1", ".svc", ".cluster.local", "169.254.169.254", "169.254.170.23")
"""Hosts that are never reached by a proxy: this pod, Services, and the addresses of cloud credentials."""
AGENT_SECRET = "gumshoe-agent"  # noqa: S105 - a name
AGENT_KEYS_DIRECTORY = "/etc/gumshoe-agent"
"""Directory where pods have the files of the Secret: one for each environment variable."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ISTIO_LABELS = {"sidecar.istio.io/inject": "false"}
"""Labels of pods that run to an end or open ports of their own, both of which a sidecar of Istio breaks."""


def find_ca_file(directory: str = TRUST_DIRECTORY) -> Path | None:
    """Return the file of trusted certificates that this pod has, or None without the ConfigMap."""
    found = Path(directory, CA_KEY)
    return found if found.is_file() else None


def set_agent_keys(environment: MutableMapping[str, str], directory: str = AGENT_KEYS_DIRECTORY) -> None:
    """Set the environment variables of agents, unless they are set. Without the Secret, change nothing."""
    place = Path(directory)
    for path in sorted(place.iterdir()) if place.is_dir() else ():
        if _VARIABLE.fullmatch(path.name) and path.is_file():
            environment.setdefault(path.name, path.read_text(encoding="utf-8").strip())


def set_proxy(environment: MutableMapping[str, str]) -> None:
    """Set the proxy of the namespace, and exclude what no proxy can reach. Without a proxy, change nothing.

    Steps have the namespace's proxy under other names, because Kubeflow may set a proxy too, and Kubernetes rejects
    pods with two sources for one variable. Lower-case names are set as well: some programs prefer them.
    """
    for name in PROXY_VARIABLES:
        if value := environment.get(f"{PROXY_PREFIX}{name}"):
            environment[name] = environment[name.lower()] = value
    if not any(_find_variable(environment, name) for name in ("HTTP_PROXY", "HTTPS_PROXY")):
        return
    given = [each.strip() for each in _find_variable(environment, "NO_PROXY").split(",")]
    own = environment.get("KUBERNETES_SERVICE_HOST", "")  # the address of the Kubernetes API in a pod
    excluded = ",".join(dict.fromkeys(filter(None, (*given, *NO_PROXY_HOSTS, own))))
    environment["NO_PROXY"] = environment["no_proxy"] = excluded


def _find_variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.lower()) or environment.get(name) or ""


def build_pod_environment(environment: Mapping[str, str] = os.environ, *, has_ca_bundle: bool) -> list[dict[str, Any]]:
    """Return the environment variables for pods that a step creates: its own proxy, and where certificates are.

    The namespace's proxy is a reference to its ConfigMap, because its URL may have a password.
    """
    proxy = [_build_proxy_variable(environment, name) for name in PROXY_VARIABLES if _find_variable(environment, name)]
    trust = [{"name": name, "value": f"{TRUST_DIRECTORY}/{CA_KEY}"} for name in CA_VARIABLES if has_ca_bundle]
    return [*proxy, *trust]


def _build_proxy_variable(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    if name != "NO_PROXY" and environment.get(f"{PROXY_PREFIX}{name}"):
        return {"name": name, "valueFrom": {"configMapKeyRef": {"name": PROXY_CONFIG_MAP, "key": name}}}
    return {"name": name, "value": _find_variable(environment, name)}
