"""Watch a run: the state of its steps, the progress of the training, and problems of pods."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from gumshoe.cluster.kubernetes_api import Cluster, ClusterError
from gumshoe.cluster.pod_problems import PodHints, find_pod_problem
from gumshoe.errors import GumshoeError, UnavailableError
from gumshoe_pipelines.run_labels import STEP_LABEL

Answer = TypeVar("Answer")
OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "CANCELLED", "SKIPPED"})
_RUN = "pipeline/runid"  # Kubeflow's label
_NODE = "workflows.argoproj.io/node-name"  # Argo's annotation, e.g. train-agent-x7.root.train-grpo-driver
_EVERY = 5.0  # seconds
_TIMEOUT = 600.0  # seconds without an answer before giving up
_LINES = 20  # lines read from a pod's log
_PROGRESS_PREFIXES = ("Step ", "Evaluation after ", "Waiting for ")  # prefixes of log lines that report progress
_HINTS = PodHints(
    images="worker_image and trainer_image",
    scheduling="gpus, cpus_per_gpu, memory_per_gpu, node_selector and tolerations",
    memory="reduce model.max_context or the batch size, or increase memory_per_gpu",
    after_loss="the step is retried, and continues from its last checkpoint",
)


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of a run."""

    name: str
    state: str
    seconds: float | None
    error: str = ""
    progress: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PipelineRunView:
    """A run at one moment."""

    run_id: str
    name: str
    state: str
    steps: tuple[StepView, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class PodView:
    """The progress and the problem of a step's pod."""

    progress: str = ""
    problem: str = ""


def view_pods(cluster: Cluster, run_id: str) -> dict[str, PodView]:
    """Return the state of a run's pods by step. If a step has several pods, the newest counts.

    The pods of a step are the one that prepares it (its driver) and the one that runs it.

    Raises:
        GumshoeError: if the pods cannot be listed.
    """
    wanted = f"{_RUN}={run_id}"
    found = cluster.call(cluster.core.list_namespaced_pod, cluster.namespace, label_selector=wanted).items
    pods = sorted(found, key=lambda pod: pod.metadata.creation_timestamp or datetime.min.replace(tzinfo=UTC))
    return {
        _find_step(pod): PodView(_read_progress(cluster, pod), find_pod_problem(pod, cluster, _HINTS)) for pod in pods
    }


def _find_step(pod: Any) -> str:
    """Return the name of a pod's step. Drivers have no label of it, but the name of their node in the workflow."""
    node = (pod.metadata.annotations or {}).get(_NODE, pod.metadata.name)
    found: str = pod.metadata.labels.get(STEP_LABEL) or node.rpartition(".")[2].removesuffix("-driver")
    return found


def _read_progress(cluster: Cluster, pod: Any) -> str:
    """Return the last line of a pod's log that reports progress."""
    if pod.status.phase != "Running":
        return ""
    read, name = cluster.core.read_namespaced_pod_log, pod.metadata.name
    try:
        log = cluster.call(read, name, cluster.namespace, container="main", tail_lines=_LINES, what="a log")
    except ClusterError:  # the container has not started yet
        return ""
    lines = [line.strip() for line in log.splitlines()]
    return next((line for line in reversed(lines) if line.startswith(_PROGRESS_PREFIXES)), "")


def build_run_view(run: Any, pods: dict[str, PodView], refusals: dict[str, str]) -> PipelineRunView:
    """Combine a run of the server with the state of its pods, and why others were refused, by step."""
    details = run.run_details.task_details if run.run_details and run.run_details.task_details else []
    own = [each for each in details if each.display_name not in (None, "root") and "driver" not in each.display_name]
    steps = []
    for each in sorted(own, key=lambda task: (task.create_time is None, task.create_time or 0)):
        pod = pods.get(each.display_name, PodView())
        problem = refusals.get(each.display_name) or pod.problem
        state = each.state or "PENDING"
        steps.append(
            StepView(
                each.display_name,
                state,
                _duration(each.start_time, each.end_time),
                each.error.message if each.error and each.error.message else "",
                pod.progress if state == "RUNNING" else "",
                problem if state not in ("SUCCEEDED", "SKIPPED") else "",
            )
        )
    known = {each.name for each in steps}  # the server learns late of a step without any pod
    steps += [StepView(name, "PENDING", None, problem=text) for name, text in refusals.items() if name not in known]
    error = run.error.message if run.error and run.error.message else ""
    return PipelineRunView(run.run_id, run.display_name or run.run_id, run.state or "PENDING", tuple(steps), error)


def _duration(start: datetime | None, end: datetime | None) -> float | None:
    if start is None or start.year < 1971:
        return None
    stop = end if end is not None and end.year >= 1971 else datetime.now(start.tzinfo)
    return max(timedelta(0), stop - start).total_seconds()


def watch_run(
    get_run: Callable[[], Any],
    get_pods: Callable[[str], dict[str, PodView]],
    get_refusals: Callable[[str], dict[str, str]],
    warn: Callable[[str], None],
    *,
    every: float = _EVERY,
    timeout: float = _TIMEOUT,
) -> Iterator[PipelineRunView]:
    """Yield the state of a run again and again until it ends. A server that stops answering is asked again.

    `get_run` returns the run, `get_pods` the state of its pods by step, and `get_refusals` why the cluster refused to
    create pods of its steps. A warning is repeated only if it changes.

    Raises:
        UnavailableError: if the server does not answer the first request, or has not answered for `timeout` seconds.
        GumshoeError: if it rejects the request.
    """
    answered: float | None = None
    warned = dict[str, str]()

    def warn_of_change(what: str, message: str) -> None:
        if warned.get(what) != message:
            warned[what] = message
            warn(message)

    while True:
        try:
            run = get_run()
            answered = time.monotonic()
        except UnavailableError as error:
            if answered is None or time.monotonic() - answered > timeout:
                raise
            warn_of_change("server", f"{error.message_with_code}; asking again")
            time.sleep(every)
            continue
        pods = _ask_cluster(get_pods, run.run_id, "cannot list pods", warn_of_change)
        refusals = _ask_cluster(get_refusals, run.run_id, "cannot tell if pods are refused", warn_of_change)
        view = build_run_view(run, pods, refusals)
        yield view
        if view.state in OVER:
            return
        time.sleep(every)


def _ask_cluster(
    request: Callable[[str], dict[str, Answer]], run_id: str, failure: str, warn: Callable[[str, str], None]
) -> dict[str, Answer]:
    """Return the answer of the cluster. Without one, warn, because only details are missing then."""
    try:
        return request(run_id)
    except GumshoeError as error:
        warn(failure, f"{failure}: {error.message_with_code}")
        return {}
