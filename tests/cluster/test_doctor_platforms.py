"""Test what `gumshoe doctor` says of profiles, DNS, certificates, OpenShift, other GPUs and the store of pipelines."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gumshoe.cluster.pod_environment import CA_CONFIG_MAP, CA_KEY, PROXY_CONFIG_MAP
from gumshoe.cluster.preflight import pod_environment_checks
from tests.certificates import CertificateAuthority
from tests.cluster import fake_kubernetes as kubernetes
from tests.cluster.fake_kubernetes import FakeKubernetes
from tests.cluster.fit_cluster import NAMESPACE, put, put_controller, put_daemon, put_node
from tests.cluster.test_doctor import RunDoctor, cluster, get_object, run_doctor, texts_of
from tests.manifests.kustomize import build_over, of_kind, overlay

__all__ = ["cluster", "run_doctor"]  # fixtures
PART_OF, ENABLED = "app.kubernetes.io/part-of", "pipelines.kubeflow.org/enabled"
PROFILE = [{"apiVersion": "kubeflow.org/v1", "kind": "Profile", "name": NAMESPACE, "uid": "p1", "controller": True}]


@pytest.fixture
def openshift(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"securitycontextconstraints": "SecurityContextConstraints"}
    monkeypatch.setitem(kubernetes._KINDS, "security.openshift.io/v1", kinds)


@pytest.mark.parametrize(
    ("labels", "state", "values"),
    [
        ({PART_OF: "kubeflow-profile", ENABLED: "true"}, "ok", ()),
        ({ENABLED: "true"}, "problem", (f"{PART_OF} is unset", f"--overwrite {PART_OF}=kubeflow-profile")),
        ({PART_OF: "gumshoe", ENABLED: "true"}, "problem", (f"{PART_OF} is gumshoe",)),
        (
            {PART_OF: "kubeflow-profile"},
            "warning",
            (f"kubectl label namespace {NAMESPACE} --overwrite {ENABLED}=true",),
        ),
    ],
)
def test_the_labels_of_a_profile_are_checked(
    labels: dict[str, str], state: str, values: tuple[str, ...], cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    metadata = get_object(cluster, "namespaces", NAMESPACE)["metadata"]
    metadata["labels"].update(labels)
    assert run_doctor("--only", "namespace")[1]["namespace"]["state"] == "ok", "without a profile"
    metadata["ownerReferences"] = PROFILE
    status, checks = run_doctor("--only", "namespace")
    assert (status, checks["namespace"]["state"]) == (state == "problem", state)
    for each in values:
        assert each in texts_of(checks["namespace"], state)


NOT_KUBE_SYSTEM = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}


def apply_policies(fake: FakeKubernetes, change: Callable[[Any], None] = lambda _: None) -> None:
    """Add the NetworkPolicies of the manifests. `change` gets the egress rules for DNS."""
    for name, each in of_kind(overlay("prod"), "NetworkPolicy").items():
        put(fake, "networkpolicies", "NetworkPolicy", name, namespace=NAMESPACE, spec=each["spec"])
    change(get_object(fake, "networkpolicies", "gumshoe-dns", NAMESPACE)["spec"]["egress"])


def test_dns_is_allowed_by_the_manifests_or_without_policies(cluster: FakeKubernetes, run_doctor: RunDoctor) -> None:
    assert run_doctor("--only", "dns")[1]["dns"]["state"] == "ok"
    apply_policies(cluster)
    status, checks = run_doctor("--only", "dns")
    assert (status, checks["dns"]["state"]) == (0, "ok")
    assert "kube-system, port 53" in texts_of(checks["dns"], "ok")


@pytest.mark.parametrize(
    "change",
    [
        lambda rules: rules.clear(),
        lambda rules: rules[0].update(ports=[{"port": 53, "protocol": "TCP"}]),
        lambda rules: rules[0].update(ports=[{"port": 5353, "protocol": "UDP"}]),
        lambda rules: rules[0]["to"].pop(0),
        lambda rules: rules[0]["to"][0].update(podSelector={"matchLabels": {"app": "other"}}),
        lambda rules: rules[0]["to"][0].update(namespaceSelector={"matchExpressions": [NOT_KUBE_SYSTEM]}),
    ],
)
def test_denied_dns_is_a_problem(change: Callable[[Any], None], cluster: FakeKubernetes, run_doctor: RunDoctor) -> None:
    apply_policies(cluster, change)
    status, checks = run_doctor("--only", "dns")
    assert (status, checks["dns"]["state"]) == (1, "problem")
    assert "kube-system, port 53" in texts_of(checks["dns"], "problem")


@pytest.mark.parametrize(
    "change",
    [
        lambda rules: rules[0].pop("to"),
        lambda rules: rules[0].pop("ports"),
        lambda rules: rules[0].update(ports=[{"port": 1, "endPort": 60000, "protocol": "UDP"}]),
        lambda rules: rules[0].update(to=[{"namespaceSelector": {}}]),
        lambda rules: rules[0]["to"][0].update(podSelector={"matchLabels": {"k8s-app": "kube-dns"}}),
        lambda rules: rules[0].update(
            to=[
                {
                    "namespaceSelector": {
                        "matchExpressions": [
                            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["dns", "kube-system"]}
                        ]
                    }
                }
            ]
        ),
    ],
)
def test_dns_may_be_allowed_in_other_ways(
    change: Callable[[Any], None], cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    apply_policies(cluster, change)
    assert run_doctor("--only", "dns")[1]["dns"]["state"] == "ok"


@pytest.mark.usefixtures("openshift")
def test_the_dns_of_openshift_is_checked(cluster: FakeKubernetes, run_doctor: RunDoctor) -> None:
    apply_policies(cluster)
    assert "openshift-dns, port 5353" in texts_of(run_doctor("--only", "dns")[1]["dns"], "ok")
    apply_policies(cluster, lambda rules: rules.pop())
    assert "openshift-dns, port 5353" in texts_of(run_doctor("--only", "dns")[1]["dns"], "problem")


@pytest.mark.parametrize(
    ("address", "state"), [("169.254.169.254", "ok"), ("169.254.20.10", "ok"), ("169.254.25.10", "problem")]
)
def test_a_pod_checks_the_dns_address_of_its_node(
    address: str, state: str, cluster: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.cluster.kubernetes_api import Cluster
    from gumshoe.cluster.preflight import dns
    from gumshoe.cluster.preflight.client import ClusterReader

    resolver = tmp_path / "resolv.conf"
    resolver.write_text(f"search agents.svc.cluster.local\nnameserver {address}\noptions ndots:5\n")
    monkeypatch.setattr(dns, "_RESOLVER", resolver)
    apply_policies(cluster)
    (found,) = dns.check_dns(ClusterReader(Cluster.of(None, None), 60, 1, 1, in_pod=True))
    assert (found.state, f"{address}, port 53" in found.text) == (state, True)


@pytest.mark.usefixtures("openshift")
def test_openshift_rejects_a_user_of_the_runtime_outside_the_namespace_s_range(
    cluster: FakeKubernetes, run_doctor: RunDoctor, tmp_path: Path
) -> None:
    runtime = of_kind(overlay("prod"), "ClusterTrainingRuntime")["gumshoe"]["spec"]
    put(cluster, "clustertrainingruntimes", "ClusterTrainingRuntime", "gumshoe", spec=runtime)
    annotations = get_object(cluster, "namespaces", NAMESPACE)["metadata"].setdefault("annotations", {})
    annotations["openshift.io/sa.scc.uid-range"] = "1000660000/10000"
    status, checks = run_doctor("--only", "runtime")
    assert (status, checks["runtime"]["state"]) == (1, "problem")
    for each in ("10001", "1000660000/10000", "manifests/components/openshift"):
        assert each in texts_of(checks["runtime"], "problem")
    for users in ("10000/10000", "10000-19999"):
        annotations["openshift.io/sa.scc.uid-range"] = users
        assert run_doctor("--only", "runtime")[0] == 0
    annotations.clear()
    assert run_doctor("--only", "runtime")[0] == 1
    changed = of_kind(
        build_over(["overlays/prod"], ["components/openshift"], tmp_path / "mine"), "ClusterTrainingRuntime"
    )
    put(cluster, "clustertrainingruntimes", "ClusterTrainingRuntime", "gumshoe", spec=changed["gumshoe"]["spec"])
    assert run_doctor("--only", "runtime")[0] == 0


@pytest.mark.parametrize("resource", ["amd.com/gpu", "nvidia.com/mig-1g.10gb"])
def test_gpus_are_counted_by_the_resource_of_the_run(
    resource: str, cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    run = ("--gpus", 8, "--only", "gpus", "--only", "queue", "--only", "quota", "--gpu-resource", resource)
    status, checks = run_doctor(*run)
    assert status == 1
    assert f"no node offers {resource}" in texts_of(checks["gpus"], "problem")
    assert f"quota for {resource}" in texts_of(checks["queue"], "problem")
    put_node(cluster, "gpu-c", 8, taints=[])
    node = get_object(cluster, "nodes", "gpu-c")
    node["status"]["allocatable"][resource] = "8"
    node["metadata"]["labels"] = {f"{resource}.product-name": "some-accelerator"}
    resources = get_object(cluster, "clusterqueues")["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    resources.append({"name": resource, "nominalQuota": "8"})
    hard = get_object(cluster, "resourcequotas", namespace=NAMESPACE)["status"]["hard"]
    hard[f"requests.{resource}"] = "7"
    status, checks = run_doctor(*run)
    assert "some-accelerator (8 per node" in texts_of(checks["gpus"], "ok")
    assert checks["queue"]["state"] == "ok"
    assert f'"requests.{resource}":"8"' in texts_of(checks["quota"], "problem")


def _remove(fake: FakeKubernetes) -> None:
    del fake.objects["deployments", "system", "ml-pipeline"]


def _store(*arguments: str, served: bool = True, ready: int = 1) -> Callable[[FakeKubernetes], None]:
    def change(fake: FakeKubernetes) -> None:
        put_controller(fake, "ml-pipeline", ready, arguments)
        if not served:
            fake.unserved.add("pipelines.kubeflow.org/v2beta1")

    return change


@pytest.mark.parametrize(
    ("change", "state", "value"),
    [
        (_remove, "warning", "platform-agnostic-multi-user?ref"),
        (_store("--pipelinesStoreKubernetes=true"), "ok", "manifests/overlays/prod-k8s-native"),
        (_store("-pipelinesStoreKubernetes"), "ok", "manifests/overlays/prod-k8s-native"),
        (_store("--pipelinesStoreKubernetes=true", served=False), "warning", "pipelines.kubeflow.org/v2beta1"),
        (_store("--pipelinesStoreKubernetes=false"), "warning", "manifests/overlays/prod-k8s-native, have no effect"),
        (_store("--config=/config", served=False), "ok", "manifests/overlays/prod fits"),
        (_store(served=False, ready=0), "warning", "0 of 1 pods of ml-pipeline"),
    ],
)
def test_the_store_of_kubeflow_pipelines_is_named(
    change: Callable[[FakeKubernetes], None], state: str, value: str, cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    change(cluster)
    status, checks = run_doctor("--only", "pipelines")
    assert (status, checks["pipelines"]["state"]) == (0, state)
    assert value in texts_of(checks["pipelines"], state)


@pytest.mark.parametrize(
    ("data", "state", "value"),
    [
        ({CA_KEY: CertificateAuthority().certificate.decode()}, "ok", "1 certificate;"),
        ({"ca.crt": CertificateAuthority().certificate.decode()}, "problem", f"has no {CA_KEY}"),
        ({CA_KEY: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, "problem", "no valid"),
        ({CA_KEY: ""}, "problem", CA_KEY),
    ],
)
def test_the_trusted_certificates_are_checked(
    data: dict[str, str], state: str, value: str, cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    assert run_doctor("--only", "trust")[1]["trust"]["state"] == "ok", "they are optional"
    put(cluster, "configmaps", "ConfigMap", CA_CONFIG_MAP, namespace=NAMESPACE, data=data)
    status, checks = run_doctor("--only", "trust")
    assert (status, checks["trust"]["state"]) == (state == "problem", state)
    assert value in texts_of(checks["trust"], state)


def test_expired_certificates_are_a_warning(
    cluster: FakeKubernetes, run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {CA_KEY: CertificateAuthority().certificate.decode()}
    put(cluster, "configmaps", "ConfigMap", CA_CONFIG_MAP, namespace=NAMESPACE, data=data)
    monkeypatch.setattr(pod_environment_checks, "time", SimpleNamespace(time=lambda: 10.0**11))
    status, checks = run_doctor("--only", "trust")
    assert (status, checks["trust"]["state"]) == (0, "warning")
    assert "1 of 1 certificates" in texts_of(checks["trust"], "warning")


@pytest.mark.parametrize(
    ("data", "state", "value"),
    [
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".svc"}, "ok", "sets HTTPS_PROXY"),
        ({"HTTPS_PROXY": "proxy:3128"}, "problem", "HTTPS_PROXY is not a URL"),
        ({"HTTPS_PROXY": "http://proxy:3128", "https_proxy": "x"}, "warning", ": https_proxy\n"),
        ({"NO_PROXY": ".svc"}, "warning", "sets no proxy"),
    ],
)
def test_the_proxy_of_pods_is_checked(
    data: dict[str, str], state: str, value: str, cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    put(cluster, "configmaps", "ConfigMap", PROXY_CONFIG_MAP, namespace=NAMESPACE, data=data)
    status, checks = run_doctor("--only", "trust")
    assert (status, checks["trust"]["state"]) == (state == "problem", state)
    assert value in texts_of(checks["trust"], state)


@pytest.mark.parametrize("labels", [{"istio-injection": "enabled"}, {"istio.io/rev": "default"}])
def test_a_runtime_that_gets_a_sidecar_is_a_problem(
    labels: dict[str, str], cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    assert run_doctor("--only", "runtime")[0] == 0
    get_object(cluster, "namespaces", NAMESPACE)["metadata"]["labels"].update(labels)
    status, checks = run_doctor("--only", "runtime")
    assert (status, checks["runtime"]["state"]) == (1, "problem")
    assert "sidecar.istio.io/inject" in texts_of(checks["runtime"], "problem")
    runtime = of_kind(overlay("prod"), "ClusterTrainingRuntime")["gumshoe"]["spec"]
    put(cluster, "clustertrainingruntimes", "ClusterTrainingRuntime", "gumshoe", spec=runtime)
    assert run_doctor("--only", "runtime")[0] == 0


def test_the_policies_of_the_manifests_protect_a_training(cluster: FakeKubernetes, run_doctor: RunDoctor) -> None:
    assert run_doctor("--only", "network")[1]["network"]["state"] == "ok"
    for name in ("gumshoe-rollout", "gumshoe-trainer"):
        del cluster.objects["networkpolicies", NAMESPACE, name]
    status, checks = run_doctor("--only", "network")
    assert (status, checks["network"]["state"]) == (0, "warning")
    assert "rollout servers and trainers" in texts_of(checks["network"], "warning")
    apply_policies(cluster)
    assert run_doctor("--only", "network")[1]["network"]["state"] == "ok"


@pytest.mark.parametrize(
    "spec",
    [
        {"podSelector": {"matchLabels": {"gumshoe.dev/role": "trainer"}}},
        {"podSelector": {"matchLabels": {"app": "other"}}},
        {"podSelector": {}, "policyTypes": ["Egress"]},
        {"podSelector": {"matchLabels": {"gumshoe.dev/role": "rollout"}}, "ingress": [{}]},
        {"podSelector": {"matchLabels": {"gumshoe.dev/role": "rollout"}}, "ingress": [{"from": []}]},
        {
            "podSelector": {
                "matchExpressions": [{"key": "gumshoe.dev/role", "operator": "NotIn", "values": ["rollout"]}]
            }
        },
        {"podSelector": {"matchLabels": {"gumshoe.dev/role": "rollout"}}, "ingress": [{"ports": [{"port": 8000}]}]},
        {
            "podSelector": {"matchLabels": {"gumshoe.dev/role": "rollout"}},
            "ingress": [{"from": [{"namespaceSelector": {}}]}],
        },
        {
            "podSelector": {"matchLabels": {"gumshoe.dev/role": "rollout"}},
            "ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}],
        },
    ],
)
def test_a_policy_that_leaves_the_rollout_servers_open_is_no_protection(
    spec: dict[str, Any], cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    del cluster.objects["networkpolicies", NAMESPACE, "gumshoe-rollout"]
    put(cluster, "networkpolicies", "NetworkPolicy", "own", namespace=NAMESPACE, spec=spec)
    text = texts_of(run_doctor("--only", "network")[1]["network"], "warning")
    assert "vLLM rollout servers" in text
    assert "trainers" not in text.partition(";")[0].partition("vLLM rollout servers")[2]


def test_a_policy_that_allows_everything_opens_pods_that_others_protect(
    cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    spec: dict[str, Any] = {"podSelector": {}, "ingress": [{}]}
    put(cluster, "networkpolicies", "NetworkPolicy", "own", namespace=NAMESPACE, spec=spec)
    assert "rollout servers and trainers" in texts_of(run_doctor("--only", "network")[1]["network"], "warning")


@pytest.mark.parametrize(
    ("daemons", "state", "value"),
    [
        ([("calico-node",)], "ok", "Calico"),
        ([("aws-node", "--enable-network-policy=true")], "ok", "Amazon"),
        ([("aws-node", "--enable-network-policy=false")], "warning", "enable-network-policy"),
        ([("kube-flannel-ds",), ("kube-proxy",)], "warning", "Flannel"),
        ([("kube-flannel-ds",), ("canal",)], "ok", "Canal"),
        ([("kindnet",)], "warning", "-rollout:8000/health"),
        ([], "warning", "-rollout:8000/health"),
    ],
)
def test_the_network_plugin_must_enforce_policies(
    daemons: list[tuple[str, ...]], state: str, value: str, cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    for key in [each for each in cluster.objects if each[1:] == ("kube-system", "cilium-x7k2p")]:
        del cluster.objects[key]
    for name, *arguments in daemons:
        put_daemon(cluster, name, *arguments)
    status, checks = run_doctor("--only", "network")
    assert (status, checks["network"]["state"]) == (0, state)
    assert value in texts_of(checks["network"], state)
