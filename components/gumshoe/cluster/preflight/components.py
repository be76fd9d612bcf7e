"""The cluster's own version, and the parts of it that Gumshoe needs or uses."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gumshoe.cluster.preflight.client import DEPLOYMENTS, ClusterReader
from gumshoe.cluster.preflight.result import Finding, ok, problem, skipped, warning

_OLDEST = (1, 32)  # what KServe 0.21 asks for; Kubeflow Trainer 2.3 asks for 1.31


@dataclass(frozen=True, slots=True)
class ClusterComponent:
    """Something that is installed in a cluster: what it serves, and what runs it."""

    name: str
    serves: dict[str, tuple[str, ...]]
    """Resources by API version."""
    controller: str
    """Its Deployment's name, in whatever namespace."""
    use: str
    install: tuple[str, ...]
    is_needed: bool = False


PARTS = (
    ClusterComponent(
        "KServe",
        {"serving.kserve.io/v1alpha1": ("servingruntimes",), "serving.kserve.io/v1beta1": ("inferenceservices",)},
        "kserve-controller-manager",
        "puts adapters into service",
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
        "trains on several nodes",
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
        "shares GPUs out, a run's pods all at once",
        (
            "kubectl apply --server-side -f "
            "https://github.com/kubernetes-sigs/kueue/releases/download/v0.16.4/manifests.yaml",
        ),
    ),
    ClusterComponent(
        "Prometheus",
        {"monitoring.coreos.com/v1": ("podmonitors", "prometheusrules")},
        "",  # its name is the release's
        "reads metrics, and alerts",
        (
            "helm upgrade --install monitoring oci://ghcr.io/prometheus-community/charts/kube-prometheus-stack "
            "-n monitoring --create-namespace",
        ),
    ),
    ClusterComponent(
        "Kubeflow Pipelines",
        {"pipelines.kubeflow.org/v2beta1": ("pipelines", "pipelineversions")},
        "ml-pipeline",
        "keeps pipelines as resources of the cluster; `gumshoe pipeline submit` does without",
        (
            'kubectl apply -k "https://github.com/kubeflow/pipelines.git/manifests/kustomize/cluster-scoped-resources'
            '?ref=2.17.0"',
            # for several users: the other runs steps in its own namespace alone
            'kubectl apply -k "https://github.com/kubeflow/pipelines.git/manifests/kustomize/env/cert-manager/'
            'platform-agnostic-multi-user-k8s-native?ref=2.17.0"',
        ),
    ),
)


def api(asked: ClusterReader) -> Iterator[Finding]:
    """That the API server answers, and how old it is."""
    told = asked.read("/version")
    version = re.match(r"v?(\d+)\.(\d+)", str(told["gitVersion"]))
    if version is None:
        raise ValueError(f"it calls its version {told['gitVersion']}")
    if (int(version[1]), int(version[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        yield warning(
            f"Kubernetes {told['gitVersion']} answers; KServe 0.21 is made for {oldest} and later",
            "upgrade the cluster, or install an older KServe and try whether the chart works with it",
        )
    else:
        yield ok(f"Kubernetes {told['gitVersion']} answers")


def crds(asked: ClusterReader) -> Iterator[Finding]:
    """That the resources are served, in the versions that Gumshoe uses."""
    for part in PARTS:
        for version, plurals in part.serves.items():
            yield _served(asked, part, version, plurals)


def _served(asked: ClusterReader, part: ClusterComponent, version: str, plurals: tuple[str, ...]) -> Finding:
    group, _, number = version.rpartition("/")
    tell = problem if part.is_needed else warning
    others = asked.served.get(group)
    if others is None:
        return tell(
            f"the cluster has no {group}, by which {part.name} {part.use}", "install it", *asked.there(*part.install)
        )
    if number not in others:
        have = ", ".join(others)
        mend = "install a version of it that does"
        return tell(f"{part.name} serves {group} as {have}, not as {number}", mend, *asked.there(*part.install))
    if missing := sorted(set(plurals) - asked.kinds(version)):
        text = f"{part.name} serves {version} without {', '.join(missing)}"
        return tell(text, "install all of its custom resource definitions", *asked.there(*part.install))
    return ok(f"{part.name}: {', '.join(plurals)} ({version})")


def controllers(asked: ClusterReader) -> Iterator[Finding]:
    """That what acts on those resources runs, where that can be seen."""
    is_any = False
    for part in PARTS:
        if part.controller and any(version.partition("/")[0] in asked.served for version in part.serves):
            is_any = True
            yield _running(asked, part)
    if not is_any:
        yield skipped("there is nothing installed whose controllers could be looked for")


def _running(asked: ClusterReader, part: ClusterComponent) -> Finding:
    tell = problem if part.is_needed else warning
    fields = f"metadata.name={part.controller}"
    found = list(asked.every(DEPLOYMENTS, namespaced=False, fields=fields))
    if not found:
        return warning(
            f"{part.name} is installed, and no Deployment {part.controller} is there to act on it",
            "see that it runs, unless it does so elsewhere or under another name",
            *asked.there(*part.install),
        )
    for each in found:
        wanted = (each.get("spec") or {}).get("replicas", 1)
        ready = (each.get("status") or {}).get("availableReplicas") or 0
        if ready >= max(1, wanted):
            return ok(f"the controller of {part.name} runs ({ready} of {wanted} pods)")
    namespace = found[0]["metadata"]["namespace"]
    return tell(
        f"the controller of {part.name} is not ready: {ready} of {wanted} pods of {part.controller}",
        "see why",
        *asked.there(
            f"kubectl -n {namespace} describe deployment {part.controller}",
            f"kubectl -n {namespace} logs deployment/{part.controller} --tail 50",
        ),
    )
