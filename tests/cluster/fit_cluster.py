"""Set up a cluster that passes all checks, for tests to remove things from."""

from copy import deepcopy
from typing import Any

from tests.cluster.fake_kubernetes import FakeKubernetes

NAMESPACE = "agents"
H100 = "NVIDIA-H100-80GB-HBM3"
TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


def set_up_cluster(fake: FakeKubernetes) -> None:
    """Add two nodes with eight GPUs, of which a pod holds six, and all that Gumshoe's manifests contain."""
    for name, gpus in (("gpu-a", 8), ("gpu-b", 8), ("cpu-a", 0)):
        put_node(fake, name, gpus)
    put_pod(fake, "other", "gpu-a", 6)
    put_daemon(fake, "cilium")
    for plural, kind, name, more in _CLUSTER_SCOPED:
        put(fake, plural, kind, name, **more)
    for plural, kind, name, more in _NAMESPACED:
        put(fake, plural, kind, name, namespace=NAMESPACE, **more)
    for name in ("kserve-controller-manager", "kubeflow-trainer-controller-manager", "kueue-controller-manager"):
        put_controller(fake, name)
    put_controller(fake, "ml-pipeline", arguments=("--config=/config", "--pipelinesStoreKubernetes=true"))
    fake.allows = lambda spec: spec["user"].endswith(":gumshoe-pipeline")


def put(fake: FakeKubernetes, plural: str, kind: str, name: str, namespace: str = "", **more: Any) -> None:
    meta: dict[str, Any] = {"name": name}
    meta |= {each: dict(more.pop(each, {})) for each in ("labels", "annotations")}
    if namespace:
        meta["namespace"] = namespace
    fake.put({"kind": kind, "apiVersion": "v1", "metadata": meta, **deepcopy(more)}, plural)


def put_node(fake: FakeKubernetes, name: str, gpus: int, *, taints: Any = (TAINT,), **spec: Any) -> None:
    status: dict[str, Any] = {"allocatable": {"cpu": "96"}, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {}
    if gpus:
        status["allocatable"]["nvidia.com/gpu"] = str(gpus)
        labels = {"nvidia.com/gpu.product": H100, "nvidia.com/gpu.memory": "81559"}
        spec["taints"] = list(taints)
    put(fake, "nodes", "Node", name, labels=labels, spec=spec, status=status)


def put_pod(fake: FakeKubernetes, name: str, node: str, gpus: int, phase: str = "Running") -> None:
    containers = [{"name": "it", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]
    spec = {"nodeName": node, "containers": containers}
    put(fake, "pods", "Pod", name, namespace="others", spec=spec, status={"phase": phase})


def put_daemon(fake: FakeKubernetes, name: str, *arguments: str) -> None:
    """Add a pod of a DaemonSet, e.g. of a network plugin."""
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": f"u-{name}"}
    spec = {"containers": [{"name": "it", "args": [*arguments]}]}
    meta = {"name": f"{name}-x7k2p", "namespace": "kube-system", "ownerReferences": [owner]}
    fake.put(
        {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}, "pods"
    )


def put_controller(fake: FakeKubernetes, name: str, ready: int = 1, arguments: tuple[str, ...] = ()) -> None:
    status = {"availableReplicas": ready}
    template = {"spec": {"containers": [{"name": "it", "args": [*arguments]}]}}
    spec = {"replicas": 1, "template": template}
    put(fake, "deployments", "Deployment", name, namespace="system", spec=spec, status=status)


def _queue(total: int) -> dict[str, Any]:
    amounts = {"nvidia.com/gpu": str(total), "cpu": str(12 * total), "memory": f"{128 * total}Gi"}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
    group = {"coveredResources": [*amounts], "flavors": [{"name": "gumshoe-h100", "resources": resources}]}
    used = [{"name": "gumshoe-h100", "resources": [{"name": "nvidia.com/gpu", "total": "6"}]}]
    conditions = [{"type": "Active", "status": "True", "reason": "Ready", "message": "Can admit new workloads"}]
    return {"spec": {"resourceGroups": [group]}, "status": {"conditions": conditions, "flavorsReservation": used}}


_DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}
_LEVEL = {"pod-security.kubernetes.io/enforce": "restricted"}
_FLAVOR = {"nodeLabels": {"nvidia.com/gpu.product": H100}, "tolerations": [{**TAINT, "operator": "Exists"}]}
_ACTIVE = {"conditions": [{"type": "Active", "status": "True"}]}
_KEYS = {"AWS_ACCESS_KEY_ID": "c2VjcmV0LWlk", "AWS_SECRET_ACCESS_KEY": "c2VjcmV0LWtleQ=="}
_CLUSTER_SCOPED: list[tuple[str, str, str, dict[str, Any]]] = [
    ("namespaces", "Namespace", NAMESPACE, {"labels": _LEVEL, "status": {"phase": "Active"}}),
    ("storageclasses", "StorageClass", "fast", {"annotations": _DEFAULT, "provisioner": "example.com/fast"}),
    ("clusterqueues", "ClusterQueue", "gumshoe", _queue(16)),
    ("resourceflavors", "ResourceFlavor", "gumshoe-h100", {"spec": _FLAVOR}),
    ("workloadpriorityclasses", "WorkloadPriorityClass", "gumshoe-training", {"value": 1000}),
    ("workloadpriorityclasses", "WorkloadPriorityClass", "gumshoe-evaluation", {"value": 500}),
    ("clustertrainingruntimes", "ClusterTrainingRuntime", "gumshoe", {"spec": {}}),
]
_HARD = {"requests.nvidia.com/gpu": "16", "pods": "50", "requests.cpu": "64"}
_POLICY = {"spec": {"podSelector": {"matchLabels": {"gumshoe.dev/role": "rollout"}}, "policyTypes": ["Ingress"]}}
_NAMESPACED: list[tuple[str, str, str, dict[str, Any]]] = [
    ("serviceaccounts", "ServiceAccount", "gumshoe-pipeline", {}),
    ("serviceaccounts", "ServiceAccount", "gumshoe-trainer", {"automountServiceAccountToken": False}),
    ("serviceaccounts", "ServiceAccount", "gumshoe-rollout", {"automountServiceAccountToken": False}),
    ("secrets", "Secret", "gumshoe-s3", {"data": dict(_KEYS)}),
    ("secrets", "Secret", "gumshoe-models", {"data": {"HF_TOKEN": "c2VjcmV0LXRva2Vu"}}),
    (
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        "gumshoe-cache",
        {"spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "fast"}, "status": {"phase": "Bound"}},
    ),
    (
        "resourcequotas",
        "ResourceQuota",
        "gumshoe",
        {"spec": {"hard": _HARD}, "status": {"hard": _HARD, "used": {"requests.nvidia.com/gpu": "6", "pods": "3"}}},
    ),
    ("networkpolicies", "NetworkPolicy", "gumshoe-rollout", _POLICY),
    (
        "networkpolicies",
        "NetworkPolicy",
        "gumshoe-trainer",
        {
            "spec": {
                "podSelector": {"matchLabels": {"gumshoe.dev/role": "trainer"}},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"gumshoe.dev/role": "trainer"}}}]}],
            }
        },
    ),
    ("localqueues", "LocalQueue", "gumshoe", {"spec": {"clusterQueue": "gumshoe"}, "status": _ACTIVE}),
]
