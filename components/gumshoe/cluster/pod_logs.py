"""Print the logs of all pods of a deployment together."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, ClusterUnavailableError
from gumshoe.cluster.readiness import find_selector
from gumshoe.cluster.releases import StoredRelease
from gumshoe.errors import UsageError

_SECONDS = 20.0  # timeout of a request
_QUIET = 3600.0  # seconds without a line before a followed log counts as ended
_CONTAINERS = ("agent", "kserve-container", "main")  # main containers, in contrast to init containers


def stream_logs(
    stored: StoredRelease, cluster: Cluster, part: str, *, tail: int, follow: bool, previous: bool
) -> Iterator[tuple[str, str]]:
    """Yield the pod name and each log line. With `follow`, lines of all pods arrive interleaved until all logs end.

    `part` is `agent` or `model`.

    Raises:
        UsageError: if the deployment has no such pods.
        ClusterError: if the cluster rejects the request.
        ClusterUnavailableError: if the cluster does not answer.
    """
    labels = find_selector(stored, part)
    if not labels:
        raise UsageError(
            "deploy.external-model-server",
            f"{stored.release.name} uses vLLM servers that the chart does not run; read their logs where they run",
        )
    wanted = ",".join(f"{name}={value}" for name, value in labels.items())
    pods = cluster.call(cluster.core.list_namespaced_pod, cluster.namespace, label_selector=wanted).items
    if not pods:
        raise UsageError(
            "deploy.no-pods",
            f"{stored.release.name} has no {part} pods yet; see `gumshoe deployments show {stored.release.name}`",
        )
    options = {"tail_lines": tail, "previous": previous}
    if not follow:
        for pod in pods:
            for line in _stream_pod_log(cluster, pod, options, _SECONDS):
                yield pod.metadata.name, line
        return
    yield from _merge_logs(cluster, pods, {**options, "follow": True})


def _stream_pod_log(cluster: Cluster, pod: Any, options: dict[str, Any], quiet: float) -> Iterator[str]:
    """Yield the lines of a pod's log, or an error message if it has no log."""
    names = [each.name for each in pod.spec.containers]
    sidecars = [each.name for each in pod.spec.init_containers or [] if each.restart_policy == "Always"]
    pending = [
        each.name
        for each in pod.status.init_container_statuses or []
        if each.name not in sidecars and not _is_done(each.state)
    ]
    container = next(iter(pending), next((each for each in _CONTAINERS if each in names), names[0]))
    try:
        with cluster.translate_errors(f"a log of {pod.metadata.name}"):
            answer = cluster.core.read_namespaced_pod_log(
                pod.metadata.name,
                cluster.namespace,
                container=container,
                _preload_content=False,
                _request_timeout=(_SECONDS, quiet),
                **options,
            )
            rest = b""
            for block in answer.stream():
                *whole, rest = (rest + block).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)
            if rest:
                yield rest.decode(errors="replace")
    except (ClusterError, ClusterUnavailableError) as error:
        yield f"({error.message_with_code})"


def _is_done(state: Any) -> bool:
    """Return True if an init container succeeded."""
    return bool(state and state.terminated and state.terminated.exit_code == 0)


def _merge_logs(cluster: Cluster, pods: list[Any], options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    lines: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()

    def read(pod: Any) -> None:
        for line in _stream_pod_log(cluster, pod, options, _QUIET):
            lines.put((pod.metadata.name, line))
        lines.put((pod.metadata.name, None))

    for pod in pods:
        threading.Thread(target=read, args=(pod,), daemon=True).start()
    left = len(pods)
    while left:
        name, line = lines.get()
        if line is None:
            left -= 1
        else:
            yield name, line
