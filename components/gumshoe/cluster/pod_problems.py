"""Explain why a pod does not run, and how to fix it."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster

_REPEAT = 60.0  # seconds between two reports of a problem whose details change
_INVALID_IMAGE = "InvalidImageName"
_UNBOUND = re.compile(r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim .*not (?:found|bound)", re.I)
_SCHEDULING = ("Unschedulable", "FailedScheduling")
_VOLUME = "a volume of the pod is not bound: check that its PersistentVolumeClaim and the storage class exist"


@dataclass(frozen=True, slots=True)
class PodHints:
    """Name the settings that a user can change, by their names in the place where the pod was configured."""

    images: str
    scheduling: str
    """Settings for node selection and resources."""
    memory: str
    """Advice if the pod runs out of memory."""
    after_loss: str
    """Description of what follows after the pod's node is lost."""

    @property
    def remedies(self) -> dict[str, str]:
        """Advice for each reason that Kubernetes reports."""
        image = f"the image cannot be pulled: check {self.images} and the pull secret"
        room = f"no node has enough free resources: check {self.scheduling}, and the free resources of the nodes"
        return {
            "Unschedulable": room,
            "FailedScheduling": room,
            "SchedulingGated": "the pod waits for quota in its queue (Kueue)",
            "ErrImagePull": image,
            "ImagePullBackOff": image,
            "ErrImageNeverPull": "the image is not on the node, and its pull policy is Never",
            "ImageInspectError": image,
            _INVALID_IMAGE: f"the image name is invalid: check {self.images}",
            "CreateContainerConfigError": "a secret or config map of the pod does not exist: see the event",
            "CreateContainerError": "the container cannot be created: see the event",
            "RunContainerError": "the container cannot be started: check its command",
            "StartError": "the container cannot be started: check its command",
            "FailedAttachVolume": "a volume cannot be attached to the node: see the event",
            "FailedMount": "a volume or a secret cannot be mounted: see the event",
            "FailedCreatePodSandBox": "the node cannot create the pod: see the event, and ask who runs the cluster",
            "UnexpectedAdmissionError": "the node refuses the pod: see the event, and the node's device plugins",
            "FailedToRetrieveImagePullSecret": "the pull secret does not exist: create it",
            "CrashLoopBackOff": "the container exits right after its start: see its log",
            "OOMKilled": f"the pod ran out of memory: {self.memory}",
            "Evicted": f"the node ran out of resources: {self.after_loss}",
            "Preempting": f"the pod was preempted: {self.after_loss}",
            "DeadlineExceeded": "the pod exceeded its deadline",
        }


def find_pod_problem(pod: Any, cluster: Cluster, hints: PodHints) -> str:
    """Explain why a pod does not run or has ended, and how to fix it. Return an empty string if it has no problem.

    Raises:
        ClusterError: if the cluster rejects the request for its events.
        ClusterUnavailableError: if the cluster does not answer.
    """
    reasons, remedies = dict(_list_reasons(pod.status)), hints.remedies
    if pod.status.phase == "Pending":
        about = f"involvedObject.name={pod.metadata.name},type=Warning"
        events = cluster.call(cluster.core.list_namespaced_event, pod.metadata.namespace, field_selector=about)
        reasons |= {event.reason: event.message or "" for event in events.items if event.reason in remedies}
    if any(each.type == "PodScheduled" and each.status == "True" for each in pod.status.conditions or []):
        reasons.pop("FailedScheduling", None)  # an event of earlier
    for reason, message in reasons.items():
        if reason in remedies:
            remedy = _VOLUME if reason in _SCHEDULING and _UNBOUND.search(message) else remedies[reason]
            detail = f" ({' '.join(message.split())[:200]})" if message else ""
            return f"{reason}: {remedy}{detail}"
    return ""


def list_invalid_images(pod: Any) -> list[str]:
    """Return the images of a pod whose names are invalid. Such a pod never starts, so there is nothing to wait for."""
    statuses = [*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])]
    invalid = {
        each.name
        for each in statuses
        if each.state and each.state.waiting and each.state.waiting.reason == _INVALID_IMAGE
    }
    containers = [*(pod.spec.init_containers or []), *pod.spec.containers]
    return [each.image for each in containers if each.name in invalid]


@dataclass(slots=True)
class ProblemLog:
    """Decide which problems are news: a new one at once, one whose details change once a minute, the same one never."""

    _known: dict[str, tuple[str, float]] = field(default_factory=dict)
    """The last problem that was reported, and when, by what has it."""

    def is_news(self, who: str, problem: str) -> bool:
        """Return True if a problem should be reported. Numbers in it do not count as changes."""
        problem = re.sub(r"\d+", "0", problem)
        last, when = self._known.get(who, ("", 0.0))
        now, is_same_kind = time.monotonic(), problem.partition("(")[0] == last.partition("(")[0]
        if problem == last or (is_same_kind and now - when < _REPEAT):
            return False
        self._known[who] = problem, now
        return True

    def forget(self, who: str) -> None:
        """Report the problem again if it comes back."""
        self._known.pop(who, None)


def _list_reasons(status: Any) -> Iterator[tuple[str, str]]:
    """Yield the reasons and messages that Kubernetes reports for a pod's state."""
    if status.reason:
        yield status.reason, status.message or ""
    for condition in status.conditions or []:
        if condition.status == "False" and condition.reason:
            yield condition.reason, condition.message or ""
    for container in [*(status.init_container_statuses or []), *(status.container_statuses or [])]:
        for state in (container.last_state, container.state):  # why it ended, before why it is not restarted
            for now in (state and state.terminated, state and state.waiting):
                if now and now.reason:
                    yield now.reason, now.message or ""
