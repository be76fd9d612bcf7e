"""Check that the namespace's NetworkPolicies let pods resolve names."""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from gumshoe.cluster.preflight.client import NETWORK_POLICIES, ClusterReader, Object
from gumshoe.cluster.preflight.permissions import suggest_manifests
from gumshoe.cluster.preflight.result import Finding, ok, problem

_RESOLVER = Path("/etc/resolv.conf")
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
_POD_LABELS: tuple[dict[str, str], ...] = (  # of the DNS servers' pods
    {},
    {"k8s-app": "kube-dns"},
    {"dns.operator.openshift.io/daemonset-dns": "default"},
)


@dataclass(frozen=True, slots=True)
class _DnsServer:
    """A DNS server of pods: the pods of a namespace, or an address of the node."""

    port: int
    namespace: str = ""
    address: str = ""

    def __str__(self) -> str:
        return f"{self.address or f'the pods of {self.namespace}'}, port {self.port}"


def check_dns(reader: ClusterReader) -> Iterator[Finding]:
    """Check that NetworkPolicies allow DNS for all pods, if one denies traffic to all pods by default."""
    policies = [each["spec"] for each in reader.list_all(NETWORK_POLICIES)]
    for_all = [each for each in policies if not each.get("podSelector") and "Egress" in (each.get("policyTypes") or [])]
    if not for_all:
        yield ok("no NetworkPolicy restricts the DNS requests of all pods")
        return
    rules = [rule for each in for_all for rule in each.get("egress") or []]
    for server in _list_servers(reader):
        if any(_allows(rule, server) for rule in rules):
            yield ok(f"NetworkPolicies allow DNS at {server}")
        else:
            yield problem(
                f"pods of namespace {reader.namespace} cannot resolve names: no NetworkPolicy for all pods allows DNS "
                f"at {server}",
                *suggest_manifests(
                    reader, "apply Gumshoe's manifests again, or add a rule to NetworkPolicy gumshoe-dns"
                ),
            )


def _list_servers(reader: ClusterReader) -> Iterator[_DnsServer]:
    """Yield the DNS servers of the cluster; in a pod, the ones that its node has for it."""
    local = [each for each in _read_nameservers(_RESOLVER) if ip_address(each).is_link_local] if reader.in_pod else []
    for address in local:
        yield _DnsServer(53, address=address)
    if reader.is_openshift:
        yield _DnsServer(5353, namespace="openshift-dns")
    elif not local:
        yield _DnsServer(53, namespace="kube-system")


def _read_nameservers(path: Path) -> list[str]:
    """Return the addresses of the DNS servers in a file like /etc/resolv.conf."""
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return [words[1].partition("%")[0] for words in lines if len(words) > 1 and words[0] == "nameserver"]


def _allows(rule: Object, server: _DnsServer) -> bool:
    ports = rule.get("ports")
    if ports and not any(_covers_port(each, server.port) for each in ports):
        return False
    peers = rule.get("to")
    return not peers or any(_covers_peer(each, server) for each in peers)


def _covers_port(port: Object, number: int) -> bool:
    if port.get("protocol", "TCP") != "UDP":
        return False
    first: Any = port.get("port")
    if not isinstance(first, int):
        return first is None
    return first <= number <= int(port.get("endPort", first))


def _covers_peer(peer: Object, server: _DnsServer) -> bool:
    block, namespaces = peer.get("ipBlock"), peer.get("namespaceSelector")
    if server.address:
        networks = [block["cidr"]] if block else []
        excluded = (block or {}).get("except") or []
        return _is_in(server.address, networks) and not _is_in(server.address, excluded)
    pods = peer.get("podSelector") or {}
    if namespaces is None or pods.get("matchExpressions") or pods.get("matchLabels", {}) not in _POD_LABELS:
        return False
    wanted = namespaces.get("matchLabels") or {}
    rules = [each for each in namespaces.get("matchExpressions") or [] if each["operator"] == "In"]
    names = {value for each in rules for value in each.get("values") or []}
    return not namespaces or wanted == {_NAMESPACE_LABEL: server.namespace} or server.namespace in names


def _is_in(address: str, networks: list[str]) -> bool:
    return any(ip_address(address) in ip_network(each, strict=False) for each in networks)
