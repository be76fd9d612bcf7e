"""Test `gumshoe doctor`: every problem of a cluster, a store and Kubeflow Pipelines, and its remedy."""

import json
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from gumshoe.artifacts.storage import open_storage
from tests.artifacts.fault_proxy import FaultProxy, answer, edit, lose_answer, stall
from tests.cluster.fake_kubernetes import FakeKubernetes
from tests.cluster.fit_cluster import NAMESPACE, TAINT, put_controller, put_node, put_pod, set_up_cluster
from tests.conftest import CommandResult, find_free_port, skip_missing
from tests.http_server import ReceivedRequest, run_faulty_server
from tests.manifests.access import OPEN

Object = dict[str, Any]
Change = Callable[[FakeKubernetes], object]
COMPONENT = Path(__file__).parents[2] / "manifests" / "components" / "preflight"
TOLERATED = ["--gpus", "8", "--toleration", "nvidia.com/gpu"]
HOUR = 3600
DENIED = answer(403, "AccessDenied", "Access Denied")


@pytest.fixture(autouse=True)
def _clear_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GUMSHOE_STORE", "KFP_HOST", "KFP_TOKEN", "KFP_COOKIE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cluster(cluster: FakeKubernetes) -> FakeKubernetes:
    set_up_cluster(cluster)
    return cluster


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


@pytest.fixture
def run_doctor(run: Callable[..., CommandResult]) -> Callable[..., tuple[int, dict[str, Object]]]:
    """Return a function that runs `gumshoe doctor --json` and returns the exit status and the checks by name."""

    def run_with(*arguments: object) -> tuple[int, dict[str, Object]]:
        ran = run("doctor", "--json", "--timeout", HOUR, *arguments)
        found = json.loads(ran.out)
        assert found["is_well"] is (ran.status == 0)
        return ran.status, {each["check"]: each for each in found["checks"]}

    return run_with


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests time out after half a second although a check may take an hour."""
    monkeypatch.setattr("gumshoe.cluster.doctor._REQUEST_SHARE", 0.5 / HOUR)


RunDoctor = Callable[..., tuple[int, dict[str, Object]]]


def texts_of(check: Object, state: str) -> str:
    """Return the texts, remedies and commands of a check's findings in a state."""
    found = [each for each in check["findings"] if each["state"] == state]
    return "\n".join("\n".join([each["text"], each["mend"], *each["commands"]]) for each in found)


def codes(check: Object) -> list[str]:
    """Return the codes of the errors that a check found."""
    return [each["code"] for each in check["findings"] if each["code"]]


def get_object(fake: FakeKubernetes, plural: str, name: str = "gumshoe", namespace: str = "") -> Object:
    return fake.objects[plural, namespace, name]


@pytest.fixture
def pipelines() -> Iterator[tuple[str, deque[str], list[ReceivedRequest]]]:
    """Run a fake Kubeflow Pipelines: its URL, its faults, and the requests it got."""
    faults: deque[str] = deque()
    requests: list[ReceivedRequest] = []

    def respond(request: ReceivedRequest, fault: str) -> tuple[int, str, bytes]:
        requests.append(request)
        if fault == "page":
            return 200, "text/html", b"<html>Sign in</html>"
        if fault == "users":
            return 200, "application/json", b'{"tag_name": "2.17.0", "multi_user": true}'
        status = int(fault) if fault.isdigit() else 200
        return status, "application/json", b'{"tag_name": "2.17.0", "multi_user": false}'

    with run_faulty_server(faults, respond) as url:
        yield url, faults, requests


def test_a_working_cluster_passes_and_is_not_changed(
    run: Callable[..., CommandResult],
    cluster: FakeKubernetes,
    s3_bucket: str,
    pipelines: tuple[str, deque[str], list[ReceivedRequest]],
) -> None:
    before = dict(cluster.objects)
    ran = run("doctor", "--store", f"s3://{s3_bucket}/project", "--kfp", pipelines[0], *TOLERATED)
    assert (ran.status, ran.err) == (0, "")
    assert not re.search("^[!✗-]", ran.out, re.M), ran.out
    for pattern in (
        "✓ api .*v1.33.0",
        r"✓ gpus .*2 nodes.*NVIDIA-H100-80GB-HBM3 \(8 .*79 GiB",
        "8 GPUs.*10 of 16",
        "ClusterQueue gumshoe.*10 GPUs",
        "conditional writes",
        "Kubeflow Pipelines.*2.17.0",
        "0 warnings.*agents",
    ):
        assert re.search(pattern, ran.out), pattern
    assert "c2VjcmV0" not in ran.out, "values of secrets are not printed"
    assert cluster.objects == before
    assert list(open_storage(f"s3://{s3_bucket}").entries()) == []


def test_the_json_output_is_reproducible(run: Callable[..., CommandResult], cluster: FakeKubernetes) -> None:
    del cluster.objects["serviceaccounts", NAMESPACE, "gumshoe-pipeline"]
    first, second = run("doctor", "--json"), run("doctor", "--json")
    assert (first.status, first.out) == (1, second.out)
    found = json.loads(first.out)
    cluster_checks = (
        "api crds controllers pipelines namespace dns network accounts secrets trust storage gpus quota queue runtime"
    )
    assert [each["check"] for each in found["checks"]] == [*cluster_checks.split(), "store", "kfp"]
    assert found["namespace"] == NAMESPACE


def _remove_labels(fake: FakeKubernetes) -> None:
    get_object(fake, "namespaces", NAMESPACE)["metadata"]["labels"] = {}


def _remove_secret_key(fake: FakeKubernetes) -> None:
    get_object(fake, "secrets", "gumshoe-s3", NAMESPACE)["data"].pop("AWS_SECRET_ACCESS_KEY")


def _change_queue(change: Callable[[Object], object]) -> Change:
    return lambda fake: change(get_object(fake, "clusterqueues"))


def _change_claim(phase: str, mode: str = "ReadWriteMany", storage_class: str = "fast") -> Change:
    def change(fake: FakeKubernetes) -> None:
        claim = get_object(fake, "persistentvolumeclaims", "gumshoe-cache", NAMESPACE)
        claim["spec"] = {"accessModes": [mode], "storageClassName": storage_class}
        claim["status"] = {"phase": phase}

    return change


def _delete(plural: str, name: str = "gumshoe", namespace: str = "") -> Change:
    return lambda fake: fake.objects.pop((plural, namespace, name))


def _hide(*versions: str) -> Change:
    return lambda fake: fake.unserved.update(versions)


def _may_only_train(spec: Object) -> bool:
    wanted = spec["resourceAttributes"]
    deploys = wanted["resource"] == "secrets" and wanted["verb"] in ("list", "update")
    return bool(spec["user"].endswith(":gumshoe-pipeline") and not deploys)


def _deactivate(made: Object) -> None:
    made["status"]["conditions"][0] |= {"status": "False", "reason": "FlavorNotFound", "message": "no such flavor"}


PROBLEMS: dict[str, tuple[str, Change, tuple[str, ...]]] = {
    "no KServe": (
        "crds",
        _hide("serving.kserve.io/v1alpha1", "serving.kserve.io/v1alpha2", "serving.kserve.io/v1beta1"),
        ("serving.kserve.io", "helm upgrade --install kserve oci://"),
    ),
    "an old KServe": (
        "crds",
        _hide("serving.kserve.io/v1beta1"),
        ("serving.kserve.io", "v1alpha1, v1alpha2", "v1beta1"),
    ),
    "no Trainer": (
        "crds",
        _hide("trainer.kubeflow.org/v1alpha1"),
        ("trainer.kubeflow.org", "?ref=v2.3.0"),
    ),
    "a controller that is not ready": (
        "controllers",
        lambda fake: put_controller(fake, "kubeflow-trainer-controller-manager", ready=0),
        ("0 of 1 pods", "kubectl -n system describe deployment kubeflow-trainer-controller-manager"),
    ),
    "no namespace": ("namespace", _delete("namespaces", NAMESPACE), ("namespace agents", "apply --server-side -k")),
    "a namespace that is being deleted": (
        "namespace",
        lambda fake: get_object(fake, "namespaces", NAMESPACE).update(status={"phase": "Terminating"}),
        ("namespace agents", "kubectl wait --for=delete namespace/agents"),
    ),
    "no account": (
        "accounts",
        _delete("serviceaccounts", "gumshoe-rollout", NAMESPACE),
        ("service account gumshoe-rollout", "kubectl apply --server-side -k manifests/overlays/prod"),
    ),
    "an account without rights": (
        "accounts",
        lambda fake: setattr(fake, "allows", lambda spec: spec["resourceAttributes"]["resource"] != "trainjobs"),
        (
            "create trainjobs.trainer.kubeflow.org, get trainjobs.trainer.kubeflow.org",
            "kubectl -n agents create rolebinding gumshoe-train --role gumshoe-train "
            "--serviceaccount agents:gumshoe-pipeline",
            "kubectl -n agents auth can-i create trainjobs.trainer.kubeflow.org "
            "--as system:serviceaccount:agents:gumshoe-pipeline",
        ),
    ),
    "half a secret": (
        "secrets",
        _remove_secret_key,
        ("gumshoe-s3 has no AWS_SECRET_ACCESS_KEY,", "create secret generic"),
    ),
    "an empty secret": (
        "secrets",
        lambda fake: get_object(fake, "secrets", "gumshoe-models", NAMESPACE).update(data={"HF_TOKEN": ""}),
        ("gumshoe-models: HF_TOKEN",),
    ),
    "a volume claim without a volume": (
        "storage",
        _change_claim("Pending"),
        ("gumshoe-cache is Pending,", "kubectl -n agents describe pvc gumshoe-cache"),
    ),
    "a volume claim with an unknown class": (
        "storage",
        _change_claim("Pending", storage_class="slow"),
        ("StorageClass slow\n", "fast"),
    ),
    "no GPUs": (
        "gpus",
        lambda fake: [fake.objects.pop(("nodes", "", name)) for name in ("gpu-a", "gpu-b")],
        ("nvidia.com/gpu", "helm upgrade --install gpu-operator"),
    ),
    "a quota that is too small": (
        "quota",
        lambda fake: get_object(fake, "resourcequotas", namespace=NAMESPACE)["status"]["hard"].update(
            {"requests.nvidia.com/gpu": "4"}
        ),
        (
            "quota gumshoe allows 4 GPUs",
            """patch resourcequota gumshoe --type merge -p '{"spec":{"hard":{"requests.nvidia.com/gpu":"8"}}}'""",
        ),
    ),
    "a quota of too few CPUs": (
        "quota",
        lambda fake: get_object(fake, "resourcequotas", namespace=NAMESPACE)["status"]["hard"].update(
            {"requests.cpu": "31500m"}
        ),
        ("quota gumshoe allows 31.5 CPUs", """'{"spec":{"hard":{"requests.cpu":"32"}}}'"""),
    ),
    "a quota of too little memory": (
        "quota",
        lambda fake: get_object(fake, "resourcequotas", namespace=NAMESPACE)["status"]["hard"].update(memory="128Gi"),
        ("quota gumshoe allows 128 GiB", """'{"spec":{"hard":{"memory":"256Gi"}}}'"""),
    ),
    "a queue of too little memory": (
        "queue",
        _change_queue(
            lambda made: made["spec"]["resourceGroups"][0]["flavors"][0]["resources"][2].update(nominalQuota="0.1Ti")
        ),
        ("256 GiB of memory", "102.4 of gumshoe-h100", "kubectl edit clusterqueue gumshoe"),
    ),
    "a queue without CPUs": (
        "queue",
        _change_queue(lambda made: made["spec"]["resourceGroups"][0]["flavors"][0]["resources"].pop(1)),
        ("quota for cpu", "kubectl edit clusterqueue gumshoe"),
    ),
    "no ClusterQueue": ("queue", _delete("clusterqueues"), ("ClusterQueue gumshoe", "apply --server-side -k")),
    "a queue that is not active": (
        "queue",
        _change_queue(_deactivate),
        (
            "(FlavorNotFound: no such flavor)",
            "kubectl describe clusterqueue gumshoe",
        ),
    ),
    "a queue that is stopped": (
        "queue",
        _change_queue(lambda made: made["spec"].update(stopPolicy="HoldAndDrain")),
        ("(HoldAndDrain)", """patch clusterqueue gumshoe --type merge -p '{"spec":{"stopPolicy":"None"}}'"""),
    ),
    "a queue that never admits": (
        "queue",
        _change_queue(
            lambda made: made["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0].update(nominalQuota="4")
        ),
        ("a pod of 8 GPUs", "4 of gumshoe-h100", "kubectl edit clusterqueue gumshoe"),
    ),
    "a queue without GPUs": (
        "queue",
        _change_queue(lambda made: made["spec"]["resourceGroups"][0]["flavors"][0].update(resources=[])),
        ("quota for nvidia.com/gpu", "kubectl edit clusterqueue gumshoe"),
    ),
    "no flavor": (
        "queue",
        _delete("resourceflavors", "gumshoe-h100"),
        ("ResourceFlavor gumshoe-h100", "apply --server-side -k"),
    ),
    "no runtime": (
        "runtime",
        _delete("clustertrainingruntimes"),
        ("ClusterTrainingRuntime gumshoe", "kubectl apply --server-side -k manifests/overlays/prod"),
    ),
}


@pytest.mark.parametrize(("check", "change", "values"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_is_reported_with_a_remedy_and_ends_with_1(
    check: str, change: Change, values: tuple[str, ...], cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    change(cluster)
    status, checks = run_doctor("--gpus", 8, "--only", check)
    assert (status, checks[check]["state"]) == (1, "problem")
    for each in values:
        assert each in texts_of(checks[check], "problem")


WARNINGS: dict[str, tuple[str, Change, tuple[str, ...]]] = {
    "no Kueue": (
        "crds",
        _hide("kueue.x-k8s.io/v1beta2"),
        ("kueue.x-k8s.io", "kueue/releases/download"),
    ),
    "no Prometheus": ("crds", _hide("monitoring.coreos.com/v1"), ("kube-prometheus-stack",)),
    "no controller": (
        "controllers",
        _delete("deployments", "kserve-controller-manager", "system"),
        ("KServe", "Deployment kserve-controller-manager", "helm upgrade --install kserve oci://"),
    ),
    "no labels": (
        "namespace",
        _remove_labels,
        (
            "(pod-security.kubernetes.io/enforce is unset)",
            "kubectl label namespace agents --overwrite pod-security.kubernetes.io/enforce=baseline",
        ),
    ),
    "an unneeded token": (
        "accounts",
        lambda fake: get_object(fake, "serviceaccounts", "gumshoe-trainer", NAMESPACE).pop(
            "automountServiceAccountToken"
        ),
        ("patch serviceaccount gumshoe-trainer",),
    ),
    "unneeded permissions": (
        "accounts",
        lambda fake: setattr(fake, "allows", lambda _: True),
        ("gumshoe-rollout", "kubectl -n agents get rolebindings,clusterrolebindings"),
    ),
    "permissions only to train": (
        "accounts",
        lambda fake: setattr(fake, "allows", _may_only_train),
        (
            "list secrets, update secrets",
            "kubectl -n agents create rolebinding gumshoe-deploy --role gumshoe-deploy",
        ),
    ),
    "no secret": (
        "secrets",
        _delete("secrets", "gumshoe-s3", NAMESPACE),
        (
            "secret gumshoe-s3",
            "kubectl -n agents create secret generic gumshoe-s3 --from-literal=AWS_ACCESS_KEY_ID=…",
        ),
    ),
    "a misspelt key": (
        "secrets",
        lambda fake: get_object(fake, "secrets", "gumshoe-models", NAMESPACE)["data"].update(HF_TOKE="c2VjcmV0LTI="),
        ("gumshoe-models", ": HF_TOKE\n"),
    ),
    "no default class": (
        "storage",
        lambda fake: get_object(fake, "storageclasses", "fast")["metadata"].pop("annotations"),
        ("fast)", "kubectl patch storageclass fast"),
    ),
    "no cache": (
        "storage",
        _delete("persistentvolumeclaims", "gumshoe-cache", NAMESPACE),
        ("volume claim gumshoe-cache", "apply --server-side -k"),
    ),
    "a cache for one node": (
        "storage",
        _change_claim("Bound", "ReadWriteOnce"),
        ("(ReadWriteOnce)", "ReadWriteMany for 2 nodes", "kubectl get storageclass"),
    ),
    "GPUs in use": (
        "gpus",
        lambda fake: put_pod(fake, "more", "gpu-b", 3),
        ("2 pods of 8 GPUs: 7 of 16", "0 pods", "kubectl get pods -A"),
    ),
    "a quota that is used up": (
        "quota",
        lambda fake: get_object(fake, "resourcequotas", namespace=NAMESPACE)["status"]["used"].update(pods="49"),
        ("quota gumshoe leaves 1 of 50 pods", "needs 2\n"),
    ),
    "no LocalQueue": (
        "queue",
        _delete("localqueues", namespace=NAMESPACE),
        ("LocalQueue gumshoe", "apply --server-side -k"),
    ),
    "a queue that is full": ("queue", lambda _: None, ("10 GPUs left", "needs 16\n")),
    "a flavor without nodes": (
        "queue",
        lambda fake: get_object(fake, "resourceflavors", "gumshoe-h100")["spec"].update(nodeLabels={"pool": "b200"}),
        ("ResourceFlavor gumshoe-h100", "kubectl label node NODE pool=b200"),
    ),
    "no priorities": (
        "queue",
        _delete("workloadpriorityclasses", "gumshoe-evaluation"),
        ("WorkloadPriorityClass gumshoe-evaluation", "apply --server-side -k"),
    ),
}


@pytest.mark.parametrize(("check", "change", "values"), WARNINGS.values(), ids=WARNINGS)
def test_an_optional_part_that_is_missing_is_a_warning_and_ends_with_0(
    check: str, change: Change, values: tuple[str, ...], cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    change(cluster)
    status, checks = run_doctor("--gpus", 8, "--nodes", 2, "--only", check)
    assert (status, checks[check]["state"]) == (0, "warning")
    for each in values:
        assert each in texts_of(checks[check], "warning")


def test_a_volume_that_waits_for_its_first_pod_is_ok(cluster: FakeKubernetes, run_doctor: RunDoctor) -> None:
    _change_claim("Pending")(cluster)
    get_object(cluster, "storageclasses", "fast")["volumeBindingMode"] = "WaitForFirstConsumer"
    status, checks = run_doctor("--only", "storage")
    assert (status, checks["storage"]["state"]) == (0, "ok")
    texts = texts_of(checks["storage"], "ok")
    assert "gumshoe-cache" in texts
    assert "volume from fast" in texts


@pytest.mark.usefixtures("cluster")
def test_tainted_nodes_are_not_counted_and_the_taint_is_named(run_doctor: RunDoctor) -> None:
    status, checks = run_doctor("--only", "gpus")
    assert (status, checks["gpus"]["state"]) == (0, "warning")
    texts = texts_of(checks["gpus"], "warning")
    assert "1 GPU" in texts
    assert "nvidia.com/gpu:NoSchedule" in texts
    given = '[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]'
    assert f"--set 'tolerations={given}'" in texts
    toleration = re.findall("--toleration ([^ \n]+)", texts)[0]
    assert run_doctor("--only", "gpus", "--toleration", toleration)[1]["gpus"]["state"] == "ok"
    assert run_doctor("--only", "gpus", "--nodes", 2)[1]["gpus"]["state"] == "ok", "the queue's flavors tolerate it"
    assert run_doctor("--only", "gpus", "--toleration", "nvidia.com/gpu=other")[0] == 1
    assert run_doctor("--only", "gpus", "--toleration", "nvidia.com/gpu:NoExecute")[0] == 1


def test_cordoned_and_unready_nodes_are_named(cluster: FakeKubernetes, run_doctor: RunDoctor) -> None:
    put_node(cluster, "gpu-b", 8, unschedulable=True, taints=[{**TAINT}])
    get_object(cluster, "nodes", "gpu-a")["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    status, checks = run_doctor("--only", "gpus", *TOLERATED)
    texts = texts_of(checks["gpus"], "warning")
    assert status == 1
    assert "0 of 2 nodes" in texts_of(checks["gpus"], "problem")
    assert "cordoned: gpu-b" in texts
    assert "kubectl uncordon gpu-b" in texts
    assert "not ready: gpu-a" in texts


def test_a_pod_holds_the_gpus_of_its_largest_container_until_it_ends(
    cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    put_pod(cluster, "over", "gpu-b", 8, phase="Succeeded")
    put_pod(cluster, "first", "gpu-b", 1)
    limits = {"resources": {"limits": {"nvidia.com/gpu": "3"}}}
    get_object(cluster, "pods", "first", "others")["spec"]["initContainers"] = [{"name": "it", **limits}]
    _, checks = run_doctor("--only", "gpus", *TOLERATED)
    assert "7 of 16 GPUs" in texts_of(checks["gpus"], "warning")


def test_pods_are_read_in_pages(cluster: FakeKubernetes, run_doctor: RunDoctor) -> None:
    for number in range(1200):
        put_pod(cluster, f"p{number}", "cpu-a", 0)
    put_pod(cluster, "z-last", "gpu-b", 8)
    _, checks = run_doctor("--only", "gpus", *TOLERATED)
    assert "2 of 16 GPUs" in texts_of(checks["gpus"], "warning")
    assert sum(each.startswith("GET /api/v1/pods") for each in cluster.requests) == 3


FORBIDDEN = [
    ("accounts", "get", "serviceaccounts", "get serviceaccounts/gumshoe-pipeline in agents"),
    ("accounts", "create", "subjectaccessreviews", "create subjectaccessreviews.authorization.k8s.io"),
    ("secrets", "get", "secrets", "get secrets/gumshoe-s3 in agents"),
    ("trust", "get", "configmaps", "get configmaps/gumshoe-ca in agents"),
    ("storage", "list", "storageclasses", "list storageclasses.storage.k8s.io"),
    ("gpus", "list", "nodes", "list nodes"),
    ("gpus", "list", "pods", "list pods in all namespaces"),
    ("controllers", "list", "deployments", "list deployments.apps in all namespaces"),
    ("pipelines", "list", "deployments", "list deployments.apps in all namespaces"),
    ("dns", "list", "networkpolicies", "list networkpolicies.networking.k8s.io in agents"),
    ("network", "list", "networkpolicies", "list networkpolicies.networking.k8s.io in agents"),
    ("network", "list", "pods", "list pods in all namespaces"),
    ("quota", "list", "resourcequotas", "list resourcequotas in agents"),
    ("queue", "get", "localqueues", "get localqueues.kueue.x-k8s.io/gumshoe in agents"),
    ("queue", "get", "clusterqueues", "get clusterqueues.kueue.x-k8s.io/gumshoe"),
    ("runtime", "get", "clustertrainingruntimes", "get clustertrainingruntimes.trainer.kubeflow.org/gumshoe"),
]


@pytest.mark.parametrize(("check", "verb", "plural", "right"), FORBIDDEN)
def test_a_missing_permission_is_named(
    check: str, verb: str, plural: str, right: str, cluster: FakeKubernetes, run_doctor: RunDoctor
) -> None:
    cluster.refused = (verb, plural)
    status, checks = run_doctor()
    assert (status, checks[check]["state"]) == (0, "warning")
    assert f"may not {right}\n" in texts_of(checks[check], "warning")
    assert set(codes(checks[check])) <= {"cluster.access-denied"}
    assert checks["namespace"]["state"] == "ok", "other checks continue"


@pytest.mark.usefixtures("short_timeouts")
def test_a_hanging_cluster_times_out_and_ends_with_75(
    cluster: FakeKubernetes, run: Callable[..., CommandResult]
) -> None:
    """The cluster hangs until the end of the test."""
    cluster.faults.extend(["hang"] * 3)
    ran = run("doctor", "--timeout", HOUR)
    assert ran.status == 75
    assert re.search(r"✗ api .*\[cluster.timeout\]", ran.out)
    assert re.search("^- gpus", ran.out, re.M)


@pytest.mark.parametrize("fault", ["reset", "503", pytest.param("hang", marks=pytest.mark.nightly)])
def test_a_check_without_an_answer_does_not_stop_others(
    cluster: FakeKubernetes, run_doctor: RunDoctor, fault: str
) -> None:
    cluster.faults.extend(["fine", fault])
    status, checks = run_doctor("--timeout", 20, "--only", "quota")
    assert (status, checks["api"]["state"], checks["quota"]["state"]) == (75, "ok", "unanswered")
    code = {"reset": "cluster.unreachable", "503": "cluster.api-unhealthy", "hang": "cluster.timeout"}[fault]
    assert codes(checks["quota"]) == [code]
    cluster.faults.extend(["fine", "503"])
    status, checks = run_doctor("--only", "quota", "--only", "store")
    assert (status, checks["quota"]["state"], checks["store"]["state"]) == (75, "unanswered", "skipped")
    _delete("clustertrainingruntimes")(cluster)
    cluster.request_faults["list resourcequotas"] = deque(["reset"])
    status, checks = run_doctor()
    assert (checks["quota"]["state"], checks["runtime"]["state"]) == ("unanswered", "problem")
    assert status == 1, "a problem takes precedence over a missing answer"


@pytest.mark.parametrize(("token", "status"), [("other", 1), (None, 0)])
def test_unknown_credentials_are_reported_once(
    token: str | None, status: int, cluster: FakeKubernetes, run: Callable[..., CommandResult]
) -> None:
    cluster.token = token
    ran = run("doctor")
    assert (ran.status, ran.out.count("[cluster.unauthenticated]")) == (status, status)


def test_a_server_that_is_not_kubernetes_is_reported(
    tmp_path: Path,
    cluster: FakeKubernetes,
    pipelines: tuple[str, deque[str], list[ReceivedRequest]],
    run: Callable[..., CommandResult],
) -> None:
    other = tmp_path / "other"
    other.write_text(cluster.kubeconfig.read_text().replace(cluster.url, pipelines[0]))
    ran = run("doctor", "--only", "gpus")
    assert ran.status == 0
    os.environ["KUBECONFIG"] = str(other)
    ran = run("doctor", "--only", "gpus")
    assert ran.status == 1
    assert re.search("^✗ api .*gitVersion", ran.out, re.M), "its answer has no version"


@pytest.mark.usefixtures("no_cluster")
def test_without_a_cluster_only_the_store_is_checked(run: Callable[..., CommandResult], tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    ran = run("doctor", "--store", tmp_path / "store")
    assert ran.status == 0
    assert re.search("^- api .*kubeconfig", ran.out, re.M)
    assert f"{tmp_path}/store can" in ran.out
    assert "gpus" not in ran.out
    assert ran.out.strip().endswith("not checked: cluster, kfp.")
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        ([], "doctor.nothing-to-check", "--store"),
        (["--context", "c", "--store", "s"], "cluster.no-kubeconfig", "KUBECONFIG"),
        (["--namespace", "n", "--store", "s"], "cluster.no-kubeconfig", "KUBECONFIG"),
        (["--gpus", "1", "--store", "s"], "cluster.no-kubeconfig", "KUBECONFIG"),
        (["--nodes", "1", "--store", "s"], "cluster.no-kubeconfig", "KUBECONFIG"),
        (["--only", "nonsense"], "doctor.unknown-check", "nonsense"),
        (["--toleration", "a b"], "doctor.invalid-toleration", "'a b'"),
        (["--store", "ftp://x"], "store.unknown-scheme", "ftp://x"),
    ],
)
def test_invalid_options_end_with_2(
    arguments: list[str], code: str, value: str, run: Callable[..., CommandResult]
) -> None:
    ran = run("doctor", *arguments)
    assert (ran.status, ran.code) == (2, code), ran.out
    assert value in ran.err


STORE_PROBLEMS: dict[str, tuple[list[tuple[Any, ...]], tuple[str, ...], list[str]]] = {
    "writing": ([(DENIED, "PUT")], ("s3:PutObject on arn:aws:s3:::BUCKET/project/* ",), []),
    "reading": ([(DENIED, "GET", ".gumshoe-doctor")], ("s3:GetObject on arn:aws:s3:::BUCKET/project/* ",), []),
    "listing": ([(DENIED, "GET", "", "list-type=2")], ("s3:ListBucket on arn:aws:s3:::BUCKET ",), []),
    "deleting": (
        [(DENIED, "POST", "", "delete")],
        ("s3:DeleteObject on arn:aws:s3:::BUCKET/project/* ",),
        [],
    ),
    "keys": ([(answer(403, "InvalidAccessKeyId"), "GET")], (), ["store.unknown-access-key"]),
    "clock": ([(answer(403, "RequestTimeTooSkewed"), "GET")], (), ["store.clock-skew"]),
}


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize(("faults", "values", "errors"), STORE_PROBLEMS.values(), ids=STORE_PROBLEMS)
def test_a_missing_s3_permission_is_named(
    faults: list[tuple[Any, ...]],
    values: tuple[str, ...],
    errors: list[str],
    proxied_store: str,
    proxy: FaultProxy,
    run_doctor: RunDoctor,
) -> None:
    for act, method, *more in faults:
        proxy.inject(act, method, *more[:1], query=more[1] if len(more) > 1 else "", times=None)
    status, checks = run_doctor("--store", proxied_store)
    assert (status, checks["store"]["state"]) == (1, "problem")
    assert codes(checks["store"]) == errors
    for each in values:
        assert each.replace("BUCKET", proxied_store.split("/")[2]) in texts_of(checks["store"], "problem")
    proxy.heal()
    assert list(open_storage(proxied_store).entries()) == []


@pytest.fixture
def proxied_store(proxy: FaultProxy, s3_bucket: str, aws_environment: pytest.MonkeyPatch) -> str:
    """Return a store that is accessed through the proxy."""
    aws_environment.setenv("AWS_ENDPOINT_URL", proxy.address)
    return f"s3://{s3_bucket}/project"


@pytest.mark.usefixtures("no_cluster")
def test_a_permission_that_only_pruning_needs_is_a_warning(
    proxied_store: str, proxy: FaultProxy, run_doctor: RunDoctor
) -> None:
    proxy.inject(DENIED, "GET", query="uploads", times=None)
    proxy.inject(DENIED, "GET", query="versioning", times=None)
    status, checks = run_doctor("--store", proxied_store)
    texts = texts_of(checks["store"], "warning")
    assert (status, checks["store"]["state"]) == (0, "warning")
    assert "s3:ListBucketMultipartUploads on arn:aws:s3:::" in texts
    assert "s3:GetBucketVersioning" in texts


@pytest.mark.usefixtures("no_cluster")
def test_a_missing_bucket_is_reported(proxied_store: str, run_doctor: RunDoctor) -> None:
    status, checks = run_doctor("--store", "s3://not-there/project")
    assert (status, proxied_store.startswith("s3://")) == (1, True)
    assert codes(checks["store"]) == ["store.no-such-bucket"]
    (command,) = checks["store"]["findings"][0]["commands"]
    assert command.startswith("aws s3 mb s3://not-there")
    assert f"--endpoint-url {os.environ['AWS_ENDPOINT_URL']}" in command


@pytest.mark.usefixtures("no_cluster")
def test_a_hanging_store_times_out_and_ends_with_75(
    proxied_store: str, proxy: FaultProxy, run_doctor: RunDoctor
) -> None:
    """The store hangs until the end of the test."""
    proxy.inject(stall, "GET", times=None)
    status, checks = run_doctor("--store", proxied_store, "--timeout", 1)
    assert (status, checks["store"]["state"]) == (75, "unanswered")


@pytest.mark.usefixtures("no_cluster")
def test_a_test_object_is_removed_if_the_response_was_lost(
    proxied_store: str, proxy: FaultProxy, run_doctor: RunDoctor
) -> None:
    proxy.inject(lose_answer, "PUT", times=None)
    status, _ = run_doctor("--store", proxied_store)
    assert status == 75
    assert proxy.seen("PUT", ".gumshoe-doctor")
    proxy.heal()
    assert list(open_storage(proxied_store).entries()) == []


@pytest.mark.usefixtures("no_cluster")
def test_a_store_without_conditional_writes_is_a_problem(
    proxied_store: str, proxy: FaultProxy, run_doctor: RunDoctor
) -> None:
    def unconditional(exchange: Any) -> None:
        exchange.reply(exchange.forward(without="If-None-Match"))

    proxy.inject(unconditional, "PUT", times=None)
    status, checks = run_doctor("--store", proxied_store)
    assert status == 1
    assert "If-None-Match" in texts_of(checks["store"], "problem")


@pytest.mark.usefixtures("no_cluster")
def test_clock_skew_is_reported(proxied_store: str, proxy: FaultProxy, run_doctor: RunDoctor) -> None:
    then = datetime.now(UTC) - timedelta(minutes=9)
    stamp = f"<LastModified>{then:%Y-%m-%dT%H:%M:%S}.000Z</LastModified>".encode()
    change = edit(lambda body: re.sub(rb"<LastModified>[^<]*</LastModified>", stamp, body))
    proxy.inject(change, "GET", query="list-type=2", times=None)
    _, checks = run_doctor("--store", proxied_store)
    texts = texts_of(checks["store"], "warning")
    assert "9 minutes ahead" in texts
    assert "timedatectl" in texts


@pytest.mark.usefixtures("no_cluster")
def test_versioning_without_expiry_is_reported(s3_bucket: str, run_doctor: RunDoctor) -> None:
    import boto3

    client = boto3.client("s3")
    client.put_bucket_versioning(Bucket=s3_bucket, VersioningConfiguration={"Status": "Enabled"})
    status, checks = run_doctor("--store", f"s3://{s3_bucket}/project")
    texts = texts_of(checks["store"], "warning")
    assert status == 0
    assert f"s3://{s3_bucket} keeps" in texts
    left = client.list_object_versions(Bucket=s3_bucket)
    assert (left.get("Versions", []), left.get("DeleteMarkers", [])) == ([], [])
    rules = json.loads(re.findall("--lifecycle-configuration '(.*)'", texts)[0])
    client.put_bucket_lifecycle_configuration(Bucket=s3_bucket, LifecycleConfiguration=rules)
    assert run_doctor("--store", f"s3://{s3_bucket}/project")[1]["store"]["state"] == "ok"


@pytest.mark.usefixtures("no_cluster")
def test_nothing_is_written_to_a_bucket_with_object_lock(
    s3_server: str, aws_environment: pytest.MonkeyPatch, run_doctor: RunDoctor
) -> None:
    aws_environment.setenv("AWS_ENDPOINT_URL", s3_server)
    import boto3

    client = boto3.client("s3")
    client.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 30}}
    lock: Any = {"ObjectLockEnabled": "Enabled", "Rule": rule}
    client.put_object_lock_configuration(Bucket="locked", ObjectLockConfiguration=lock)
    status, checks = run_doctor("--store", "s3://locked/project")
    assert status == 0
    texts = texts_of(checks["store"], "warning")
    assert "s3://locked for 30 days" in texts
    assert "get-object-lock-configuration --bucket locked" in texts
    assert "Versions" not in client.list_object_versions(Bucket="locked")


@pytest.mark.usefixtures("no_cluster", "short_timeouts")
@pytest.mark.parametrize(
    ("fault", "status", "state", "value"),
    [
        ("users", 0, "ok", "--namespace"),
        ("401", 1, "problem", "(401)"),
        ("302", 1, "problem", "(302)"),
        ("404", 1, "problem", "(404, "),
        ("page", 1, "problem", "(200, text/html)"),
        ("503", 75, "unanswered", "(503)"),
        ("reset", 75, "unanswered", "kubectl -n kubeflow port-forward service/ml-pipeline 8888:8888"),
        ("hang", 75, "unanswered", "in time"),
    ],
)
def test_the_health_of_kubeflow_pipelines_is_checked(
    fault: str,
    status: int,
    state: str,
    value: str,
    pipelines: tuple[str, deque[str], list[ReceivedRequest]],
    run_doctor: RunDoctor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, faults, requests = pipelines
    faults.append(fault)
    monkeypatch.setenv("KFP_TOKEN", "secret-token")
    monkeypatch.setenv("KFP_COOKIE", "session=secret-token")
    ended, checks = run_doctor("--kfp", url, "--timeout", HOUR if fault == "hang" else 60 * HOUR)
    assert (ended, checks["kfp"]["state"]) == (status, state)
    assert value in texts_of(checks["kfp"], state)
    assert (requests[0].path, requests[0].authorization) == ("/apis/v2beta1/healthz", "Bearer secret-token")
    assert requests[0].cookie == "session=secret-token"
    assert "secret-token" not in json.dumps(checks)


def test_a_malformed_token_is_not_printed(
    pipelines: tuple[str, deque[str], list[ReceivedRequest]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.cluster.preflight.external import check_kfp

    for token in ("secret\nword", "secr\u00e9t"):
        monkeypatch.setenv("KFP_TOKEN", token)
        (found,) = check_kfp(pipelines[0], 2, in_pod=False, reader=None)
        assert found.state == "problem"
        assert "secr" not in found.text


def test_a_pod_uses_the_default_address_of_kubeflow_pipelines() -> None:
    from gumshoe.cluster.preflight.external import check_kfp

    (found,) = check_kfp(None, 2, in_pod=True, reader=None)
    assert found.state == "unanswered"
    assert "http://ml-pipeline.kubeflow.svc.cluster.local:8888" in found.text


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """Render the manifests of the preflight component for another namespace."""
    if shutil.which("kubectl") is None:
        skip_missing("kubectl")
    place = tmp_path_factory.mktemp("overlay")
    component = os.path.relpath(COMPONENT, place.resolve())
    (place / "kustomization.yaml").write_text(yaml.safe_dump({"namespace": NAMESPACE, "components": [component]}))
    made = subprocess.run(["kubectl", "kustomize", place], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(made.stdout))


@pytest.mark.ci
def test_the_preflight_job_is_valid(rendered: list[Object], assert_valid: Callable[..., None]) -> None:
    assert_valid(rendered)


def test_the_preflight_job_is_confined(rendered: list[Object]) -> None:
    (job,) = [each for each in rendered if each["kind"] == "Job"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (job["spec"]["backoffLimit"], pod["serviceAccountName"]) == (0, "gumshoe-preflight")
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {each["metadata"].get("namespace") for each in rendered} == {NAMESPACE, None}


def test_the_preflight_job_runs_gumshoe_doctor_in_the_worker_image(
    rendered: list[Object], run: Callable[..., CommandResult], cluster: FakeKubernetes
) -> None:
    (job,) = [each for each in rendered if each["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.invalid/worker:{version('gumshoe-agents')}"
    assert container["command"] == ["gumshoe", "doctor"]
    assert (run("doctor", *container["args"]).status, bool(cluster.requests)) == (0, True)


def test_the_preflight_account_has_exactly_the_permissions_it_needs(
    rendered: list[Object], cluster: FakeKubernetes, run: Callable[..., CommandResult]
) -> None:
    assert run("doctor", "--nodes", 2).status == 0
    allowed = set()
    for role in (each for each in rendered if each["kind"] in ("Role", "ClusterRole")):
        where = NAMESPACE if role["kind"] == "Role" else ""
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        for name in rule.get("resourceNames", [""]):
                            allowed.add((where, group, resource, verb, name))
    named = {(where, group, resource, verb) for where, group, resource, verb, name in allowed if name}
    requests = set()
    for each in map(_right, cluster.requests):
        if each is not None:
            *right, name = each
            requests.add((*right, name if tuple(right) in named else ""))
    assert requests == allowed


_REQUEST = re.compile(
    r"(?P<method>\w+) /(?:api|apis/(?P<group>[^/]+))/v[^/]+(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?"
)


def _right(request: str) -> tuple[str, str, str, str, str] | None:
    """Return namespace, group, resource, verb and name of a request; None if it needs no permission."""
    found = _REQUEST.fullmatch(request)
    if found is None:  # discovery and the version
        assert OPEN.fullmatch(request.partition(" ")[2]), request
        return None
    parts = {name: value or "" for name, value in found.groupdict().items()}
    if parts["plural"] == "namespaces":  # RBAC treats a namespace as an object in itself
        parts["namespace"] = parts["name"]
        parts["name"] = ""
    verb = (
        "create" if parts["method"] == "POST" else "get" if parts["name"] or parts["plural"] == "namespaces" else "list"
    )
    return parts["namespace"], parts["group"], parts["plural"], verb, parts["name"]


def test_commands_use_the_checked_cluster_and_namespace(cluster: FakeKubernetes, run_doctor: RunDoctor) -> None:
    context = yaml.safe_load(cluster.kubeconfig.read_text())["contexts"][0]["name"]
    _delete("clusterqueues")(cluster)
    cluster.unserved.add("serving.kserve.io/v1beta1")
    only = [word for check in ("queue", "crds", "gpus", "kfp") for word in ("--only", check)]
    nowhere = f"http://127.0.0.1:{find_free_port()}"
    _, checks = run_doctor("--context", context, "--namespace", NAMESPACE, *only, "--kfp", nowhere)
    for check, state, *values in (
        (
            "queue",
            "problem",
            f"kubectl --context {context} apply --server-side -k",
            f"namespace: {NAMESPACE}",
        ),
        ("crds", "problem", f"helm --kube-context {context} upgrade --install kserve"),
        ("gpus", "warning", f"gumshoe doctor --context {context} --namespace {NAMESPACE}"),
        ("kfp", "unanswered", f"kubectl --context {context} -n kubeflow port-forward service/ml-pipeline 8888:8888"),
    ):
        for each in values:
            assert each in texts_of(checks[check], state)
