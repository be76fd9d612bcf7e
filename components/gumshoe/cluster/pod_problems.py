"""What keeps a pod from running, in plain words, and what helps."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster


@dataclass(frozen=True, slots=True)
class PodRemedies:
    """What somebody can set about a pod, by the names that it has where pods of its kind come from."""

    images: str
    place: str
    """Where it may run, and what it asks for."""
    memory: str
    """What to do where memory is too small."""
    ended: str
    """What comes next where its node is gone."""

    @property
    def remedies(self) -> dict[str, str]:
        """By Kubernetes' own reasons."""
        image = f"its image cannot be pulled: check {self.images}, and the pull secret"
        room = f"no node has room for it: check {self.place}, and what the nodes have free"
        return {
            "Unschedulable": room,
            "FailedScheduling": room,
            "SchedulingGated": "it waits for quota in its queue (Kueue)",
            "ErrImagePull": image,
            "ImagePullBackOff": image,
            "InvalidImageName": f"its image has no valid name: check {self.images}",
            "CreateContainerConfigError": "a secret or a volume that it names is missing: see the event",
            "FailedMount": "a volume or a secret cannot be mounted: see the event",
            "CrashLoopBackOff": "it ends as soon as it begins: see its log",
            "OOMKilled": f"it needed more memory than it had: {self.memory}",
            "Evicted": f"its node had no more room: {self.ended}",
            "Preempting": f"its node was taken away: {self.ended}",
            "DeadlineExceeded": "it took longer than it may",
        }


def pod_problem(pod: Any, cluster: Cluster, knobs: PodRemedies) -> str:
    """What keeps a pod from running, or ended it, and what helps; empty where nothing does.

    Raises:
        ClusterError, ClusterUnavailableError: its events cannot be had.
    """
    reasons, remedies = dict(_reasons(pod.status)), knobs.remedies
    if pod.status.phase == "Pending":
        about = f"involvedObject.name={pod.metadata.name},type=Warning"
        events = cluster.ask(cluster.core.list_namespaced_event, pod.metadata.namespace, field_selector=about)
        reasons |= {event.reason: event.message or "" for event in events.items if event.reason in remedies}
    for reason, message in reasons.items():
        if reason in remedies:
            told = f" ({' '.join(message.split())[:200]})" if message else ""
            return f"{reason}: {remedies[reason]}{told}"
    return ""


def _reasons(status: Any) -> Iterator[tuple[str, str]]:
    """Why a pod is as it is, in Kubernetes' words."""
    if status.reason:
        yield status.reason, status.message or ""
    for condition in status.conditions or []:
        if condition.status == "False" and condition.reason:
            yield condition.reason, condition.message or ""
    for container in [*(status.init_container_statuses or []), *(status.container_statuses or [])]:
        for state in (container.last_state, container.state):  # why it ended before why it is not begun again
            for now in (state and state.terminated, state and state.waiting):
                if now and now.reason:
                    yield now.reason, now.message or ""
