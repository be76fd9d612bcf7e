"""Test the chart's values for networks and platforms: DNS, Istio, OpenShift and scheduling."""

import os
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.charts.kserve_pods import create_pods
from tests.charts.test_agent_chart import MODES, chart, chart_values, merge, of_kind, render, values_of
from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import make_files, start_server

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


def egress_of(values: dict[str, Any], part: str = "agent") -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = render(values)["NetworkPolicy", f"mail-gumshoe-agent-{part}"]["spec"]["egress"]
    return rules


def ports_of(rules: list[dict[str, Any]]) -> set[int | str]:
    return {each["port"] for rule in rules for each in rule.get("ports", [])}


def name_of(peer: dict[str, Any]) -> str:
    """Return the namespace or the addresses of a peer of a NetworkPolicy."""
    if "ipBlock" in peer:
        return str(peer["ipBlock"]["cidr"])
    return str(peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", ["agent", "model", "test"])
def test_every_kind_of_dns_server_may_be_asked(mode: str, part: str) -> None:
    values = values_of(mode)
    if part == "model" and values.get("serving", {}).get("mode") == "external":
        assert ("NetworkPolicy", "mail-gumshoe-agent-model") not in render(values)
        return
    rules = egress_of(values, part)
    found: dict[str, set[int | str]] = {}
    for rule in rules:
        ports = ports_of([rule])
        protocols = {each["protocol"] for each in rule.get("ports", [])}
        for peer in rule.get("to", []) if ports & {53, 5353} else []:
            found.setdefault(name_of(peer), set()).update(ports)
            assert protocols == {"UDP", "TCP"}
    assert found == DNS
    assert not [rule for rule in rules if "to" not in rule and {53, 5353} & ports_of([rule])]


def test_the_dns_servers_can_be_replaced() -> None:
    own = [{"ports": [{"port": 53, "protocol": "UDP"}], "to": [{"ipBlock": {"cidr": "10.0.0.10/32"}}]}]
    for dns in (own, []):
        rules = egress_of(merge(values_of("standard"), {"networkPolicy": {"dns": dns}}))
        assert [rule for rule in rules if {53, 5353} & ports_of([rule])] == dns


def test_helm_s_test_may_access_both_servers() -> None:
    agent, model = egress_of(values_of("standard"), "test")[-2:]
    assert (ports_of([agent]), ports_of([model])) == ({"http"}, {8080})
    objects = render(values_of("standard"))
    assert agent["to"] == [{"podSelector": objects[AGENT]["spec"]["selector"]}]
    assert model["to"] == [{"podSelector": objects["NetworkPolicy", "mail-gumshoe-agent-model"]["spec"]["podSelector"]}]
    labels = objects[TEST]["metadata"]["labels"]
    selected = objects["NetworkPolicy", "mail-gumshoe-agent-test"]["spec"]["podSelector"]["matchLabels"]
    assert selected.items() < labels.items()


def test_servers_behind_a_proxy_are_accessed_through_it() -> None:
    values = merge(values_of("external"), {"proxy": {"https": "http://proxy.example.com:3128"}})
    for part in ("agent", "test"):
        assert 3128 in ports_of(egress_of(values, part))
        assert 3128 not in ports_of(egress_of(values_of("external"), part))


@pytest.mark.parametrize(
    ("host", "namespace"),
    [
        ("http://s3.storage.svc:9000", "storage"),
        ("https://s3.storage.svc", "storage"),
        ("https://s3.storage.svc.cluster.local:9000", "storage"),
        ("http://s3-0.s3.storage.svc:9000", "storage"),
        ("http://s3.storage:9000", "storage"),
        ("http://minio:9000", None),
        ("https://company.dev", None),
        ("http://10.0.0.7:9000", None),
        ("http://svc:9000", None),
        ("https://svc.example.com", None),
    ],
)
def test_the_pods_behind_a_service_may_have_another_port_than_its_url(host: str, namespace: str | None) -> None:
    """Network plugins compare a policy with the port of the pod."""
    expected = [namespace] if namespace else []
    servers = {"serving": {"external": {"urls": [host]}}}
    store = {"agent": {"storage": {"endpoint": host}}, "serving": {"external": {"urls": ["http://10.0.0.8"]}}}
    files = {"serving": {"storage": {"endpoint": host.partition("://")[2], "https": host.startswith("https")}}}
    for mode, part, changes in (
        ("external", "agent", servers),
        ("external", "test", servers),
        ("external", "agent", store),
        ("standard", "model", files),
    ):
        rules = egress_of(merge(values_of(mode), changes), part)
        assert [name_of(each["to"][0]) for each in rules if "ports" not in each] == expected


def test_a_tokenizer_by_name_comes_from_the_hub() -> None:
    storage = {"storage": {"endpoint": "http://minio.storage.svc:9000"}}
    for tokenizer, expected in (("Qwen/Qwen2.5-7B-Instruct", True), ("/models/qwen", False), ("", False)):
        values = merge(values_of("standard"), {"agent": {"tokenizer": tokenizer, **storage}})
        assert (443 in ports_of(egress_of(values))) == expected


@pytest.mark.parametrize("mode", MODES)
def test_pods_opt_out_of_istio(mode: str) -> None:
    for pod in pods_of(render({**values_of(mode), "istio": {}})):
        assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        assert not [each for each in pod["metadata"]["annotations"] if "istio" in each]
    assert 15012 not in ports_of(egress_of({**values_of(mode), "istio": {}}))


def test_a_sidecar_starts_before_the_downloads_and_may_access_istiod() -> None:
    values = merge(values_of("standard"), {"istio": {"sidecar": True, "namespace": "mesh"}})
    objects = render(values)
    for pod in pods_of(objects):
        assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "true"
        assert pod["metadata"]["annotations"]["sidecar.istio.io/nativeSidecar"] == "true"
        assert pod["metadata"]["annotations"]["sidecar.istio.io/rewriteAppHTTPProbers"] == "true"
    assert "sidecar.istio.io/inject" not in of_kind(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    for part in ("agent", "model", "test"):
        (rule,) = [rule for rule in egress_of(values, part) if ports_of([rule]) == {15012}]
        (peer,) = rule["to"]
        assert (name_of(peer), peer["podSelector"]["matchLabels"]) == ("mesh", {"app": "istiod"})
    for name in ("agent", "model"):
        rules = objects["NetworkPolicy", f"mail-gumshoe-agent-{name}"]["spec"]["ingress"]
        open_to = [rule["from"] for rule in rules if {15020, 15090} <= ports_of([rule])]
        assert [[name_of(peer) for peer in peers] for peers in open_to] == [["monitoring"]]


@pytest.mark.parametrize(("platform", "user"), [("kubernetes", 10001), ("openshift", None)])
def test_openshift_chooses_the_user(platform: str, user: int | None) -> None:
    for pod in pods_of(render(merge(values_of("standard"), {"platform": platform}))):
        security = pod["spec"]["securityContext"]
        assert [security.get(each) for each in ("runAsUser", "runAsGroup", "fsGroup")] == [user] * 3
        assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            assert not {"runAsUser", "runAsGroup"} & container["securityContext"].keys()


@pytest.mark.ci
def test_the_agent_server_runs_as_a_user_that_does_not_exist(tmp_path: Path) -> None:
    """OpenShift runs pods as a user without a name, in group 0."""
    user = ["unshare", "--user", "--map-user=1000680000", "--map-group=0"]
    if subprocess.run([*user, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no user namespaces")
    assert subprocess.run([*user, "id", "-un"], capture_output=True, check=False).returncode != 0, "it has no name"
    place, home = make_files(tmp_path), tmp_path / "home"
    home.mkdir()
    unknown = dict.fromkeys(["USER", "LOGNAME", "LNAME", "USERNAME"], "")
    with (
        patch.dict(os.environ, {**unknown, "HOME": str(home), "TMPDIR": str(home)}),
        FakeVLLM(models=("adapter",)) as model,
        start_server(place, f"vllm:{model.address}#adapter", tmp_path / "log", "--open", prefix=user) as server,
    ):
        assert server.ask().json()["success"] is True


def test_a_route_ends_tls_and_waits_as_long_as_an_answer_takes() -> None:
    given = {"enabled": True, "host": "mail.example.com", "tlsSecret": "mail-tls", "annotations": {"team": "search"}}
    changes = {"platform": "openshift", "publicPaths": ["/invoke"], "route": given}
    objects = render(merge(values_of("standard"), changes))
    route = of_kind(objects, "Route")
    assert route["metadata"]["name"] == "mail-gumshoe-agent-agent-invoke"
    assert route["apiVersion"] == "route.openshift.io/v1"
    assert route["metadata"]["annotations"] == {"haproxy.router.openshift.io/timeout": "150s", "team": "search"}
    assert route["spec"] == {
        "host": "mail.example.com",
        "path": "/invoke",
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


def test_routes_publish_the_paths_of_the_api_under_one_host() -> None:
    annotations = {"haproxy.router.openshift.io/timeout": "10m"}
    values = merge(values_of("standard"), {"route": {"enabled": True, "annotations": annotations}})
    routes = [each for (kind, _), each in render(values).items() if kind == "Route"]
    assert [each["spec"]["path"] for each in routes] == chart_values()["publicPaths"]
    assert {each["spec"]["subdomain"] for each in routes} == {"mail-gumshoe-agent-agent-agents"}
    for route in routes:
        assert route["metadata"]["annotations"] == annotations
        assert (route["spec"].keys(), route["spec"]["tls"].keys()) == (
            {"subdomain", "path", "to", "port", "tls"},
            {"termination", "insecureEdgeTerminationPolicy"},
        )


def test_a_route_of_the_page_publishes_all_paths() -> None:
    changes = {"route": {"enabled": True}, "publicPaths": ["/invoke", "/", "/page.js"]}
    route = of_kind(render(merge(values_of("standard"), changes)), "Route")
    assert (route["metadata"]["name"], route["spec"]["path"]) == ("mail-gumshoe-agent-agent", "/")


@pytest.mark.parametrize(("host", "value"), [("mail.example.com", "https://mail.example.com/"), ("", "get routes")])
def test_the_notes_name_the_address_of_the_route(host: str, value: str) -> None:
    values = merge(values_of("standard"), {"route": {"enabled": True, "host": host}})
    notes = chart().render(values, name="mail", namespace="agents")["gumshoe-agent/templates/NOTES.txt"]
    assert value in notes


@pytest.mark.parametrize(("given", "seconds"), [({}, 600), ({"startupMinutes": 45}, 2700)])
def test_the_agent_server_has_time_to_verify_and_open_its_index(given: dict[str, Any], seconds: int) -> None:
    pod = of_kind(render(merge(values_of("standard"), {"agent": given})), "Deployment")["spec"]["template"]["spec"]
    probe = pod["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == seconds


@pytest.mark.parametrize("seconds", [0, 4, 5])
def test_the_agent_server_is_killed_no_sooner_than_its_hook_ends(seconds: int) -> None:
    values = merge(values_of("standard"), {"agent": {"terminationSeconds": seconds}})
    pod = of_kind(render(values), "Deployment")["spec"]["template"]["spec"]
    hook = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert hook <= pod["terminationGracePeriodSeconds"] == seconds


def test_the_agent_server_can_be_scheduled_by_class() -> None:
    given = {"priorityClassName": "high", "runtimeClassName": "gvisor", "schedulerName": "volcano"}
    pod = render(merge(values_of("standard"), {"agent": given}))[AGENT]["spec"]["template"]["spec"]
    assert {name: pod[name] for name in given} == given
    assert not given.keys() & render(values_of("standard"))[AGENT]["spec"]["template"]["spec"].keys()


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_own_environment_variables_and_labels_replace_those_of_the_chart(mode: str) -> None:
    own = [{"name": name, "value": "own"} for name in ("HOME", "HTTPS_PROXY", "SSL_CERT_FILE", "AWS_REGION")]
    label = {"sidecar.istio.io/inject": "own"}
    changes = {
        "platform": "openshift",
        "trust": {"caBundle": {"configMap": "company"}},
        "proxy": {"https": "http://proxy.example.com:3128"},
        "serving": {"extraEnv": own, "fetch": {"extraEnv": own}, "storage": {"region": "eu"}, "podLabels": label},
        "agent": {"extraEnv": own, "storage": {"region": "eu"}, "podLabels": label},
    }
    values = merge(values_of(mode), changes)
    (model,) = create_pods(render(values), {})
    agent = render(values)[AGENT]["spec"]["template"]
    for pod in (model, agent["spec"]):
        for container in [*pod["initContainers"], *pod["containers"]]:
            names = [each["name"] for each in container["env"]]
            assert sorted(names) == sorted(set(names))
            assert [each for each in container["env"] if each["name"] in {one["name"] for one in own}] == own
    text = "\n".join(chart().render(values, name="mail", namespace="agents").values())
    assert text.count("sidecar.istio.io/inject: own") == 2
    assert text.count("sidecar.istio.io/inject") == 3, "the third is that of the test's pod"


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_a_default_can_be_removed_with_null(mode: str) -> None:
    lists = dict.fromkeys(["podLabels", "podAnnotations", "extraEnv", "extraArgs", "resources"])
    network = dict.fromkeys(["from", "dns", "prometheus", "modelFrom", "modelEgress", "egress"])
    changes = {
        "serving": {**lists, "securityContext": None, "resourceClaims": None},
        "agent": lists,
        "networkPolicy": network,
        "proxy": {"https": "http://proxy.example.com:3128", "noProxy": None},
        "route": {"enabled": True, "annotations": None},
    }
    objects = render(merge(values_of(mode), changes))
    (rule,) = objects[POLICY]["spec"]["ingress"]
    assert {"podSelector": {}} in rule["from"]


@pytest.mark.parametrize("mode", ["standard", "llmisvc"])
def test_names_of_digits_stay_text(mode: str) -> None:
    names = {"priorityClassName": "1", "runtimeClassName": "2", "schedulerName": "3", "serviceAccount": {"name": "4"}}
    changes = {
        "serving": {**names, "storage": {"existingSecret": "5"}},
        "agent": {**names, "storage": {"existingSecret": "5"}, "access": {"existingSecret": "6"}},
        "model": {"tokenSecret": "7", "uri": "pvc://8/a"},
        "trust": {"caBundle": {"configMap": "9"}},
        "istio": {"sidecar": True, "namespace": "10"},
    }
    objects = render(merge(values_of(mode), changes))

    def find_numbers(document: Any, path: str = "") -> list[str]:
        if isinstance(document, dict):
            return [each for key, value in document.items() for each in find_numbers(value, f"{path}.{key}")]
        if isinstance(document, list):
            return [each for value in document for each in find_numbers(value, path)]
        text = path.rpartition(".")[2].lower()
        return [path] if isinstance(document, int) and (text.endswith("name") or "label" in path.lower()) else []

    assert [each for one in objects.values() for each in find_numbers(one)] == []
