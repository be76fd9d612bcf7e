"""Test a training on several nodes with a fake Kubernetes API."""

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
    build_job_name,
    rollout_address,
    rollout_name,
)
from gumshoe.cluster.trainjob_runner import run_trainjob
from gumshoe.cluster.trainjob_spec import TrainJobSpec
from gumshoe.errors import GumshoeError, UnavailableError
from tests.cluster.fake_kubernetes import FakeKubernetes
from tests.cluster.fake_trainer import NAMESPACE, Trainer, check_trainjob, condition, meanwhile, shorten_pauses
from tests.errors import raises
from tests.waiting import Clock

RUN = "s3://bucket/mail/runs/r1"
NAME = build_job_name(RUN)
SERVERS = rollout_name(NAME)
ROLLOUT = Rollout(("python", "-m", "gumshoe.inference.rollout_server"), ("gumshoe", "adapter-loader", "s3://b/p"))
TRAINING = TrainingJob(
    name=NAME,
    nodes=2,
    gpus=8,
    image="ghcr.io/gumshoe/trainer:1",
    command=("python", "-m", "gumshoe.training.node_main", "{}"),
    job=TrainJobSpec(rollout_servers=3, rollout_gpus=2, cache="gumshoe-cache"),
    rollout=ROLLOUT,
    env=({"name": "AWS_REGION", "value": "eu"},),
    labels={"gumshoe.dev/project": "mail", "gumshoe.dev/run": "r1"},
    node_selector={"pool": "gpus"},
    tolerations=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300.0},),
)
QUEUED = replace(TRAINING, job=TRAINING.job.model_copy(update={"queue": "gumshoe", "priority": "gumshoe-training"}))
HOUR = 3600.0
TIMEOUTS = Timeouts(unreachable=HOUR, deletion=HOUR, start=HOUR, stall=HOUR, log_drain=HOUR, poll_interval=0.05)
"""Longer than any test runs. Tests of timeouts shorten them, or advance the clock."""
POD = {"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": "u-step"}
ALL_OBJECTS = {("trainjobs", NAME), ("deployments", SERVERS), ("services", SERVERS), ("secrets", SERVERS)}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)


@pytest.fixture
def trainer(cluster: FakeKubernetes) -> Trainer:
    played = Trainer(cluster)
    cluster.settle = played.settle
    return played


@pytest.fixture
def train() -> Callable[..., list[str]]:
    """Return a function that runs a training and returns what it reports."""

    def run(
        training: TrainingJob = TRAINING, reports: list[str] | None = None, owner: Any = POD, **timeouts: float
    ) -> list[str]:
        collected: list[str] = [] if reports is None else reports
        run_trainjob(training, Cluster.of(None, None), collected.append, replace(TIMEOUTS, **timeouts), owner)
        return collected

    return run


def list_objects(cluster: FakeKubernetes) -> set[tuple[str, str]]:
    return {(plural, name) for plural, _, name in cluster.objects if plural != "pods"}


def has_all_objects(cluster: FakeKubernetes) -> Callable[[], bool]:
    return lambda: list_objects(cluster) == ALL_OBJECTS


def list_digests(training: TrainingJob) -> list[str]:
    return [each["metadata"]["annotations"]["gumshoe.dev/digest"] for each in training.manifests]


def count_created(cluster: FakeKubernetes) -> int:
    return sum(each.startswith("POST") and each.endswith("/trainjobs") for each in cluster.requests)


def test_the_manifests_are_valid(assert_valid: Callable[..., None]) -> None:
    alone = replace(QUEUED, name=build_job_name("file:///a/runs/b"), gpus=0, node_selector={}, tolerations=())
    assert_valid([*QUEUED.manifests, *alone.manifests])
    _, service, job, deployment = QUEUED.manifests
    check_trainjob(job)
    check_trainjob(alone.manifests[2])
    with pytest.raises(AssertionError):
        check_trainjob({**job, "spec": {**job["spec"], "podSpecOverrides": []}})
    pod = {"containers": [{"name": "node", "env": [{"name": "A", "value": "b"}]}]}
    spec = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]}
    wrong = {"manager": "a.b/c", "trainingRuntimeSpec": {"template": {"spec": spec}}}
    with pytest.raises(AssertionError, match=r"trainer\.env"):
        check_trainjob({**job, "spec": {**job["spec"], "runtimePatches": [wrong]}})
    assert "300.0" not in json.dumps([job, deployment]), "Kubernetes rejects integers with a fraction"
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


def test_pods_have_what_the_pipeline_s_parameters_say(assert_valid: Callable[..., None]) -> None:
    own = {
        "storage": "50Gi",
        "cache": "models",
        "priority_class": "high",
        "runtime_class": "nvidia",
        "scheduler": "own-scheduler",
    }
    training = replace(
        TRAINING,
        job=TrainJobSpec(rollout_gpus=2, **own),  # type: ignore[arg-type]
        gpu_resource="amd.com/gpu",
        cpus_per_gpu=6,
        memory_per_gpu="1.5Gi",
        image_pull_secret="registry",
        has_ca_bundle=True,
    )
    assert_valid(training.manifests)
    _, _, job, deployment = training.manifests
    check_trainjob(job)
    (patch,) = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    trainer, rollout = patch["template"]["spec"]["template"], deployment["spec"]["template"]
    node, (server, loader) = job["spec"]["trainer"], rollout["spec"]["containers"]
    assert node["resourcesPerNode"] == {
        "requests": {"cpu": "48", "memory": "12Gi", "ephemeral-storage": "50Gi", "amd.com/gpu": "8"},
        "limits": {"memory": "12Gi", "amd.com/gpu": "8"},
    }
    assert server["resources"]["requests"] == {
        "cpu": "12",
        "memory": "3Gi",
        "ephemeral-storage": "50Gi",
        "amd.com/gpu": "2",
    }
    trust = {"name": "trust", "mountPath": "/etc/gumshoe-trust", "readOnly": True}
    for pod in (trainer, rollout):
        assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": "models"}
        assert volumes["trust"]["configMap"] == {"name": "gumshoe-ca", "optional": True}
    for env, mounts in (
        (node["env"], trainer["spec"]["containers"][0]["volumeMounts"]),
        (server["env"], server["volumeMounts"]),
        (loader["env"], loader["volumeMounts"]),
    ):
        assert trust in mounts
        assert {"name": "SSL_CERT_FILE", "value": "/etc/gumshoe-trust/ca-bundle.crt"} in env
    for env in (node["env"], server["env"]):
        assert {"name": "HF_HOME", "value": "/cache/huggingface"} in env
    classes = {name: rollout["spec"][name] for name in ("priorityClassName", "runtimeClassName", "schedulerName")}
    assert [*classes.values()] == ["high", "nvidia", "own-scheduler"]


def test_the_user_of_pods_is_that_of_the_image_or_the_platform() -> None:
    def context(**job: Any) -> dict[str, Any]:
        found = replace(TRAINING, job=TrainJobSpec(**job)).manifests[3]["spec"]["template"]["spec"]["securityContext"]
        return dict(found)

    assert context() == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert context(cache="models")["fsGroup"] == 10001, "to write to a volume that belongs to root"
    assert "fsGroup" not in context(cache="models", fs_group=None), "OpenShift sets its own"


def test_pods_have_the_proxy_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    assert not {"HTTPS_PROXY", "NO_PROXY"} & {each["name"] for each in TRAINING.complete_env(TRAINING.env)}
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", ".svc")
    _, _, job, deployment = TRAINING.manifests
    containers = deployment["spec"]["template"]["spec"]["containers"]
    for env in (job["spec"]["trainer"]["env"], *(each["env"] for each in containers)):
        proxies = {each["name"]: each["value"] for each in env if each["name"].endswith("_PROXY")}
        assert proxies == {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".svc"}
    monkeypatch.setenv("HTTPS_PROXY", "http://ann:secret@proxy:3128")
    monkeypatch.setenv("GUMSHOE_HTTPS_PROXY", "http://ann:secret@proxy:3128")
    assert "ann:secret" not in json.dumps(TRAINING.manifests), "the namespace's proxy stays in its ConfigMap"
    source = {"configMapKeyRef": {"name": "gumshoe-proxy", "key": "HTTPS_PROXY"}}
    assert {"name": "HTTPS_PROXY", "valueFrom": source} in TRAINING.complete_env(TRAINING.env)


def test_each_container_has_its_own_credentials_and_the_key_of_the_run() -> None:
    both = replace(
        TRAINING,
        env=({"name": "OPENAI_API_KEY", "value": "1"},),
        rollout=replace(
            ROLLOUT,
            server_env=({"name": "HF_TOKEN", "value": "1"},),
            loader_env=({"name": "AWS_REGION", "value": "1"},),
        ),
    )
    key, _, job, deployment = both.manifests
    server, loader = deployment["spec"]["template"]["spec"]["containers"]
    names = [{each["name"] for each in env} for env in (job["spec"]["trainer"]["env"], server["env"], loader["env"])]
    own = [each & {"OPENAI_API_KEY", "HF_TOKEN", "AWS_REGION", "POD_IP"} for each in names]
    assert own == [{"OPENAI_API_KEY"}, {"HF_TOKEN", "POD_IP"}, {"AWS_REGION", "POD_IP"}]
    reference = {"secretKeyRef": {"name": key["metadata"]["name"], "key": "VLLM_API_KEY"}}
    for env in (job["spec"]["trainer"]["env"], server["env"], loader["env"]):
        assert {"name": "VLLM_API_KEY", "valueFrom": reference} in env
    secret = key["stringData"]["VLLM_API_KEY"]
    assert len(secret) >= 43, "256 random bits"
    assert secret != both.manifests[0]["stringData"]["VLLM_API_KEY"], "not derived from the run"
    assert secret not in json.dumps([job, deployment]), "only in the Secret"
    assert list_digests(both) == list_digests(both), "a repeated step finds the same Secret"


def test_without_rollout_servers_there_is_no_key() -> None:
    alone = replace(TRAINING, rollout=None)
    assert [each["kind"] for each in alone.manifests] == ["TrainJob"]
    assert "VLLM_API_KEY" not in json.dumps(alone.manifests)


@pytest.mark.parametrize("run", ["r1", "2024-05-03.a", "A" * 63, "sweep/slow", "x-" * 31, "ü"])
def test_names_are_dns_labels_derived_from_the_run(run: str) -> None:
    name = build_job_name(f"s3://bucket/mail/runs/{run}")
    assert name == build_job_name(f"s3://bucket/mail/runs/{run}/") != build_job_name(f"s3://bucket/other/runs/{run}")
    assert name.startswith("gumshoe-")
    assert len(rollout_name(name)) <= 50, "Kubernetes appends to it for pods"
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert "--" not in name


@pytest.mark.parametrize(
    ("parameters", "code", "values"),
    [
        ({"servers": 1}, "trainjob.invalid-job", ["servers: ", "rollout_servers (int, 1 by default), rollout_gpus"]),
        ({"rollout_servers": -1}, "trainjob.invalid-job", ["rollout_servers: ", "equal to 0", "got -1"]),
        ({"cpus": 0}, "trainjob.invalid-job", ["cpus: ", "equal to 1", "got 0"]),
        ({"cpus": True}, "trainjob.invalid-job", ["cpus: ", "got True"]),
        ({"rollout_gpus": 1.5}, "trainjob.invalid-job", ["rollout_gpus: ", "got 1.5"]),
        ({"rollout_gpus": 6.0}, "trainjob.gpus-not-a-power-of-two", ["rollout_gpus", "got 6"]),
        ({"queue": "My queue", "runtime": 1}, "trainjob.invalid-job", ["queue: ", "'My queue'", "runtime: ", "got 1"]),
        ({"memory": "64 GB"}, "trainjob.invalid-job", ["memory: ", "'64 GB'", "256Gi"]),
        ({"fs_group": 0, "scheduler": "My own"}, "trainjob.invalid-job", ["fs_group: ", "scheduler: ", "'My own'"]),
        ({"memory": "0Gi"}, "trainjob.invalid-job", ["memory: ", "'0Gi'"]),
        ({"memory": 64}, "trainjob.invalid-job", ["memory: ", "got 64"]),
        (["rollout_servers"], "trainjob.invalid-job", ["must be a mapping", "got ['rollout_servers']"]),
    ],
)
def test_an_invalid_job_parameter_is_refused(parameters: Any, code: str, values: list[str]) -> None:
    with raises(code, *values):
        TrainJobSpec.of(parameters)


def test_a_job_parameter_may_have_whole_floats() -> None:
    """Kubeflow passes all numbers in a mapping as floats."""
    found = TrainJobSpec.of({"rollout_servers": 2.0, "rollout_gpus": 4.0, "memory": "1.5Ti"})
    assert repr(found.rollout_servers) == "2"
    assert found == TrainJobSpec(rollout_servers=2, rollout_gpus=4, memory="1.5Ti")


def test_progress_is_reported_and_all_objects_are_deleted(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    with meanwhile(
        has_all_objects(cluster),
        lambda: cluster.write_log(trainer.pods(NAME)[0], "Starting", "Step 1/2 | Loss 1", "Step 2/2 | Loss 0.5"),
        lambda: cluster.write_log(trainer.pods(NAME)[1], "Step 1/2 of another node"),
        lambda: trainer.report_progress(NAME, 50, 600),
        lambda: cluster.write_log(trainer.pods(NAME)[0], "Evaluation after step 2 | Acc 50 %"),
        lambda: trainer.end(NAME),
    ):
        reports = train()
    assert [each for each in reports if each.startswith(("Step", "Evaluation"))] == [
        "Step 1/2 | Loss 1",
        "Step 2/2 | Loss 0.5",
        "Evaluation after step 2 | Acc 50 %",
    ]
    (progress,) = [each for each in reports if each.startswith("Progress")]
    assert re.findall(r"\d+", progress) == ["50", "10"], "percent and minutes"
    assert not cluster.objects


@pytest.mark.ci
def test_broken_streams_continue_without_repeated_lines(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    """Expired and broken watches, rate limiting, server errors, and a broken log stream."""
    cluster.request_faults = {
        "watch trainjobs": deque(["429", "410", "reset", "500"]),
        "list trainjobs": deque(["503"]),
        "create trainjobs": deque(["500", "429"]),
        "get log": deque(["500"]),
    }
    reports: list[str] = []
    with meanwhile(
        lambda: cluster.write_log(trainer.pods(NAME)[0], "Step 1/4", "Step 2/4"),
        lambda: "Step 2/4" in reports and not cluster.request_faults["watch trainjobs"],
        cluster.break_streams,
        cluster.expire_watches,
        lambda: cluster.write_log(trainer.pods(NAME)[0], "Step 3/4"),
        lambda: "Step 3/4" in reports,
        cluster.expire_watches,
        cluster.break_streams,
        lambda: cluster.write_log(trainer.pods(NAME)[0], "Step 4/4"),
        lambda: trainer.end(NAME),
    ):
        train(reports=reports)
    assert [each for each in reports if each.startswith("Step")] == [f"Step {number}/4" for number in (1, 2, 3, 4)]
    assert not any(cluster.request_faults.values())


def test_a_training_survives_an_unreachable_cluster_until_the_next_attempt(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    with meanwhile(has_all_objects(cluster), cluster.stop_answering), pytest.raises(ClusterUnavailableError) as gone:
        train(unreachable=0.2)
    assert gone.value.code in ("cluster.unreachable", "cluster.timeout")
    assert list_objects(cluster) == ALL_OBJECTS, "nothing was deleted"
    uid = cluster.objects["trainjobs", NAMESPACE, NAME]["metadata"]["uid"]
    owners: list[Any] = []
    cluster.is_dead = False
    other = {**POD, "name": "step-2", "uid": "u-step-2"}

    def check_and_end() -> None:
        owners.extend(each["metadata"]["ownerReferences"] for key, each in cluster.objects.items() if key[0] != "pods")
        assert cluster.objects["trainjobs", NAMESPACE, NAME]["metadata"]["uid"] == uid
        trainer.end(NAME)

    def is_adopted() -> bool:
        return bool(cluster.objects["deployments", NAMESPACE, SERVERS]["metadata"]["ownerReferences"] == [other])

    with meanwhile(is_adopted, check_and_end):
        run_trainjob(TRAINING, Cluster.of(None, None), lambda _: None, TIMEOUTS, other)
    assert owners == [[other]] * 4, "the pod of the new attempt owns the objects"
    assert not cluster.objects


@pytest.mark.parametrize("before", ["other", "failed"])
def test_a_different_or_failed_training_is_replaced(
    before: str, cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    training = TRAINING if before == "failed" else replace(TRAINING, nodes=3)
    for each in training.manifests:
        cluster.put({**each, "metadata": {**each["metadata"], "namespace": NAMESPACE}})
    if before == "failed":
        trainer.end(NAME, 1)
    cluster.deletion_delay = 0.1
    uid = cluster.objects["trainjobs", NAMESPACE, NAME]["metadata"]["uid"]
    with meanwhile(
        lambda: cluster.objects["trainjobs", NAMESPACE, NAME]["metadata"]["uid"] != uid,
        lambda: len(trainer.pods(NAME)) == 2,
        lambda: trainer.end(NAME),
    ):
        train()
    assert not cluster.objects


def test_an_object_that_is_not_deleted_is_reported(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    service = replace(TRAINING, labels={}).manifests[1]
    cluster.put({**service, "metadata": {**service["metadata"], "namespace": NAMESPACE}})
    cluster.deletion_delay = math.inf
    with raises("cluster.object-not-deleted", f"Service {SERVERS}") as raised:
        train(deletion=0.2)
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
def test_a_failed_training_is_reported_with_its_log(
    statuses: tuple[int, int],
    code: str,
    kind: type[GumshoeError],
    cluster: FakeKubernetes,
    trainer: Trainer,
    train: Callable[..., list[str]],
) -> None:
    """The log is that of the node that failed first, not of one that lost contact with it."""
    with (
        meanwhile(
            has_all_objects(cluster),
            lambda: cluster.write_log(trainer.pods(NAME)[0], "Step 1/2"),
            lambda: cluster.write_log(trainer.pods(NAME)[1], "error: the second node has no memory left"),
            lambda: trainer.end(NAME, *statuses),
        ),
        raises(code, f"exit status {statuses[1]}", "error: the second node has no memory left") as failed,
    ):
        train()
    assert failed.type is kind
    assert not list_objects(cluster)


def test_servers_are_removed_while_the_training_is_suspended(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    reports: list[str] = []
    alone = ALL_OBJECTS - {("deployments", SERVERS)}

    def load(*conditions: dict[str, Any]) -> None:
        uid = cluster.objects["trainjobs", NAMESPACE, NAME]["metadata"]["uid"]
        meta = {"name": "load", "namespace": NAMESPACE, "labels": {"kueue.x-k8s.io/job-uid": uid}}
        cluster.put({"kind": "Workload", "metadata": meta, "status": {"conditions": [*conditions]}})

    def unload() -> None:
        cluster.delete("workloads", NAMESPACE, "load")

    with meanwhile(
        lambda: load(condition("QuotaReserved", "False", "insufficient quota for nvidia.com/gpu")),
        lambda: any("insufficient quota" in each for each in reports),
        unload,
        lambda: list_objects(cluster) == alone,
        lambda: trainer.admit(NAME),
        has_all_objects(cluster),
        lambda: cluster.write_log(trainer.pods(NAME)[0], "Step 1/2"),
        lambda: "Step 1/2" in reports,
        lambda: load(condition("Evicted", "True", "Preempted to accommodate another")),
        lambda: trainer.evict(NAME),
        lambda: any("Preempted to accommodate" in each for each in reports),
        unload,
        lambda: list_objects(cluster) == alone,
        lambda: trainer.admit(NAME),
        has_all_objects(cluster),
        lambda: cluster.write_log(trainer.pods(NAME)[0], "Step 2/2"),
        lambda: trainer.end(NAME),
    ):
        train(QUEUED, reports)
    assert [each for each in reports if each.startswith("Step")] == ["Step 1/2", "Step 2/2"]
    waits = [each for each in reports if each.startswith("Waiting for job")]
    assert all("gumshoe" in each for each in waits), "each names the queue"
    assert "(insufficient quota for nvidia.com/gpu)" in " ".join(waits)
    assert "checkpoint" not in waits[0]
    assert "checkpoint" in waits[-1], "it has run and continues from its checkpoint"
    assert count_created(cluster) == 1
    assert not list_objects(cluster)


def test_a_stalled_or_late_training_is_deleted(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]], clock: Clock
) -> None:
    reports: list[str] = []
    with (
        meanwhile(
            has_all_objects(cluster),
            lambda: cluster.write_log(trainer.pods(NAME)[0], "Step 1/2"),
            lambda: "Step 1/2" in reports,
            lambda: clock.advance(HOUR + 1),
        ),
        raises("trainjob.stalled", NAME, "60 minutes") as stalled,
    ):
        train(reports=reports)
    assert stalled.type is UnavailableError
    assert not cluster.objects
    with (
        meanwhile(has_all_objects(cluster), lambda: clock.advance(TRAINING.seconds + 1)),
        raises("trainjob.time-limit", NAME, "48 hours") as late,
    ):
        train()
    assert late.type is UnavailableError
    assert not cluster.objects


@pytest.mark.usefixtures("trainer")
def test_a_training_ends_before_its_step_also_in_the_queue(
    cluster: FakeKubernetes, train: Callable[..., list[str]], clock: Clock
) -> None:
    training, reports = replace(QUEUED, ends=clock.now() + 2 * HOUR), list[str]()
    assert list_digests(training) == list_digests(QUEUED), "an attempt in another pod finds the same objects"
    with (
        meanwhile(
            lambda: any(each.startswith("Waiting for job") for each in reports), lambda: clock.advance(2 * HOUR + 1)
        ),
        raises("trainjob.step-time-limit", NAME) as late,
    ):
        train(training, reports)
    assert late.type is UnavailableError
    assert not cluster.objects


def test_a_pod_problem_is_reported_once_and_has_a_timeout(
    trainer: Trainer, train: Callable[..., list[str]], clock: Clock
) -> None:
    trainer.phase, reports = "Pending", list[str]()
    polls: list[int] = []

    def is_polled_again() -> bool:
        if not any(each.startswith("Waiting for trainer") for each in reports):
            return False
        polls.append(sum(each.endswith("/pods") for each in trainer.fake.requests))
        return polls[-1] >= polls[0] + 10

    with (
        meanwhile(is_polled_again, lambda: clock.advance(HOUR + 1)),
        raises("trainjob.not-started", NAME, "60 minutes", "(trainer: ", "ImagePullBackOff") as raised,
    ):
        train(reports=reports)
    assert raised.type is UnavailableError
    (report,) = [each for each in reports if each.startswith("Waiting for trainer")]
    for value in (f"{NAME}-node-0-0-00001", "ImagePullBackOff", "trainer_image", "(no such image)"):
        assert value in report


def test_sigterm_deletes_all_objects(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with (
        meanwhile(
            has_all_objects(cluster), lambda: bool(trainer.pods(NAME)), lambda: os.kill(os.getpid(), signal.SIGTERM)
        ),
        raises("trainjob.interrupted") as ended,
    ):
        train()
    assert ended.type is UnavailableError
    assert not cluster.objects
    assert signal.getsignal(signal.SIGTERM) is before


def test_all_objects_are_deleted_with_the_step_s_pod(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    step = {
        "kind": "Pod",
        "metadata": {"name": "step", "namespace": NAMESPACE},
        "spec": {},
        "status": {"phase": "Running"},
    }
    owner, left = {**POD, "uid": cluster.put(step)["metadata"]["uid"]}, list[tuple[str, str]]()

    def end() -> None:
        with cluster._lock:
            cluster.delete("pods", NAMESPACE, "step")
            left.extend(list_objects(cluster))

    with (
        meanwhile(has_all_objects(cluster), end),
        raises("trainjob.deleted", NAME) as deleted,
    ):
        train(owner=owner)
    assert deleted.type is UnavailableError
    assert left == [], "Kubernetes deleted them before the step did"
    assert not cluster.objects
    assert not trainer.pods(NAME)


def test_a_missing_permission_is_reported_and_leaves_nothing(
    cluster: FakeKubernetes, trainer: Trainer, train: Callable[..., list[str]]
) -> None:
    cluster.refused = ("create", "deployments")
    with raises("cluster.access-denied", 'create resource "deployments"'):
        train()
    assert not cluster.objects
    assert not trainer.pods(NAME)
