"""Check Kubeflow Pipelines in the cluster, and where it stores pipelines."""

import re
from collections.abc import Iterator

from gumshoe.cluster.preflight.client import DEPLOYMENTS, PIPELINES, ClusterReader, Object
from gumshoe.cluster.preflight.components import ClusterComponent, check_controller
from gumshoe.cluster.preflight.result import Finding, ok, warning

_SOURCE = "https://github.com/kubeflow/pipelines.git/manifests/kustomize"
_NATIVE = re.compile("--?pipelinesStoreKubernetes(=(1|t|T|true|TRUE|True))?")
_KUBEFLOW_PIPELINES = ClusterComponent(
    "Kubeflow Pipelines",
    {},
    "ml-pipeline",
    "runs pipelines",
    (
        f'kubectl apply -k "{_SOURCE}/cluster-scoped-resources?ref=2.17.0"',
        # multi-user: the single-user variant runs steps only in its own namespace
        f'kubectl apply -k "{_SOURCE}/env/cert-manager/platform-agnostic-multi-user?ref=2.17.0"',
    ),
)


def check_pipelines(reader: ClusterReader) -> Iterator[Finding]:
    """Check that Kubeflow Pipelines is installed and ready, and if it reads pipelines from Kubernetes resources."""
    name = _KUBEFLOW_PIPELINES.controller
    found = list(reader.list_all(DEPLOYMENTS, namespaced=False, fields=f"metadata.name={name}"))
    if not found:
        yield warning(
            f"Kubeflow Pipelines is not installed: no Deployment {name} exists",
            "install it, or run pipelines on one machine with `gumshoe pipeline run`",
            *reader.add_context(*_KUBEFLOW_PIPELINES.install),
        )
        return
    yield check_controller(reader, _KUBEFLOW_PIPELINES)
    is_native, is_served = any(map(_stores_in_kubernetes, found)), reader.has_api(PIPELINES)
    if is_native and is_served:
        yield ok("Kubeflow Pipelines stores pipelines as Kubernetes resources: manifests/overlays/prod-k8s-native fits")
    elif is_native:
        yield warning(
            f"Kubeflow Pipelines stores pipelines as Kubernetes resources, but the cluster does not serve "
            f"{PIPELINES.version}",
            "install its custom resource definitions",
            *reader.add_context(f'kubectl apply -k "{_SOURCE}/base/crds?ref=2.17.0"'),
        )
    elif is_served:
        yield warning(
            "Kubeflow Pipelines stores pipelines in its database: the resources Pipeline and PipelineVersion, as in "
            "manifests/overlays/prod-k8s-native, have no effect",
            "use manifests/overlays/prod and `gumshoe pipeline submit`, or start Kubeflow Pipelines with "
            "--pipelinesStoreKubernetes=true",
        )
    else:
        yield ok("Kubeflow Pipelines stores pipelines in its database: manifests/overlays/prod fits")


def _stores_in_kubernetes(deployment: Object) -> bool:
    pod = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    words = [
        word
        for each in pod.get("containers") or []
        for word in [*(each.get("command") or []), *(each.get("args") or [])]
    ]
    return any(_NATIVE.fullmatch(word) for word in words)
