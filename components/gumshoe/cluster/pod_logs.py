"""The logs of a deployment's pods, together."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, ClusterUnavailableError
from gumshoe.cluster.readiness import selector_of
from gumshoe.cluster.releases import StoredRelease
from gumshoe.errors import UsageError

_SECONDS = 20.0  # of a request
_QUIET = 3600.0  # seconds without a line until a log that is followed is taken for gone
_CONTAINERS = ("agent", "kserve-container", "main")  # that serve, beside those that only begin


def lines_of(
    kept: StoredRelease, cluster: Cluster, part: str, *, tail: int, follow: bool, previous: bool
) -> Iterator[tuple[str, str]]:
    """Pod and line; with `follow` as they come, of all pods together, until nothing comes any longer.

    `part` is `agent` or `model`.

    Raises:
        UsageError: the deployment has no such pods.
        ClusterError, ClusterUnavailableError: the cluster refuses, or does not answer.
    """
    labels = selector_of(kept, part)
    if not labels:
        raise UsageError(
            "deploy.external-model-server",
            f"{kept.release.name} uses vLLM servers that the chart does not run; read their logs where they run",
        )
    wanted = ",".join(f"{name}={value}" for name, value in labels.items())
    pods = cluster.ask(cluster.core.list_namespaced_pod, cluster.namespace, label_selector=wanted).items
    if not pods:
        raise UsageError(
            "deploy.no-pods",
            f"{kept.release.name} has no {part} pods yet; see `gumshoe deployments show {kept.release.name}`",
        )
    options = {"tail_lines": tail, "previous": previous}
    if not follow:
        for pod in pods:
            for line in _opened(cluster, pod, options, _SECONDS):
                yield pod.metadata.name, line
        return
    yield from _together(cluster, pods, {**options, "follow": True})


def _opened(cluster: Cluster, pod: Any, options: dict[str, Any], quiet: float) -> Iterator[str]:
    """The lines of a pod's log; an error in place of them, where it has none."""
    names = [each.name for each in pod.spec.containers]
    begun = [each.name for each in pod.status.init_container_statuses or [] if not _is_done(each.state)]
    container = next(iter(begun), next((each for each in _CONTAINERS if each in names), names[0]))
    try:
        with cluster.explained(f"a log of {pod.metadata.name}"):
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
    """Whether a container that only begins a pod ended well."""
    return bool(state and state.terminated and state.terminated.exit_code == 0)


def _together(cluster: Cluster, pods: list[Any], options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    lines: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()

    def read(pod: Any) -> None:
        for line in _opened(cluster, pod, options, _QUIET):
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
