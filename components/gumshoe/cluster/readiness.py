"""Whether what a release is made of runs as it should, and if not, why, in plain words."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster, ClusterUnavailableError
from gumshoe.cluster.pod_problems import PodRemedies, pod_problem
from gumshoe.cluster.releases import StoredRelease
from gumshoe.errors import UnavailableError
from gumshoe.terminal import progress

_EVERY = 3.0  # seconds between two looks
_DIGEST = "GUMSHOE_MODEL"  # the chart's, in the environment of vLLM's container
_MODELS = {  # by kind: group, version and plural
    "InferenceService": ("serving.kserve.io", "v1beta1", "inferenceservices"),
    "LLMInferenceService": ("serving.kserve.io", "v1alpha2", "llminferenceservices"),
}
_AGENT_KNOBS = PodRemedies(
    "agent.image", "agent.nodeSelector, agent.tolerations and agent.resources", "raise agent.resources", "another comes"
)
_MODEL_KNOBS = PodRemedies(
    "serving.image",
    "serving.gpus, serving.nodeSelector and serving.tolerations",
    "raise serving.resources, or lower model.maxContext",
    "another comes",
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
    """Empty where there is none."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a deployment is at one moment."""

    waiting: tuple[str, ...]
    """What it is that is not ready yet; nothing where all of it is."""
    pods: tuple[PodState, ...]

    @property
    def is_ready(self) -> bool:
        return not self.waiting

    @property
    def troubles(self) -> list[str]:
        """What keeps pods from running; each once, though several have it."""
        return list(dict.fromkeys(f"{each.part}: {each.trouble}" for each in self.pods if each.trouble))

    @property
    def text(self) -> str:
        """The same in a line."""
        return "ready" if self.is_ready else "; ".join([*self.waiting, *self.troubles])


def wait_until_ready(kept: StoredRelease, cluster: Cluster, seconds: float, *, model_alone: bool = False) -> Health:
    """Look again and again; with `model_alone` only vLLM is waited for.

    Raises:
        DeploymentNotReadyError: it is not ready in time; the message says why not.
        ClusterError: the cluster refuses.
        ClusterUnavailableError: the cluster has not answered for as long.
    """
    until = time.monotonic() + seconds
    with progress(f"Waiting for {kept.release.name}") as advance:
        while True:
            try:
                health = look(kept, cluster, model_alone=model_alone)
                if health.is_ready:
                    return health
                advance(note=health.text[:160])
            except ClusterUnavailableError:  # an API server that is upgraded is away for minutes
                if time.monotonic() > until:
                    raise
                time.sleep(_EVERY)
                continue
            if time.monotonic() > until:
                raise DeploymentNotReadyError(
                    "deploy.not-ready",
                    f"{kept.release.name} is not ready after {seconds / 60:g} minutes: {health.text}; pods that served "
                    "before keep serving; watch it with `gumshoe deployments`",
                )
            time.sleep(min(_EVERY, max(0.0, until - time.monotonic()) + 0.05))


def look(kept: StoredRelease, cluster: Cluster, *, model_alone: bool = False) -> Health:
    """How a deployment, or its vLLM alone, is now.

    Raises:
        ClusterError, ClusterUnavailableError: the cluster cannot be asked.
    """
    deployments = cluster.ask(cluster.apps.list_namespaced_deployment, cluster.namespace).items
    waiting = [*_model_waits(kept, cluster, deployments)]
    if not model_alone:
        waiting += _agent_waits(kept, deployments)
    return Health(tuple(waiting), tuple(_pods(kept, cluster)))


def selector_of(kept: StoredRelease, part: str) -> dict[str, str]:
    """The labels of the pods of a part, `agent` or `model`; none where the release has no such pods."""
    name = kept.of_kind("Service", f"-{part}")
    service = next(
        (each for each in kept.objects if each["kind"] == "Service" and each["metadata"]["name"] == name), {}
    )
    return dict(service.get("spec", {}).get("selector") or {})


def _model_waits(kept: StoredRelease, cluster: Cluster, deployments: list[Any]) -> Iterator[str]:
    for kind, place in _MODELS.items():
        name = kept.of_kind(kind)
        if name is None:
            continue
        group, version, plural = place
        found = cluster.find(
            cluster.custom.get_namespaced_custom_object, group, version, cluster.namespace, plural, name
        )
        if found is None:
            yield f"{kind} {name} is gone"
            return
        yield from _conditions(kind, found.get("status") or {})
        labels = selector_of(kept, "model").items()
        own = [each for each in deployments if labels <= (each.spec.template.metadata.labels or {}).items()]
        if not own:
            yield "KServe has made no Deployment of vLLM yet"
        for each in own:
            if _digest(each.to_dict()) != _digest(next(made for made in kept.objects if made["kind"] == kind)):
                yield "KServe has not told vLLM of the change yet"
            yield from _rollout(each)


def _conditions(kind: str, status: dict[str, Any]) -> Iterator[str]:
    """What a resource of KServe says that it lacks."""
    conditions = {each.get("type"): each for each in status.get("conditions") or []}
    ready = conditions.pop("Ready", None)
    if ready is None:
        yield f"KServe has not looked at the {kind} yet"
    elif ready.get("status") != "True":
        told = [
            f"{each['type']}: {each.get('message') or each.get('reason')}"
            for each in conditions.values()
            if each.get("status") == "False" and (each.get("message") or each.get("reason"))
        ]
        yield f"the {kind} is not ready ({'; '.join(told) or ready.get('message') or 'it does not say why'})"
    failure = (status.get("modelStatus") or {}).get("lastFailureInfo") or {}
    if failure.get("message") and (ready or {}).get("status") != "True":
        yield f"vLLM failed: {' '.join(failure['message'].split())[:300]}"


def _agent_waits(kept: StoredRelease, deployments: list[Any]) -> Iterator[str]:
    name = kept.of_kind("Deployment", "-agent")
    own = next((each for each in deployments if each.metadata.name == name), None)
    if own is None:
        yield f"Deployment {name} is gone"
    else:
        yield from _rollout(own)


def _rollout(deployment: Any) -> Iterator[str]:
    """What a Deployment lacks until all its pods are of its newest template, and ready."""
    wanted, status = deployment.spec.replicas if deployment.spec.replicas is not None else 1, deployment.status
    updated, available = status.updated_replicas or 0, status.available_replicas or 0
    name = deployment.metadata.name
    if (status.observed_generation or 0) < deployment.metadata.generation:
        yield f"{name}: its change has not been looked at yet"
    elif updated < wanted:
        yield f"{name}: {updated} of {wanted} pods are new"
    elif (status.replicas or 0) > updated:
        yield f"{name}: {status.replicas - updated} old pods are still to end"
    elif available < wanted:
        yield f"{name}: {available} of {wanted} pods are ready"


def _digest(made: Any) -> str | None:
    """The digest of what vLLM is started with, wherever its container's environment stands in an object."""
    if isinstance(made, dict):
        if made.get("name") == _DIGEST:
            return str(made.get("value"))
        made = list(made.values())
    if isinstance(made, list):
        return next((found for each in made if (found := _digest(each)) is not None), None)
    return None


def _pods(kept: StoredRelease, cluster: Cluster) -> Iterator[PodState]:
    for part, knobs in (("agent", _AGENT_KNOBS), ("model", _MODEL_KNOBS)):
        labels = selector_of(kept, part)
        if not labels:
            continue
        wanted = ",".join(f"{name}={value}" for name, value in labels.items())
        found: Callable[..., Any] = cluster.core.list_namespaced_pod
        for pod in cluster.ask(found, cluster.namespace, label_selector=wanted).items:
            if pod.metadata.deletion_timestamp:
                continue
            trouble = pod_problem(pod, cluster, knobs)
            conditions = {each.type: each.status for each in pod.status.conditions or []}
            restarts = sum(each.restart_count for each in pod.status.container_statuses or [])
            is_ready = conditions.get("Ready") == "True"
            yield PodState(
                pod.metadata.name, part, pod.status.phase or "", is_ready, restarts, "" if is_ready else trouble
            )
