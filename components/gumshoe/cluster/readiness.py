"""Check if all parts of a release run, and explain in plain words what is missing."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gumshoe.cluster.kserve_models import read_model
from gumshoe.cluster.kubernetes_api import Cluster, ClusterUnavailableError, shorten
from gumshoe.cluster.pod_problems import PodHints, ProblemLog, find_pod_problem, list_invalid_images
from gumshoe.cluster.pod_refusals import find_deployment_refusal, find_refusals
from gumshoe.cluster.releases import StoredRelease
from gumshoe.errors import GumshoeError, UnavailableError
from gumshoe.terminal import err, printable, progress

if TYPE_CHECKING:
    from kserve import KnativeCondition, V1beta1InferenceService, V1beta1ModelStatus

_EVERY = 3.0  # seconds between two checks
_DIGEST = "GUMSHOE_MODEL"  # environment variable that the chart sets in vLLM's container
_DEADLINE = "ProgressDeadlineExceeded"  # reason of a condition that says nothing else
_LATE = "it starts for longer than 10 minutes, as large models do"
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


class DeploymentFailedError(GumshoeError):
    """Report that a deployment can never become ready."""


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
    invalid_images: tuple[str, ...] = ()
    """Images whose names are invalid, as this release sets them. With one, the pod never starts."""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a deployment at one moment."""

    waiting: tuple[str, ...]
    """Parts that are not ready yet, with reasons; empty if everything is ready."""
    pods: tuple[PodState, ...]
    refusals: tuple[str, ...] = ()
    """Why the cluster refuses to create pods, by part."""

    @property
    def is_ready(self) -> bool:
        return not self.waiting

    @property
    def troubles(self) -> list[str]:
        """Problems that keep pods from running. Each is listed once, even if several pods have it."""
        return list(
            dict.fromkeys([*self.refusals, *(f"{each.part}: {each.trouble}" for each in self.pods if each.trouble)])
        )

    @property
    def text(self) -> str:
        """The state in one line."""
        return "ready" if self.is_ready else "; ".join([*self.waiting, *self.troubles])


def wait_until_ready(stored: StoredRelease, cluster: Cluster, seconds: float, *, model_alone: bool = False) -> Health:
    """Check again and again until the deployment, or with `model_alone` its vLLM, is ready.

    Print what keeps pods from running, and again when it changes. Most of it can be mended in the cluster meanwhile.

    Raises:
        DeploymentNotReadyError: if it is not ready in time; the message says why.
        DeploymentFailedError: if it can never become ready.
        ClusterError: if the cluster rejects a request.
        ClusterUnavailableError: if the cluster does not answer for that long.
    """
    until, log = time.monotonic() + seconds, ProblemLog()
    with progress(f"Waiting for {stored.release.name}") as advance:
        while True:
            try:
                health = check_health(stored, cluster, model_alone=model_alone)
                if health.is_ready:
                    return health
                _report_troubles(stored, health, log)
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


def _report_troubles(stored: StoredRelease, health: Health, log: ProblemLog) -> None:
    """Print the troubles that are news.

    Raises:
        DeploymentFailedError: if a pod can never start.
    """
    name, namespace = stored.release.name, stored.release.namespace
    for each in health.pods:
        if each.invalid_images:
            raise DeploymentFailedError(
                "deploy.invalid-image",
                f"pod {each.name} of {name} in namespace {namespace} can never start: {each.trouble}, got "
                f"{', '.join(each.invalid_images)}; the previous pods keep serving",
            )
    troubles = "; ".join(health.troubles)
    if not troubles:
        log.forget(name)
    elif log.is_news(name, troubles):
        err.print(f"[bold yellow]{name} in namespace {namespace} waits:[/] {printable(troubles)}", soft_wrap=True)


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
    refusals = _list_refusals(stored, deployments) if waiting else ()
    return Health(tuple(waiting), tuple(_list_pods(stored, cluster)), tuple(refusals))


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
        own = _select(deployments, find_selector(stored, "model"))
        if not own:
            yield f"KServe has not created a Deployment for vLLM yet{_find_warning(cluster, name, found)}"
        for each in own:
            if _find_digest(each.to_dict()) != _find_digest(next(one for one in stored.objects if one["kind"] == kind)):
                yield "KServe has not updated the Deployment of vLLM yet"
            yield from _check_rollout(each)


def _select(deployments: list[Any], selector: dict[str, str]) -> list[Any]:
    """Return the Deployments whose pods have these labels."""
    labels = selector.items()
    return [each for each in deployments if labels and labels <= (each.spec.template.metadata.labels or {}).items()]


def _list_refusals(stored: StoredRelease, deployments: list[Any]) -> Iterator[str]:
    """Yield why the cluster refuses pods of each part."""
    for part in ("agent", "model"):
        for each in _select(deployments, find_selector(stored, part)):
            if refusal := find_deployment_refusal(each):
                yield f"{part}: Deployment {each.metadata.name}: {refusal}"


def _find_warning(cluster: Cluster, name: str, found: dict[str, Any]) -> str:
    """Return the newest warning about an object that KServe processes, in parentheses, or an empty string."""
    since = datetime.fromisoformat(found["metadata"]["creationTimestamp"])
    newest = next((each for each in find_refusals(cluster, name, since) if each.name == name), None)
    return f" ({newest.text})" if newest else ""


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
            f"{each.type}: {_LATE if each.reason == _DEADLINE else each.message or each.reason}"
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


def _list_images(found: Any) -> Iterator[str]:
    """Yield the images in objects."""
    if isinstance(found, dict):
        if isinstance(found.get("image"), str):
            yield found["image"]
        found = list(found.values())
    if isinstance(found, list):
        for each in found:
            yield from _list_images(each)


def _list_pods(stored: StoredRelease, cluster: Cluster) -> Iterator[PodState]:
    images = set(_list_images(stored.objects))  # pods of an earlier revision may have others
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
            invalid = tuple(each for each in list_invalid_images(pod) if each in images)
            trouble = "" if is_ready else trouble
            yield PodState(pod.metadata.name, part, pod.status.phase or "", is_ready, restarts, trouble, invalid)
