"""Read the metrics of the agent servers of a deployment: through the Kubernetes API, from an address, or Prometheus."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import httpx

from gumshoe.cluster.canary_measures import FEEDBACK_NAMES, NAMES, PREFIX, Sample, ServerMetrics, is_starting
from gumshoe.cluster.kubernetes_api import Cluster, ClusterError, ClusterUnavailableError, shorten
from gumshoe.cluster.readiness import find_selector
from gumshoe.cluster.releases import StoredRelease
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.network import explain_untrusted

if TYPE_CHECKING:
    from kubernetes.client import V1Pod

TOKEN_VARIABLE = "GUMSHOE_METRICS_TOKEN"  # noqa: S105 - a name
"""Environment variable with the bearer token for the addresses of `--metrics`."""
_SECONDS = 20.0  # timeout of a request
_PORT = 8001  # of the metrics in the chart
_MOST_BYTES = 16 * 2**20
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_DATA, _CLOSE = b"\0", 8  # channel of data, and the opcode of a message that closes
_NOT_PUBLISHED = "check that the agent server runs, or name a Prometheus server with --metrics"

_NOT_ALLOWED = "in a pipeline, the NetworkPolicy gumshoe-steps must allow the port of its pods"


class MetricsUnreachableError(UnavailableError):
    """Report that the metrics of a deployment cannot be read now."""


class ServersStartingError(MetricsUnreachableError):
    """Report that all agent servers are still starting, so that they have not measured anything."""


class MetricsSource(Protocol):
    """A place to read the metrics of a deployment's agent servers."""

    def read(self, stored: StoredRelease) -> list[ServerMetrics]:
        """Return the metrics of each agent server of a release, without those that are still starting.

        Raises:
            ServersStartingError: if all are.
            MetricsUnreachableError: if none can be read now.
            UsageError: if the source does not have them.
            ClusterError: if the cluster rejects the request.
        """
        ...


@dataclass(frozen=True, slots=True)
class PodMetrics:
    """Read the metrics of the pods themselves, with port forwarding as `kubectl port-forward` does it.

    It ends in the pod, so that no NetworkPolicy and no sidecar is in its way. It needs the permission to `get` (or
    `create`, with newer versions of Kubernetes) `pods/portforward`.
    """

    cluster: Cluster

    def read(self, stored: StoredRelease) -> list[ServerMetrics]:
        """Return the metrics of each ready pod that answers. See `MetricsSource`."""
        labels = ",".join(f"{name}={value}" for name, value in find_selector(stored, "agent").items())
        pods = self.cluster.call(self.cluster.core.list_namespaced_pod, self.cluster.namespace, label_selector=labels)
        found: dict[str, list[Sample]] = {}
        problems = []
        for pod in pods.items:
            if not _is_ready(pod):
                continue
            try:
                text = self._read_pod(pod.metadata.name, _find_port(pod))
            except MetricsUnreachableError as problem:
                problems.append(problem.message)
                continue
            found[f"pod {pod.metadata.name}"] = list(parse_text(text))
        if not found:
            why = problems[0] if problems else f"no pod of the agent server is ready; {_NOT_PUBLISHED}"
            raise MetricsUnreachableError("deploy.metrics-unreachable", why)
        return _measure(found)

    def _read_pod(self, name: str, port: int) -> str:
        """Request the metrics over a WebSocket. Each message begins with a channel: 0 for data, 1 for errors.

        The first message on each is the number of the port.
        """
        path, what = (
            f"/api/v1/namespaces/{self.cluster.namespace}/pods/{name}/portforward",
            f"port {port} of pod {name}",
        )
        try:
            with self.cluster.open_websocket(path, {"ports": str(port)}) as connection:
                connection.send_binary(_DATA + b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
                received, greeted = bytearray(), set[bytes]()
                while not _is_complete(received):
                    opcode, message = connection.recv_data()
                    channel, content = message[:1], message[1:]
                    if opcode == _CLOSE or len(received) > _MOST_BYTES:
                        break
                    if channel in greeted and channel != _DATA:
                        raise _unreachable(what, shorten(content.decode(errors="replace")))
                    if channel in greeted:
                        received += content
                    greeted.add(channel)
        except ClusterError as error:
            raise ClusterError(
                error.code,
                f"{error.message}: create and get of pods/portforward, e.g. with the Role gumshoe-operate of Gumshoe's "
                "manifests; or name a Prometheus server with --metrics",
                error.status,
            ) from None
        except ClusterUnavailableError as error:  # the pod may be gone
            raise _unreachable(what, error.message) from None
        head, _, body = received.partition(b"\r\n\r\n")
        if head.split()[1:2] != [b"200"]:
            raise _unreachable(what, f"the answer is {shorten(head[:40].decode(errors='replace')) or 'empty'}")
        return body.decode(errors="replace")


def _is_complete(answer: bytearray) -> bool:
    """Return True if an answer has as many bytes as it says; without that, it ends with the connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return bool(length and len(body) >= int(length[1]))


def _is_ready(pod: "V1Pod") -> bool:
    conditions = {each.type: each.status for each in pod.status.conditions or []}
    return not pod.metadata.deletion_timestamp and conditions.get("Ready") == "True"


def _find_port(pod: "V1Pod") -> int:
    ports = (port for each in pod.spec.containers for port in each.ports or [])
    return next((port.container_port for port in ports if port.name == "metrics"), _PORT)


@dataclass(frozen=True, slots=True)
class AddressMetrics:
    """Read the metrics of one agent server from its address, which ends with /metrics."""

    url: str

    def read(self, stored: StoredRelease) -> list[ServerMetrics]:  # noqa: ARG002 - the address says whose they are
        """Return its metrics. See `MetricsSource`."""
        return _measure({self.url: list(parse_text(_get(self.url, {}).decode(errors="replace")))})


@dataclass(frozen=True, slots=True)
class PrometheusMetrics:
    """Read the metrics from a Prometheus server, which must have those of the chart's ServiceMonitor."""

    url: str

    def read(self, stored: StoredRelease) -> list[ServerMetrics]:
        """Return the newest metrics of each server that Prometheus scrapes. See `MetricsSource`."""
        service, namespace = stored.find_name("Service", "-agent"), stored.release.namespace
        names = "|".join(f"{PREFIX}{each}" for each in (*NAMES, *FEEDBACK_NAMES))
        query = f'{{__name__=~"{names}",namespace="{namespace}",service="{service}"}}'
        answer = _get(f"{self.url.rstrip('/')}/api/v1/query", {"query": query})
        servers: dict[str, list[Sample]] = defaultdict(list)
        try:
            for each in json.loads(answer)["data"]["result"]:
                labels = {str(name): str(value) for name, value in each["metric"].items()}
                server = labels.get("pod") or labels["instance"]
                servers[server].append(Sample(labels["__name__"], labels, float(each["value"][1])))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise UsageError(
                "deploy.not-prometheus",
                f"{self.url} does not answer as Prometheus does; give its address, e.g. http://prometheus:9090, or one "
                "that ends with /metrics for an agent server",
            ) from None
        if not servers:
            raise MetricsUnreachableError(
                "deploy.metrics-unreachable",
                f"{self.url} has no metrics of service {service} in namespace {namespace}; set monitoring.enabled in "
                "the chart, and check that Prometheus scrapes it",
            )
        return _measure({f"pod {name}": samples for name, samples in sorted(servers.items())})


@dataclass(frozen=True, slots=True)
class SeveralSources:
    """Read the metrics of several sources. A server that two of them have is counted once."""

    sources: tuple[MetricsSource, ...]

    def read(self, stored: StoredRelease) -> list[ServerMetrics]:
        """Return the metrics of all sources. See `MetricsSource`."""
        found: list[ServerMetrics] = []
        starting: ServersStartingError | None = None
        for each in self.sources:
            try:
                found += each.read(stored)
            except ServersStartingError as error:
                starting = error
        if starting is not None and not found:
            raise starting
        return found


def _measure(servers: Mapping[str, Sequence[Sample]]) -> list[ServerMetrics]:
    """Return the metrics of servers by name, without those that are still starting.

    Raises:
        ServersStartingError: if all are.
        UsageError: if they are not those of an agent server that measures its policies.
    """
    ready = {name: samples for name, samples in servers.items() if not is_starting(samples)}
    if not ready:
        raise ServersStartingError(
            "deploy.metrics-unreachable",
            f"{', '.join(servers)} does not have the metric {PREFIX}{NAMES[1]} yet; wait until the agent server has "
            "started, or update it to this version of Gumshoe",
        )
    return [ServerMetrics.of(name, samples) for name, samples in ready.items()]


def open_source(urls: list[str], cluster: Cluster) -> MetricsSource:
    """Return where to read metrics: the addresses, or without one the pods.

    Raises:
        UsageError: if an address is not one.
    """
    if not urls:
        return PodMetrics(cluster)
    made: list[MetricsSource] = []
    for url in urls:
        path = check_metrics_url(url).path.rstrip("/")
        made.append(AddressMetrics(url) if path.endswith("/metrics") else PrometheusMetrics(url))
    return made[0] if len(made) == 1 else SeveralSources(tuple(made))


def check_metrics_url(url: str) -> httpx.URL:
    """Parse the address of metrics.

    Raises:
        UsageError: if it is not one.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UsageError(
            "deploy.invalid-metrics-url",
            f"metrics must be an address, got {url!r}; write e.g. http://prometheus:9090, or "
            "http://mail-agent:8001/metrics",
        )
    return parsed


def parse_text(text: str) -> Iterator[Sample]:
    """Yield the samples of metrics in Prometheus' text format.

    Raises:
        UsageError: if the text is something else.
    """
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(text):
            for each in family.samples:
                yield Sample(each.name, each.labels, each.value)
    except (ValueError, KeyError, IndexError):
        raise UsageError(
            "deploy.measures-missing",
            "the answer is not in the text format of Prometheus; check that --metrics is the address of an agent "
            "server's metrics",
        ) from None


def _get(url: str, query: dict[str, str]) -> bytes:
    """Return the body of an address.

    Raises:
        MetricsUnreachableError: if it does not answer with a success.
        UsageError: if it does not accept the credentials.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        response = httpx.get(url, params=query or None, headers=headers, timeout=_SECONDS, follow_redirects=True)
    except httpx.HTTPError as error:
        why = explain_untrusted(error, url) or shorten(error) or type(error).__name__
        raise _unreachable(url, why, f"{_NOT_PUBLISHED}; {_NOT_ALLOWED}") from None
    if response.status_code in (401, 403):
        raise UsageError(
            "deploy.metrics-denied",
            f"{url} does not accept the credentials: status {response.status_code}; set {TOKEN_VARIABLE}",
        )
    if not response.is_success:
        raise _unreachable(url, f"status {response.status_code}")
    return response.content


def _unreachable(what: str, why: str, remedy: str = _NOT_PUBLISHED) -> MetricsUnreachableError:
    return MetricsUnreachableError("deploy.metrics-unreachable", f"cannot read the metrics of {what}: {why}; {remedy}")
