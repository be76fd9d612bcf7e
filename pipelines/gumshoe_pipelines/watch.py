"""A run as it goes: its steps, what the training says of itself, and what keeps a pod from running, in plain words."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster, ClusterError
from gumshoe.cluster.pod_problems import PodRemedies, pod_problem
from gumshoe.errors import GumshoeError, UnavailableError
from gumshoe_pipelines.placement import STEP_LABEL

OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "CANCELLED", "SKIPPED"})
_RUN = "pipeline/runid"  # Kubeflow's own label
_EVERY = 5.0  # seconds
_SILENCE = 600.0  # seconds without an answer after which nobody waits any longer
_LINES = 20  # of a pod's log
_MARKS = ("Step ", "Evaluation after ", "Waiting for ")  # how the lines begin that say how far a training is
_KNOBS = PodRemedies(
    images="worker_image and trainer_image",
    place="gpus, node_selector and tolerations",
    memory="make model.max_context or the batch smaller, or give it more",
    ended="it is tried again, and takes up its last checkpoint",
)


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


def pods_of(cluster: Cluster, run_id: str) -> dict[str, PodView]:
    """What a run's pods say, by their steps' names; of several pods of one step, the newest.

    Raises:
        GumshoeError: they cannot be seen.
    """
    wanted = f"{_RUN}={run_id}"
    found = cluster.ask(cluster.core.list_namespaced_pod, cluster.namespace, label_selector=wanted).items
    pods = sorted(found, key=lambda pod: pod.metadata.creation_timestamp or datetime.min.replace(tzinfo=UTC))
    return {
        pod.metadata.labels.get(STEP_LABEL, pod.metadata.name): PodView(
            _progress(cluster, pod), pod_problem(pod, cluster, _KNOBS)
        )
        for pod in pods
    }


def _progress(cluster: Cluster, pod: Any) -> str:
    """The last line of a pod's log that says how far it is."""
    if pod.status.phase != "Running":
        return ""
    read, name = cluster.core.read_namespaced_pod_log, pod.metadata.name
    try:
        log = cluster.ask(read, name, cluster.namespace, container="main", tail_lines=_LINES, what="a log")
    except ClusterError:  # as its container begins
        return ""
    said = [line.strip() for line in log.splitlines()]
    return next((line for line in reversed(said) if line.startswith(_MARKS)), "")


def run_view(run: Any, pods: dict[str, PodView]) -> RunView:
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
    ask: Callable[[], Any],
    look: Callable[[str], dict[str, PodView]],
    warn: Callable[[str], None],
    *,
    every: float = _EVERY,
    silence: float = _SILENCE,
) -> Iterator[RunView]:
    """A run again and again, until it is over. A server that does not answer is asked again for some time.

    `ask` gives the run, and `look` what the pods of a run's id say.

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
            if error.message_with_code != warned:
                warned = error.message_with_code
                warn(f"{warned}; asking again")
            time.sleep(every)
            continue
        try:
            found = look(run.run_id)
        except GumshoeError as error:  # the run goes on without
            found = {}
            said = f"pods cannot be seen: {error.message_with_code}"
            if said != warned:
                warned = said
                warn(said)
        view = run_view(run, found)
        yield view
        if view.state in OVER:
            return
        time.sleep(every)
