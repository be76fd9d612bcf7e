"""A training on several nodes, against a server that speaks the Kubernetes API: made, found, followed, removed."""

import json
import math
import os
import re
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gumshoe.cluster.kubernetes_api import Cluster, ClusterUnavailableError
from gumshoe.cluster.object_client import Timeouts
from gumshoe.cluster.trainjob import (
    PRIORITY_LABEL,
    QUEUE_LABEL,
    Rollout,
    TrainingJob,
    TrainJobSpec,
    name_of,
    rollout_address,
    rollout_name,
)
from gumshoe.cluster.trainjob_runner import run_trainjob
from gumshoe.errors import GumshoeError, UnavailableError
from tests.cluster.fake_kubernetes import FakeKubernetes
from tests.cluster.fake_trainer import SPACE, Trainer, condition, hurry, meanwhile
from tests.errors import raises
from tests.waiting import Clock

RUN = "s3://bucket/mail/runs/r1"
NAME = name_of(RUN)
SERVERS = rollout_name(NAME)
ASKED = TrainingJob(
    name=NAME,
    nodes=2,
    gpus=8,
    image="ghcr.io/gumshoe/trainer:1",
    command=("python", "-m", "gumshoe.training.node_main", "{}"),
    job=TrainJobSpec(rollout_servers=3, rollout_gpus=2, cache="gumshoe-cache"),
    rollout=Rollout(("python", "-m", "gumshoe.inference.rollout_server"), ("gumshoe", "adapter-loader", "s3://b/p")),
    env=({"name": "AWS_REGION", "value": "eu"},),
    labels={"gumshoe.dev/project": "mail", "gumshoe.dev/run": "r1"},
    node_selector={"pool": "gpus"},
    tolerations=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300.0},),
)
QUEUED = replace(ASKED, job=replace(ASKED.job, queue="gumshoe", priority="gumshoe-training"))
HOUR = 3600.0
PATIENCE = Timeouts(silence=HOUR, gone=HOUR, starting=HOUR, stalled=HOUR, last_words=HOUR, look=0.05)
"""Longer than any test takes: what is to run out gets less, or has its clock moved forward."""
POD = {"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": "u-step"}
ALL = {("trainjobs", NAME), ("deployments", SERVERS), ("services", SERVERS)}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def trainer(cluster: FakeKubernetes) -> Trainer:
    played = Trainer(cluster)
    cluster.settle = played.settle
    return played


@pytest.fixture
def train() -> Callable[..., list[str]]:
    """Return a function that carries out a training and returns what was said of it."""

    def run(
        asked: TrainingJob = ASKED, said: list[str] | None = None, owner: Any = POD, **patience: float
    ) -> list[str]:
        told: list[str] = [] if said is None else said
        run_trainjob(asked, Cluster.of(None, None), told.append, replace(PATIENCE, **patience), owner)
        return told

    return run


def there(cluster: FakeKubernetes) -> set[tuple[str, str]]:
    return {(plural, name) for plural, _, name in cluster.objects if plural != "pods"}


def all_there(cluster: FakeKubernetes) -> Callable[[], bool]:
    return lambda: there(cluster) == ALL


def created(cluster: FakeKubernetes) -> int:
    return sum(each.startswith("POST") and each.endswith("/trainjobs") for each in cluster.asked)


def test_what_is_made_is_as_the_schemas_have_it(assert_valid: Callable[..., None]) -> None:
    alone = replace(QUEUED, name=name_of("file:///a/runs/b"), gpus=0, node_selector={}, tolerations=())
    assert_valid([*QUEUED.manifests, *alone.manifests])
    service, job, deployment = QUEUED.manifests
    assert "300.0" not in json.dumps([job, deployment]), "Kubernetes takes no whole number with a fraction"
    for each in (job, deployment):
        assert each["metadata"]["labels"][QUEUE_LABEL] == "gumshoe"
        assert each["metadata"]["labels"][PRIORITY_LABEL] == "gumshoe-training"
    assert (job["spec"]["trainer"]["numNodes"], job["spec"]["trainer"]["numProcPerNode"]) == (2, 8)
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert rollout_address(NAME) == f"http://{service['metadata']['name']}:8000"
    server, _ = pod["spec"]["containers"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert {"name": "HF_HOME", "value": "/cache/huggingface"} in server["env"]
    assert server["startupProbe"]["periodSeconds"] * server["startupProbe"]["failureThreshold"] == 1800


@pytest.mark.parametrize("run", ["r1", "2024-05-03.a", "A" * 63, "sweep/slow", "x-" * 31, "ü"])
def test_names_are_labels_and_come_from_the_run_alone(run: str) -> None:
    name = name_of(f"s3://bucket/mail/runs/{run}")
    assert name == name_of(f"s3://bucket/mail/runs/{run}/") != name_of(f"s3://bucket/other/runs/{run}")
    assert name.startswith("gumshoe-")
    assert len(rollout_name(name)) <= 50, "Kubernetes adds to it for pods"
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert "--" not in name


@pytest.mark.parametrize(
    ("told", "code", "values"),
    [
        ({"servers": 1}, "trainjob.unknown-job-key", ["servers", "cache, cpus, memory"]),
        ({"rollout_servers": -1}, "trainjob.invalid-number", ["rollout_servers", ">= 0", "got -1"]),
        ({"rollout_gpus": 1.5}, "trainjob.invalid-number", ["rollout_gpus", "got 1.5"]),
        ({"cpus": 0}, "trainjob.invalid-number", ["cpus", ">= 1", "got 0"]),
        ({"rollout_gpus": 6}, "trainjob.gpus-not-a-power-of-two", ["rollout_gpus", "got 6"]),
        ({"queue": "My queue"}, "trainjob.invalid-name", ["queue", "'My queue'"]),
        ({"memory": 64}, "trainjob.invalid-memory", ["memory", "got 64"]),
    ],
)
def test_how_it_cannot_be_carried_out(told: dict[str, Any], code: str, values: list[str]) -> None:
    with raises(code, *values):
        TrainJobSpec.of(told)
    assert TrainJobSpec.of({"rollout_servers": 2.0, "memory": "64Gi"}).rollout_servers == 2, (
        "as Kubeflow hands numbers on"
    )


def test_its_progress_is_handed_on_and_nothing_of_it_is_left(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    with meanwhile(
        all_there(cluster),
        lambda: cluster.say(trainer.pods(NAME)[0], "Starting", "Step 1/2 | Loss 1", "Step 2/2 | Loss 0.5"),
        lambda: cluster.say(trainer.pods(NAME)[1], "Step 1/2 of another node"),
        lambda: trainer.progress(NAME, 50, 600),
        lambda: cluster.say(trainer.pods(NAME)[0], "Evaluation after step 2 | Acc 50 %"),
        lambda: trainer.end(NAME),
    ):
        said = train()
    assert [each for each in said if each.startswith(("Step", "Evaluation"))] == [
        "Step 1/2 | Loss 1",
        "Step 2/2 | Loss 0.5",
        "Evaluation after step 2 | Acc 50 %",
    ]
    (progress,) = [each for each in said if each.startswith("Progress")]
    assert re.findall(r"\d+", progress) == ["50", "10"], "percent and minutes"
    assert not cluster.objects


def test_what_breaks_off_is_taken_up_and_no_line_comes_twice(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    """A watch that is too old, or cut; throttling; a server that is not well; a log that breaks off."""
    cluster.ills = {
        "watch trainjobs": deque(["429", "410", "reset", "500"]),
        "list trainjobs": deque(["503"]),
        "create trainjobs": deque(["500", "429"]),
        "get log": deque(["500"]),
    }
    said: list[str] = []
    with meanwhile(
        lambda: cluster.say(trainer.pods(NAME)[0], "Step 1/4", "Step 2/4"),
        lambda: "Step 2/4" in said and not cluster.ills["watch trainjobs"],
        cluster.cut,
        cluster.forget,
        lambda: cluster.say(trainer.pods(NAME)[0], "Step 3/4"),
        lambda: "Step 3/4" in said,
        cluster.forget,
        cluster.cut,
        lambda: cluster.say(trainer.pods(NAME)[0], "Step 4/4"),
        lambda: trainer.end(NAME),
    ):
        train(said=said)
    assert [each for each in said if each.startswith("Step")] == [f"Step {number}/4" for number in (1, 2, 3, 4)]
    assert not any(cluster.ills.values())


def test_a_cluster_that_is_gone_midway_keeps_it_and_the_next_try_takes_it_up(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    with meanwhile(all_there(cluster), cluster.die), pytest.raises(ClusterUnavailableError) as gone:
        train(silence=0.2)
    assert gone.value.code in ("cluster.unreachable", "cluster.timeout")
    assert there(cluster) == ALL, "nobody was there to remove it"
    uid = cluster.objects["trainjobs", SPACE, NAME]["metadata"]["uid"]
    owners: list[Any] = []
    cluster.is_dead = False
    other = {**POD, "name": "step-2", "uid": "u-step-2"}

    def seen() -> None:
        owners.extend(each["metadata"]["ownerReferences"] for key, each in cluster.objects.items() if key[0] != "pods")
        assert cluster.objects["trainjobs", SPACE, NAME]["metadata"]["uid"] == uid
        trainer.end(NAME)

    def taken_over() -> bool:
        return bool(cluster.objects["deployments", SPACE, SERVERS]["metadata"]["ownerReferences"] == [other])

    with meanwhile(taken_over, seen):
        run_trainjob(ASKED, Cluster.of(None, None), lambda _: None, PATIENCE, other)
    assert owners == [[other]] * 3, "it goes with the pod of the try that follows it"
    assert not cluster.objects


@pytest.mark.parametrize("before", ["other", "failed"])
def test_what_was_made_of_something_else_or_has_failed_is_replaced(
    before: str, cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    asked = ASKED if before == "failed" else replace(ASKED, nodes=3)
    for each in asked.manifests:
        cluster.put({**each, "metadata": {**each["metadata"], "namespace": SPACE}})
    if before == "failed":
        trainer.end(NAME, 1)
    cluster.lingers = 0.1
    uid = cluster.objects["trainjobs", SPACE, NAME]["metadata"]["uid"]
    with meanwhile(
        lambda: cluster.objects["trainjobs", SPACE, NAME]["metadata"]["uid"] != uid,
        lambda: len(trainer.pods(NAME)) == 2,
        lambda: trainer.end(NAME),
    ):
        train()
    assert not cluster.objects


def test_what_does_not_go_away_is_told_of(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    service = replace(ASKED, labels={}).manifests[0]
    cluster.put({**service, "metadata": {**service["metadata"], "namespace": SPACE}})
    cluster.lingers = math.inf
    with raises("cluster.object-not-deleted", f"Service {SERVERS}") as raised:
        train(gone=0.2)
    assert raised.type is UnavailableError
    assert not trainer.pods(NAME)


@pytest.mark.parametrize(
    ("statuses", "code", "kind"),
    [
        ((0, 1), "trainjob.failed", GumshoeError),
        ((0, 75), "trainjob.temporary-failure", UnavailableError),
        ((75, 2), "trainjob.failed", GumshoeError),
    ],
)
def test_a_training_that_fails_has_the_last_word(
    statuses: tuple[int, int],
    code: str,
    kind: type[GumshoeError],
    cluster: FakeKubernetes,
    trainer: Trainer,
    train: Callable[..., list[str]],
) -> None:
    """In the words of the node that failed by itself, and not of one that misses it."""
    with (
        meanwhile(
            all_there(cluster),
            lambda: cluster.say(trainer.pods(NAME)[0], "Step 1/2"),
            lambda: cluster.say(trainer.pods(NAME)[1], "error: the second node has no memory left"),
            lambda: trainer.end(NAME, *statuses),
        ),
        raises(code, f"exit status {statuses[1]}", "error: the second node has no memory left") as failed,
    ):
        train()
    assert failed.type is kind
    assert not there(cluster)


def test_while_it_waits_for_its_queue_the_servers_leave_their_gpus_to_others(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    said: list[str] = []
    alone = ALL - {("deployments", SERVERS)}

    def load(*conditions: dict[str, Any]) -> None:
        uid = cluster.objects["trainjobs", SPACE, NAME]["metadata"]["uid"]
        meta = {"name": "load", "namespace": SPACE, "labels": {"kueue.x-k8s.io/job-uid": uid}}
        cluster.put({"kind": "Workload", "metadata": meta, "status": {"conditions": [*conditions]}})

    def unload() -> None:
        cluster.delete("workloads", SPACE, "load")

    with meanwhile(
        lambda: load(condition("QuotaReserved", "False", "insufficient quota for nvidia.com/gpu")),
        lambda: any("insufficient quota" in each for each in said),
        unload,
        lambda: there(cluster) == alone,
        lambda: trainer.admit(NAME),
        all_there(cluster),
        lambda: cluster.say(trainer.pods(NAME)[0], "Step 1/2"),
        lambda: "Step 1/2" in said,
        lambda: load(condition("Evicted", "True", "Preempted to accommodate another")),
        lambda: trainer.evict(NAME),
        lambda: any("Preempted to accommodate" in each for each in said),
        unload,
        lambda: there(cluster) == alone,
        lambda: trainer.admit(NAME),
        all_there(cluster),
        lambda: cluster.say(trainer.pods(NAME)[0], "Step 2/2"),
        lambda: trainer.end(NAME),
    ):
        train(QUEUED, said)
    assert [each for each in said if each.startswith("Step")] == ["Step 1/2", "Step 2/2"]
    waits = [each for each in said if each.startswith("Waiting for job")]
    assert all("gumshoe" in each for each in waits), "each names the queue"
    assert "(insufficient quota for nvidia.com/gpu)" in " ".join(waits)
    assert "checkpoint" not in waits[0]
    assert "checkpoint" in waits[-1], "it has run, and goes on from there"
    assert created(cluster) == 1
    assert not there(cluster)


def test_a_training_that_hangs_is_removed_and_tried_again(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]], clock: Clock
) -> None:
    said: list[str] = []
    with (
        meanwhile(
            all_there(cluster),
            lambda: cluster.say(trainer.pods(NAME)[0], "Step 1/2"),
            lambda: "Step 1/2" in said,
            lambda: clock.advance(HOUR + 1),
        ),
        raises("trainjob.stalled", NAME, "60 minutes") as stalled,
    ):
        train(said=said)
    assert stalled.type is UnavailableError
    assert not cluster.objects
    with (
        meanwhile(all_there(cluster), lambda: clock.advance(ASKED.seconds + 1)),
        raises("trainjob.time-limit", NAME, "48 hours") as late,
    ):
        train()
    assert late.type is UnavailableError
    assert not cluster.objects


def test_what_keeps_pods_from_running_is_said_once_and_not_waited_for_for_ever(
    trainer: Trainer, train: Callable[..., list[str]], clock: Clock
) -> None:
    trainer.phase, said = "Pending", list[str]()
    looks: list[int] = []

    def is_looked_at_again() -> bool:
        if not any(each.startswith("Waiting for trainer") for each in said):
            return False
        looks.append(sum(each.endswith("/pods") for each in trainer.fake.asked))
        return looks[-1] >= looks[0] + 10

    with (
        meanwhile(is_looked_at_again, lambda: clock.advance(HOUR + 1)),
        raises("trainjob.not-started", NAME, "60 minutes", "(trainer: ", "ImagePullBackOff") as raised,
    ):
        train(said=said)
    assert raised.type is UnavailableError
    waits = [each for each in said if each.startswith("Waiting for trainer")]
    (told,) = waits
    for value in (f"{NAME}-node-0-0-00001", "ImagePullBackOff", "trainer_image", "(no such image)"):
        assert value in told


def test_a_step_that_is_asked_to_end_leaves_nothing(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with (
        meanwhile(all_there(cluster), lambda: bool(trainer.pods(NAME)), lambda: os.kill(os.getpid(), signal.SIGTERM)),
        raises("trainjob.interrupted") as ended,
    ):
        train()
    assert ended.type is UnavailableError
    assert not cluster.objects
    assert signal.getsignal(signal.SIGTERM) is before


def test_all_of_it_goes_with_the_step_s_pod(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    step = {"kind": "Pod", "metadata": {"name": "step", "namespace": SPACE}, "spec": {}, "status": {"phase": "Running"}}
    owner, left = {**POD, "uid": cluster.put(step)["metadata"]["uid"]}, list[tuple[str, str]]()

    def end() -> None:
        with cluster._lock:
            cluster.delete("pods", SPACE, "step")
            left.extend(there(cluster))

    with (
        meanwhile(all_there(cluster), end),
        raises("trainjob.deleted", NAME) as deleted,
    ):
        train(owner=owner)
    assert deleted.type is UnavailableError
    assert left == [], "before the step itself removes anything"
    assert not cluster.objects
    assert not trainer.pods(NAME)


def test_a_step_without_the_right_to_servers_says_so_and_leaves_nothing(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    cluster.refused = ("create", "deployments")
    with raises("cluster.access-denied", 'create resource "deployments"'):
        train()
    assert not cluster.objects
    assert not trainer.pods(NAME)
