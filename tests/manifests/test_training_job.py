"""Test that a training on several nodes fits the manifests."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gumshoe.cluster.adapter_loader import Status
from gumshoe.cluster.adapter_loader_http import format_metrics
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.object_client import ObjectClient
from gumshoe.cluster.trainjob import PRIORITY_LABEL, QUEUE_LABEL
from gumshoe.cluster.trainjob_runner import run_trainjob
from gumshoe.errors import UsageError
from tests.cluster.fake_kubernetes import FakeKubernetes
from tests.cluster.fake_trainer import Trainer, meanwhile, shorten_pauses
from tests.cluster.test_trainjob import NAME, POD, QUEUED, TIMEOUTS
from tests.manifests.access import record_access
from tests.manifests.kustomize import OVERLAYS, find_violations, of_kind, overlay, selects
from tests.manifests.test_manifests import runtime_pod
from tests.manifests.test_monitoring import LOADER
from tests.manifests.test_rbac import rules_of

_, SERVICE, JOB, DEPLOYMENT = QUEUED.manifests
SERVER: dict[str, Any] = DEPLOYMENT["spec"]["template"]


def test_the_train_role_allows_exactly_what_a_training_uses(
    cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training adopts objects of an earlier attempt, waits in the queue, has a pod problem, and finally runs."""
    shorten_pauses(monkeypatch)
    trainer = Trainer(cluster, phase="Pending")
    cluster.settle = trainer.settle
    earlier = ObjectClient(Cluster.of(None, None), TIMEOUTS, {**POD, "uid": "u-earlier"})
    reports: list[str] = []

    def is_reported(text: str) -> Callable[[], bool]:
        return lambda: any(text in each for each in reports)

    def admit() -> None:
        trainer.phase = "Running"
        trainer.admit(NAME)

    steps = [
        lambda: trainer.admit(NAME),
        is_reported("ImagePullBackOff"),
        lambda: trainer.evict(NAME),
        is_reported("suspended until queue"),
        admit,
        lambda: cluster.write_log(trainer.pods(NAME)[0], "Step 1/1 | Loss 0.5"),
        is_reported("Step 1/1"),
        lambda: trainer.end(NAME),
    ]
    with record_access(cluster) as used:
        for each in QUEUED.manifests:
            earlier.ensure(each)
        with meanwhile(*steps):
            run_trainjob(QUEUED, Cluster.of(None, None), reports.append, TIMEOUTS, POD)
    assert used == rules_of("gumshoe-train")


@pytest.mark.parametrize("name", OVERLAYS)
def test_names_in_the_training_s_objects_exist(name: str) -> None:
    objects = overlay(name)
    runtime = of_kind(objects, "ClusterTrainingRuntime")[JOB["spec"]["runtimeRef"]["name"]]
    (patch,) = JOB["spec"]["runtimePatches"]
    (own,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (changed,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert changed["name"] == own["name"]
    trainer = changed["template"]["spec"]["template"]
    for pod in (trainer["spec"], SERVER["spec"]):
        account = of_kind(objects, "ServiceAccount")[pod["serviceAccountName"]]
        assert account["automountServiceAccountToken"] is False
    assert runtime_pod(objects)["metadata"]["labels"].items() <= trainer["metadata"]["labels"].items()


@pytest.mark.parametrize("name", OVERLAYS)
def test_usage_errors_are_not_retried_and_other_failures_are(name: str) -> None:
    jobs = of_kind(overlay(name), "ClusterTrainingRuntime")[JOB["spec"]["runtimeRef"]["name"]]["spec"]["template"]
    (node,) = jobs["spec"]["replicatedJobs"]
    (pods,) = node["template"]["spec"]["podFailurePolicy"]["rules"]
    assert pods == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [UsageError.exit_status]}}
    (failed,) = jobs["spec"]["failurePolicy"]["rules"]
    assert (failed["action"], failed["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert jobs["spec"]["failurePolicy"]["maxRestarts"] > 0


def test_the_queue_covers_every_resource_that_a_training_can_request() -> None:
    queue = of_kind(overlay("prod"), "ClusterQueue")["gumshoe"]["spec"]
    largest = replace(QUEUED, job=QUEUED.job.model_copy(update={"storage": "100Gi"}))
    _, _, job, servers = largest.manifests
    requests = [job["spec"]["trainer"]["resourcesPerNode"]["requests"]]
    requests += [each["resources"]["requests"] for each in servers["spec"]["template"]["spec"]["containers"]]
    assert "ephemeral-storage" in requests[0]
    for group in queue["resourceGroups"]:
        assert {name for each in requests for name in each} <= set(group["coveredResources"])


def test_the_queue_and_priority_of_the_training_exist() -> None:
    for each in (JOB, DEPLOYMENT):
        labels = each["metadata"]["labels"]
        assert labels[QUEUE_LABEL] in of_kind(overlay("prod"), "LocalQueue")
        assert labels[PRIORITY_LABEL] in of_kind(overlay("prod"), "WorkloadPriorityClass")


def test_the_servers_are_restricted_accessible_and_scraped() -> None:
    objects = overlay("prod")
    assert [*find_violations(SERVER["spec"])] == []
    labels = SERVER["metadata"]["labels"]
    policies = of_kind(objects, "NetworkPolicy")
    assert selects(policies["gumshoe-rollout"]["spec"]["podSelector"], labels)
    ports = {each["name"]: each["containerPort"] for part in SERVER["spec"]["containers"] for each in part["ports"]}
    open_to_trainers = policies["gumshoe-rollout"]["spec"]["ingress"][0]["ports"]
    assert {each["port"] for each in open_to_trainers} == set(ports.values())
    assert {each["targetPort"] for each in SERVICE["spec"]["ports"]} == ports.keys()
    monitor = of_kind(objects, "PodMonitor")["gumshoe-rollout"]["spec"]
    assert selects(monitor["selector"], labels)
    assert {each["port"] for each in monitor["podMetricsEndpoints"]} == ports.keys()
    named = {each["name"] for each in SERVER["spec"]["containers"]}
    alert = next(
        each["expr"]
        for group in of_kind(objects, "PrometheusRule")["gumshoe-training"]["spec"]["groups"]
        for each in group["rules"]
        if each["alert"] == "GumshoeAdapterNotLoaded"
    )
    assert 'container="server"' in alert
    assert "server" in named


def test_prometheus_labels_metrics_with_the_job() -> None:
    for monitor in of_kind(overlay("prod"), "PodMonitor").values():
        for each in monitor["spec"]["podMetricsEndpoints"]:
            (label,) = each["relabelings"][0]["sourceLabels"]
            wanted = {
                f"__meta_kubernetes_pod_label_{name.replace('.', '_').replace('/', '_')}"
                for name in SERVER["metadata"]["labels"]
            }
            assert label in wanted


def test_the_loader_exports_the_metrics_of_alerts_and_dashboard() -> None:
    assert set(re.findall(r"^gumshoe_\w+", format_metrics(Status()), re.M)) >= LOADER
