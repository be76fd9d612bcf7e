"""What a training on several nodes makes fits what the manifests have for it."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from gumshoe.cluster.adapter_loader import Status
from gumshoe.cluster.adapter_loader_http import metrics
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.object_client import ObjectClient
from gumshoe.cluster.trainjob import PRIORITY_LABEL, QUEUE_LABEL
from gumshoe.cluster.trainjob_runner import run_trainjob
from gumshoe.errors import UsageError
from tests.cluster.fake_kubernetes import FakeKubernetes
from tests.cluster.fake_trainer import Trainer, hurry, meanwhile
from tests.cluster.test_trainjob import NAME, PATIENCE, POD, QUEUED
from tests.manifests.access import recorded
from tests.manifests.kustomize import OVERLAYS, of_kind, overlay, selects, unrestricted
from tests.manifests.test_manifests import runtime_pod
from tests.manifests.test_monitoring import LOADER
from tests.manifests.test_rbac import rules_of

SERVICE, JOB, DEPLOYMENT = QUEUED.manifests
SERVER: dict[str, Any] = DEPLOYMENT["spec"]["template"]


def test_a_step_that_trains_on_nodes_may_do_what_it_does(
    cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes up what an earlier try made; waits in the queue; its pods cannot be placed; and in the end it trains."""
    hurry(monkeypatch)
    trainer = Trainer(cluster, phase="Pending")
    cluster.settle = trainer.settle
    earlier = ObjectClient(Cluster.of(None, None), PATIENCE, {**POD, "uid": "u-earlier"})
    told: list[str] = []

    def said(what: str) -> Callable[[], bool]:
        return lambda: any(what in each for each in told)

    def admit() -> None:
        trainer.phase = "Running"
        trainer.admit(NAME)

    steps = [
        lambda: trainer.admit(NAME),
        said("ImagePullBackOff"),
        lambda: trainer.evict(NAME),
        said("suspended until queue"),
        admit,
        lambda: cluster.say(trainer.pods(NAME)[0], "Step 1/1 | Loss 0.5"),
        said("Step 1/1"),
        lambda: trainer.end(NAME),
    ]
    with recorded(cluster) as asked:
        for each in QUEUED.manifests:
            earlier.make(each)
        with meanwhile(*steps):
            run_trainjob(QUEUED, Cluster.of(None, None), told.append, PATIENCE, POD)
    assert asked == rules_of("gumshoe-train")


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_it_names_is_there(name: str) -> None:
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
def test_what_was_asked_wrongly_is_not_tried_again_and_all_else_is(name: str) -> None:
    jobs = of_kind(overlay(name), "ClusterTrainingRuntime")[JOB["spec"]["runtimeRef"]["name"]]["spec"]["template"]
    (node,) = jobs["spec"]["replicatedJobs"]
    (pods,) = node["template"]["spec"]["podFailurePolicy"]["rules"]
    assert pods == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [UsageError.exit_status]}}
    (failed,) = jobs["spec"]["failurePolicy"]["rules"]
    assert (failed["action"], failed["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert jobs["spec"]["failurePolicy"]["maxRestarts"] > 0


def test_it_waits_in_the_queue_that_there_is() -> None:
    for each in (JOB, DEPLOYMENT):
        labels = each["metadata"]["labels"]
        assert labels[QUEUE_LABEL] in of_kind(overlay("prod"), "LocalQueue")
        assert labels[PRIORITY_LABEL] in of_kind(overlay("prod"), "WorkloadPriorityClass")


def test_its_servers_are_restricted_reached_and_scraped() -> None:
    objects = overlay("prod")
    assert [*unrestricted(SERVER["spec"])] == []
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


def test_prometheus_knows_a_training_by_its_job() -> None:
    for monitor in of_kind(overlay("prod"), "PodMonitor").values():
        for each in monitor["spec"]["podMetricsEndpoints"]:
            (label,) = each["relabelings"][0]["sourceLabels"]
            wanted = {
                f"__meta_kubernetes_pod_label_{name.replace('.', '_').replace('/', '_')}"
                for name in SERVER["metadata"]["labels"]
            }
            assert label in wanted


def test_the_loader_tells_what_alerts_and_dashboard_ask_for() -> None:
    assert set(re.findall(r"^gumshoe_\w+", metrics(Status()), re.M)) >= LOADER
