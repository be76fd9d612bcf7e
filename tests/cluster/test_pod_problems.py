"""Test that pods that exist and do not run are explained."""

from typing import Any

import pytest

from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.pod_problems import PodHints, ProblemLog, find_pod_problem, list_invalid_images
from tests.cluster.fake_kubernetes import FakeKubernetes
from tests.waiting import Clock

HINTS = PodHints("the_image", "the_node", "the_memory", "after_loss")


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def container(name: str, **state: Any) -> dict[str, Any]:
    status = {"name": name, "image": name, "imageID": name, "ready": False, "restartCount": 0}
    return {**status, "state": state}


def read_pod(fake: FakeKubernetes, status: dict[str, Any], *events: tuple[str, str]) -> Any:
    spec = {"containers": [{"name": "main", "image": "a:b:c"}], "initContainers": [{"name": "fetch", "image": "x"}]}
    meta = {"name": "p", "namespace": "agents"}
    fake.put({"kind": "Pod", "metadata": meta, "spec": spec, "status": status})
    for reason, message in events:
        about = {"kind": "Pod", "name": "p", "namespace": "agents"}
        meta = {"name": f"p.{reason}", "namespace": "agents"}
        event = {"involvedObject": about, "type": "Warning", "reason": reason, "message": message}
        fake.put({"kind": "Event", "metadata": meta, **event})
    cluster = Cluster.of(None, None)
    return cluster.call(cluster.core.read_namespaced_pod, "p", "agents")


NO_ROOM = condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu")
UNBOUND = condition("PodScheduled", "False", "Unschedulable", "pod has unbound immediate PersistentVolumeClaims")
NO_CLAIM = condition("PodScheduled", "False", "Unschedulable", 'persistentvolumeclaim "cache" not found')
CRASHED = container("fetch", waiting={"reason": "CrashLoopBackOff", "message": "back-off restarting failed fetch"})


@pytest.mark.parametrize(
    ("status", "events", "values"),
    [
        ({"conditions": [NO_ROOM]}, [], ["Unschedulable", "the_node", "3 Insufficient nvidia.com/gpu"]),
        ({"conditions": [UNBOUND]}, [], ["PersistentVolumeClaim and the storage class"]),
        ({"conditions": [NO_CLAIM]}, [], ["PersistentVolumeClaim and the storage class", '"cache" not found']),
        ({"initContainerStatuses": [CRASHED]}, [], ["CrashLoopBackOff", "failed fetch"]),
        ({"containerStatuses": [container("main", waiting={"reason": "CreateContainerError"})]}, [], ["created"]),
        ({}, [("FailedAttachVolume", "volume is in use")], ["FailedAttachVolume", "volume is in use"]),
        ({}, [("FailedCreatePodSandBox", "no network")], ["FailedCreatePodSandBox", "no network"]),
        ({}, [("FailedToRetrieveImagePullSecret", "no secret")], ["pull secret does not exist"]),
        ({}, [("FailedScheduling", "0/3 nodes")], ["FailedScheduling", "the_node"]),
    ],
)
def test_a_pod_that_does_not_start_is_explained(
    cluster: FakeKubernetes, status: dict[str, Any], events: list[tuple[str, str]], values: list[str]
) -> None:
    pod = read_pod(cluster, {"phase": "Pending", **status}, *events)
    problem = find_pod_problem(pod, Cluster.of(None, None), HINTS)
    for value in values:
        assert value in problem
    assert list_invalid_images(pod) == []


def test_earlier_events_of_a_scheduled_pod_do_not_count(cluster: FakeKubernetes) -> None:
    scheduled = {"phase": "Pending", "conditions": [condition("PodScheduled", "True")]}
    pod = read_pod(cluster, scheduled, ("FailedScheduling", "0/3 nodes"))
    assert find_pod_problem(pod, Cluster.of(None, None), HINTS) == ""


def test_an_invalid_image_is_found(cluster: FakeKubernetes) -> None:
    states = [container("main", waiting={"reason": "InvalidImageName", "message": "couldn't parse image"})]
    pod = read_pod(cluster, {"phase": "Pending", "containerStatuses": states})
    assert list_invalid_images(pod) == ["a:b:c"]


def test_a_problem_is_news_if_it_changes(clock: Clock) -> None:
    log = ProblemLog()
    assert log.is_news("trainer", "no room (0/3 nodes)")
    assert not log.is_news("trainer", "no room (0/4 nodes)"), "only a number"
    assert log.is_news("server", "no room (0/3 nodes)")
    assert log.is_news("trainer", "no image (not found)")
    assert not log.is_news("trainer", "no image (no access)"), "details change at most once a minute"
    clock.advance(61)
    assert log.is_news("trainer", "no image (no access)")
    log.forget("trainer")
    assert log.is_news("trainer", "no image (no access)")
