"""Test that refused pods are explained: by the message, for a training, and for a pipeline run."""

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.pod_refusals import explain_refusal, find_refusals, find_step_refusals
from tests.cluster import fake_kubernetes
from tests.cluster.fake_kubernetes import FakeKubernetes
from tests.cluster.fake_trainer import NAMESPACE, Trainer, condition, meanwhile
from tests.cluster.test_trainjob import HOUR, NAME, QUEUED, SERVERS, _quick, train, trainer
from tests.errors import raises
from tests.waiting import Clock

__all__ = ["_quick", "train", "trainer"]
QUOTA = "exceeded quota: gpus, requested: {0}, used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=16"


@pytest.mark.parametrize(
    ("message", "values"),
    [
        (QUOTA.format("requests.nvidia.com/gpu=16"), ["quota gpus is used up", "wait", "higher quota"]),
        (QUOTA.format("requests.nvidia.com/gpu=32"), ["more than quota gpus allows"]),
        ("exceeded quota: q, requested: memory=2Gi, used: memory=1Gi, limited: memory=900Mi", ["more than quota q"]),
        ("exceeded quota: q, requested: cpu=500m, used: cpu=1, limited: cpu=1", ["quota q is used up"]),
        ("failed quota: q: must specify limits.cpu for: node; requests.cpu for: node", ["q", "limits.cpu for: node:"]),
        (
            'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "node" must set …)',
            ["level restricted", "pod-security.kubernetes.io/enforce", 'container "node"'],
        ),
        (
            'error looking up service account agents/gumshoe-trainer: serviceaccount "gumshoe-trainer" not found',
            ["ServiceAccount gumshoe-trainer does not exist"],
        ),
        ("maximum memory usage per Container is 64Gi, but limit is 128Gi", ["LimitRange", "64Gi"]),
        ("cpu max limit to request ratio per Container is 2, but provided ratio is 4", ["LimitRange"]),
        ("no PriorityClass with name high was found", ["PriorityClass high does not exist"]),
        ('pod rejected: RuntimeClass "nvidia" not found', ["RuntimeClass nvidia does not exist"]),
        ("unable to validate against any security context constraint: [provider x]", ["(SCC)"]),
        ("something new", ["something new"]),
    ],
)
def test_a_refusal_is_explained(message: str, values: list[str]) -> None:
    for prefix in ("", "Error creating: "):
        told = [explain_refusal(f'{prefix}pods "node-0-{name}" is forbidden: {message}') for name in ("x7k2p", "b2d5f")]
        assert told[0] == told[1], "the name of the pod changes with each attempt"
        for value in values:
            assert value in told[0]


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ('admission webhook "policy.example.com" denied the request: no GPUs here', "policy.example.com denies it"),
        (
            'Internal error occurred: failed calling webhook "policy.example.com": no endpoints available',
            "policy.example.com does not answer",
        ),
        ('Pod "node-0-x7k2p" is invalid: spec.containers[0].resources.requests: Invalid value: "1"', "Invalid value"),
    ],
)
def test_a_refusal_by_a_webhook_or_a_check_is_explained(message: str, value: str) -> None:
    told = explain_refusal(f"Error creating: {message}")
    assert value in told
    assert "x7k2p" not in told


def test_warnings_about_an_object_and_its_dependents_are_found(cluster: FakeKubernetes) -> None:
    now = datetime.now(UTC)

    def warn(number: int, kind: str, name: str, age: float, **more: Any) -> None:
        seen = f"{now - timedelta(minutes=age):%Y-%m-%dT%H:%M:%S.%f}Z"
        cluster.put(
            {
                "kind": "Event",
                "metadata": {"name": f"e{number}", "namespace": NAMESPACE},
                "involvedObject": {"kind": kind, "name": name},
                "type": "Warning",
                "reason": "Because",
                "message": f"message {number}",
                "eventTime": seen,
                **more,
            }
        )

    warn(1, "JobSet", "job", 4)
    warn(2, "Job", "job-node-0", 3, reason="FailedCreate", message='Error creating: pods "a" is forbidden: no')
    warn(3, "Job", "job2-node-0", 1)
    warn(4, "Pod", "job-node-0-0-abcde", 1)
    warn(5, "Job", "job-node-0", 90)
    warn(6, "JobSet", "job", 2, type="Normal")
    series = {"count": 7, "lastObservedTime": f"{now:%Y-%m-%dT%H:%M:%S.%f}Z"}
    warn(7, "TrainJob", "job", 80, series=series)
    found = find_refusals(Cluster.of(None, None), "job", now - timedelta(hours=1))
    assert [(each.kind, each.name) for each in found] == [("TrainJob", "job"), ("Job", "job-node-0"), ("JobSet", "job")]
    assert [each.text for each in found[::2]] == ["Because: message 7", "Because: message 1"]
    assert found[1].text == explain_refusal("no")


@pytest.mark.ci
def test_a_training_says_why_its_pods_are_refused_and_goes_on_when_they_are_accepted(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]], clock: Clock
) -> None:
    trainer.refusals = {
        "trainer": QUOTA.format("requests.nvidia.com/gpu=16"),
        "rollout": 'violates PodSecurity "baseline:latest": hostPath volumes (volume "dev")',
    }
    reports: list[str] = []

    def list_waits(who: str) -> list[str]:
        return [each for each in reports if each.startswith(f"Waiting for {who}:")]

    def is_asked_again(times: int = 10) -> Iterator[bool]:
        before = cluster.requests.count(f"GET /api/v1/namespaces/{NAMESPACE}/events")
        while cluster.requests.count(f"GET /api/v1/namespaces/{NAMESPACE}/events") < before + times:
            yield False
        yield True

    def refuse_for_another_reason() -> None:
        trainer.refusals["trainer"] = 'error looking up service account a/b: serviceaccount "b" not found'
        trainer._report_trainer_refusal(cluster.objects["trainjobs", NAMESPACE, NAME])

    first, second = is_asked_again(), is_asked_again()
    with meanwhile(
        lambda: bool(list_waits("trainer") and list_waits("rollout")),
        lambda: trainer._report_trainer_refusal(cluster.objects["trainjobs", NAMESPACE, NAME]),
        lambda: next(first),
        refuse_for_another_reason,
        lambda: len(list_waits("trainer")) == 2,
        lambda: clock.advance(HOUR / 2),
        lambda: next(second),
        lambda: trainer.accept(NAME),
        lambda: cluster.write_log(trainer.pods(NAME)[0], "Step 1/1"),
        lambda: trainer.end(NAME),
    ):
        train(reports=reports)
    told = list_waits("trainer")
    assert len(told) == 2, "each reason is reported once, though the name of the pod changes"
    for value in (f"Job {NAME}-node-0 in namespace agents", "quota gpus is used up"):
        assert value in told[0]
    assert "ServiceAccount b does not exist" in told[1]
    (server,) = list_waits("rollout")
    for value in (f"Deployment {SERVERS} in namespace agents", "pod security level baseline", 'volume "dev"'):
        assert value in server
    assert "Step 1/1" in reports


def test_a_refused_training_that_does_not_start_in_time_ends_with_the_reason(
    trainer: Trainer, train: Callable[..., list[str]], clock: Clock
) -> None:
    trainer.refusals = {"trainer": QUOTA.format("requests.nvidia.com/gpu=16")}
    reports: list[str] = []
    with (
        meanwhile(
            lambda: any(each.startswith("Waiting for trainer") for each in reports), lambda: clock.advance(HOUR + 1)
        ),
        raises("trainjob.not-started", NAME, "quota gpus is used up"),
    ):
        train(reports=reports)
    assert not trainer.fake.of("TrainJob")


def test_a_training_with_an_invalid_image_ends_at_once(trainer: Trainer, train: Callable[..., list[str]]) -> None:
    trainer.phase, trainer.reason = "Pending", "InvalidImageName"
    with raises("trainjob.invalid-image", f"{NAME}-node-0-0-00001", "trainer_image", "namespace agents"):
        train()
    assert not trainer.fake.of("TrainJob")


@pytest.mark.parametrize("has_workload", [True, False])
def test_a_queue_s_admission_checks_are_reported(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]], clock: Clock, has_workload: bool
) -> None:
    reports: list[str] = []
    checks = [
        {"name": "spare-nodes", "state": "Retry", "message": "no node can be added"},
        {"name": "budget", "state": "Ready", "message": "fine"},
    ]

    def load() -> None:
        uid = cluster.objects["trainjobs", NAMESPACE, NAME]["metadata"]["uid"]
        meta = {"name": "load", "namespace": NAMESPACE, "labels": {"kueue.x-k8s.io/job-uid": uid}}
        status = {"conditions": [condition("QuotaReserved", "True")], "admissionChecks": checks}
        cluster.put({"kind": "Workload", "metadata": meta, "status": status})

    told = r"spare-nodes is Retry: no node can be added\)" if has_workload else "Kueue has no Workload"
    with meanwhile(
        load if has_workload else lambda: True,
        lambda: any("until queue" in each for each in reports),  # the next report is due 60 seconds after it
        lambda: clock.advance(61),
        lambda: any(re.search(told, each) for each in reports),
        lambda: trainer.admit(NAME),
        lambda: trainer.end(NAME),
    ):
        train(QUEUED, reports)


def test_refused_pods_of_a_pipeline_run_are_found_by_step(
    cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fake_kubernetes._KINDS, "argoproj.io/v1alpha1", {"workflows": "Workflow"})
    quota = 'pods "run-1-x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5'
    node = {"type": "Pod", "displayName": "executor", "phase": "Pending", "message": quota}
    nodes = {
        "a": {"type": "DAG", "displayName": "train", "phase": "Running"},
        "b": {**node, "boundaryID": "a"},
        "c": {**node, "displayName": "evaluate-driver", "boundaryID": "root", "phase": "Error"},
        "d": {**node, "displayName": "index", "phase": "Running"},
        "e": {**node, "displayName": "publish", "message": "PodInitializing"},
    }
    compressed = base64.b64encode(gzip.compress(json.dumps(nodes).encode())).decode()
    for run, status in {"r1": {"nodes": nodes}, "r2": {"compressedNodes": compressed}, "r3": {}}.items():
        meta = {"name": f"run-{run}", "namespace": NAMESPACE, "labels": {"pipeline/runid": run}}
        cluster.put({"kind": "Workflow", "metadata": meta, "status": status}, "workflows")
    found = find_step_refusals(Cluster.of(None, None), "r1")
    assert found.keys() == {"train", "evaluate"}
    assert all("quota q is used up" in each for each in found.values())
    assert find_step_refusals(Cluster.of(None, None), "r2") == found
    assert find_step_refusals(Cluster.of(None, None), "r3") == {}
