"""Check if all parts of a release run, and explain in plain words what is missing."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gumshoe.cluster.kserve_models import read_model
from gumshoe.cluster.kubernetes_api import Cluster, ClusterUnavailableError, shorten
from gumshoe.cluster.pod_problems import PodHints, find_pod_problem
from gumshoe.cluster.releases import StoredRelease
from gumshoe.errors import UnavailableError
from gumshoe.terminal import progress

if TYPE_CHECKING:
    from kserve import KnativeCondition, V1beta1InferenceService, V1beta1ModelStatus

_EVERY = 3.0  # seconds between two checks
_DIGEST = "GUMSHOE_MODEL"  # environment variable that the chart sets in vLLM's container
_MODELS = {  # group, version and plural by kind
    "InferenceService": ("serving.kserve.io", "v1beta1", "inferenceservices"),
    "LLMInferenceService": ("serving.kserve.io", "v1alpha2", "llminferenceservices"),
}
_AGENT_HINTS = PodHints(
    "agent.image",
    "agent.nodeSelector, agent.tolerations and agent.resources",
    "increase agent.resources",
    "Kubernetes starts a new pod",
)
_MODEL_HINTS = PodHints(
    "serving.image",
    "serving.gpus, serving.nodeSelector and serving.tolerations",
    "increase serving.resources, or reduce model.maxContext",
    "Kubernetes starts a new pod",
)


class DeploymentNotReadyError(UnavailableError):
    """Report that a deployment is not ready in time."""


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod of a deployment."""

    name: str
    part: str
    """`agent` or `model`."""
    phase: str
    is_ready: bool
    restarts: int
    trouble: str
    """Empty if the pod has no problem."""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a deployment at one moment."""

    waiting: tuple[str, ...]
    """Parts that are not ready yet, with reasons; empty if everything is ready."""
    pods: tuple[PodState, ...]

    @property
    def is_ready(self) -> bool:
        return not self.waiting

    @property
    def troubles(self) -> list[str]:
        """Problems that keep pods from running. Each is listed once, even if several pods have it."""
        return list(dict.fromkeys(f"{each.part}: {each.trouble}" for each in self.pods if each.trouble))

    @property
    def text(self) -> str:
        """The state in one line."""
        return "ready" if self.is_ready else "; ".join([*self.waiting, *self.troubles])


def wait_until_ready(stored: StoredRelease, cluster: Cluster, seconds: float, *, model_alone: bool = False) -> Health:
    """Check again and again until the deployment, or with `model_alone` its vLLM, is ready.

    Raises:
        DeploymentNotReadyError: if it is not ready in time; the message says why.
        ClusterError: if the cluster rejects a request.
        ClusterUnavailableError: if the cluster does not answer for that long.
    """
    until = time.monotonic() + seconds
    with progress(f"Waiting for {stored.release.name}") as advance:
        while True:
            try:
                health = check_health(stored, cluster, model_alone=model_alone)
                if health.is_ready:
                    return health
                advance(note=health.text[:160])
            except ClusterUnavailableError:  # an upgrade of the API server takes minutes
                if time.monotonic() > until:
                    raise
                time.sleep(_EVERY)
                continue
            if time.monotonic() > until:
                raise DeploymentNotReadyError(
                    "deploy.not-ready",
                    f"{stored.release.name} is not ready after {seconds / 60:g} minutes: {health.text}; the previous "
                    "pods keep serving; watch it with `gumshoe deployments`",
                )
            time.sleep(min(_EVERY, max(0.0, until - time.monotonic()) + 0.05))


def check_health(stored: StoredRelease, cluster: Cluster, *, model_alone: bool = False) -> Health:
    """Return the current health of a deployment, or of its vLLM alone.

    Raises:
        ClusterError: if the cluster rejects a request.
        ClusterUnavailableError: if the cluster does not answer.
    """
    deployments = cluster.call(cluster.apps.list_namespaced_deployment, cluster.namespace).items
    waiting = [*_check_model(stored, cluster, deployments)]
    if not model_alone:
        waiting += _check_agent(stored, deployments)
    return Health(tuple(waiting), tuple(_list_pods(stored, cluster)))


def find_selector(stored: StoredRelease, part: str) -> dict[str, str]:
    """Return the labels of the pods of a part (`agent` or `model`); empty if the release has no such pods."""
    name = stored.find_name("Service", f"-{part}")
    service = next(
        (each for each in stored.objects if each["kind"] == "Service" and each["metadata"]["name"] == name), {}
    )
    return dict(service.get("spec", {}).get("selector") or {})


def _check_model(stored: StoredRelease, cluster: Cluster, deployments: list[Any]) -> Iterator[str]:
    for kind, place in _MODELS.items():
        name = stored.find_name(kind)
        if name is None:
            continue
        group, version, plural = place
        found = cluster.find(
            cluster.custom.get_namespaced_custom_object, group, version, cluster.namespace, plural, name
        )
        if found is None:
            yield f"{kind} {name} does not exist"
            return
        if kind == "InferenceService":
            yield from _check_inference_service(read_model("V1beta1InferenceService", found))
        else:  # the SDK has no model of this status
            conditions = (found.get("status") or {}).get("conditions") or []
            yield from _check_conditions(kind, read_model("list[KnativeCondition]", conditions))
        labels = find_selector(stored, "model").items()
        own = [each for each in deployments if labels <= (each.spec.template.metadata.labels or {}).items()]
        if not own:
            yield "KServe has not created a Deployment for vLLM yet"
        for each in own:
            if _find_digest(each.to_dict()) != _find_digest(next(one for one in stored.objects if one["kind"] == kind)):
                yield "KServe has not updated the Deployment of vLLM yet"
            yield from _check_rollout(each)


def _check_inference_service(service: "V1beta1InferenceService") -> Iterator[str]:
    """Yield what an InferenceService and its canaries lack."""
    status = service.status
    conditions = (status and status.conditions) or []
    yield from _check_conditions("InferenceService", conditions)
    if not any(each.type == "Ready" and each.status == "True" for each in conditions):
        yield from _find_model_failure("vLLM", status and status.model_status)
    names = {each.predictor.name for each in service.spec.canary or []}
    for each in (status and status.canary_statuses) or []:
        if each.name in names and not each.ready:
            yield f"the canary {each.name} of the InferenceService is not ready"
            yield from _find_model_failure(f"vLLM of the canary {each.name}", each.model_status)


def _find_model_failure(what: str, status: "V1beta1ModelStatus | None") -> Iterator[str]:
    failure = status and status.last_failure_info
    if failure and failure.message:
        yield f"{what} failed: {shorten(failure.message)}"


def _check_conditions(kind: str, conditions: "list[KnativeCondition]") -> Iterator[str]:
    """Yield the conditions that a KServe resource does not meet."""
    ready = next((each for each in conditions if each.type == "Ready"), None)
    if ready is None:
        yield f"KServe has not processed the {kind} yet"
    elif ready.status != "True":
        reasons = [
            f"{each.type}: {each.message or each.reason}"
            for each in conditions
            if each is not ready and each.status == "False" and (each.message or each.reason)
        ]
        yield f"the {kind} is not ready ({'; '.join(reasons) or ready.message or 'no reason given'})"


def _check_agent(stored: StoredRelease, deployments: list[Any]) -> Iterator[str]:
    name = stored.find_name("Deployment", "-agent")
    own = next((each for each in deployments if each.metadata.name == name), None)
    if own is None:
        yield f"Deployment {name} does not exist"
    else:
        yield from _check_rollout(own)


def _check_rollout(deployment: Any) -> Iterator[str]:
    """Yield what a Deployment lacks until all its pods use the newest template and are ready."""
    wanted, status = deployment.spec.replicas if deployment.spec.replicas is not None else 1, deployment.status
    updated, available = status.updated_replicas or 0, status.available_replicas or 0
    name = deployment.metadata.name
    if (status.observed_generation or 0) < deployment.metadata.generation:
        yield f"{name}: Kubernetes has not processed the change yet"
    elif updated < wanted:
        yield f"{name}: {updated} of {wanted} pods are updated"
    elif (status.replicas or 0) > updated:
        yield f"{name}: {status.replicas - updated} old pods are still running"
    elif available < wanted:
        yield f"{name}: {available} of {wanted} pods are ready"


def _find_digest(found: Any) -> str | None:
    """Find the digest of vLLM's configuration in an object, wherever the environment of its container is."""
    if isinstance(found, dict):
        if found.get("name") == _DIGEST:
            return str(found.get("value"))
        found = list(found.values())
    if isinstance(found, list):
        return next((digest for each in found if (digest := _find_digest(each)) is not None), None)
    return None


def _list_pods(stored: StoredRelease, cluster: Cluster) -> Iterator[PodState]:
    for part, knobs in (("agent", _AGENT_HINTS), ("model", _MODEL_HINTS)):
        labels = find_selector(stored, part)
        if not labels:
            continue
        wanted = ",".join(f"{name}={value}" for name, value in labels.items())
        found: Callable[..., Any] = cluster.core.list_namespaced_pod
        for pod in cluster.call(found, cluster.namespace, label_selector=wanted).items:
            if pod.metadata.deletion_timestamp:
                continue
            trouble = find_pod_problem(pod, cluster, knobs)
            conditions = {each.type: each.status for each in pod.status.conditions or []}
            restarts = sum(each.restart_count for each in pod.status.container_statuses or [])
            is_ready = conditions.get("Ready") == "True"
            yield PodState(
                pod.metadata.name, part, pod.status.phase or "", is_ready, restarts, "" if is_ready else trouble
            )
