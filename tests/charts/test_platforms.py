"""Test the chart's values for networks and platforms: DNS, Istio, OpenShift and scheduling."""

from typing import Any

import pytest

from tests.charts.test_agent_chart import MODES, chart, merge, of_kind, render, values_of

AGENT, TEST = ("Deployment", "mail-gumshoe-agent-agent"), ("Pod", "mail-gumshoe-agent-test")
POLICY = ("NetworkPolicy", "mail-gumshoe-agent-agent")
DNS = {
    "kube-system": {53},
    "openshift-dns": {5353},
    "169.254.20.10/32": {53},  # NodeLocal DNSCache
    "169.254.169.254/32": {53},  # Cloud DNS of GKE
}


def pods_of(objects: dict[tuple[str, str], Any]) -> list[dict[str, Any]]:
    """Return the pods of the agent server and of helm's test, as metadata and spec."""
    return [objects[AGENT]["spec"]["template"], objects[TEST]]


def egress_of(values: dict[str, Any]) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = render(values)[POLICY]["spec"]["egress"]
    return rules


def name_of(peer: dict[str, Any]) -> str:
    """Return the namespace or the addresses of a peer of a NetworkPolicy."""
    if "ipBlock" in peer:
        return str(peer["ipBlock"]["cidr"])
    return str(peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"])


@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_dns_server_may_be_asked_and_nothing_else_of_its_address(mode: str) -> None:
    rules = egress_of(values_of(mode))
    found: dict[str, set[int]] = {}
    for rule in rules:
        ports = {each["port"] for each in rule["ports"]}
        protocols = {each["protocol"] for each in rule["ports"]}
        for peer in rule.get("to", []) if ports & {53, 5353} else []:
            found.setdefault(name_of(peer), set()).update(ports)
            assert protocols == {"UDP", "TCP"}
    assert found == DNS
    assert not [rule for rule in rules if "to" not in rule and {53, 5353} & {each["port"] for each in rule["ports"]}]


def test_the_dns_servers_can_be_replaced() -> None:
    own = [{"ports": [{"port": 53, "protocol": "UDP"}], "to": [{"ipBlock": {"cidr": "10.0.0.10/32"}}]}]
    for dns in (own, []):
        rules = egress_of(merge(values_of("standard"), {"networkPolicy": {"dns": dns}}))
        assert [rule for rule in rules if {53, 5353} & {each["port"] for each in rule["ports"]}] == dns


@pytest.mark.parametrize("mode", MODES)
def test_pods_opt_out_of_istio(mode: str) -> None:
    for pod in pods_of(render({**values_of(mode), "istio": {}})):
        assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        assert not [each for each in pod["metadata"]["annotations"] if "istio" in each]
    assert 15012 not in {port["port"] for rule in egress_of({**values_of(mode), "istio": {}}) for port in rule["ports"]}


def test_a_sidecar_starts_before_the_downloads_and_may_access_istiod() -> None:
    values = merge(values_of("standard"), {"istio": {"sidecar": True, "namespace": "mesh"}})
    objects = render(values)
    for pod in pods_of(objects):
        assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "true"
        assert pod["metadata"]["annotations"]["sidecar.istio.io/nativeSidecar"] == "true"
        assert pod["metadata"]["annotations"]["sidecar.istio.io/rewriteAppHTTPProbers"] == "true"
    assert "sidecar.istio.io/inject" not in of_kind(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    (rule,) = [rule for rule in egress_of(values) if {each["port"] for each in rule["ports"]} == {15012}]
    (peer,) = rule["to"]
    assert (name_of(peer), peer["podSelector"]["matchLabels"]) == ("mesh", {"app": "istiod"})
    for name in ("agent", "model"):
        rules = objects["NetworkPolicy", f"mail-gumshoe-agent-{name}"]["spec"]["ingress"]
        open_to = [rule["from"] for rule in rules if {15020, 15090} <= {each["port"] for each in rule["ports"]}]
        assert [[name_of(peer) for peer in peers] for peers in open_to] == [["monitoring"]]


@pytest.mark.parametrize(("platform", "user"), [("kubernetes", 10001), ("openshift", None)])
def test_openshift_chooses_the_user(platform: str, user: int | None) -> None:
    for pod in pods_of(render(merge(values_of("standard"), {"platform": platform}))):
        security = pod["spec"]["securityContext"]
        assert [security.get(each) for each in ("runAsUser", "runAsGroup", "fsGroup")] == [user] * 3
        assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            assert not {"runAsUser", "runAsGroup"} & container["securityContext"].keys()


def test_a_route_ends_tls_and_waits_as_long_as_an_answer_takes() -> None:
    given = {"enabled": True, "host": "mail.example.com", "tlsSecret": "mail-tls", "annotations": {"team": "search"}}
    objects = render(merge(values_of("standard"), {"platform": "openshift", "route": given}))
    route = of_kind(objects, "Route")
    assert route["apiVersion"] == "route.openshift.io/v1"
    assert route["metadata"]["annotations"] == {"haproxy.router.openshift.io/timeout": "150s", "team": "search"}
    assert route["spec"] == {
        "host": "mail.example.com",
        "to": {"kind": "Service", "name": "mail-gumshoe-agent-agent", "weight": 100},
        "port": {"targetPort": "http"},
        "tls": {
            "termination": "edge",
            "insecureEdgeTerminationPolicy": "Redirect",
            "externalCertificate": {"name": "mail-tls"},
        },
    }
    service = objects["Service", route["spec"]["to"]["name"]]
    assert route["spec"]["port"]["targetPort"] in [each["name"] for each in service["spec"]["ports"]]
    routers = {"namespaceSelector": {"matchLabels": {"policy-group.network.openshift.io/ingress": ""}}}
    assert routers in objects[POLICY]["spec"]["ingress"][0]["from"]
    assert routers not in render(values_of("standard"))[POLICY]["spec"]["ingress"][0]["from"]


def test_a_route_may_have_neither_host_nor_certificate_and_another_timeout() -> None:
    annotations = {"haproxy.router.openshift.io/timeout": "10m"}
    route = of_kind(
        render(merge(values_of("standard"), {"route": {"enabled": True, "annotations": annotations}})), "Route"
    )
    assert route["metadata"]["annotations"] == annotations
    assert (route["spec"].keys(), route["spec"]["tls"].keys()) == (
        {"to", "port", "tls"},
        {"termination", "insecureEdgeTerminationPolicy"},
    )


@pytest.mark.parametrize(("host", "value"), [("mail.example.com", "https://mail.example.com/"), ("", "get route")])
def test_the_notes_name_the_address_of_the_route(host: str, value: str) -> None:
    values = merge(values_of("standard"), {"route": {"enabled": True, "host": host}})
    notes = chart().render(values, name="mail", namespace="agents")["gumshoe-agent/templates/NOTES.txt"]
    assert value in notes


def test_the_agent_server_can_be_scheduled_by_class() -> None:
    given = {"priorityClassName": "high", "runtimeClassName": "gvisor", "schedulerName": "volcano"}
    pod = render(merge(values_of("standard"), {"agent": given}))[AGENT]["spec"]["template"]["spec"]
    assert {name: pod[name] for name in given} == given
    assert not given.keys() & render(values_of("standard"))[AGENT]["spec"]["template"]["spec"].keys()
