"""What `kubectl kustomize` makes of the manifests: what Kubernetes takes, whole, and restricted."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.test_agent_chart import of_kind as one_of_kind
from tests.charts.test_agent_chart import rendered, values_of
from tests.manifests.kustomize import (
    MANIFESTS,
    OVERLAYS,
    Object,
    components,
    kustomized,
    of_kind,
    overlay,
    selects,
    unrestricted,
    with_components,
)

GPU = "nvidia.com/gpu"
ROLE = "gumshoe.dev/role"


def runtime_pod(objects: Any) -> Object:
    """The template of a trainer's pod."""
    job = of_kind(objects, "ClusterTrainingRuntime")["gumshoe"]["spec"]["template"]["spec"]["replicatedJobs"][0]
    return dict(job["template"]["spec"]["template"])


def test_an_api_server_would_take_every_overlay_and_every_component(
    assert_valid: Callable[..., None], tmp_path: Path
) -> None:
    names = components()
    sets = [each for name in OVERLAYS for each in [overlay(name)]]
    sets += [tuple(with_components([name], tmp_path / name)) for name in names]
    sets += [tuple(with_components(names, tmp_path / "all"))]
    for objects in sets:
        known = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
        assert len(known) == len(set(known))
    large = ("Pipeline", "PipelineVersion")  # that differ in annotations alone
    every = {str(each["spec"] if each["kind"] in large else each): each for objects in sets for each in objects}
    assert_valid(every.values())


def test_what_an_api_server_would_refuse_is_found(assert_valid: Callable[..., None]) -> None:
    for kind, field in (("ServiceAccount", "automountServiceAccountTokens"), ("LocalQueue", "spek")):
        (made, *_) = of_kind(overlay("prod"), kind).values()
        assert_valid([made])
        with pytest.raises(AssertionError, match=field):
            assert_valid([{**made, field: True}])


def test_secrets_come_from_files_that_git_does_not_have(tmp_path: Path) -> None:
    for name in OVERLAYS:
        assert not of_kind(overlay(name), "Secret")
    place = MANIFESTS / "components" / "secrets"
    ignored = subprocess.run(["git", "check-ignore", "s3.env", "models.env"], cwd=place, capture_output=True, text=True)
    assert ignored.stdout.split() == ["s3.env", "models.env"]
    for file in (place / each for each in ("kustomization.yaml", "s3.env.example", "models.env.example")):
        (tmp_path / file.name.removesuffix(".example")).write_bytes(file.read_bytes())
    made = of_kind(yaml.safe_load_all(kustomized(tmp_path)), "Secret")
    assert set(made) == {"gumshoe-s3", "gumshoe-models"}
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} < made["gumshoe-s3"]["data"].keys()
    assert {each["metadata"]["namespace"] for each in made.values()} == {"gumshoe"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_names_that_are_referred_to_exist(name: str) -> None:
    from gumshoe.training.settings import env_names

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
    assert (metrics["containerPort"], ("output.metrics_port", "METRICS_PORT") in env_names()) == (
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


def test_production_has_everything_and_development_needs_little() -> None:
    from gumshoe_pipelines.graphs import PIPELINES

    kinds = {name: {each["kind"] for each in overlay(name)} for name in OVERLAYS}
    versions = {each["spec"]["pipelineName"] for each in of_kind(overlay("prod"), "PipelineVersion").values()}
    assert versions == set(PIPELINES)
    assert {"ClusterQueue", "LocalQueue", "PodMonitor", "PrometheusRule", "ClusterTrainingRuntime"} < kinds["prod"]
    assert set(of_kind(overlay("prod"), "LocalQueue")) == {"gumshoe"}
    assert set(of_kind(overlay("prod"), "WorkloadPriorityClass")) == {"gumshoe-training", "gumshoe-evaluation"}
    foreign = {each["apiVersion"].partition("/")[0] for each in overlay("dev") if "." in each["apiVersion"]}
    assert {each for each in foreign if not each.endswith(".k8s.io")} == {"trainer.kubeflow.org"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_quantities_fit_each_other(name: str) -> None:
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
            assert 0 < given <= hard[f"requests.{resource}"], f"Kueue admits {resource} that the quota refuses"
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
def test_images_are_of_this_version_and_never_the_latest(name: str) -> None:
    from gumshoe_pipelines.placement import TRAINER

    images = [*_images(list(overlay(name)))]
    assert {each for each in images if each.startswith("ghcr.io/gumshoe/trainer")} == {TRAINER}
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
def test_pods_are_restricted_and_the_namespace_says_so(name: str) -> None:
    objects = overlay(name)
    labels = of_kind(objects, "Namespace")["gumshoe"]["metadata"]["labels"]
    for mode in ("enforce", "warn", "audit"):
        assert labels[f"pod-security.kubernetes.io/{mode}"] == "restricted"
    assert [*unrestricted(runtime_pod(objects)["spec"])] == []
    for account in ("gumshoe-trainer", "gumshoe-rollout"):
        assert of_kind(objects, "ServiceAccount")[account]["automountServiceAccountToken"] is False


def test_the_chart_s_own_pods_may_run_in_it_and_its_test_reaches_what_it_asks() -> None:
    made = rendered(values_of("everything"))
    pods = {kind: one_of_kind(made, kind) for kind in ("Deployment", "Pod")}
    assert [*unrestricted(pods["Deployment"]["spec"]["template"]["spec"])] == []
    assert [*unrestricted(pods["Pod"]["spec"])] == []
    assert [*unrestricted(one_of_kind(made, "ServingRuntime")["spec"])] == []
    rules = of_kind(overlay("prod"), "NetworkPolicy")["gumshoe-helm-test"]["spec"]
    assert selects(rules["podSelector"], pods["Pod"]["metadata"]["labels"])
    assert not selects(rules["podSelector"], pods["Deployment"]["spec"]["template"]["metadata"]["labels"])
    reached = {port["port"] for rule in rules["egress"] for port in rule["ports"]}
    ports = one_of_kind(made, "Deployment")["spec"]["template"]["spec"]["containers"][0]["ports"]
    models = one_of_kind(made, "ServingRuntime")["spec"]["containers"][0]["ports"]
    assert reached == {each["containerPort"] for each in [*ports, *models]}


def test_policies_deny_everything_and_then_allow_what_is_needed() -> None:
    policies = of_kind(overlay("prod"), "NetworkPolicy")
    assert policies["gumshoe-nothing"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    everybody = {name for name, each in policies.items() if each["spec"]["podSelector"] == {}}
    assert everybody == {"gumshoe-nothing", "gumshoe-dns", "gumshoe-https"}
    (rule,) = policies["gumshoe-https"]["spec"]["egress"]
    outside = {block["ipBlock"]["cidr"]: block["ipBlock"]["except"] for block in rule["to"]}
    metadata = {"0.0.0.0/0": ["169.254.169.254/32"], "::/0": ["fd00:ec2::254/128"]}
    assert outside == metadata, "all but the nodes' own credentials"
    assert [each["port"] for each in rule["ports"]] == [443]
    ingress = [name for name, each in policies.items() if "Ingress" in each["spec"]["policyTypes"]]
    assert set(ingress) == {"gumshoe-nothing", "gumshoe-trainer", "gumshoe-rollout", "gumshoe-prometheus"}
    assert all(
        each["ports"]
        for name in ("gumshoe-rollout", "gumshoe-prometheus")
        for each in policies[name]["spec"]["ingress"]
    )


@pytest.mark.parametrize("name", OVERLAYS)
def test_trainers_reach_each_other_and_their_servers(name: str) -> None:
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

    assert any("ports" not in rule for rule in to(trainer, trainer, "egress", "to")), "at any port: gloo chooses them"
    assert any("ports" not in rule for rule in to(trainer, trainer, "ingress", "from"))
    for rules in (to(trainer, rollout, "egress", "to"), to(rollout, trainer, "ingress", "from")):
        assert {port["port"] for rule in rules for port in rule["ports"]} == {8000, 8081}
    assert not to(rollout, rollout, "egress", "to")
    assert not to(rollout, trainer, "egress", "to")
