"""`gumshoe doctor`: each fault of a cluster, a store and Kubeflow Pipelines, and how it says to mend it."""

import json
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gumshoe.artifacts.storage import open_storage
from tests.artifacts.fault_proxy import FaultProxy, answer, edit, lose_answer, stall
from tests.cluster.fake_kubernetes import FakeKubernetes
from tests.cluster.fit_cluster import NAMESPACE, TAINT, make_fit, put_controller, put_node, put_pod
from tests.conftest import Ran, free_port, missing
from tests.http_server import Request, misbehaving
from tests.manifests.access import OPEN

Object = dict[str, Any]
Change = Callable[[FakeKubernetes], object]
COMPONENT = Path(__file__).parents[2] / "manifests" / "components" / "preflight"
BORNE = ["--gpus", "8", "--toleration", "nvidia.com/gpu"]
HOUR = 3600
DENIED = answer(403, "AccessDenied", "Access Denied")


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GUMSHOE_STORE", "KFP_HOST", "KFP_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cluster(cluster: FakeKubernetes) -> FakeKubernetes:
    make_fit(cluster)
    return cluster


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


@pytest.fixture
def examined(run: Callable[..., Ran]) -> Callable[..., tuple[int, dict[str, Object]]]:
    """Return a function that runs `gumshoe doctor --json`; it returns the exit status, and what each check found."""

    def typed(*arguments: object) -> tuple[int, dict[str, Object]]:
        ran = run("doctor", "--json", "--timeout", HOUR, *arguments)
        found = json.loads(ran.out)
        assert found["is_well"] is (ran.status == 0)
        return ran.status, {each["check"]: each for each in found["checks"]}

    return typed


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up a request after half a second if a check may take an hour."""
    monkeypatch.setattr("gumshoe.cluster.doctor._SHARE", 0.5 / HOUR)


Examined = Callable[..., tuple[int, dict[str, Object]]]


def said(check: Object, state: str) -> str:
    """All that a check found of a state, with what mends it."""
    found = [each for each in check["findings"] if each["state"] == state]
    return "\n".join("\n".join([each["text"], each["mend"], *each["commands"]]) for each in found)


def codes(check: Object) -> list[str]:
    """Return the codes of the errors that a check found."""
    return [each["code"] for each in check["findings"] if each["code"]]


def of(fake: FakeKubernetes, plural: str, name: str = "gumshoe", namespace: str = "") -> Object:
    return fake.objects[plural, namespace, name]


@pytest.fixture
def pipelines() -> Iterator[tuple[str, deque[str], list[Request]]]:
    """A Kubeflow Pipelines: its address, its faults, and what it was asked."""
    faults: deque[str] = deque()
    asked: list[Request] = []

    def respond(request: Request, fault: str) -> tuple[int, str, bytes]:
        asked.append(request)
        if fault == "page":
            return 200, "text/html", b"<html>Sign in</html>"
        if fault == "users":
            return 200, "application/json", b'{"tag_name": "2.17.0", "multi_user": true}'
        status = int(fault) if fault.isdigit() else 200
        return status, "application/json", b'{"tag_name": "2.17.0", "multi_user": false}'

    with misbehaving(faults, respond) as url:
        yield url, faults, asked


def test_a_cluster_that_is_fit_ends_with_0_and_is_left_as_it_was(
    run: Callable[..., Ran],
    cluster: FakeKubernetes,
    s3_bucket: str,
    pipelines: tuple[str, deque[str], list[Request]],
) -> None:
    before = dict(cluster.objects)
    ran = run("doctor", "--store", f"s3://{s3_bucket}/project", "--kfp", pipelines[0], *BORNE)
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
    assert "c2VjcmV0" not in ran.out, "no secret's value is told"
    assert cluster.objects == before
    assert list(open_storage(f"s3://{s3_bucket}").entries()) == []


def test_what_is_told_as_json_is_the_same_each_time(run: Callable[..., Ran], cluster: FakeKubernetes) -> None:
    del cluster.objects["serviceaccounts", NAMESPACE, "gumshoe-pipeline"]
    first, second = run("doctor", "--json"), run("doctor", "--json")
    assert (first.status, first.out) == (1, second.out)
    found = json.loads(first.out)
    names = ["api", "crds", "controllers", "namespace", "accounts", "secrets", "storage", "gpus", "quota", "queue"]
    assert [each["check"] for each in found["checks"]] == [*names, "runtime", "store", "kfp"]
    assert found["namespace"] == NAMESPACE


def _unlabelled(fake: FakeKubernetes) -> None:
    of(fake, "namespaces", NAMESPACE)["metadata"]["labels"] = {}


def _only_one_key(fake: FakeKubernetes) -> None:
    of(fake, "secrets", "gumshoe-s3", NAMESPACE)["data"].pop("AWS_SECRET_ACCESS_KEY")


def _queue(change: Callable[[Object], object]) -> Change:
    return lambda fake: change(of(fake, "clusterqueues"))


def _claim(phase: str, mode: str = "ReadWriteMany", storage_class: str = "fast") -> Change:
    def change(fake: FakeKubernetes) -> None:
        claim = of(fake, "persistentvolumeclaims", "gumshoe-cache", NAMESPACE)
        claim["spec"] = {"accessModes": [mode], "storageClassName": storage_class}
        claim["status"] = {"phase": phase}

    return change


def _gone(plural: str, name: str = "gumshoe", namespace: str = "") -> Change:
    return lambda fake: fake.objects.pop((plural, namespace, name))


def _unserved(*versions: str) -> Change:
    return lambda fake: fake.unserved.update(versions)


def _trains_alone(spec: Object) -> bool:
    return bool(spec["user"].endswith(":gumshoe-pipeline") and spec["resourceAttributes"]["resource"] != "secrets")


def _inactive(made: Object) -> None:
    made["status"]["conditions"][0] |= {"status": "False", "reason": "FlavorNotFound", "message": "no such flavor"}


PROBLEMS: dict[str, tuple[str, Change, tuple[str, ...]]] = {
    "no KServe": (
        "crds",
        _unserved("serving.kserve.io/v1alpha1", "serving.kserve.io/v1alpha2", "serving.kserve.io/v1beta1"),
        ("serving.kserve.io, by which KServe", "helm upgrade --install kserve oci://"),
    ),
    "an old KServe": (
        "crds",
        _unserved("serving.kserve.io/v1beta1"),
        ("serving.kserve.io as v1alpha1, v1alpha2", "v1beta1"),
    ),
    "no Trainer": (
        "crds",
        _unserved("trainer.kubeflow.org/v1alpha1"),
        ("trainer.kubeflow.org, by which Kubeflow Trainer", "?ref=v2.3.0"),
    ),
    "a controller that is not ready": (
        "controllers",
        lambda fake: put_controller(fake, "kubeflow-trainer-controller-manager", ready=0),
        ("0 of 1 pods", "kubectl -n system describe deployment kubeflow-trainer-controller-manager"),
    ),
    "no namespace": ("namespace", _gone("namespaces", NAMESPACE), ("namespace agents", "kubectl apply -k")),
    "a namespace that goes": (
        "namespace",
        lambda fake: of(fake, "namespaces", NAMESPACE).update(status={"phase": "Terminating"}),
        ("namespace agents", "kubectl wait --for=delete namespace/agents"),
    ),
    "no account": (
        "accounts",
        _gone("serviceaccounts", "gumshoe-rollout", NAMESPACE),
        ("service account gumshoe-rollout", "kubectl apply -k manifests/overlays/prod"),
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
    "half a secret": ("secrets", _only_one_key, ("gumshoe-s3 has no AWS_SECRET_ACCESS_KEY,", "create secret generic")),
    "an empty secret": (
        "secrets",
        lambda fake: of(fake, "secrets", "gumshoe-models", NAMESPACE).update(data={"HF_TOKEN": ""}),
        ("gumshoe-models: HF_TOKEN",),
    ),
    "a volume that does not come": (
        "storage",
        _claim("Pending"),
        ("gumshoe-cache is Pending,", "kubectl -n agents describe pvc gumshoe-cache"),
    ),
    "a volume of no class": ("storage", _claim("Pending", storage_class="slow"), ("StorageClass slow\n", "fast")),
    "no GPUs": (
        "gpus",
        lambda fake: [fake.objects.pop(("nodes", "", name)) for name in ("gpu-a", "gpu-b")],
        ("nvidia.com/gpu", "helm upgrade --install gpu-operator"),
    ),
    "a quota that is too small": (
        "quota",
        lambda fake: of(fake, "resourcequotas", namespace=NAMESPACE)["status"]["hard"].update(
            {"requests.nvidia.com/gpu": "4"}
        ),
        (
            "quota gumshoe allows 4 GPUs",
            """patch resourcequota gumshoe --type merge -p '{"spec":{"hard":{"requests.nvidia.com/gpu":"8"}}}'""",
        ),
    ),
    "a quota of too few CPUs": (
        "quota",
        lambda fake: of(fake, "resourcequotas", namespace=NAMESPACE)["status"]["hard"].update(
            {"requests.cpu": "31500m"}
        ),
        ("quota gumshoe allows 31.5 CPUs", """'{"spec":{"hard":{"requests.cpu":"32"}}}'"""),
    ),
    "a quota of too little memory": (
        "quota",
        lambda fake: of(fake, "resourcequotas", namespace=NAMESPACE)["status"]["hard"].update(memory="128Gi"),
        ("quota gumshoe allows 128 GiB", """'{"spec":{"hard":{"memory":"256Gi"}}}'"""),
    ),
    "a queue of too little memory": (
        "queue",
        _queue(
            lambda made: made["spec"]["resourceGroups"][0]["flavors"][0]["resources"][2].update(nominalQuota="0.1Ti")
        ),
        ("256 GiB of memory", "102.4 of gumshoe-h100", "kubectl edit clusterqueue gumshoe"),
    ),
    "a queue without CPUs": (
        "queue",
        _queue(lambda made: made["spec"]["resourceGroups"][0]["flavors"][0]["resources"].pop(1)),
        ("quota for cpu", "kubectl edit clusterqueue gumshoe"),
    ),
    "no ClusterQueue": ("queue", _gone("clusterqueues"), ("ClusterQueue gumshoe", "kubectl apply -k")),
    "a queue that is not active": (
        "queue",
        _queue(_inactive),
        (
            "(FlavorNotFound: no such flavor)",
            "kubectl describe clusterqueue gumshoe",
        ),
    ),
    "a queue that is stopped": (
        "queue",
        _queue(lambda made: made["spec"].update(stopPolicy="HoldAndDrain")),
        ("(HoldAndDrain)", """patch clusterqueue gumshoe --type merge -p '{"spec":{"stopPolicy":"None"}}'"""),
    ),
    "a queue that never admits": (
        "queue",
        _queue(lambda made: made["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0].update(nominalQuota="4")),
        ("a pod of 8 GPUs", "4 of gumshoe-h100", "kubectl edit clusterqueue gumshoe"),
    ),
    "a queue without GPUs": (
        "queue",
        _queue(lambda made: made["spec"]["resourceGroups"][0]["flavors"][0].update(resources=[])),
        ("quota for nvidia.com/gpu", "kubectl edit clusterqueue gumshoe"),
    ),
    "no flavor": (
        "queue",
        _gone("resourceflavors", "gumshoe-h100"),
        ("ResourceFlavor gumshoe-h100", "kubectl apply -k"),
    ),
    "no runtime": (
        "runtime",
        _gone("clustertrainingruntimes"),
        ("ClusterTrainingRuntime gumshoe", "kubectl apply -k manifests/overlays/prod"),
    ),
}


@pytest.mark.parametrize(("check", "change", "told"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_must_be_mended_is_told_with_how_and_ends_with_1(
    check: str, change: Change, told: tuple[str, ...], cluster: FakeKubernetes, examined: Examined
) -> None:
    change(cluster)
    status, checks = examined("--gpus", 8, "--only", check)
    assert (status, checks[check]["state"]) == (1, "problem")
    for each in told:
        assert each in said(checks[check], "problem")


WARNINGS: dict[str, tuple[str, Change, tuple[str, ...]]] = {
    "no Kueue": (
        "crds",
        _unserved("kueue.x-k8s.io/v1beta2"),
        ("kueue.x-k8s.io, by which Kueue", "kueue/releases/download"),
    ),
    "no Prometheus": ("crds", _unserved("monitoring.coreos.com/v1"), ("kube-prometheus-stack",)),
    "no controller": (
        "controllers",
        _gone("deployments", "kserve-controller-manager", "system"),
        ("KServe", "Deployment kserve-controller-manager", "helm upgrade --install kserve oci://"),
    ),
    "no labels": (
        "namespace",
        _unlabelled,
        (
            "(pod-security.kubernetes.io/enforce is unset)",
            "kubectl label namespace agents --overwrite pod-security.kubernetes.io/enforce=baseline",
        ),
    ),
    "a token that nobody needs": (
        "accounts",
        lambda fake: of(fake, "serviceaccounts", "gumshoe-trainer", NAMESPACE).pop("automountServiceAccountToken"),
        ("patch serviceaccount gumshoe-trainer",),
    ),
    "rights that nobody needs": (
        "accounts",
        lambda fake: setattr(fake, "allows", lambda _: True),
        ("gumshoe-rollout", "kubectl -n agents get rolebindings,clusterrolebindings"),
    ),
    "rights to train alone": (
        "accounts",
        lambda fake: setattr(fake, "allows", _trains_alone),
        (
            "create secrets, list secrets, update secrets",
            "kubectl -n agents create rolebinding gumshoe-deploy --role gumshoe-deploy",
        ),
    ),
    "no secret": (
        "secrets",
        _gone("secrets", "gumshoe-s3", NAMESPACE),
        (
            "secret gumshoe-s3:",
            "kubectl -n agents create secret generic gumshoe-s3 --from-literal=AWS_ACCESS_KEY_ID=…",
        ),
    ),
    "a misspelt key": (
        "secrets",
        lambda fake: of(fake, "secrets", "gumshoe-models", NAMESPACE)["data"].update(HF_TOKE="c2VjcmV0LTI="),
        ("gumshoe-models", ": HF_TOKE\n"),
    ),
    "no default class": (
        "storage",
        lambda fake: of(fake, "storageclasses", "fast")["metadata"].pop("annotations"),
        ("(there are fast)", "kubectl patch storageclass fast"),
    ),
    "no cache": (
        "storage",
        _gone("persistentvolumeclaims", "gumshoe-cache", NAMESPACE),
        ("volume claim gumshoe-cache:", "kubectl apply -k"),
    ),
    "a cache for one node": (
        "storage",
        _claim("Bound", "ReadWriteOnce"),
        ("(ReadWriteOnce)", "ReadWriteMany for 2 nodes", "kubectl get storageclass"),
    ),
    "GPUs that are taken": (
        "gpus",
        lambda fake: put_pod(fake, "more", "gpu-b", 3),
        ("2 pods of 8 GPUs: 7 of 16", "0 pods", "kubectl get pods -A"),
    ),
    "a quota that is used up": (
        "quota",
        lambda fake: of(fake, "resourcequotas", namespace=NAMESPACE)["status"]["used"].update(pods="49"),
        ("quota gumshoe leaves 1 of 50 pods", "needs 2\n"),
    ),
    "no LocalQueue": ("queue", _gone("localqueues", namespace=NAMESPACE), ("LocalQueue gumshoe:", "kubectl apply -k")),
    "a queue that is full": ("queue", lambda _: None, ("10 GPUs left", "needs 16\n")),
    "a flavor without nodes": (
        "queue",
        lambda fake: of(fake, "resourceflavors", "gumshoe-h100")["spec"].update(nodeLabels={"pool": "b200"}),
        ("ResourceFlavor gumshoe-h100", "kubectl label node NODE pool=b200"),
    ),
    "no priorities": (
        "queue",
        _gone("workloadpriorityclasses", "gumshoe-evaluation"),
        ("WorkloadPriorityClass gumshoe-evaluation:", "kubectl apply -k"),
    ),
}


@pytest.mark.parametrize(("check", "change", "told"), WARNINGS.values(), ids=WARNINGS)
def test_what_a_run_may_do_without_is_a_warning_and_ends_with_0(
    check: str, change: Change, told: tuple[str, ...], cluster: FakeKubernetes, examined: Examined
) -> None:
    change(cluster)
    status, checks = examined("--gpus", 8, "--nodes", 2, "--only", check)
    assert (status, checks[check]["state"]) == (0, "warning")
    for each in told:
        assert each in said(checks[check], "warning")


def test_a_volume_that_waits_for_its_first_pod_is_no_fault(cluster: FakeKubernetes, examined: Examined) -> None:
    _claim("Pending")(cluster)
    of(cluster, "storageclasses", "fast")["volumeBindingMode"] = "WaitForFirstConsumer"
    status, checks = examined("--only", "storage")
    assert (status, checks["storage"]["state"]) == (0, "ok")
    told = said(checks["storage"], "ok")
    assert "gumshoe-cache" in told
    assert "volume from fast" in told


@pytest.mark.usefixtures("cluster")
def test_nodes_that_keep_pods_away_are_not_counted_and_the_taint_is_told(examined: Examined) -> None:
    status, checks = examined("--only", "gpus")
    assert (status, checks["gpus"]["state"]) == (0, "warning")
    told = said(checks["gpus"], "warning")
    assert "1 GPU" in told
    assert "nvidia.com/gpu:NoSchedule" in told
    given = '[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]'
    assert f"--set 'tolerations={given}'" in told
    toleration = re.findall("--toleration ([^ \n]+)", told)[0]
    assert examined("--only", "gpus", "--toleration", toleration)[1]["gpus"]["state"] == "ok"
    assert examined("--only", "gpus", "--nodes", 2)[1]["gpus"]["state"] == "ok", "a queue's flavors bear it"
    assert examined("--only", "gpus", "--toleration", "nvidia.com/gpu=other")[0] == 1
    assert examined("--only", "gpus", "--toleration", "nvidia.com/gpu:NoExecute")[0] == 1


def test_nodes_that_are_closed_are_named(cluster: FakeKubernetes, examined: Examined) -> None:
    put_node(cluster, "gpu-b", 8, unschedulable=True, taints=[{**TAINT}])
    of(cluster, "nodes", "gpu-a")["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    status, checks = examined("--only", "gpus", *BORNE)
    told = said(checks["gpus"], "warning")
    assert status == 1
    assert "0 of 2 nodes" in said(checks["gpus"], "problem")
    assert "cordoned: gpu-b" in told
    assert "kubectl uncordon gpu-b" in told
    assert "not ready: gpu-a" in told


def test_a_pod_holds_gpus_until_it_ends_and_by_its_larger_container(
    cluster: FakeKubernetes, examined: Examined
) -> None:
    put_pod(cluster, "over", "gpu-b", 8, phase="Succeeded")
    put_pod(cluster, "first", "gpu-b", 1)
    limits = {"resources": {"limits": {"nvidia.com/gpu": "3"}}}
    of(cluster, "pods", "first", "others")["spec"]["initContainers"] = [{"name": "it", **limits}]
    _, checks = examined("--only", "gpus", *BORNE)
    assert "7 of 16 GPUs" in said(checks["gpus"], "warning")


def test_many_pods_are_read_page_by_page(cluster: FakeKubernetes, examined: Examined) -> None:
    for number in range(1200):
        put_pod(cluster, f"p{number}", "cpu-a", 0)
    put_pod(cluster, "z-last", "gpu-b", 8)
    _, checks = examined("--only", "gpus", *BORNE)
    assert "2 of 16 GPUs" in said(checks["gpus"], "warning")
    assert sum(each.startswith("GET /api/v1/pods") for each in cluster.asked) == 3


REFUSED = [
    ("accounts", "get", "serviceaccounts", "get serviceaccounts/gumshoe-pipeline in agents"),
    ("accounts", "create", "subjectaccessreviews", "create subjectaccessreviews.authorization.k8s.io"),
    ("secrets", "get", "secrets", "get secrets/gumshoe-s3 in agents"),
    ("storage", "list", "storageclasses", "list storageclasses.storage.k8s.io"),
    ("gpus", "list", "nodes", "list nodes"),
    ("gpus", "list", "pods", "list pods in all namespaces"),
    ("controllers", "list", "deployments", "list deployments.apps in all namespaces"),
    ("quota", "list", "resourcequotas", "list resourcequotas in agents"),
    ("queue", "get", "localqueues", "get localqueues.kueue.x-k8s.io/gumshoe in agents"),
    ("queue", "get", "clusterqueues", "get clusterqueues.kueue.x-k8s.io/gumshoe"),
    ("runtime", "get", "clustertrainingruntimes", "get clustertrainingruntimes.trainer.kubeflow.org/gumshoe"),
]


@pytest.mark.parametrize(("check", "verb", "plural", "right"), REFUSED)
def test_what_may_not_be_looked_at_is_told_with_the_right_that_is_missing(
    check: str, verb: str, plural: str, right: str, cluster: FakeKubernetes, examined: Examined
) -> None:
    cluster.refused = (verb, plural)
    status, checks = examined()
    assert (status, checks[check]["state"]) == (0, "warning")
    assert f"may not {right}\n" in said(checks[check], "warning")
    assert set(codes(checks[check])) <= {"cluster.access-denied"}
    assert checks["namespace"]["state"] == "ok", "the others go on"


@pytest.mark.usefixtures("impatient")
def test_a_cluster_that_hangs_is_told_of_within_its_time_and_ends_with_75(
    cluster: FakeKubernetes, run: Callable[..., Ran]
) -> None:
    """The cluster hangs until the test is over."""
    cluster.faults.extend(["hang"] * 3)
    ran = run("doctor", "--timeout", HOUR)
    assert ran.status == 75
    assert re.search(r"✗ api .*\[cluster.timeout\]", ran.out)
    assert re.search("^- gpus", ran.out, re.M)


@pytest.mark.parametrize("fault", ["reset", "503", pytest.param("hang", marks=pytest.mark.nightly)])
def test_a_check_that_gets_no_answer_ends_no_other(cluster: FakeKubernetes, examined: Examined, fault: str) -> None:
    cluster.faults.extend(["fine", fault])
    status, checks = examined("--timeout", 20, "--only", "quota")
    assert (status, checks["api"]["state"], checks["quota"]["state"]) == (75, "ok", "unanswered")
    code = {"reset": "cluster.unreachable", "503": "cluster.api-unhealthy", "hang": "cluster.timeout"}[fault]
    assert codes(checks["quota"]) == [code]
    cluster.faults.extend(["fine", "503"])
    status, checks = examined("--only", "quota", "--only", "store")
    assert (status, checks["quota"]["state"], checks["store"]["state"]) == (75, "unanswered", "skipped")
    _gone("clustertrainingruntimes")(cluster)
    cluster.ills["list resourcequotas"] = deque(["reset"])
    status, checks = examined()
    assert (checks["quota"]["state"], checks["runtime"]["state"]) == ("unanswered", "problem")
    assert status == 1, "something must be mended, whatever did not answer"


@pytest.mark.parametrize(("token", "status"), [("other", 1), (None, 0)])
def test_credentials_that_the_cluster_does_not_know_are_told_once(
    token: str | None, status: int, cluster: FakeKubernetes, run: Callable[..., Ran]
) -> None:
    cluster.token = token
    ran = run("doctor")
    assert (ran.status, ran.out.count("[cluster.unauthenticated]")) == (status, status)


def test_what_answers_and_is_no_kubernetes_is_told(
    tmp_path: Path, cluster: FakeKubernetes, pipelines: tuple[str, deque[str], list[Request]], run: Callable[..., Ran]
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
def test_without_a_cluster_the_store_is_looked_at_alone(run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    ran = run("doctor", "--store", tmp_path / "store")
    assert ran.status == 0
    assert re.search("^- api .*kubeconfig", ran.out, re.M)
    assert f"{tmp_path}/store takes" in ran.out
    assert "gpus" not in ran.out
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        ([], "doctor.nothing-to-check", "--store"),
        (["--context", "c", "--store", "s"], "cluster.no-kubeconfig", "KUBECONFIG"),
        (["--namespace", "n", "--store", "s"], "cluster.no-kubeconfig", "KUBECONFIG"),
        (["--only", "nonsense"], "doctor.unknown-check", "nonsense"),
        (["--toleration", "a b"], "doctor.invalid-toleration", "'a b'"),
        (["--store", "ftp://x"], "store.unknown-scheme", "ftp://x"),
    ],
)
def test_what_was_asked_for_wrongly_ends_with_2(
    arguments: list[str], code: str, value: str, run: Callable[..., Ran]
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
@pytest.mark.parametrize(("faults", "told", "errors"), STORE_PROBLEMS.values(), ids=STORE_PROBLEMS)
def test_a_right_that_is_missing_in_the_store_is_named(
    faults: list[tuple[Any, ...]],
    told: tuple[str, ...],
    errors: list[str],
    behind: str,
    proxy: FaultProxy,
    examined: Examined,
) -> None:
    for act, method, *more in faults:
        proxy.inject(act, method, *more[:1], query=more[1] if len(more) > 1 else "", times=None)
    status, checks = examined("--store", behind)
    assert (status, checks["store"]["state"]) == (1, "problem")
    assert codes(checks["store"]) == errors
    for each in told:
        assert each.replace("BUCKET", behind.split("/")[2]) in said(checks["store"], "problem")
    proxy.heal()
    assert list(open_storage(behind).entries()) == []


@pytest.fixture
def behind(proxy: FaultProxy, s3_bucket: str, aws_environment: pytest.MonkeyPatch) -> str:
    """A store that is reached through the proxy."""
    aws_environment.setenv("AWS_ENDPOINT_URL", proxy.address)
    return f"s3://{s3_bucket}/project"


@pytest.mark.usefixtures("no_cluster")
def test_a_right_that_pruning_alone_needs_is_a_warning(behind: str, proxy: FaultProxy, examined: Examined) -> None:
    proxy.inject(DENIED, "GET", query="uploads", times=None)
    proxy.inject(DENIED, "GET", query="versioning", times=None)
    status, checks = examined("--store", behind)
    told = said(checks["store"], "warning")
    assert (status, checks["store"]["state"]) == (0, "warning")
    assert "s3:ListBucketMultipartUploads on arn:aws:s3:::" in told
    assert "s3:GetBucketVersioning" in told


@pytest.mark.usefixtures("no_cluster")
def test_a_bucket_that_is_not_there_is_told(behind: str, examined: Examined) -> None:
    status, checks = examined("--store", "s3://not-there/project")
    assert (status, behind.startswith("s3://")) == (1, True)
    assert codes(checks["store"]) == ["store.no-such-bucket"]
    (command,) = checks["store"]["findings"][0]["commands"]
    assert command.startswith("aws s3 mb s3://not-there")
    assert f"--endpoint-url {os.environ['AWS_ENDPOINT_URL']}" in command


@pytest.mark.usefixtures("no_cluster")
def test_a_store_that_does_not_answer_ends_with_75_in_time(behind: str, proxy: FaultProxy, examined: Examined) -> None:
    """The store hangs until the test is over."""
    proxy.inject(stall, "GET", times=None)
    status, checks = examined("--store", behind, "--timeout", 1)
    assert (status, checks["store"]["state"]) == (75, "unanswered")


@pytest.mark.usefixtures("no_cluster")
def test_what_was_written_is_removed_though_its_answer_was_lost(
    behind: str, proxy: FaultProxy, examined: Examined
) -> None:
    proxy.inject(lose_answer, "PUT", times=None)
    status, _ = examined("--store", behind)
    assert status == 75
    assert proxy.seen("PUT", ".gumshoe-doctor")
    proxy.heal()
    assert list(open_storage(behind).entries()) == []


@pytest.mark.usefixtures("no_cluster")
def test_a_store_that_ignores_conditions_is_refused(behind: str, proxy: FaultProxy, examined: Examined) -> None:
    def unconditional(exchange: Any) -> None:
        exchange.reply(exchange.forward(without="If-None-Match"))

    proxy.inject(unconditional, "PUT", times=None)
    status, checks = examined("--store", behind)
    assert status == 1
    assert "If-None-Match" in said(checks["store"], "problem")


@pytest.mark.usefixtures("no_cluster")
def test_a_clock_that_is_wrong_is_told(behind: str, proxy: FaultProxy, examined: Examined) -> None:
    then = datetime.now(UTC) - timedelta(minutes=9)
    stamp = f"<LastModified>{then:%Y-%m-%dT%H:%M:%S}.000Z</LastModified>".encode()
    change = edit(lambda body: re.sub(rb"<LastModified>[^<]*</LastModified>", stamp, body))
    proxy.inject(change, "GET", query="list-type=2", times=None)
    _, checks = examined("--store", behind)
    told = said(checks["store"], "warning")
    assert "9 minutes ahead" in told
    assert "timedatectl" in told


@pytest.mark.usefixtures("no_cluster")
def test_a_bucket_that_keeps_older_versions_is_told_and_left_without_any_of_ours(
    s3_bucket: str, examined: Examined
) -> None:
    import boto3

    client = boto3.client("s3")
    client.put_bucket_versioning(Bucket=s3_bucket, VersioningConfiguration={"Status": "Enabled"})
    status, checks = examined("--store", f"s3://{s3_bucket}/project")
    told = said(checks["store"], "warning")
    assert status == 0
    assert f"s3://{s3_bucket} keeps" in told
    kept = client.list_object_versions(Bucket=s3_bucket)
    assert (kept.get("Versions", []), kept.get("DeleteMarkers", [])) == ([], [])
    rules = json.loads(re.findall("--lifecycle-configuration '(.*)'", told)[0])
    client.put_bucket_lifecycle_configuration(Bucket=s3_bucket, LifecycleConfiguration=rules)
    assert examined("--store", f"s3://{s3_bucket}/project")[1]["store"]["state"] == "ok"


@pytest.mark.usefixtures("no_cluster")
def test_nothing_is_written_where_an_object_lock_would_keep_it(
    s3_server: str, aws_environment: pytest.MonkeyPatch, examined: Examined
) -> None:
    aws_environment.setenv("AWS_ENDPOINT_URL", s3_server)
    import boto3

    client = boto3.client("s3")
    client.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 30}}
    lock: Any = {"ObjectLockEnabled": "Enabled", "Rule": rule}
    client.put_object_lock_configuration(Bucket="locked", ObjectLockConfiguration=lock)
    status, checks = examined("--store", "s3://locked/project")
    assert status == 0
    told = said(checks["store"], "warning")
    assert "s3://locked for 30 days" in told
    assert "get-object-lock-configuration --bucket locked" in told
    assert "Versions" not in client.list_object_versions(Bucket="locked")


@pytest.mark.usefixtures("no_cluster", "impatient")
@pytest.mark.parametrize(
    ("fault", "status", "state", "told"),
    [
        ("users", 0, "ok", "--namespace"),
        ("401", 1, "problem", "(401)"),
        ("404", 1, "problem", "(404, "),
        ("page", 1, "problem", "(200, text/html)"),
        ("503", 75, "unanswered", "(503)"),
        ("reset", 75, "unanswered", "kubectl -n kubeflow port-forward service/ml-pipeline 8888:8888"),
        ("hang", 75, "unanswered", "in time"),
    ],
)
def test_a_kubeflow_pipelines_is_asked_how_it_is(
    fault: str,
    status: int,
    state: str,
    told: str,
    pipelines: tuple[str, deque[str], list[Request]],
    examined: Examined,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, faults, asked = pipelines
    faults.append(fault)
    monkeypatch.setenv("KFP_TOKEN", "secret-token")
    ended, checks = examined("--kfp", url, "--timeout", HOUR if fault == "hang" else 60 * HOUR)
    assert (ended, checks["kfp"]["state"]) == (status, state)
    assert told in said(checks["kfp"], state)
    assert (asked[0].path, asked[0].authorization) == ("/apis/v2beta1/healthz", "Bearer secret-token")
    assert "secret-token" not in json.dumps(checks)


def test_a_pod_asks_kubeflow_pipelines_at_its_usual_address() -> None:
    from gumshoe.cluster.preflight.external import kfp

    (found,) = kfp(None, 2, in_pod=True, asked=None)
    assert found.state == "unanswered"
    assert "http://ml-pipeline.kubeflow.svc.cluster.local:8888" in found.text


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """What the preflight component comes to, for another namespace than its own."""
    if shutil.which("kubectl") is None:
        missing("kubectl")
    place = tmp_path_factory.mktemp("overlay")
    component = os.path.relpath(COMPONENT, place.resolve())
    (place / "kustomization.yaml").write_text(yaml.safe_dump({"namespace": NAMESPACE, "components": [component]}))
    made = subprocess.run(["kubectl", "kustomize", place], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(made.stdout))


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


def test_the_preflight_job_runs_a_command_that_there_is_in_the_image_of_the_steps(
    rendered: list[Object], run: Callable[..., Ran], cluster: FakeKubernetes
) -> None:
    from gumshoe_pipelines.placement import WORKER

    (job,) = [each for each in rendered if each["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == WORKER
    assert container["command"] == ["gumshoe", "doctor"]
    assert (run("doctor", *container["args"]).status, bool(cluster.asked)) == (0, True)


def test_the_preflight_account_may_do_what_the_command_asks_and_nothing_else(
    rendered: list[Object], cluster: FakeKubernetes, run: Callable[..., Ran]
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
    asked = set()
    for each in map(_right, cluster.asked):
        if each is not None:
            *right, name = each
            asked.add((*right, name if tuple(right) in named else ""))
    assert asked == allowed


_ASKED = re.compile(
    r"(?P<method>\w+) /(?:api|apis/(?P<group>[^/]+))/v[^/]+(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?"
)


def _right(asked: str) -> tuple[str, str, str, str, str] | None:
    """Namespace, group, resource, verb and name of what was asked; None of what anybody may ask."""
    found = _ASKED.fullmatch(asked)
    if found is None:  # discovery and the version
        assert OPEN.fullmatch(asked.partition(" ")[2]), asked
        return None
    parts = {name: value or "" for name, value in found.groupdict().items()}
    if parts["plural"] == "namespaces":  # one's own namespace is a thing in it, to RBAC
        parts["namespace"] = parts["name"]
        parts["name"] = ""
    verb = (
        "create" if parts["method"] == "POST" else "get" if parts["name"] or parts["plural"] == "namespaces" else "list"
    )
    return parts["namespace"], parts["group"], parts["plural"], verb, parts["name"]


def test_commands_are_for_the_cluster_and_the_namespace_that_were_looked_at(
    cluster: FakeKubernetes, examined: Examined
) -> None:
    context = yaml.safe_load(cluster.kubeconfig.read_text())["contexts"][0]["name"]
    _gone("clusterqueues")(cluster)
    cluster.unserved.add("serving.kserve.io/v1beta1")
    only = [word for check in ("queue", "crds", "gpus", "kfp") for word in ("--only", check)]
    nowhere = f"http://127.0.0.1:{free_port()}"
    _, checks = examined("--context", context, "--namespace", NAMESPACE, *only, "--kfp", nowhere)
    for check, state, *told in (
        (
            "queue",
            "problem",
            f"kubectl --context {context} apply -k",
            f"namespace gumshoe: name {NAMESPACE}",
        ),
        ("crds", "problem", f"helm --kube-context {context} upgrade --install kserve"),
        ("gpus", "warning", f"gumshoe doctor --context {context} --namespace {NAMESPACE}"),
        ("kfp", "unanswered", f"kubectl --context {context} -n kubeflow port-forward service/ml-pipeline 8888:8888"),
    ):
        for each in told:
            assert each in said(checks[check], state)
