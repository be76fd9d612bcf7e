"""A run as it goes: its steps, what the training says of itself, and what keeps a pod from running, in plain words."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from gumshoe.errors import GumshoeError, UnavailableError
from gumshoe_pipelines.placement import STEP_LABEL

OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "CANCELLED", "SKIPPED"})
_RUN = "pipeline/runid"  # Kubeflow's own label
_EVERY = 5.0  # seconds
_SILENCE = 600.0  # seconds without an answer after which nobody waits any longer
_LINES = 20  # of a pod's log
_MARKS = ("Step ", "Evaluation after ")  # how the lines begin that say how far a training is
_REMEDIES = {  # by Kubernetes' own reasons
    "Unschedulable": "no node has room for it: check gpus, node_selector and tolerations, and what the nodes have free",
    "ErrImagePull": "its image cannot be pulled: check worker_image and trainer_image, and the pull secret",
    "ImagePullBackOff": "its image cannot be pulled: check worker_image and trainer_image, and the pull secret",
    "InvalidImageName": "its image has no valid name: check worker_image and trainer_image",
    "CreateContainerConfigError": "a secret or a volume that it names is missing: see the event",
    "CrashLoopBackOff": "it ends as soon as it begins: see its log",
    "OOMKilled": "it needed more memory than it had: make model.max_context or the batch smaller, or give it more",
    "Evicted": "its node had no more room: it is tried again, and takes up its last checkpoint",
    "Preempting": "its node was taken away: it is tried again, and takes up its last checkpoint",
    "DeadlineExceeded": "it took longer than the step may",
    "FailedScheduling": "no node has room for it: check gpus, node_selector and tolerations",
    "FailedMount": "a volume or a secret cannot be mounted: see the event",
}


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of a run."""

    name: str
    state: str
    seconds: float | None
    error: str = ""
    progress: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run at one moment."""

    run_id: str
    name: str
    state: str
    steps: tuple[StepView, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class PodView:
    """What a step's pod says."""

    progress: str = ""
    trouble: str = ""


class Pods(Protocol):
    """What is known of a run's pods."""

    def of(self, run_id: str) -> dict[str, PodView]:
        """By the steps' names."""


class NoPods:
    """Nothing is known of pods: there is no way to Kubernetes."""

    def of(self, run_id: str) -> dict[str, PodView]:  # noqa: ARG002
        """As `Pods.of`."""
        return {}


@dataclass(slots=True)
class Cluster:
    """The pods of a namespace, by the labels that any `kubectl get pods -l` takes too."""

    namespace: str
    deadline: float = 15
    core: Any = None
    """A client of Kubernetes; one by KUBECONFIG, or the pod that this runs in, unless given."""

    def __post_init__(self) -> None:
        """
        Raises:
            GumshoeError: there is no way to a cluster.
        """
        from kubernetes import client, config
        from kubernetes.config import ConfigException

        if self.core is None:
            try:
                config.load_config()
            except ConfigException as error:
                raise GumshoeError(f"no way to Kubernetes ({error}); set KUBECONFIG") from None
            self.core = client.CoreV1Api()

    def of(self, run_id: str) -> dict[str, PodView]:
        """As `Pods.of`; of several pods of one step, the newest."""
        found = self.core.list_namespaced_pod(
            self.namespace, label_selector=f"{_RUN}={run_id}", _request_timeout=self.deadline
        )
        pods = sorted(found.items, key=lambda pod: pod.metadata.creation_timestamp or datetime.min.replace(tzinfo=UTC))
        return {
            pod.metadata.labels.get(STEP_LABEL, pod.metadata.name): PodView(self._progress(pod), self._trouble(pod))
            for pod in pods
        }

    def _progress(self, pod: Any) -> str:
        """The last line of its log that says how far it is."""
        if pod.status.phase != "Running":
            return ""
        from kubernetes.client import ApiException

        try:
            log = self.core.read_namespaced_pod_log(
                pod.metadata.name,
                self.namespace,
                container="main",
                tail_lines=_LINES,
                _request_timeout=self.deadline,
            )
        except ApiException:  # as its container begins
            return ""
        said = [line.strip() for line in log.splitlines()]
        return next((line for line in reversed(said) if line.startswith(_MARKS)), "")

    def _trouble(self, pod: Any) -> str:
        """What keeps it from running, or ended it, and what helps."""
        reasons = dict(_reasons(pod.status))
        if pod.status.phase == "Pending":
            events = self.core.list_namespaced_event(
                self.namespace,
                field_selector=f"involvedObject.name={pod.metadata.name},type=Warning",
                _request_timeout=self.deadline,
            )
            reasons |= {event.reason: event.message or "" for event in events.items if event.reason in _REMEDIES}
        for reason, message in reasons.items():
            if reason in _REMEDIES:
                told = f" ({' '.join(message.split())[:200]})" if message else ""
                return f"{reason}: {_REMEDIES[reason]}{told}"
        return ""


def _reasons(status: Any) -> Iterator[tuple[str, str]]:
    """Why a pod is as it is, in Kubernetes' words."""
    if status.reason:
        yield status.reason, status.message or ""
    for condition in status.conditions or []:
        if condition.status == "False" and condition.reason:
            yield condition.reason, condition.message or ""
    for container in [*(status.init_container_statuses or []), *(status.container_statuses or [])]:
        for state in (container.state, container.last_state):
            for now in (state and state.waiting, state and state.terminated):
                if now and now.reason:
                    yield now.reason, now.message or ""


def seen(run: Any, pods: dict[str, PodView]) -> RunView:
    """A run as a server tells of it, with what its pods say."""
    details = run.run_details.task_details if run.run_details and run.run_details.task_details else []
    own = [each for each in details if each.display_name not in (None, "root") and "driver" not in each.display_name]
    steps = []
    for each in sorted(own, key=lambda task: (task.create_time is None, task.create_time or 0)):
        pod = pods.get(each.display_name, PodView())
        state = each.state or "PENDING"
        steps.append(
            StepView(
                each.display_name,
                state,
                _seconds(each.start_time, each.end_time),
                each.error.message if each.error and each.error.message else "",
                pod.progress if state == "RUNNING" else "",
                pod.trouble if state not in ("SUCCEEDED", "SKIPPED") else "",
            )
        )
    error = run.error.message if run.error and run.error.message else ""
    return RunView(run.run_id, run.display_name or run.run_id, run.state or "PENDING", tuple(steps), error)


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    if start is None or start.year < 1971:
        return None
    stop = end if end is not None and end.year >= 1971 else datetime.now(start.tzinfo)
    return max(timedelta(0), stop - start).total_seconds()


def follow(
    ask: Callable[[], Any], pods: Pods, warn: Callable[[str], None], *, every: float = _EVERY, silence: float = _SILENCE
) -> Iterator[RunView]:
    """A run again and again, until it is over. A server that does not answer is asked again for some time.

    Raises:
        UnavailableError: it did not answer for `silence` seconds.
        GumshoeError: it refuses.
    """
    answered = time.monotonic()
    warned = ""
    while True:
        try:
            run = ask()
            answered = time.monotonic()
        except UnavailableError as error:
            if time.monotonic() - answered > silence:
                raise
            if str(error) != warned:
                warned = str(error)
                warn(f"{error}; asking again")
            time.sleep(every)
            continue
        try:
            found = pods.of(run.run_id)
        except Exception as error:  # noqa: BLE001 - of Kubernetes' client and what lies under it: the run goes on without
            found = {}
            said = f"pods cannot be seen: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
            if said != warned:
                warned = said
                warn(said)
        view = seen(run, found)
        yield view
        if view.state in OVER:
            return
        time.sleep(every)
