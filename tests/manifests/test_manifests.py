"""Test the rendered manifests: valid, complete and restricted."""

import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.test_agent_chart import of_kind as one_of_kind
from tests.charts.test_agent_chart import render, values_of
from tests.manifests.kustomize import (
    MANIFESTS,
    OVERLAYS,
    Object,
    build_overlay,
    build_with_components,
    components,
    find_violations,
    of_kind,
    overlay,
    selects,
)

GPU = "nvidia.com/gpu"
ROLE = "gumshoe.dev/role"


def runtime_pod(objects: Any) -> Object:
    """Return the pod template of a trainer."""
    job = of_kind(objects, "ClusterTrainingRuntime")["gumshoe"]["spec"]["template"]["spec"]["replicatedJobs"][0]
    return dict(job["template"]["spec"]["template"])


@pytest.mark.ci
def test_every_overlay_and_component_is_valid(assert_valid: Callable[..., None], tmp_path: Path) -> None:
    names = components()
    sets = [each for name in OVERLAYS for each in [overlay(name)]]
    sets += [tuple(build_with_components([name], tmp_path / name)) for name in names]
    sets += [tuple(build_with_components(names, tmp_path / "all"))]
    for objects in sets:
        known = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
        assert len(known) == len(set(known))
    large = ("Pipeline", "PipelineVersion")  # these differ only in annotations
    every = {str(each["spec"] if each["kind"] in large else each): each for objects in sets for each in objects}
    assert_valid(every.values())


def test_invalid_objects_are_detected(assert_valid: Callable[..., None]) -> None:
    for kind, field in (("ServiceAccount", "automountServiceAccountTokens"), ("LocalQueue", "spek")):
        (made, *_) = of_kind(overlay("prod"), kind).values()
        assert_valid([made])
        with pytest.raises(AssertionError, match=field):
            assert_valid([{**made, field: True}])


def test_secrets_come_from_files_that_git_ignores(tmp_path: Path) -> None:
    for name in OVERLAYS:
        assert not of_kind(overlay(name), "Secret")
    place = MANIFESTS / "components" / "secrets"
    ignored = subprocess.run(["git", "check-ignore", "s3.env", "models.env"], cwd=place, capture_output=True, text=True)
    assert ignored.stdout.split() == ["s3.env", "models.env"]
    for file in (place / each for each in ("kustomization.yaml", "s3.env.example", "models.env.example")):
        (tmp_path / file.name.removesuffix(".example")).write_bytes(file.read_bytes())
    made = of_kind(yaml.safe_load_all(build_overlay(tmp_path)), "Secret")
    assert set(made) == {"gumshoe-s3", "gumshoe-models"}
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} < made["gumshoe-s3"]["data"].keys()
    assert not any("namespace" in each["metadata"] for each in made.values()), "`kubectl -n` sets it"


@pytest.mark.parametrize("name", OVERLAYS)
def test_referenced_names_exist(name: str) -> None:
    from gumshoe.training.settings_sources import list_env_vars

    objects = overlay(name)
    pod = runtime_pod(objects)["spec"]
    assert pod["serviceAccountName"] in of_kind(objects, "ServiceAccount")
    claims = {each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each}
    assert claims == {"gumshoe-cache"}
    assert claims <= set(of_kind(objects, "PersistentVolumeClaim"))
    (container,) = pod["containers"]
    assert {each["secretRef"]["name"] for each in container["envFrom"]} == {"gumshoe-s3", "gumshoe-models"}
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}
    env = {each["name"]: each["value"] for each in container["env"]}
    assert env["HF_HOME"].startswith(
        f"{next(m['mountPath'] for m in container['volumeMounts'] if m['name'] == 'cache')}/"
    )
    (metrics,) = (each for each in container["ports"] if each["name"] == "metrics")
    assert (metrics["containerPort"], ("output.metrics_port", "METRICS_PORT") in list_env_vars()) == (
        int(env["METRICS_PORT"]),
        True,
    )
    assert {each["metadata"].get("namespace", "gumshoe") for each in objects} == {"gumshoe"}
    for queue in of_kind(objects, "LocalQueue").values():
        assert queue["spec"]["clusterQueue"] in of_kind(objects, "ClusterQueue")
    for queue in of_kind(objects, "ClusterQueue").values():
        (group,) = queue["spec"]["resourceGroups"]
        assert [each["name"] for each in group["flavors"]] == [*of_kind(objects, "ResourceFlavor")]
        for flavor in group["flavors"]:
            assert [each["name"] for each in flavor["resources"]] == group["coveredResources"]
        labels = of_kind(objects, "Namespace")["gumshoe"]["metadata"]["labels"]
        assert selects(queue["spec"]["namespaceSelector"], {**labels, "kubernetes.io/metadata.name": "gumshoe"})


def test_pipelines_are_resources_only_with_a_kubernetes_native_store() -> None:
    from gumshoe_pipelines.graphs import PIPELINES

    versions = {
        name: {each["spec"]["pipelineName"] for each in of_kind(overlay(name), "PipelineVersion").values()}
        for name in OVERLAYS
    }
    assert versions == {"dev": set(), "prod": set(), "prod-k8s-native": set(PIPELINES)}


def test_prod_has_all_components_and_dev_needs_only_trainer() -> None:
    kinds = {each["kind"] for each in overlay("prod")}
    assert {"ClusterQueue", "LocalQueue", "PodMonitor", "PrometheusRule", "ClusterTrainingRuntime"} < kinds
    assert set(of_kind(overlay("prod"), "LocalQueue")) == {"gumshoe"}
    assert set(of_kind(overlay("prod"), "WorkloadPriorityClass")) == {"gumshoe-training", "gumshoe-evaluation"}
    foreign = {each["apiVersion"].partition("/")[0] for each in overlay("dev") if "." in each["apiVersion"]}
    assert {each for each in foreign if not each.endswith(".k8s.io")} == {"trainer.kubeflow.org"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_quotas_fit_the_queue_and_the_pods(name: str) -> None:
    from kubernetes.utils import parse_quantity

    objects = overlay(name)
    hard = {
        each: parse_quantity(value)
        for each, value in of_kind(objects, "ResourceQuota")["gumshoe"]["spec"]["hard"].items()
    }
    for queue in of_kind(objects, "ClusterQueue").values():
        for resource in ("cpu", "memory", GPU):
            given = sum(
                parse_quantity(each["nominalQuota"])
                for flavor in queue["spec"]["resourceGroups"][0]["flavors"]
                for each in flavor["resources"]
                if each["name"] == resource
            )
            assert 0 < given <= hard[f"requests.{resource}"], f"Kueue admits more {resource} than the quota allows"
    storage = [
        each["spec"]["resources"]["requests"]["storage"] for each in of_kind(objects, "PersistentVolumeClaim").values()
    ]
    assert sum(map(parse_quantity, storage)) <= hard["requests.storage"]
    most = next(
        each
        for each in of_kind(objects, "LimitRange")["gumshoe"]["spec"]["limits"]
        if each["type"] == "PersistentVolumeClaim"
    )
    assert all(parse_quantity(each) <= parse_quantity(most["max"]["storage"]) for each in storage)
    requests = runtime_pod(objects)["spec"]["containers"][0]["resources"]["requests"]
    assert all(parse_quantity(value) <= hard[f"requests.{resource}"] for resource, value in requests.items())


@pytest.mark.parametrize("name", OVERLAYS)
def test_images_have_the_version_as_tag(name: str) -> None:
    images = [*_images(list(overlay(name)))]
    assert {each for each in images if "/trainer" in each} == {f"registry.invalid/trainer:{version('gumshoe-agents')}"}
    assert all(re.search(r":[\w.-]+$|@sha256:", each) and not each.endswith(":latest") for each in images)


def _images(made: Any) -> Iterator[str]:
    if isinstance(made, dict):
        image = made.get("image")
        if isinstance(image, str) and "/" in image:
            yield image
        made = list(made.values())
    if isinstance(made, list):
        for each in made:
            yield from _images(each)


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_and_namespace_are_restricted(name: str) -> None:
    objects = overlay(name)
    labels = of_kind(objects, "Namespace")["gumshoe"]["metadata"]["labels"]
    for mode in ("enforce", "warn", "audit"):
        assert labels[f"pod-security.kubernetes.io/{mode}"] == "restricted"
    assert [*find_violations(runtime_pod(objects)["spec"])] == []
    for account in ("gumshoe-trainer", "gumshoe-rollout"):
        assert of_kind(objects, "ServiceAccount")[account]["automountServiceAccountToken"] is False


def test_the_chart_s_pods_are_restricted_and_its_test_has_network_access() -> None:
    made = render(values_of("everything"))
    pods = {kind: one_of_kind(made, kind) for kind in ("Deployment", "Pod")}
    assert [*find_violations(pods["Deployment"]["spec"]["template"]["spec"])] == []
    assert [*find_violations(pods["Pod"]["spec"])] == []
    assert [*find_violations(one_of_kind(made, "ServingRuntime")["spec"])] == []
    rules = of_kind(overlay("prod"), "NetworkPolicy")["gumshoe-helm-test"]["spec"]
    assert selects(rules["podSelector"], pods["Pod"]["metadata"]["labels"])
    assert not selects(rules["podSelector"], pods["Deployment"]["spec"]["template"]["metadata"]["labels"])
    reached = {port["port"] for rule in rules["egress"] for port in rule["ports"]}
    ports = one_of_kind(made, "Deployment")["spec"]["template"]["spec"]["containers"][0]["ports"]
    models = one_of_kind(made, "ServingRuntime")["spec"]["containers"][0]["ports"]
    assert reached == {each["containerPort"] for each in [*ports, *models] if each["name"] != "metrics"}


def test_policies_deny_traffic_by_default() -> None:
    policies = of_kind(overlay("prod"), "NetworkPolicy")
    assert policies["gumshoe-nothing"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for_all_pods = {name for name, each in policies.items() if each["spec"]["podSelector"] == {}}
    assert for_all_pods == {"gumshoe-nothing", "gumshoe-dns", "gumshoe-https"}
    (rule,) = policies["gumshoe-https"]["spec"]["egress"]
    outside = {block["ipBlock"]["cidr"]: block["ipBlock"]["except"] for block in rule["to"]}
    metadata = {"0.0.0.0/0": ["169.254.169.254/32"], "::/0": ["fd00:ec2::254/128"]}
    assert outside == metadata, "everything except the nodes' credentials"
    assert [each["port"] for each in rule["ports"]] == [443]
    ingress = [name for name, each in policies.items() if "Ingress" in each["spec"]["policyTypes"]]
    assert set(ingress) == {"gumshoe-nothing", "gumshoe-trainer", "gumshoe-rollout", "gumshoe-prometheus"}
    assert all(
        each["ports"]
        for name in ("gumshoe-rollout", "gumshoe-prometheus")
        for each in policies[name]["spec"]["ingress"]
    )


@pytest.mark.parametrize("name", OVERLAYS)
def test_steps_may_ask_prometheus_for_the_measures_of_a_canary(name: str) -> None:
    rules = of_kind(overlay(name), "NetworkPolicy")["gumshoe-steps"]["spec"]["egress"]
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert [each["ports"] for each in rules if monitoring in each.get("to", [])] == [
        [{"port": 9090, "protocol": "TCP"}]
    ]


@pytest.mark.parametrize("name", OVERLAYS)
def test_trainers_can_access_each_other_and_their_servers(name: str) -> None:
    objects = overlay(name)
    trainer, rollout = runtime_pod(objects)["metadata"]["labels"], {ROLE: "rollout"}
    policies = of_kind(objects, "NetworkPolicy")

    def to(labels: dict[str, str], other: dict[str, str], way: str, end: str) -> list[Object]:
        return [
            rule
            for each in policies.values()
            if selects(each["spec"]["podSelector"], labels) and way.title() in each["spec"]["policyTypes"]
            for rule in each["spec"].get(way, [])
            if any("podSelector" in peer and selects(peer["podSelector"], other) for peer in rule.get(end, []))
        ]

    assert any("ports" not in rule for rule in to(trainer, trainer, "egress", "to")), (
        "any port, because gloo chooses them"
    )
    assert any("ports" not in rule for rule in to(trainer, trainer, "ingress", "from"))
    for rules in (to(trainer, rollout, "egress", "to"), to(rollout, trainer, "ingress", "from")):
        assert {port["port"] for rule in rules for port in rule["ports"]} == {8000, 8081}
    assert not to(rollout, rollout, "egress", "to")
    assert not to(rollout, trainer, "egress", "to")
