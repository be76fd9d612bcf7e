"""Explain why a pod does not run, and how to fix it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster


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
            "InvalidImageName": f"the image name is invalid: check {self.images}",
            "CreateContainerConfigError": "a secret or config map of the pod does not exist: see the event",
            "FailedMount": "a volume or a secret cannot be mounted: see the event",
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
    for reason, message in reasons.items():
        if reason in remedies:
            detail = f" ({' '.join(message.split())[:200]})" if message else ""
            return f"{reason}: {remedies[reason]}{detail}"
    return ""


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
