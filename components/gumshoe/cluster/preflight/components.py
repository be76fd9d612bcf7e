"""Check the Kubernetes version, and the components that Gumshoe needs or uses."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gumshoe.cluster.preflight.client import DEPLOYMENTS, ClusterReader
from gumshoe.cluster.preflight.result import Finding, ok, problem, skipped, warning

_OLDEST = (1, 32)  # required by KServe 0.21; Kubeflow Trainer 2.3 requires 1.31


@dataclass(frozen=True, slots=True)
class ClusterComponent:
    """Describe a component: the resources it serves, and its controller."""

    name: str
    serves: dict[str, tuple[str, ...]]
    """Resources by API version."""
    controller: str
    """Name of its Deployment, in any namespace."""
    use: str
    install: tuple[str, ...]
    is_needed: bool = False


COMPONENTS = (
    ClusterComponent(
        "KServe",
        {"serving.kserve.io/v1alpha1": ("servingruntimes",), "serving.kserve.io/v1beta1": ("inferenceservices",)},
        "kserve-controller-manager",
        "serves adapters",
        (
            "helm upgrade --install kserve-crd oci://ghcr.io/kserve/charts/kserve-crd --version v0.21.0 -n kserve "
            "--create-namespace",
            "helm upgrade --install kserve oci://ghcr.io/kserve/charts/kserve-resources --version v0.21.0 -n kserve "
            "--set kserve.controller.deploymentMode=Standard",
        ),
        is_needed=True,
    ),
    ClusterComponent(
        "Kubeflow Trainer",
        {"trainer.kubeflow.org/v1alpha1": ("trainjobs", "clustertrainingruntimes")},
        "kubeflow-trainer-controller-manager",
        "runs training on several nodes",
        (
            'kubectl apply --server-side -k "https://github.com/kubeflow/trainer.git/manifests/overlays/manager'
            '?ref=v2.3.0"',
        ),
        is_needed=True,
    ),
    ClusterComponent(
        "Kueue",
        {
            "kueue.x-k8s.io/v1beta2": (
                "localqueues",
                "clusterqueues",
                "resourceflavors",
                "workloadpriorityclasses",
            )
        },
        "kueue-controller-manager",
        "queues runs and admits all pods of a run at once",
        (
            "kubectl apply --server-side -f "
            "https://github.com/kubernetes-sigs/kueue/releases/download/v0.16.4/manifests.yaml",
        ),
    ),
    ClusterComponent(
        "Prometheus",
        {"monitoring.coreos.com/v1": ("podmonitors", "prometheusrules")},
        "",  # named after the Helm release
        "collects metrics and sends alerts",
        (
            "helm upgrade --install monitoring oci://ghcr.io/prometheus-community/charts/kube-prometheus-stack "
            "-n monitoring --create-namespace",
        ),
    ),
)


def check_api(reader: ClusterReader) -> Iterator[Finding]:
    """Check that the API server answers, and its version."""
    found = reader.read("/version")
    version = re.match(r"v?(\d+)\.(\d+)", str(found["gitVersion"]))
    if version is None:
        raise ValueError(f"unknown version {found['gitVersion']}")
    if (int(version[1]), int(version[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        yield warning(
            f"Kubernetes {found['gitVersion']} is older than {oldest}, which KServe 0.21 requires",
            "upgrade the cluster, or try an older KServe with the chart",
        )
    else:
        yield ok(f"Kubernetes {found['gitVersion']} answers")


def check_crds(reader: ClusterReader) -> Iterator[Finding]:
    """Check that the cluster serves the resources in the versions that Gumshoe uses."""
    for part in COMPONENTS:
        for version, plurals in part.serves.items():
            yield _check_served(reader, part, version, plurals)


def _check_served(reader: ClusterReader, part: ClusterComponent, version: str, plurals: tuple[str, ...]) -> Finding:
    group, _, number = version.rpartition("/")
    report = problem if part.is_needed else warning
    others = reader.api_versions.get(group)
    if others is None:
        return report(
            f"the cluster does not serve {group}: {part.name} is not installed ({part.use})",
            "install it",
            *reader.add_context(*part.install),
        )
    if number not in others:
        have = ", ".join(others)
        return report(
            f"{part.name} serves {group} in version {have}, but not {number}",
            f"install a version of {part.name} that serves {number}",
            *reader.add_context(*part.install),
        )
    if missing := sorted(set(plurals) - reader.list_resources(version)):
        text = f"{part.name} serves {version}, but not {', '.join(missing)}"
        return report(text, "install all of its custom resource definitions", *reader.add_context(*part.install))
    return ok(f"{part.name}: {', '.join(plurals)} ({version})")


def check_controllers(reader: ClusterReader) -> Iterator[Finding]:
    """Check that the controllers of the installed components run."""
    is_any = False
    for part in COMPONENTS:
        if part.controller and any(version.partition("/")[0] in reader.api_versions for version in part.serves):
            is_any = True
            yield check_controller(reader, part)
    if not is_any:
        yield skipped("no component with a controller is installed")


def check_controller(reader: ClusterReader, part: ClusterComponent) -> Finding:
    """Check that the controller of a component runs."""
    report = problem if part.is_needed else warning
    fields = f"metadata.name={part.controller}"
    found = list(reader.list_all(DEPLOYMENTS, namespaced=False, fields=fields))
    if not found:
        return warning(
            f"{part.name} is installed, but Deployment {part.controller} does not exist",
            "install its controller, unless it runs elsewhere or under another name",
            *reader.add_context(*part.install),
        )
    for each in found:
        wanted = (each.get("spec") or {}).get("replicas", 1)
        ready = (each.get("status") or {}).get("availableReplicas") or 0
        if ready >= max(1, wanted):
            return ok(f"the controller of {part.name} runs ({ready} of {wanted} pods)")
    namespace = found[0]["metadata"]["namespace"]
    return report(
        f"the controller of {part.name} is not ready: {ready} of {wanted} pods of {part.controller}",
        "look for the cause",
        *reader.add_context(
            f"kubectl -n {namespace} describe deployment {part.controller}",
            f"kubectl -n {namespace} logs deployment/{part.controller} --tail 50",
        ),
    )
